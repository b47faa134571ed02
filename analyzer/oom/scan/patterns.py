"""The tables of wordings, ``log_patterns.toml`` and ``component_failures.toml``, compiled."""

import re
from typing import Final

from analyzer.model.tables import read_table
from analyzer.oom.log_records import ComponentRow, LogPattern

_NUMBER: Final = r"(?<!\d)\d{1,19}(?!\d)"  # a number of any pattern; a longer one is damage
_SIZE: Final = (
    r"-?(?<!\d)\d{1,19}(?:,\d{3}){0,6}(?!\d)(?:\.\d{1,9}(?!\d))?"
    r"(?:[KMGTPEk]?i?[Bb]|[KMGTPE]|\s(?:[KMGTPEk]?i?B|[Bb]ytes)\b)?"
)
"""A size: ``512B``, ``1.2KiB``, ``7.92G``, ``264.00 MiB``, ``25,600,000 bytes``, or a bare number."""


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a pattern of a table compiled, with its abbreviations written out."""
    return re.compile(pattern.replace(r"\d+", _NUMBER).replace("SIZE", _SIZE))


_ROWS: Final = read_table("oom/scan/log_patterns.toml", dict[str, LogPattern])
COMPONENTS: Final = read_table("oom/scan/component_failures.toml", dict[str, ComponentRow])
PATTERNS: Final = {name: compile_pattern(row.pattern) for name, row in (_ROWS | COMPONENTS).items()}
_WORDS: Final = {name: row.any for name, row in (_ROWS | COMPONENTS).items()}


def find(name: str, text: str) -> re.Match[str] | None:
    """Return the first match of a pattern of the table; None if there is none."""
    for word in _WORDS[name]:
        if word in text:
            return PATTERNS[name].search(text)
    return None


def find_any(names: tuple[str, ...], text: str) -> re.Match[str] | None:
    """Return the match of the first pattern that matches; None if none does."""
    return next((match for name in names if (match := find(name, text))), None)


def find_all(name: str, text: str) -> list[re.Match[str]]:
    """Return all matches of a pattern of the table."""
    return list(PATTERNS[name].finditer(text)) if find(name, text) else []


def read_groups(match: re.Match[str]) -> dict[str, str]:
    """Return the groups that matched; ``_2`` or ``_old`` at the end of a name is left out."""
    return {name.partition("_")[0]: text for name, text in match.groupdict().items() if text}
