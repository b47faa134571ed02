"""The prediction of a step: a few schedules, of which the median is shown and all give the range."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.model.progress import report_stage
from analyzer.model.units import Range
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.limits import find_shared_limits
from analyzer.simulate.allocator.replay import (
    Sequence,
    from_allocations,
    replay_whole,
)
from analyzer.simulate.kernels.op_call import KernelDevice
from analyzer.simulate.predict.decisions import decide
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.simulate.predict.schedule import Schedule, play
from analyzer.tracing.parse.run_folder import RunNote

# Schedules to play. 15 networks on a T4 request the same bytes with 5 and with 201.
FEWEST_SCHEDULES = 5
MOST_SCHEDULES = 15

OPS = 15_000  # ops of all schedules together: a small graph gets more of them


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The schedules of a step, by ascending peak, and what the allocator makes of them."""

    prepared: Prepared
    schedules: list[Schedule]
    allocated_bytes: list[int]  # the peak of the chunks of each schedule
    decisions: Mapping[str, str]  # sentences by the name of a branch or a loop
    requested: Range  # peaks of all schedules and of other outcomes of decisions
    # the limits under which some and all schedules run; None if not searched
    limits: Range | None

    @property
    def middle(self) -> Schedule:
        """The median schedule, which is shown."""
        return self.schedules[(len(self.schedules) - 1) // 2]


def predict(
    note: RunNote,
    device: KernelDevice,
    options: BfcOptions,
    *,
    search: bool = False,
) -> Prediction:
    """Play schedules of a step on a device, and replay them in its allocator."""
    whole = Prepared(note, device)
    prepared, decisions, peaks_bytes = decide(whole)
    schedules: list[Schedule] = []
    count = min(max(OPS // len(note.ops), FEWEST_SCHEDULES), MOST_SCHEDULES)

    if device.is_cheap:
        count = FEWEST_SCHEDULES

    for seed in range(count):
        report_stage("predicting", seed / count)
        schedules.append(play(prepared, seed))

    schedules.sort(key=lambda schedule: schedule.peak_bytes)

    if any(size.basis == "most" for size in note.sizes):  # the data may leave less
        first = schedules[0].steps[-1].first
        peaks_bytes.append(int(schedules[0].live_bytes[first]))

    sequences = [make_sequence(schedule) for schedule in schedules]
    allocated = []

    for schedule, sequence in zip(schedules, sequences, strict=True):
        allocated.append(measure_allocated(schedule, sequence, options))

    return Prediction(
        prepared=prepared,
        schedules=schedules,
        allocated_bytes=allocated,
        decisions=decisions,
        requested=Range.spanning(
            [*peaks_bytes, *(one.peak_bytes for one in schedules)]
        ),
        limits=find_shared_limits(sequences[::-1], options) if search else None,
    )


def make_sequence(schedule: Schedule) -> Sequence:
    """Return the requests and frees of a schedule."""
    rows = [
        (
            one.size_bytes,
            one.born,
            schedule.instants if one.dies is None else one.dies,
            one.region,
        )
        for one in schedule.buffers
    ]

    table = pd.DataFrame(rows, columns=["requested_bytes", "born", "dies", "region"])

    return from_allocations(table, n_events=schedule.instants)


def measure_allocated(
    schedule: Schedule,
    sequence: Sequence,
    options: BfcOptions,
) -> int:
    """Return the highest bytes of chunks in the last step."""
    result = replay_whole(sequence, options)
    first = int(np.searchsorted(sequence.instant, schedule.steps[-1].first))

    return int(result.in_use_bytes[max(first - 1, 0) :].max())
