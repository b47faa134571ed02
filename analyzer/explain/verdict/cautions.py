"""What makes a prediction's figures worse than they look, in few words each, the worst first."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from analyzer.explain.analysis import Analysis
from analyzer.explain.verdict.fit_verdict import Bounds
from analyzer.model.contract.report.trust_figures import StatedRange
from analyzer.model.recording.records import Recording
from analyzer.model.units import format_bytes

WIDE: Final = 0.05
"""Width of a stated range, as a share of the figure, from which on it is told beside the figure."""

_ASIDE: Final = re.compile(r"\s*\([^()]*\)")
_CLAUSE: Final = re.compile(r":\s|;\s|\.(?:\s|$)")
"""What a warning says in brackets, and where its first clause ends."""


def cautions_of(analysis: Analysis) -> tuple[str, ...]:
    """Return what to doubt: another device's plan, a wide range, and each warning's first clause."""
    stated = stated_range(analysis)
    found = [stated.stand_in] if stated is not None and stated.stand_in else []
    found += [] if stated is None else _wide(analysis, stated)
    warnings = (_ASIDE.sub("", warning.strip()) for warning in analysis.recording.warnings)
    found += [_CLAUSE.split(warning, maxsplit=1)[0] for warning in warnings]
    return tuple(dict.fromkeys(found))


def is_lower_bound(recording: Recording) -> bool:
    """Say whether tensors whose size is not known count as nothing."""
    return recording.uncertainty is not None and recording.uncertainty.unsized > 0


def stated_range(analysis: Analysis) -> StatedRange | None:
    """Return the range that a prediction states, in which the figures shown lie by construction."""
    stated = analysis.recording.uncertainty
    if stated is None:
        return None
    requested, allocated = (bounds for _, bounds in _bounds(analysis, stated))
    if requested is not None:
        stated = replace(stated, low_bytes=requested.low_bytes, high_bytes=requested.high_bytes)
    if allocated is not None:
        stated = replace(
            stated,
            allocated_low_bytes=allocated.low_bytes,
            allocated_high_bytes=allocated.high_bytes,
        )
    return stated


def _bounds(analysis: Analysis, stated: StatedRange) -> tuple[tuple[str, Bounds | None], ...]:
    """Return requested and allocated bytes: the figure shown in its range; None without a range."""
    peak = analysis.peak
    return (
        ("requested", _around(peak.requested_bytes, stated.low_bytes, stated.high_bytes)),
        (
            "allocated",
            _around(peak.allocated_bytes, stated.allocated_low_bytes, stated.allocated_high_bytes),
        ),
    )


def _around(figure: int, low: int | None, high: int | None) -> Bounds | None:
    return None if low is None or high is None else Bounds.around(figure, low, high)


def _wide(analysis: Analysis, stated: StatedRange) -> list[str]:
    """Name the wider of the two stated ranges, where it is more than ``WIDE`` of its figure."""
    ranges = []
    for kind, bounds in _bounds(analysis, stated):
        if bounds is not None and bounds.bytes:
            low, high = bounds.low_bytes, bounds.high_bytes
            ranges.append(((high - low) / bounds.bytes, kind, low, high))
    width, kind, low, high = max(ranges, default=(0.0, "", 0, 0))
    if width <= WIDE:
        return []
    return [
        f"the {kind} peak may lie anywhere from {format_bytes(low)} to {format_bytes(high)}, "
        f"a range {width:.0%} wide"
    ]
