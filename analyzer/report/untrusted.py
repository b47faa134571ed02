"""Escape names and messages of a trace or a model for each output.

They are untrusted: a name may contain terminal controls, Markdown or Rich markup, or a formula that a
spreadsheet runs. HTML pages escape by their template engine; all other outputs use these functions.
"""

import re
import unicodedata

NO_BREAK_SPACE = "\u00a0"

# The space between a number and its unit, at which no line may end; ``format.js`` has the same.
UNIT = re.compile(r"(?<=\d) (?=(?:B|[KMGT]iB|bytes|[mµn]?s|%|[x\u00d7])(?![A-Za-z]))")

_LONGEST = 20_000  # characters of a text from a file

_FORMULA_STARTS = frozenset("=+-@")

_MARKDOWN_MARKS = re.compile(r"([\\`*_\[\]|~])")

# GitHub turns these into links without markup: people, issues, addresses.
_MARKDOWN_LINKS = re.compile(r"(@|#(?=\d)|://|\bwww\.)")

_JOINT = "\u2060"  # a character without width that does not split a word


def is_control(character: str) -> bool:
    """Return whether a character is a control, a change of direction or a line end."""
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")


def plain_text(text: object) -> str:
    """Return ``text`` with control characters replaced by their codes."""
    return "".join(
        f"\\u{ord(character):04x}" if is_control(character) else character
        for character in str(text)[:_LONGEST]
    )


def printable(text: object, width: int = 80) -> str:
    """Return ``text`` for a terminal: without control characters, its middle cut to fit ``width``."""
    shown = plain_text(text)
    if len(shown) <= width:
        return shown

    head = width // 2 - 1

    return f"{shown[:head]}…{shown[-(width - head - 1) :]}"


def printable_path(text: object, width: int) -> str:
    """Return ``text`` for a terminal; a path that is too long loses its first parts.

    ``kept for gradient_tape/model/conv/ReluGrad`` in 25 columns is ``kept for …/conv/ReluGrad``.
    """
    shown = printable(text, _LONGEST)
    start = shown.rfind(" ", 0, shown.find("/")) + 1
    slashes = [at for at, letter in enumerate(shown) if letter == "/"]
    cuts = (shown, *(f"{shown[:start]}…{shown[at:]}" for at in slashes))

    if slashes and len(cuts[-1]) > width:
        return f"{shown[:start]}…{shown[start + 1 - width :]}"

    return next((cut for cut in cuts if len(cut) <= width), printable(shown, width))


def unbroken(text: object) -> str:
    """Return ``text`` with a no-break space between each number and its unit."""
    return UNIT.sub(NO_BREAK_SPACE, str(text))


def markdown_text(text: object) -> str:
    """Return ``text`` as one line of Markdown without markup, links or mentions."""
    line = plain_text(" ".join(str(text).split()))
    line = line if len(line) <= 300 else f"{line[:300]}…"
    line = _MARKDOWN_MARKS.sub(r"\\\1", line)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    return _MARKDOWN_LINKS.sub(rf"\1{_JOINT}", line)


def markdown_code(text: object) -> str:
    """Return ``text`` as a code span for a table cell."""
    line = plain_text(" ".join(str(text).split()))[:200]
    return "`{}`".format(line.replace("`", "'").replace("|", "\\|"))


def csv_cell(value: object) -> object:
    """Return a CSV cell, with an apostrophe before text that a spreadsheet would run as a formula.

    The check skips blanks and controls and normalizes characters (a fullwidth ``=`` is a ``=``), as
    spreadsheets do. U+0000 is replaced: most readers refuse it, and Python 3.10 does not write it.
    """
    if not isinstance(value, str):
        return "" if value is None or str(value) == "<NA>" else value

    value = value.replace("\0", "\ufffd")
    seen = (one for one in value if not (is_control(one) or one.isspace()))
    first = unicodedata.normalize("NFKC", next(seen, ""))

    if first[:1] in _FORMULA_STARTS:
        return f"'{value}"

    return value
