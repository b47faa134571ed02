"""Failures that no pool of TensorFlow tells: the libraries beside it, and the machine itself."""

from __future__ import annotations

import math
from collections.abc import Callable

from analyzer.oom.amounts import exactly
from analyzer.oom.log_records import Heard, Mishap, MishapKind, Wanted
from analyzer.oom.scan import wordings
from analyzer.oom.scan.lines import Message
from analyzer.oom.scan.process import LogProcess
from analyzer.oom.typesizes import item_bytes

Add = Callable[[Mishap], Mishap]


def take_beside(heard: Heard, process: LogProcess, message: Message, add: Add) -> bool:
    """Take a line of a library's or the machine's; False where it is none.

    Args:
        heard: What the log has said so far; changed.
        process: The process that the line is of; changed.
        message: The line.
        add: Adds a mishap, and returns the one that it belongs to.
    """
    text = message.text
    match = wordings.LARGE_HOST.search(text)
    if match is not None:
        times, largest = heard.large_host
        heard.large_host = (times + 1, max(largest, int(match[1])))
        return True
    match = wordings.LIBRARY.search(text)
    if match is not None:
        _one_more(heard, process, message, add, MishapKind.LIBRARY, match[1])
        return True
    return _takes_host(heard, process, message, add)


def _takes_host(heard: Heard, process: LogProcess, message: Message, add: Add) -> bool:
    text = message.text
    match = wordings.KILLED_BY_SYSTEM.search(text)
    if match is not None:
        mishap = _one_more(heard, process, message, add, MishapKind.HOST, text.strip())
        if match[5]:
            mishap.resident_bytes = int(match[5]) * 1024
        return True
    match = wordings.NUMPY.search(text)
    if match is not None:
        shape = tuple(int(axis) for axis in match[1].replace(" ", "").split(",") if axis)
        item = item_bytes(match[2])
        size = None if item is None else exactly(math.ceil(math.prod(shape) * item))
        mishap = _one_more(heard, process, message, add, MishapKind.HOST, text.strip())
        mishap.wanted = Wanted(size=size, shape=shape, dtype=match[2])
        mishap.where = mishap.where or process.frame
        return True
    if wordings.OOM_KILLED.search(text) or wordings.BAD_ALLOC.search(text):
        _one_more(heard, process, message, add, MishapKind.HOST, text.strip())
        return True
    if wordings.PYTHON.match(text):
        mishap = _one_more(heard, process, message, add, MishapKind.HOST, text.strip())
        mishap.where = mishap.where or process.frame
        return True
    if wordings.KILLED.search(text) and not heard.mishaps:
        _one_more(heard, process, message, add, MishapKind.HOST, text.strip())
        return True
    return False


def _one_more(
    heard: Heard, process: LogProcess, message: Message, add: Add, kind: MishapKind, words: str
) -> Mishap:
    """Return the failure of this kind that the log ends with, told once more, or a new one."""
    last = heard.mishaps[-1] if heard.mishaps else None
    if last is not None and last.kind is kind and last.tag == process.tag:
        last.told += 1
        return last
    mishap = Mishap(kind, message.number, tag=process.tag, words=words[:2000], has_text=True)
    mishap.refused, process.refusals = process.refusals, []
    return add(mishap)
