"""The sentences about a log, from ``log_texts.toml``, filled with figures."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from analyzer.model.contract.report.oom_file import OomAdvice, OomVerdict
from analyzer.model.ranges import Range
from analyzer.model.units import format_bytes


@cache
def _texts() -> dict[str, dict[str, Any]]:
    text = (files("analyzer.oom") / "log_texts.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, dict[str, Any]])


def write_sentence(group: str, name: str, **values: object) -> str:
    """Return a sentence of the table; ranges are written as sizes."""
    return _fill(_texts()[group][name], values)


def write_reason(name: str, **values: object) -> str:
    """Return a reason of the table, its first letter as a capital."""
    return _capitalize(write_sentence("reason", name, **values))


def write_verdict(title: str, *reasons: str, **values: object) -> OomVerdict:
    """Return a verdict: the cause and the title of a row of the table."""
    cause, text = _texts()["title"][title]
    return OomVerdict(cause, _capitalize(_fill(text, values)), reasons)


def write_advice(name: str, **values: object) -> OomAdvice:
    """Return an advice of the table, its reason filled with figures."""
    advice = _texts()["advice"][name]
    return OomAdvice(_fill(advice["action"], values), _fill(advice["because"], values))


def _fill(text: str, values: dict[str, object]) -> str:
    written = {
        name: size_words(value) if isinstance(value, Range) else value
        for name, value in values.items()
    }
    return text.format(**written)


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def size_words(size: Range) -> str:
    """Return a size for a sentence; with "about" if its digits are uncertain."""
    shown = format_bytes(size.middle)
    is_certain = format_bytes(size.low) == format_bytes(size.high)
    return shown if is_certain else f"about {shown}"
