"""What logs print: the table of wordings, compiled, and the sizes and shapes in them.

Most printed sizes are rounded. A size is therefore a ``Range`` with every size that is printed so.
"""

import math
import re

from msgspec import Struct

from analyzer.model.contract.fields import MOST_AXES
from analyzer.model.contract.reading import read_table
from analyzer.model.units import GRANULE_BYTES, Range, round_up

# a number of any pattern; a longer one is damage
_NUMBER = r"(?<!\d)\d{1,19}(?!\d)"

# A size: ``512B``, ``1.2KiB``, ``7.92G``, ``264.00 MiB``, ``25,600,000 bytes``, or a bare number.
#
# NumPy prints three digits, such as ``224. GiB``; some languages have a decimal comma (``4,52GiB``).
_SIZE = (
    r"-?(?<!\d)\d{1,19}(?:,\d{3}){0,6}(?!\d)(?:\.\d{1,9}(?!\d)|\.(?=\s[KMGTPE]iB\b)|,\d{1,2}(?=[KMGTPE]iB))?"
    r"(?:[KMGTPEk]?i?[Bb]|[KMGTPE]|\s(?:[KMGTPEk]?i?B|[Bb]ytes)\b)?"
)


class Wording(Struct, frozen=True, kw_only=True):
    """One row of the table, which explains the fields."""

    pattern: str
    any: tuple[str, ...] = ("",)  # tried only on texts with one of these words
    component: str = ""
    kind: str = ""
    title: str = ""
    cause: str = ""
    advice: str = ""
    facts: str = ""
    is_kill: bool = False
    is_unclear: bool = False


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(r"\d+", _NUMBER).replace("SIZE", _SIZE))


_ROWS = read_table("oom/wordings.toml", dict[str, Wording])

# Words of the report for names in a log, figures and placeholders.
NAMES = read_table("oom/names.toml", dict[str, dict[str, str]])

# Ways to run out of memory beside TensorFlow's own allocators.
OTHER_CAUSES = {name: row for name, row in _ROWS.items() if row.kind}
PATTERNS = {name: _compile(row.pattern) for name, row in _ROWS.items()}

# Patterns of the figures of other causes.
FACTS = {name: _compile(row.facts or "$^") for name, row in OTHER_CAUSES.items()}


def find(name: str, text: str) -> re.Match[str] | None:
    """Return the first match of a pattern of the table; None if there is none."""
    for word in _ROWS[name].any:
        if word in text:
            return PATTERNS[name].search(text)

    return None


def find_all(name: str, text: str) -> list[re.Match[str]]:
    """Return all matches of a pattern of the table."""
    return list(PATTERNS[name].finditer(text))


def read_groups(match: re.Match[str]) -> dict[str, str]:
    """Return the groups that matched; ``_2`` at the end of a name is left out."""
    groups = match.groupdict()
    return {name.partition("_")[0]: text for name, text in groups.items() if text}


_UNITS = "KMGTPE"
_PRINTED = re.compile(
    r"(\d+(?:\.\d+)?)\.?\s?([KMGTPE]?)(?:iB?|B|BYTES)?",
    re.IGNORECASE,
)
_DECIMAL_COMMA = re.compile(r",(?=\d{1,2}[KMGTPE])")
_MOST = 1 << 62  # bytes; the sum of two is still a signed 64-bit number
_LARGEST_ITEM = 16  # bytes of an element

# More than cuDNN and cuBLAS take at their start.
LIBRARY_BYTES = 512 << 20

# Bytes of a chunk, or of all chunks of one size; more is a damaged line.
MOST_BYTES = 1 << 44


def parse_size(text: str | None) -> Range | None:
    """Return the range of sizes printed as ``text``, exact if in bytes; None if negative or no size.

    TensorFlow cuts a size to whole units of the next smaller prefix, and then rounds (``numbers.cc``).
    """
    digits = _DECIMAL_COMMA.sub(".", (text or "").strip()).replace(",", "")
    match = _PRINTED.fullmatch(digits)
    if match is None:
        return None

    digits, unit = match.groups()
    decimals = len(digits.partition(".")[2])

    if not unit:
        if decimals:
            return None

        return Range.exactly(min(int(digits), _MOST))

    scale = 1024 ** _UNITS.index(unit.upper())
    value = float(digits) * 1024
    half = 512 / 10**decimals + 1e-6
    last = math.floor(value + half)
    first = min(math.ceil(value - half), last)  # others print parts of such a unit

    return Range(
        min(max(first, 0) * scale, _MOST),
        min(last * scale + scale - 1, _MOST),
    )


def parse_count(text: str) -> int:
    """Return a number of bytes or things; 16 TiB for a larger one, which is damage."""
    return min(int(text), MOST_BYTES)


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Return the axes of a shape such as ``5, 4``; None if no tensor can have them."""
    shape = tuple(map(int, re.findall(r"\d{1,19}", text.replace(" ", ""))))
    is_possible = math.prod(shape) * _LARGEST_ITEM <= _MOST

    return shape if is_possible and len(shape) <= MOST_AXES else None


def round_up_request(size_bytes: int) -> int:
    """Return the chunk size that the allocator looks for: a multiple of 256, at least 256."""
    return max(round_up(size_bytes), GRANULE_BYTES)


def difference(whole: Range | None, part: Range | None) -> Range | None:
    """Return the difference, at least 0; None if one of the two is unknown."""
    if whole is None or part is None:
        return None

    return (whole - part).at_least(0)
