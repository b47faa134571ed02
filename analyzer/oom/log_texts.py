"""The sentences about a log, from ``log_texts.toml``, filled with figures."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from analyzer.model.contract.report.oom_file import OomAdvice
from analyzer.model.ranges import Range
from analyzer.model.units import format_bytes

_SENTENCES: Final = ("title", "reason")  # groups whose sentences may begin with a size


@cache
def _texts() -> dict[str, dict[str, Any]]:
    text = (files("analyzer.oom") / "log_texts.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, dict[str, Any]])


def write_sentence(group: str, name: str, **values: object) -> str:
    """Return a sentence of the table; ranges are written as sizes, the first letter as a capital."""
    filled = str(_texts()[group][name]).format(**_written(values))
    return filled[:1].upper() + filled[1:] if group in _SENTENCES else filled


def write_advice(name: str, **values: object) -> OomAdvice:
    """Return an advice of the table, its reason filled with figures."""
    advice, written = _texts()["advice"][name], _written(values)
    return OomAdvice(advice["action"].format(**written), advice["because"].format(**written))


def _written(values: dict[str, object]) -> dict[str, object]:
    return {
        name: size_words(value) if isinstance(value, Range) else value
        for name, value in values.items()
    }


def size_words(size: Range) -> str:
    """Return a size for a sentence; with "about" if its digits are uncertain."""
    shown = format_bytes(size.middle)
    is_certain = format_bytes(size.low) == format_bytes(size.high)
    return shown if is_certain else f"about {shown}"
