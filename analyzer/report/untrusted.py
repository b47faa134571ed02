"""Names and messages of a trace or a model, made harmless for each form of output.

They are written by others: a name may hold what a terminal obeys, what Markdown or Rich takes for
markup, what a spreadsheet runs as a formula. The page escapes by its template engine; everything else
goes through here.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

NO_BREAK_SPACE: Final = "\u00a0"
UNIT: Final = re.compile(r"(?<=\d) (?=(?:B|[KMGT]iB|bytes|[mµn]?s|%|[x\u00d7])(?![A-Za-z]))")
"""The space between a number and its unit, at which no line may end; ``format.js`` has the same."""

_LONGEST: Final = 20_000  # characters of a text from a file

_FORMULA_STARTS: Final = frozenset("=+-@")
_CELL_ENDS: Final = re.compile("[\n\r\t\v\f\x85\u2028\u2029;]")
"""Where a reader of CSV may begin a cell of its own, whatever the quotes say: a line, a tab, and the
semicolon that separates cells where the comma is a decimal point."""

_MARKDOWN_MARKS: Final = re.compile(r"([\\`*_\[\]|~])")
_MARKDOWN_LINKS: Final = re.compile(r"(@|#(?=\d)|://|\bwww\.)")
"""What GitHub links without markup: people, issues, addresses."""

_JOINT: Final = "\u2060"
"""A character without width, at which no word is parted."""


def is_obeyed(character: str) -> bool:
    """Say whether a reader may act on the character: a control, a change of direction, a line's end."""
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")


def plain_text(text: object) -> str:
    """Return ``text`` with the code of every character that is obeyed instead of shown."""
    return "".join(
        f"\\u{ord(character):04x}" if is_obeyed(character) else character
        for character in str(text)[:_LONGEST]
    )


def printable(text: object, width: int = 80) -> str:
    """Return ``text`` safe for a terminal: no control characters, cut in the middle to ``width``."""
    shown = plain_text(text)
    if len(shown) <= width:
        return shown
    head = width // 2 - 1
    return f"{shown[:head]}…{shown[-(width - head - 1) :]}"


def printable_path(text: object, width: int) -> str:
    """Return ``text`` safe for a terminal; a path in it that is too long loses its first parts.

    ``kept for gradient_tape/model/conv/ReluGrad`` in 25 columns is ``kept for …/conv/ReluGrad``.
    """
    shown = printable(text, _LONGEST)
    first = shown.find("/")
    start = shown.rfind(" ", 0, first) + 1
    at = first
    while len(shown) > width and at >= 0:
        cut = f"{shown[:start]}…{shown[at:]}"
        if len(cut) <= width:
            return cut
        at = shown.find("/", at + 1)
    return printable(shown, width)


def unbroken(text: object) -> str:
    """Return ``text`` with a no-break space between each number and its unit."""
    return UNIT.sub(NO_BREAK_SPACE, str(text))


def markdown_text(text: object) -> str:
    """Return ``text`` as one line of Markdown in which nothing is markup, a link or a mention."""
    line = plain_text(" ".join(str(text).split()))
    line = line if len(line) <= 300 else f"{line[:300]}…"
    line = _MARKDOWN_MARKS.sub(r"\\\1", line)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN_LINKS.sub(rf"\1{_JOINT}", line)


def markdown_code(text: object) -> str:
    """Return ``text`` as a code span in a cell of a table."""
    line = plain_text(" ".join(str(text).split()))[:200]
    return "`{}`".format(line.replace("`", "'").replace("|", "\\|"))


def csv_cell(value: object) -> object:
    """Return a cell: text that a spreadsheet would run as a formula is preceded by an apostrophe.

    Whatever a spreadsheet strips before it looks is stripped here: blanks, controls, and the forms in
    which a character may be written (a fullwidth ``=`` is a ``=``). A zero, which most readers of such a
    file refuse, and Python 3.10 does not write, is replaced.
    """
    if not isinstance(value, str):
        return "" if value is None or str(value) == "<NA>" else value
    value = value.replace("\0", "\ufffd")
    parts = _CELL_ENDS.split(value)
    # A tab or a return at the very start is stripped with what stands before it.
    is_formula = (len(parts) > 1 and not parts[0]) or any(map(_is_formula, parts))
    return f"'{value}" if is_formula else value


def _is_formula(text: str) -> bool:
    for character in text:
        if not is_obeyed(character) and not character.isspace():
            return unicodedata.normalize("NFKC", character)[:1] in _FORMULA_STARTS
    return False
