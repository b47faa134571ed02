"""What the terminal, the page and Markdown say in the same words, taken from the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from analyzer.units import format_bytes

FIRST: Final = 3
"""Findings on the page's first screen and in Markdown."""


def front_findings(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the first findings that are more than notes, in the document's order."""
    findings = document.get("findings") or ()
    return [each for each in findings if each.get("severity") != "info"][:FIRST]


def saving_words(finding: Mapping[str, Any]) -> str:
    """Say what following a finding saves, and which kind of bytes; empty where nothing is known."""
    saves = finding.get("saves_bytes")
    if not saves:
        return ""
    what = {"limit": "of the memory limit"}.get(
        kind := str(finding.get("saves_kind", "requested")), kind
    )
    return f"saves up to {format_bytes(saves)} {what}"


def highest_words(document: Mapping[str, Any]) -> str:
    """Say when the requested bytes of the need are reached, where it is not the steady step's peak."""
    reached = (document.get("fragmentation") or {}).get("limit_reached_in")
    return f" at the highest moment of all ({reached})" if reached else ""


def island_words(document: Mapping[str, Any]) -> str:
    """Say that some smaller limits work too, where they do; the word before it is *replayed*."""
    waste = document.get("fragmentation") or {}
    least, safe = waste.get("minimum_limit_bytes"), waste.get("safe_limit_bytes")
    if least is None or least == safe:
        return ""
    return f"; limits from {format_bytes(least)} up to that work only some of the time"
