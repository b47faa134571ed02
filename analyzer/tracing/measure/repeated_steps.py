"""Repeats of a step at the end of a trace, which show how its peaks vary from run to run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from analyzer.model.contract.report.peak_figures import TwoSizes
from analyzer.model.units import format_bytes
from analyzer.tracing.parse.wire.plane_names import REPEATED_STEP
from analyzer.tracing.parse.xplane import RawTrace

_ALIKE: Final = 1.03  # ratio of the peaks of two runs that need no warning


def split_repeats(
    raw: RawTrace, allocator: str
) -> tuple[RawTrace, tuple[TwoSizes, ...]]:
    """Return the trace without the repeats of its step, and the peaks of the repeats."""
    repeats = [mark for mark in raw.step_markers if mark.name == REPEATED_STEP]
    if not repeats:
        return raw, ()
    end_ps = repeats[0].start_ps
    own = raw.events[raw.events["allocator"] == allocator]
    times, in_use = own["time_ps"].to_numpy(), own["in_use_bytes"].to_numpy()
    requested = np.cumsum(own["kind"].to_numpy() * own["requested_bytes"].to_numpy())
    peaks = []

    for mark in repeats:
        first, last = np.searchsorted(times, (mark.start_ps, mark.end_ps))
        rows = slice(max(int(first) - 1, 0), int(last))
        peaks.append(
            TwoSizes(
                requested_bytes=int(requested[rows].max(initial=0)),
                allocated_bytes=int(in_use[rows].max(initial=0)),
            )
        )

    events, op_runs = raw.events, raw.op_runs
    shown = replace(
        raw,
        events=events[events["time_ps"] < end_ps].reset_index(drop=True),
        step_markers=tuple(mark for mark in raw.step_markers if mark.start_ps < end_ps),
        op_runs=op_runs[op_runs["start_ps"] < end_ps].reset_index(drop=True),
        continues=True,
    )
    return shown, tuple(peaks)


def warn_about_order(repeats: Sequence[TwoSizes]) -> list[str]:
    """Return a warning if the repeats of the step need different memory."""
    peaks = [one.requested_bytes for one in repeats]
    if not peaks or max(peaks) <= _ALIKE * min(peaks):
        return []

    return [
        f"The peak depends on the order in which ops run: {len(peaks)} repeats of the step needed "
        f"{format_bytes(min(peaks))} to {format_bytes(max(peaks))}."
    ]
