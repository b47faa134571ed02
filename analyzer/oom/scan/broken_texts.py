"""An error's text that was broken over several lines, as in a page or a mail, made one again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from analyzer.oom.scan.lines import Message

_BEGINS: Final = ("OOM when", "Can't reduce memory use below", "ran out of memory trying to")
_IS_WHOLE: Final = re.compile(
    r"OOM when allocating .*(?:by allocator \w|shape ?\[[\d,\s]*\](?! ?(?:a|an|and)?$| ?and t))"
    r"|OOM when .*dim \{"
    r"|only reduced to [^(]*\(\d+ bytes\)"
    r"|trying to allocate \S+?B"
)
_HAS_SHAPE: Final = re.compile(r"OOM when .*(?:shape ?\[[\d,\s]*\]|(?:dim \{ size: \d+ \} ?)+)")
_OTHER: Final = re.compile(
    r"OOM when|ran out of memory|\[\["
    r"|^\s*(?:Hint:|Traceback|File \"|\(\d\) |Current |\d+ root|\S*Error\b)"
)
"""What stands in a line that does not go on with the text before it."""
_MOST: Final = 4  # lines of one text


def with_whole_texts(found: Iterable[Message]) -> Iterator[Message]:
    """Yield a log's messages; a text of which the next bare lines hold the rest comes in one.

    Where they do not complete it, all come as they were.

    Args:
        found: The messages, in order.
    """
    held: list[Message] = []
    for message in found:
        if held:
            whole = _joined([*held, message]) if _goes_on(held[0], message) else None
            if whole is not None and _IS_WHOLE.search(whole.text):
                yield whole
                held = []
                continue
            if whole is not None and len(held) < _MOST:
                held.append(message)
                continue
            yield from _ended(held)
            held = []
        if _is_begun(message.text):
            held = [message]
        else:
            yield message
    yield from _ended(held)


def _is_begun(text: str) -> bool:
    return any(begin in text for begin in _BEGINS) and not _IS_WHOLE.search(text)


def _goes_on(held: Message, message: Message) -> bool:
    """Say whether a line may be more of the text that is held."""
    is_own = not message.file and message.tag == held.tag and bool(message.text.strip())
    return is_own and not _OTHER.search(message.text)


def _ended(held: list[Message]) -> Iterator[Message]:
    """Yield what is held where nothing more came: up to a whole shape in one, else line by line."""
    for count in range(2, len(held) + 1):
        whole = _joined(held[:count])
        if _HAS_SHAPE.search(whole.text):
            if _HAS_SHAPE.search(held[0].text):
                break
            yield whole
            yield from held[count:]
            return
    yield from held


def _joined(held: list[Message]) -> Message:
    text = " ".join([held[0].text, *(each.text.strip() for each in held[1:])])
    return replace(held[0], text=text)
