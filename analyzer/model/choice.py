"""The base of every enumeration whose members are written into files and shown."""

from __future__ import annotations

from enum import Enum


class Choice(str, Enum):
    """An enumeration whose members are their own text (``enum.StrEnum`` is Python 3.11's)."""

    def __str__(self) -> str:
        return str(self.value)
