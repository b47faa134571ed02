"""The text of an out-of-memory error, matched to the allocator's line of the same request.

One request that fails is told many times: by the allocator, by the op's kernel, by the rendezvous,
by each of "N root error(s)", by Python's exception and those it caused. The bytes that a shape and
a type make tie them together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Final

from analyzer.oom.amounts import amount, exactly, rounded_up
from analyzer.oom.log_records import Heard, Mishap, MishapKind, PeakBuffer, Wanted, XlaBuffers
from analyzer.oom.scan import wordings
from analyzer.oom.scan.lines import Message
from analyzer.oom.scan.process import LogProcess
from analyzer.oom.typesizes import ITEM_SIZES, item_bytes

Add = Callable[[Mishap], Mishap]

_RECENT: Final = 64  # failures that a later line may still belong to
_MOST_ROWS: Final = 2_000  # of a table of uses
_HOST_ALLOCATORS: Final = frozenset({"cpu", "Cpu", "mklcpu", "mkl_cpu", "CPU"})
_TRIES: Final = 6  # lines after one on cuDNN's algorithms in which its kernel is looked for


def take_error_text(heard: Heard, process: LogProcess, message: Message, add: Add) -> bool:
    """Take a line of an error's text; False where it is none.

    Args:
        heard: What the log has said so far; changed.
        process: The process that the line is of; changed.
        message: The line.
        add: Adds a mishap, and returns the one that it belongs to.
    """
    text = message.text
    process.has_no_algorithm = max(process.has_no_algorithm - 1, 0)
    if wordings.NO_ALGORITHM.search(text):
        process.has_no_algorithm = _TRIES
        kernel = wordings.KERNEL.search(text)
        process.is_kernel_told, process.kernel = kernel is not None, kernel[1] if kernel else ""
    if _takes_autotuning(heard, process, text):
        return True
    mishap = _failure_told(heard, process, message, add)
    if mishap is not None:
        _fill(mishap, process, message)
        process.error = mishap
        return True
    return _takes_what_follows(heard, process, text)


def possible_bytes(shape: tuple[int, ...], dtype: str) -> Iterator[int]:
    """Yield the byte counts of a tensor: one where its type is known, else those of each item size."""
    elements = math.prod(shape)
    known = item_bytes(dtype)
    if known is not None:
        yield math.ceil(elements * known)
    elif not dtype:
        for size in ITEM_SIZES:
            yield elements * size


def _failure_told(heard: Heard, process: LogProcess, message: Message, add: Add) -> Mishap | None:
    """Return the failure that the line tells; None where it tells none."""
    text = wordings.OLD_SHAPE.sub(_bracketed, message.text)
    match = wordings.NO_ROOM_FOR_TENSOR.search(text)
    if match is not None:
        axes = [int(axis) for axis in match[2].replace(" ", "").split(",") if axis]
        wanted = Wanted(shape=tuple(axes), dtype=match[3] or "", is_temporary=bool(match[1]))
        device, allocator = match[4] or "", (match[5] or "").rstrip(".,;")
        return _of_tensor(heard, process, message, add, wanted, device, allocator)
    match = wordings.NO_ROOM_FOR_MODULE.search(text)
    if match is not None:
        size = exactly(int(match[2])) if match[2] else amount(match[1])
        return _of_module(heard, process, message, add, Wanted(size=size))
    match = wordings.NO_HBM.search(text) or wordings.NO_HBM_LEFT.search(text)
    if match is not None:
        return _of_tpu(heard, process, message, add, match)
    if "xhausted" in text or "EXHAUSTED" in text:
        if wordings.NO_MEMORY_MEANT.search(text):
            heard.no_memory_words += 1
            return None
        if not wordings.NO_ROOM.search(text):
            return None
    elif "failed to allocate memory" not in text and not (
        wordings.NO_SCRATCH.search(text) or wordings.NOT_COPIED.search(text)
    ):
        return None
    return _without_size(heard, process, message, add)


def _bracketed(match: re.Match[str]) -> str:
    """Return a shape that is written as a message of Protocol Buffers (0.5 to 0.8) as today's."""
    return f"shape[{','.join(wordings.OLD_AXIS.findall(match[0]))}]"


def _of_tensor(
    heard: Heard,
    process: LogProcess,
    message: Message,
    add: Add,
    wanted: Wanted,
    device: str,
    allocator: str,
) -> Mishap:
    again: Mishap | None = None
    for mishap in _recent(heard, process):
        if allocator and mishap.allocator not in ("", allocator):
            continue
        if mishap.wanted.shape is None and not mishap.has_text and _may_be(mishap, wanted):
            again = mishap
            break
        is_same = mishap.wanted.shape == wanted.shape and mishap.wanted.dtype in ("", wanted.dtype)
        if again is None and is_same and mishap.device in ("", device):
            again = mishap
    if again is None:
        is_host = allocator in _HOST_ALLOCATORS
        kind = MishapKind.HOST if is_host else MishapKind.POOL
        again = add(Mishap(kind, message.number, tag=process.tag, words=message.text, told=0))
        again.refused, process.refusals = process.refusals, []
    if again.wanted.shape is None:
        again.wanted.shape, again.wanted.dtype = wanted.shape, wanted.dtype
        again.wanted.is_temporary = wanted.is_temporary
    again.wanted.dtype = again.wanted.dtype or wanted.dtype
    again.device = again.device or device.rstrip(".,;")
    again.allocator = again.allocator or allocator
    return again


def _may_be(mishap: Mishap, wanted: Wanted) -> bool:
    """Say whether the allocator's line may be of a tensor of this shape and type."""
    if mishap.kind is MishapKind.LIBRARY or mishap.is_compiled:
        return False
    told = mishap.wanted
    if told.size is None and told.rounded_bytes is None:
        return mishap.kind in (MishapKind.POOL, MishapKind.UNKNOWN)
    assert wanted.shape is not None
    for size_bytes in possible_bytes(wanted.shape, wanted.dtype):
        if told.rounded_bytes is not None:
            if told.rounded_bytes == rounded_up(size_bytes):
                return True
        elif told.size is not None and told.size.holds(size_bytes):
            return True
    return False


def _of_module(
    heard: Heard, process: LogProcess, message: Message, add: Add, wanted: Wanted
) -> Mishap:
    size = wanted.size
    for mishap in _recent(heard, process):
        told = mishap.wanted
        if told.size is None or size is None or told.shape is not None:
            continue
        rounded = told.rounded_bytes
        is_same = told.size.within(size) is not None or rounded == rounded_up(size.middle)
        if is_same and not (mishap.has_text and process.is_kernel_told):
            if size.is_exact:
                told.size = size
            mishap.is_compiled = not process.has_no_algorithm
            process.is_kernel_told = False
            return mishap
    mishap = add(
        Mishap(MishapKind.POOL, message.number, tag=process.tag, words=message.text, told=0)
    )
    mishap.kernel = process.kernel
    mishap.wanted, mishap.is_compiled = wanted, not process.has_no_algorithm
    mishap.refused, process.refusals = process.refusals, []
    if process.has_no_algorithm:
        for each in reversed(heard.survived):
            if size is not None and each.largest.high >= size.low:
                mishap.allocator = each.allocator
                break
    process.is_kernel_told = False
    return mishap


def _of_tpu(
    heard: Heard, process: LogProcess, message: Message, add: Add, match: re.Match[str]
) -> Mishap:
    """Take a TPU's error: a program larger than its memory, or than what is free of it."""
    sizes = [amount(size) for size in match.groups()]
    mishap = _of_module(heard, process, message, add, Wanted(size=sizes[0]))
    if len(sizes) == 2:
        mishap.dump.limit = sizes[1]
    else:
        mishap.dump.free, mishap.dump.largest_free = sizes[1], sizes[3]
    mishap.device = mishap.device or "TPU"
    return mishap


def _takes_autotuning(heard: Heard, process: LogProcess, text: str) -> bool:
    """Take XLA's word that no way to compute an op could be tried, for want of memory or not.

    It belongs to requests of the allocator that failed before and led to no other error; where there are
    none it says nothing of memory.
    """
    match = wordings.AUTOTUNING.search(text)
    if match is None:
        return False
    kind = wordings.AUTOTUNED_TYPE.search(text)
    for mishap in _recent(heard, process):
        is_named = mishap.op == match[1]
        if not is_named and (mishap.has_text or mishap.requested_by):
            continue
        mishap.told += is_named
        mishap.op, mishap.op_type = match[1], kind[1] if kind else ""
        mishap.has_text = mishap.is_compiled = True
    return True


def _without_size(heard: Heard, process: LogProcess, message: Message, add: Add) -> Mishap:
    for mishap in _recent(heard, process):
        if mishap.kind in (MishapKind.HOST, MishapKind.LIBRARY):
            continue
        if not mishap.has_text or mishap.wanted.shape is None:
            return mishap
        if mishap.words == message.text:
            return mishap
        break
    kind = MishapKind.UNKNOWN
    mishap = add(Mishap(kind, message.number, tag=process.tag, words=message.text, told=0))
    mishap.refused, process.refusals = process.refusals, []
    return mishap


def _recent(heard: Heard, process: LogProcess) -> Iterator[Mishap]:
    """Yield the process' last failures, the latest first; a bare line may be of any process."""
    for mishap in reversed(heard.mishaps[-_RECENT:]):
        if not process.tag or mishap.tag == process.tag:
            yield mishap


def _fill(mishap: Mishap, process: LogProcess, message: Message) -> None:
    """Take from the line what the failure lacks."""
    text = message.text
    mishap.has_text = True
    mishap.told += 1
    kernel = wordings.KERNEL.search(text)
    if kernel is not None:
        mishap.kernel = mishap.kernel or kernel[1]
    copied = wordings.NOT_COPIED.search(text)
    if copied is not None and copied[1]:
        mishap.device = mishap.device or copied[1]
    wrapped = wordings.WRAPPED_OP.search(text)
    if wrapped is not None:
        mishap.op_type = mishap.op_type or wrapped[1].strip("_")
        mishap.device = mishap.device or wrapped[2]
    _take_names(mishap, text)
    if process.node and not mishap.op and _agrees(mishap, process.node):
        mishap.op = process.node
    if not message.file and process.frame and not mishap.where:
        mishap.where = process.frame
    process.node = ""


def _takes_what_follows(heard: Heard, process: LogProcess, text: str) -> bool:
    """Take what stands around an error's text: nodes, frames, lists."""
    detected = wordings.DETECTED_AT.search(text) or wordings.NODE_LINE.search(text)
    if detected is not None:
        process.node = detected[1]
        return True
    if process.note_frame(text):
        return True
    if "Traceback (most recent call last)" in text:
        process.frame = ""
        return True
    mishap = process.error
    if mishap is None:
        return False
    caused = wordings.CAUSED_BY.search(text)
    if caused is not None:
        mishap.op = mishap.op or caused[1]
        return True
    if wordings.XLA_HEAD.search(text):
        process.is_in_buffers = mishap.xla is None
        mishap.xla = mishap.xla or XlaBuffers()
        mishap.is_compiled = True
        return True
    if process.is_in_buffers and mishap.xla is not None and _takes_buffer(mishap.xla, text):
        return True
    usage = wordings.USAGE_HEAD.search(text)
    if usage is not None:
        process.is_in_usage = not mishap.usage
        return True
    if process.is_in_usage and len(mishap.usage) < _MOST_ROWS:
        row = wordings.USAGE.match(text)
        size = amount(row[1]) if row is not None else None
        if row is not None and size is not None:
            mishap.usage.append((row[2], size))
            return True
    node = wordings.NODE.search(text)
    if node is not None and not _agrees(mishap, node[1] or node[3] or node[5]):
        other = _meant(heard, process, mishap, node[1] or node[3] or node[5])
        if other is None:
            return True
        mishap.told, other.told = mishap.told - 1, other.told + 1
        mishap = process.error = other
    return _take_names(mishap, text)


def _agrees(mishap: Mishap, node: str) -> bool:
    """Say whether a node may be the op that the allocator's line names, with its call in front."""
    named = mishap.requested_by
    return not named or named == node or named.endswith(f"/{node}")


def _meant(heard: Heard, process: LogProcess, like: Mishap, node: str) -> Mishap | None:
    """Return the failure of another op that wanted a tensor of the same shape."""
    for mishap in _recent(heard, process):
        if (
            mishap.wanted.shape == like.wanted.shape
            and mishap.requested_by
            and _agrees(mishap, node)
        ):
            return mishap
    return None


def _take_names(mishap: Mishap, text: str) -> bool:
    """Take the op that a text names in brackets; the first is the one that failed."""
    node = wordings.NODE.search(text)
    if node is not None:
        name = node[1] or node[3] or node[5]
        if not mishap.op:
            mishap.op = name
        if mishap.op == name:
            own = wordings.NODE_DTYPE.search(text)
            if own is not None and not mishap.wanted.node_dtype:
                mishap.wanted.node_dtype = own[1].lower()
            mishap.op_type = mishap.op_type or node[2] or node[4] or ""
            mishap.where = node[6] or mishap.where
    eager = wordings.EAGER_OP.search(text)
    if eager is not None and not eager[1].startswith("__") and not mishap.op_type:
        mishap.op_type = eager[1]
    return node is not None or eager is not None


def _takes_buffer(xla: XlaBuffers, text: str) -> bool:
    stats = wordings.XLA_STAT.search(text)
    if stats is not None:
        size = amount(stats[2] or stats[4])
        if size is not None:
            xla.stats.setdefault(stats[1] or stats[3], size)
        return True
    if wordings.XLA_BUFFER.match(text):
        if len(xla.buffers) < 64:
            xla.buffers.append(PeakBuffer(exactly(0)))
        return True
    field = wordings.XLA_FIELD.search(text)
    if field is None or not xla.buffers:
        return False
    name, value = field[1], field[2].strip()
    buffer = xla.buffers[-1]
    if name == "Size":
        buffer.size = amount(value) or buffer.size
    elif name == "Operator":
        op = wordings.XLA_OP.search(value)
        buffer.operator = op[1] if op else value[:400]
    elif name == "XLA Label":
        buffer.label = value[:200]
    else:
        buffer.shape = value[:200]
        buffer.label = buffer.label or ("parameter" if "Parameter" in name else "")
    return True
