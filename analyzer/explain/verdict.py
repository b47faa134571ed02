"""The verdict: does the step fit a card or a limit that the user gave?

``judgement`` makes one ``VerdictFigures``, and every output shows it. Only the need (``need``) and the
limit decide. The limit of the allocator that a capture happened to use gives no verdict.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pandas as pd
from msgspec import structs

from analyzer.explain.analysis import Analysis
from analyzer.model.choice import Category
from analyzer.model.contract import capture_request
from analyzer.model.contract.report.limit_figures import Basis, Fits, Outcome
from analyzer.model.contract.report.peak_figures import StatedRange
from analyzer.model.contract.report.subject import AssumedSetting
from analyzer.model.ranges import BoundedBytes
from analyzer.model.recording.records import Kind
from analyzer.model.recording.schema import FIXED_ROLES
from analyzer.model.units import format_bytes

BASES: Final = {"trace": Basis.MEASURED, "estimate": Basis.PREDICTED, "phantom": Basis.PHANTOM}
"""The basis of the figures of each kind of recording."""

FITS: Final[dict[Outcome, Fits]] = {
    Outcome.FITS: True,
    Outcome.DOES_NOT_FIT: False,
    Outcome.CANNOT_TELL: "may not",
}
"""The ``fits`` of the JSON for each outcome; null for any other."""

WIDE_RATIO: Final = 0.05
"""Width of a stated range, as a share of the figure, from which on it is a caution."""

_BRACKETS: Final = re.compile(r"\s*\([^()]*\)")
_CLAUSE: Final = re.compile(r":\s|;\s|\.(?:\s|$)")


def outcome_of(limit: BoundedBytes, need: BoundedBytes, *, is_complete: bool) -> Outcome:
    """Return whether a step with this need fits a limit.

    ``is_complete`` is whether the step ended, each tensor has a size and the trace is complete; if
    not, the need is a lower bound.
    """
    if need.range.low > limit.range.high:
        return Outcome.DOES_NOT_FIT
    fits = is_complete and need.range.high <= limit.range.low
    return Outcome.FITS if fits else Outcome.CANNOT_TELL


def headline_of(
    outcome: Outcome,
    place: str,
    limit: BoundedBytes,
    need: BoundedBytes,
    incomplete: str = "",
    own_peak_bytes: int | None = None,
    *,
    is_least: bool = False,
) -> str:
    """Return the answer in one line: ``FITS Tesla T4: needs 3.00 GiB of 13.42 GiB, ...``.

    ``incomplete`` is why the need is only a lower bound; empty if it is not. With a program's
    ``own_peak_bytes``, need and limit are of TensorFlow's pool; ``is_least``: fragmentation is unknown.
    """
    verb = "needs at least" if incomplete or is_least else "needs"
    if own_peak_bytes is not None:
        verb = f"TensorFlow's own peak is {format_bytes(own_peak_bytes)}; its pool {verb}"
    if outcome is Outcome.CANNOT_TELL:
        reason = f"; {incomplete}" if incomplete else ""
        is_open = bool(incomplete) and need.range.high <= limit.range.low
        head = "CANNOT TELL if it fits" if is_open else "MAY NOT FIT"
        return f"{head} {place}: {verb} {need} of {limit}{reason}"
    head = "FITS" if outcome is Outcome.FITS else "DOES NOT FIT"
    margin = limit.bytes - need.bytes
    spare = f"{format_bytes(abs(margin))} {'to spare' if margin >= 0 else 'too much'}"
    sizes = f"{format_bytes(need.bytes)} of {format_bytes(limit.bytes)}"
    return f"{head} {place}: {verb} {sizes}, {spare}"


def cautions_of(analysis: Analysis) -> tuple[str, ...]:
    """Return reasons for uncertain figures: a wide range, each warning."""
    stated, cautions = stated_range(analysis), []
    if stated is not None:
        ranges = [
            ((high - low) / size, kind, low, high)
            for kind, size, low, high in _stated_bounds(analysis, stated)
            if size
        ]
        width, kind, low, high = max(ranges, default=(0.0, "", 0, 0))
        if width > WIDE_RATIO:
            ends = f"{format_bytes(low)} to {format_bytes(high)}"
            cautions.append(f"the {kind} peak may be anywhere from {ends}, a range of {width:.0%}")
    for warning in analysis.recording.warnings:  # the first clause, without brackets
        cautions.append(_CLAUSE.split(_BRACKETS.sub("", warning.strip()), maxsplit=1)[0])
    return tuple(dict.fromkeys(cautions))


def stated_range(analysis: Analysis) -> StatedRange | None:
    """Return the stated range of a prediction, widened to contain the figures shown."""
    stated = analysis.recording.uncertainty
    if stated is None:
        return None
    ends: dict[str, int] = {}
    for kind, size, low, high in _stated_bounds(analysis, stated):
        prefix = "" if kind == "requested" else "allocated_"
        ends |= {f"{prefix}low_bytes": min(low, size), f"{prefix}high_bytes": max(high, size)}
    return structs.replace(stated, **ends)


def _stated_bounds(analysis: Analysis, stated: StatedRange) -> Iterator[tuple[str, int, int, int]]:
    """Yield the kind, the figure and the bounds of each peak that has bounds."""
    peak = analysis.peak
    low, high = stated.low_bytes, stated.high_bytes
    if low is not None and high is not None:
        yield "requested", peak.requested_bytes, low, high
    low, high = stated.allocated_low_bytes, stated.allocated_high_bytes
    if low is not None and high is not None:
        yield "allocated", peak.allocated_bytes, low, high


def with_assumed_settings(analysis: Analysis) -> Analysis:
    """Return the analysis of a simulated card with the answers of its libraries and their bytes."""
    recording = analysis.recording
    card, note = recording.phantom, recording.phantom_run
    if recording.kind is not Kind.PHANTOM or card is None or note is None:
        return analysis
    settings = []
    for one in capture_request.ASSUMPTIONS:
        value = note.assumed.get(one.name, one.usual)
        share_bytes = _share(analysis.alive, one, value)
        settings.append(AssumedSetting(**structs.asdict(one), value=value, share_bytes=share_bytes))
    recording = replace(recording, phantom=structs.replace(card, settings=tuple(settings)))
    return replace(analysis, recording=recording)


def _share(alive: pd.DataFrame, assumption: capture_request.Assumption, value: int) -> int:
    """Return the bytes of an assumption that are alive at the peak."""
    kinds = alive["op_type"].astype(str)
    is_assumed = (alive["requested_bytes"] == value) & (value > 0)
    rows = {
        capture_request.RECURRENT_RESERVE: (  # output 3: what the backward pass reads
            kinds.str.startswith("CudnnRNN")
            & ~kinds.str.contains("Backprop")
            & alive["tensor"].astype(str).str.endswith(":3")
        ),
        capture_request.WORKSPACE: (alive["category"] == Category.WORKSPACE.value)
        & ~alive["role"].isin(FIXED_ROLES),
        capture_request.PRODUCT_WORKSPACE: kinds.str.contains("MatMul") & is_assumed,
        capture_request.BATCH_NORM_RESERVE: kinds.str.contains("BatchNorm") & is_assumed,
    }.get(assumption)
    return 0 if rows is None else int(alive["requested_bytes"][rows].sum())
