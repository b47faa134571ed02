"""The range that one more run of a step leaves rarely."""

from dataclasses import replace

import numpy as np
import pytest
from make_recording import make_recording

from analyzer.explain.analysis import analyse
from analyzer.explain.run_range import find_workspace_spread, widen
from analyzer.model.contract.run_note import SimulatedCardNote
from analyzer.model.ranges import Range
from analyzer.model.recording.records import Recording


@pytest.mark.parametrize("runs", [2, 5, 12, 39])
def test_one_more_run_lies_outside_in_five_of_a_hundred_cases(runs: int) -> None:
    generator = np.random.default_rng(runs)
    peaks = generator.integers(10**9, 2 * 10**9, (4000, runs + 1)).tolist()
    outside = sum(
        last not in widen(Range.spanning(seen), runs) for *seen, last in peaks
    )
    assert outside / len(peaks) == pytest.approx(0.05, abs=0.015)


def test_equal_runs_have_no_range() -> None:
    assert widen(Range.exactly(7), 3) == Range.exactly(7)


def test_likely_workspaces_move_the_peak_as_if_they_were_allocated() -> None:
    recording = make_recording(600).recording
    alive = analyse(recording).alive
    index = alive["requested_bytes"].idxmax()
    size = int(alive.loc[index, "requested_bytes"])

    table = recording.allocations.copy()
    table["category"] = table["category"].astype(object)
    table.loc[index, "category"] = "workspace"
    note = SimulatedCardNote(workspaces=((size, size // 4, 2 * size),))
    analysis = analyse(replace(recording, allocations=table, simulated_run=note))
    below, above = find_workspace_spread(analysis)

    def peak_with(other: int) -> int:
        changed = table.copy()
        changed.loc[index, "requested_bytes"] = other
        return _peak_of(replace(recording, allocations=changed))

    peak = analysis.peak.requested_bytes
    assert below == peak - peak_with(size // 4) > 0
    assert above == peak_with(2 * size) - peak > 0


def _peak_of(recording: Recording) -> int:
    return analyse(recording).peak.requested_bytes
