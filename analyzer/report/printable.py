"""Text of a trace made safe to show, and shortened without losing what tells names apart."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

NO_BREAK_SPACE: Final = "\u00a0"
UNIT: Final = re.compile(r"(?<=\d) (?=(?:B|[KMGT]iB|bytes|[mµn]?s|%|[x\u00d7])(?![A-Za-z]))")
"""The space between a number and its unit, where no line may end; ``format.js`` has the same."""


def unbroken(text: object) -> str:
    """Return ``text`` with a no-break space between each number and its unit."""
    return UNIT.sub(NO_BREAK_SPACE, str(text))


def printable(text: object, width: int = 80) -> str:
    """Return ``text`` safe for a terminal: no control characters, cut in the middle to ``width``."""
    shown = "".join(
        f"\\u{ord(character):04x}" if _is_obeyed(character) else character
        for character in str(text)[:20_000]
    )
    if len(shown) <= width:
        return shown
    head = width // 2 - 1
    return f"{shown[:head]}…{shown[-(width - head - 1) :]}"


def printable_path(text: object, width: int) -> str:
    """Return ``text`` safe for a terminal; a path in it that is too long loses its first parts.

    ``kept for gradient_tape/model/conv/ReluGrad`` in 25 columns is ``kept for …/conv/ReluGrad``.
    """
    shown = printable(text, 20_000)
    first = shown.find("/")
    start = shown.rfind(" ", 0, first) + 1
    at = first
    while len(shown) > width and at >= 0:
        cut = f"{shown[:start]}…{shown[at:]}"
        if len(cut) <= width:
            return cut
        at = shown.find("/", at + 1)
    return printable(shown, width)


def _is_obeyed(character: str) -> bool:
    """Say whether a terminal may act on the character: a control, or a separator of lines."""
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")
