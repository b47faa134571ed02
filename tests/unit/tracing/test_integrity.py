"""Whether a trace is whole: what a damaged one shows, and that a whole one shows nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import SAMPLES, refusal, sample_folder, sample_trace, small_trace

import analyzer
from analyzer.model.contract.report_file import TrustFigures
from analyzer.model.errors import TraceError
from analyzer.tracing.measure.measured_recording import measure
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.parse.xplane import RawTrace, read_trace


def integrity_of(raw: RawTrace, name: str = "") -> TrustFigures:
    note = read_run(sample_folder(name) / "run.json") if name else None
    found = measure(raw, note, Path("trace.xplane.pb")).integrity
    assert found is not None

    return found


def ids(raw: RawTrace, name: str = "") -> set[str]:
    integrity = integrity_of(raw, name)
    reasons = {damage.id for damage in integrity.damages}
    return reasons | ({"sums"} if integrity.events_disagreeing else set())


def altered(raw: RawTrace, change: Callable[[pd.DataFrame], pd.DataFrame]) -> RawTrace:
    return replace(raw, events=change(raw.events).reset_index(drop=True))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_whole_trace_is_not_called_damaged(name: str, noted: bool) -> None:
    raw = read_trace(sample_trace(name))
    found = integrity_of(raw, name if noted else "")
    assert found.damages == ()
    assert (found.events, found.events_disagreeing) == (len(raw.events), 0)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_history_that_is_not_in_the_trace_is_no_damage(share: float) -> None:
    # GIVEN a trace that begins in the middle of the run, as another's profile does
    raw = read_trace(sample_trace("cnn"))
    late = altered(raw, lambda events: events.iloc[int(share * len(events)) :])
    late = replace(
        late, step_markers=late.step_markers[1:], op_runs=late.op_runs.iloc[:0]
    )
    # WHEN it is checked THEN the sum differs by what was there before, which is the same throughout
    assert ids(late) == set()
    # AND events that are lost later are told from it
    assert "lost-events" in ids(
        altered(late, lambda events: events.drop(index=[50, 60, 70]))
    )


def test_a_capture_of_ours_that_lacks_its_beginning_is_damaged() -> None:
    raw = read_trace(sample_trace("cnn"))
    assert "lost-beginning" in ids(
        altered(raw, lambda events: events.iloc[2000:]), "cnn"
    )


@pytest.mark.parametrize(
    ("column", "change", "expected"),
    [
        ("in_use_bytes", lambda value: value + 256, "lost-events"),
        ("allocated_bytes", lambda value: value + 1, "lost-events"),
        ("requested_bytes", lambda value: 0, "lost-events"),
        ("address", lambda value: value ^ (1 << 20), "sums"),
    ],
)
def test_an_altered_number(
    column: str, change: Callable[[int], int], expected: str
) -> None:
    raw = read_trace(sample_trace("infer"))
    at = int(np.flatnonzero((raw.events["kind"] > 0) & (raw.events["run_id"] != 0))[5])
    events = raw.events.copy()
    events.loc[at, column] = change(int(events.loc[at, column]))
    assert expected in ids(replace(raw, events=events))


@pytest.mark.parametrize("size", [-256, 1 << 50])
def test_a_size_that_no_machine_has_is_refused(size: int, tmp_path: Path) -> None:
    path = small_trace().allocate(900, 0x9000, size).write(tmp_path / "a.xplane.pb")
    with pytest.raises(TraceError, match="The trace is damaged: memory event 8 is of"):
        analyzer.open_trace(path)
    assert "memory event 8" in refusal("trace", path)


def test_a_lost_end_with_its_step_marks_still_there() -> None:
    raw = read_trace(sample_trace("transformer"))
    steps = raw.step_markers
    before = (raw.events["time_ps"] < steps[-1].start_ps).to_numpy()
    assert "step-marks" in ids(altered(raw, lambda events: events[before]))
    middle = (steps[-1].start_ps + steps[-1].end_ps) // 2
    cut = altered(raw, lambda events: events[(events["time_ps"] < middle).to_numpy()])
    assert "lost-end" in ids(cut)
    # a step that failed before its first request has no events
    failed = read_trace(sample_trace("oom"))
    start = failed.step_markers[-1].start_ps
    begun = altered(failed, lambda events: events[events["time_ps"] < start])
    assert "step-marks" not in ids(begun, "oom")
