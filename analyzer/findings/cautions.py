"""What makes a prediction's figures worse than they look, in few words each, the worst first."""

from __future__ import annotations

import re
from typing import Any, Final

from analyzer.findings.analysis import Analysis
from analyzer.findings.verdict import Bounds
from analyzer.model import Recording
from analyzer.units import format_bytes

WIDE: Final = 0.05
"""Width of a stated range, as a share of the figure, from which on it is told beside the figure."""

_ASIDE: Final = re.compile(r"\s*\([^()]*\)")
_CLAUSE: Final = re.compile(r":\s|;\s|\.(?:\s|$)")
"""What a warning says in brackets, and where its first clause ends."""


def cautions_of(analysis: Analysis) -> tuple[str, ...]:
    """Return what to doubt: another device's plan, a wide range, and each warning's first clause."""
    stated = stated_range(analysis) or {}
    found = [str(stated["stand_in"])] if stated.get("stand_in") else []
    found += _wide(analysis, stated)
    warnings = (_ASIDE.sub("", warning.strip()) for warning in analysis.recording.warnings)
    found += [_CLAUSE.split(warning, maxsplit=1)[0] for warning in warnings]
    return tuple(dict.fromkeys(found))


def is_lower_bound(recording: Recording) -> bool:
    """Say whether tensors whose size is not known count as nothing."""
    return bool((recording.extra.get("uncertainty") or {}).get("unsized"))


def stated_range(analysis: Analysis) -> dict[str, Any] | None:
    """Return the range that a prediction states, in which the figures shown lie by construction."""
    stated = analysis.recording.extra.get("uncertainty")
    if not stated:
        return None
    ends: dict[str, int] = {}
    for _, prefix, figure in _kinds(analysis):
        low, high = f"{prefix}low_bytes", f"{prefix}high_bytes"
        if stated.get(low) is not None and stated.get(high) is not None:
            bounds = Bounds.around(figure, stated[low], stated[high])
            ends |= {low: bounds.low_bytes, high: bounds.high_bytes}
    return {**stated, **ends}


def _kinds(analysis: Analysis) -> tuple[tuple[str, str, int], ...]:
    """Return the two kinds of bytes: name, prefix of the range's keys, and the figure shown."""
    peak = analysis.peak
    return (
        ("requested", "", peak.requested_bytes),
        ("allocated", "allocated_", peak.allocated_bytes),
    )


def _wide(analysis: Analysis, stated: dict[str, Any]) -> list[str]:
    """Name the wider of the two stated ranges, where it is more than :data:`WIDE` of its figure."""
    ranges = []
    for kind, prefix, figure in _kinds(analysis):
        low, high = stated.get(f"{prefix}low_bytes"), stated.get(f"{prefix}high_bytes")
        if low is not None and high is not None and figure:
            ranges.append(((high - low) / figure, kind, low, high))
    width, kind, low, high = max(ranges, default=(0.0, "", 0, 0))
    if width <= WIDE:
        return []
    return [
        f"the {kind} peak may lie anywhere from {format_bytes(low)} to {format_bytes(high)}, "
        f"a range {width:.0%} wide"
    ]
