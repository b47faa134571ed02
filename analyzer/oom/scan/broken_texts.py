"""Joins an error text that was broken over several lines, as in a page or a mail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from analyzer.oom.scan.lines import LogMessage
from analyzer.oom.scan.patterns import find

_MOST_LINES: Final = 4  # of one text


def join_texts(messages: Iterable[LogMessage]) -> Iterator[LogMessage]:
    """Yield the messages; an incomplete text and the lines that complete it become one.

    If the next lines do not complete it, all are yielded unchanged.
    """
    held: list[LogMessage] = []
    for message in messages:
        if held:
            if _continues(held[0], message):
                whole = _join([*held, message])
                if find("whole_text", whole.text):
                    yield whole
                    held = []
                    continue
                if len(held) < _MOST_LINES:
                    held.append(message)
                    continue
            yield from _release(held)
            held = []
        if find("text_start", message.text) and not find("whole_text", message.text):
            held = [message]
        else:
            yield message
    yield from _release(held)


def _continues(first: LogMessage, message: LogMessage) -> bool:
    """Return whether a line may continue the text that starts with ``first``."""
    is_same = not message.file and message.tag == first.tag and bool(message.text.strip())
    return is_same and not find("other_text", message.text)


def _release(held: list[LogMessage]) -> Iterator[LogMessage]:
    """Yield an incomplete text: the lines up to a complete shape as one, else each line alone."""
    for count in range(2, len(held) + 1):
        whole = _join(held[:count])
        if find("text_with_shape", whole.text):
            if find("text_with_shape", held[0].text):
                break
            yield whole
            yield from held[count:]
            return
    yield from held


def _join(held: list[LogMessage]) -> LogMessage:
    text = " ".join([held[0].text, *(each.text.strip() for each in held[1:])])
    return replace(held[0], text=text)
