"""Uncertainty of a prediction for a GPU beside its schedules, in bytes and in sentences."""

from typing import Final

import numpy as np
from msgspec.structs import replace

from analyzer.model.contract.report_file import (
    StatedRange,
    WorkspaceFigures,
    shift_bounds,
)
from analyzer.model.ranges import Range
from analyzer.model.recording.schema import TRIAL, WORKSPACE
from analyzer.model.units import format_bytes
from analyzer.simulate.predict.prediction import Prediction
from analyzer.simulate.predict.stated_range import SENTENCES

_HELD_SHARE: Final = 0.015
"""Share of the peak that other tensors of a process may add: 0.1 to 1.3 % in four public programs
before their steps (benchmarks/results/real-cards.md)."""


def add_card_uncertainty(
    stated: StatedRange, prediction: Prediction, limit_bytes: int
) -> StatedRange:
    """Return the range with cuDNN's workspaces."""
    because = [*stated.because, SENTENCES["no_gpu"]]
    workspace = find_workspaces(prediction, limit_bytes)
    if workspace is None:
        return replace(stated, because=tuple(because))

    steady, first = workspace.steady, workspace.first_step
    peak_bytes = prediction.middle.peak_bytes
    held_bytes = int(_HELD_SHARE * peak_bytes)
    above = steady.high - peak_bytes + held_bytes
    shifted = shift_bounds(stated, peak_bytes - steady.low, above, "", "allocated_")

    sizes = map(format_bytes, (steady.low, steady.high, first.high))
    because += [
        SENTENCES["workspaces"].format(*sizes),
        SENTENCES["held"].format(format_bytes(held_bytes)),
    ]

    return replace(
        stated,
        **shifted,
        workspace_bytes=above,
        workspace=workspace,
        because=tuple(because),
    )


def find_workspaces(
    prediction: Prediction, limit_bytes: int
) -> WorkspaceFigures | None:
    """Return the expected workspace and the peaks that it allows; None without convolutions.

    The first step has the trials; a trial that exceeds the limit is skipped.
    """
    schedule, plans = prediction.middle, prediction.prepared.kernels.plans
    if not any(plan.workspace for plan in plans):
        return None

    last = schedule.steps[-1].first
    bare = _sum_without(prediction, WORKSPACE)
    low = high = int(bare[last:].max())

    for buffer in schedule.buffers:
        workspace = plans[buffer.node].workspace if buffer.node >= 0 else None
        if workspace is not None and buffer.born >= last:
            live_bytes = int(bare[buffer.born + 1])
            low = max(low, live_bytes + workspace.least_bytes)
            high = max(high, live_bytes + workspace.most_bytes)

    steady = Range(low, high).including(schedule.peak_bytes)

    first = schedule.steps[0]
    span = slice(first.first, first.last + 2)
    needed_bytes = int(_sum_without(prediction, TRIAL)[span].max())
    most_bytes = int(schedule.live_bytes[span].max())
    highest_bytes = min(most_bytes, max(limit_bytes, needed_bytes))
    lowest_bytes = needed_bytes - (schedule.peak_bytes - steady.low)

    alive = schedule.find_alive_at_peak()

    return WorkspaceFigures(
        bytes=sum(one.size_bytes for one in alive if one.region == WORKSPACE),
        steady=steady,
        first_step=Range(
            min(lowest_bytes, highest_bytes), max(highest_bytes, steady.high)
        ),
    )


def _sum_without(prediction: Prediction, region: str) -> np.ndarray:
    """Return the live bytes without the buffers of a region."""
    schedule = prediction.middle
    sizes = []

    for buffer in schedule.buffers:
        sizes.append(0 if buffer.region == region else buffer.size_bytes)

    return schedule.sum_live(sizes)
