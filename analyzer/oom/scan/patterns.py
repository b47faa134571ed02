"""The table of wordings, ``log_patterns.toml``, compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import msgspec

_SIZE: Final = r"-?\d+(?:\.\d+)?(?:[KMGTPE]?i?B|[KMGT])?"
"""A size as TensorFlow prints it: ``512B``, ``1.2KiB``, ``74.16MiB``, ``7.92G``, a bare number."""


@dataclass(frozen=True, slots=True)
class LogPattern:
    """One row of the table.

    Attributes:
        regex: The compiled pattern.
        words: The pattern is tried only on texts that contain one of these.
    """

    regex: re.Pattern[str]
    words: tuple[str, ...]

    def may_match(self, text: str) -> bool:
        """Return whether the text contains one of the words."""
        return any(word in text for word in self.words)


def _load_patterns() -> dict[str, LogPattern]:
    text = (files("analyzer.oom.scan") / "log_patterns.toml").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = msgspec.toml.decode(text)
    return {
        name: LogPattern(
            re.compile(row["pattern"].replace("SIZE", _SIZE)), tuple(row.get("any", [""]))
        )
        for name, row in rows.items()
    }


PATTERNS: Final = _load_patterns()


def find(name: str, text: str) -> re.Match[str] | None:
    """Return the first match of a pattern of the table; None if there is none."""
    pattern = PATTERNS[name]
    for word in pattern.words:
        if word in text:
            return pattern.regex.search(text)
    return None


def find_any(names: tuple[str, ...], text: str) -> re.Match[str] | None:
    """Return the match of the first pattern that matches; None if none does."""
    return next((match for name in names if (match := find(name, text))), None)


def find_all(name: str, text: str) -> list[re.Match[str]]:
    """Return all matches of a pattern of the table."""
    pattern = PATTERNS[name]
    return list(pattern.regex.finditer(text)) if pattern.may_match(text) else []
