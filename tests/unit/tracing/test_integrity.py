"""Whether a trace is whole: what a damaged one shows, and that a whole one shows nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import SAMPLES, TraceBuilder, analyze, sample_folder, sample_trace, small_trace

import analyzer
from analyzer.explain.replay_settings import WhatIf
from analyzer.explain.trace_integrity import trust_figures
from analyzer.model.errors import TraceError
from analyzer.model.recording.records import Integrity
from analyzer.session.opening import explain
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import Sequence, replay
from analyzer.tracing.measure.measured_recording import measure
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.parse.xplane import RawTrace, read_trace

MIB = 1 << 20


def integrity_of(raw: RawTrace, name: str = "") -> Integrity:
    note = read_run(sample_folder(name) / "run.json") if name else None
    found = measure(raw, note, Path("trace.xplane.pb")).recording.integrity
    assert found is not None
    return found


def ids(raw: RawTrace, name: str = "") -> set[str]:
    integrity = integrity_of(raw, name)
    reasons = {str(damage.reason) for damage in integrity.damages}
    return reasons | ({"sums"} if any(one.disagreeing for one in integrity.counters) else set())


def altered(raw: RawTrace, change: Callable[[pd.DataFrame], pd.DataFrame]) -> RawTrace:
    return replace(raw, events=change(raw.events).reset_index(drop=True))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_whole_trace_is_not_called_damaged(name: str, noted: bool) -> None:
    raw = read_trace(sample_trace(name))
    found = integrity_of(raw, name if noted else "")
    assert found.damages == ()
    assert [one.events for one in found.counters] == [len(raw.events)]
    assert all(one.disagreeing == 0 for one in found.counters)


def test_the_allocations_that_are_lost_are_told_and_tensorflows_peak_with_them(
    tmp_path: Path,
) -> None:
    raw = read_trace(sample_trace("accumulation"))
    birth = np.flatnonzero((raw.events["kind"] > 0).to_numpy())
    assert ids(altered(raw, lambda events: events.drop(birth[::10])), "accumulation") >= {
        "sums",
        "lost-events",
    }


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_history_that_is_not_in_the_trace_is_no_damage(share: float) -> None:
    # GIVEN a trace that begins in the middle of the run, as another's profile does
    raw = read_trace(sample_trace("cnn"))
    late = altered(raw, lambda events: events.iloc[int(share * len(events)) :])
    late = replace(late, step_markers=late.step_markers[1:], op_runs=late.op_runs.iloc[:0])
    # WHEN it is checked THEN the sum differs by what was there before, which is the same throughout
    assert ids(late) == set()
    # AND events that are lost later are told from it
    assert "lost-events" in ids(altered(late, lambda events: events.drop(index=[50, 60, 70])))


def test_a_capture_of_ours_that_lacks_its_beginning_is_damaged() -> None:
    raw = read_trace(sample_trace("cnn"))
    assert "lost-beginning" in ids(altered(raw, lambda events: events.iloc[2000:]), "cnn")


@pytest.mark.parametrize(
    ("column", "change", "expected"),
    [
        ("in_use_bytes", lambda value: value + 256, "lost-events"),
        ("allocated_bytes", lambda value: value + 1, "altered-events"),
        ("allocated_bytes", lambda value: value * 4, "altered-events"),
        ("requested_bytes", lambda value: value * 1000, "altered-events"),
        ("requested_bytes", lambda value: 0, "altered-events"),
        ("address", lambda value: value + 1, "sums"),
        ("address", lambda value: value ^ (1 << 20), "sums"),
    ],
)
def test_an_altered_number(column: str, change: Callable[[int], int], expected: str) -> None:
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
    done = analyze("trace", path)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "events", [[(1, 0x1000), (1, 0x1000)], [(1, 0x1000), (-1, 0x1000), (-1, 0x1000)]]
)
def test_an_address_is_neither_allocated_nor_freed_twice(
    events: list[tuple[int, int]], tmp_path: Path
) -> None:
    trace = small_trace()
    for time, (kind, address) in enumerate(events, start=500):
        trace.allocate(time, address, 256) if kind > 0 else trace.free(time, address, size=256)
    assert "lost-events" in ids(read_trace(trace.write(tmp_path / "a.xplane.pb")))


def marks(*spans: tuple[int, int]) -> TraceBuilder:
    """Return a trace with two buffers every 100 ns and steps of these spans."""
    trace = TraceBuilder()
    for start in range(0, 1000, 100):
        trace.allocate(start + 10, 0x1000, 512, run_id=7 + start)
        trace.allocate(start + 20, 0x2000, 256, run_id=7 + start)
        trace.free(start + 30, 0x2000).free(start + 40, 0x1000)
        trace.run("a:Add", start + 5, start + 45)
    for number, (start, end) in enumerate(spans):
        trace.step(start, end, number)
    return trace


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 99), (100, 199), (200, 299)], set()),
        ([(0, 99), (10, 90), (100, 199)], set()),  # a mark in a mark, as `fit` in a user's own
        ([(0, 99), (199, 100), (200, 299)], {"step-marks"}),
        ([(0, 99), (100, 199), (2000, 2999)], {"step-marks"}),
        ([(0, 15), (100, 199), (200, 299)], {"step-marks"}),  # the function goes on after its mark
    ],
)
def test_step_marks(spans: list[tuple[int, int]], expected: set[str], tmp_path: Path) -> None:
    assert ids(read_trace(marks(*spans).write(tmp_path / "a.xplane.pb"))) == expected


@pytest.mark.parametrize("of_functions", [True, False])
def test_what_fills_a_data_buffer_beside_one_step_is_not_lost_in_the_next(
    of_functions: bool, tmp_path: Path
) -> None:
    # GIVEN steps that run the same ops, and a thread of tf.data that works beside the second alone
    trace = TraceBuilder()
    for start in range(0, 300, 100):
        run_id = (7 + start) * of_functions
        trace.step(start, start + 99, start // 100)
        trace.allocate(start + 10, 0x1000, 512, run_id=run_id).free(start + 40, 0x1000)
        trace.run("a:Add", start + 5, start + 45)
    for start in range(150, 190, 2):
        trace.allocate(start, 0x4000, 256, thread=2).free(start + 1, 0x4000, thread=2)
    # WHEN the trace is checked THEN no step has lost events
    assert ids(read_trace(trace.write(tmp_path / "a.xplane.pb"))) == set()


def test_a_lost_end_with_its_step_marks_still_there() -> None:
    raw = read_trace(sample_trace("transformer"))
    steps = raw.step_markers
    before = (raw.events["time_ps"] < steps[-1].start_ps).to_numpy()
    assert "step-marks" in ids(altered(raw, lambda events: events[before]))
    middle = (steps[-1].start_ps + steps[-1].end_ps) // 2
    cut = altered(raw, lambda events: events[(events["time_ps"] < middle).to_numpy()])
    assert "lost-end" in ids(cut)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: replace(raw, step_markers=raw.step_markers[:-1]), "step-marks"),
        (lambda raw: replace(raw, markers=raw.markers[:-1]), "capture-marks"),
        (
            lambda raw: replace(
                raw,
                step_markers=(
                    replace(raw.step_markers[0], end_ps=raw.step_markers[1].start_ps - 1),
                    *raw.step_markers[1:],
                ),
            ),
            "capture-marks",
        ),
    ],
)
def test_a_capture_of_ours_knows_its_marks(
    change: Callable[[RawTrace], RawTrace], expected: str
) -> None:
    assert expected in ids(change(read_trace(sample_trace("infer"))), "infer")


@pytest.mark.parametrize("name", ["gradients", "phase"])
def test_lost_marks_of_gradients_are_announced(name: str) -> None:
    raw = read_trace(sample_trace("eager"))
    lacking = tuple(mark for mark in raw.markers if not mark.name.endswith(name))
    assert len(lacking) < len(raw.markers)
    assert ids(raw, "eager") == set()
    assert "capture-marks" in ids(replace(raw, markers=lacking), "eager")


def test_the_end_of_a_step_that_ran_out_of_memory() -> None:
    # GIVEN the sample that ran out of memory, without the events from before its last large request on
    raw, note = read_trace(sample_trace("oom")), read_run(sample_folder("oom") / "run.json")
    assert raw.events["requested_bytes"].max() == 16 * MIB
    large = int(np.flatnonzero(raw.events["requested_bytes"] == 16 * MIB)[0])
    cut = altered(raw, lambda events: events.iloc[:large])
    # WHEN it is checked THEN the ops that ran afterwards tell
    assert "lost-end" in ids(cut, "oom")
    # AND without them the request that failed, which would have fitted
    lost = replace(cut, op_runs=cut.op_runs.iloc[:0])
    assert ids(lost, "oom") == set()
    for trace, expected in ((raw, False), (lost, True)):
        measured = measure(trace, note, sample_trace("oom"))
        trust = trust_figures(explain(measured, WhatIf(), search=False))
        assert trust is not None
        assert trust.is_damaged is expected
        assert any("would have fitted" in line for line in trust.says) is expected


def test_a_note_of_the_variables_that_moved() -> None:
    raw = read_trace(sample_trace("oom"))
    early = replace(raw.markers[0], start_ps=0, end_ps=1)
    assert "variables" in ids(replace(raw, markers=(early, *raw.markers[1:])), "oom")


def without(trace: TraceBuilder, *names: str) -> TraceBuilder:
    """Remove statistics, as in a trace of another TensorFlow."""
    for plane in trace.space.planes:
        gone = {x.key for x in plane.stat_metadata if x.value.name.decode() in names}
        for line in plane.lines:
            for event in line.events:
                kept = [stat for stat in event.stats if stat.metadata_id not in gone]
                del event.stats[:]
                event.stats.extend(kept)
    return trace


@pytest.mark.parametrize(
    "lacking",
    [
        ("bytes_allocated", "bytes_available", "peak_bytes_in_use", "fragmentation"),
        ("peak_bytes_in_use",),
        ("bytes_available",),
        ("requested_bytes",),
        ("shape", "data_type", "region_type", "id", "tf_op"),
    ],
)
def test_a_trace_of_another_version_may_lack_statistics(
    lacking: tuple[str, ...], tmp_path: Path
) -> None:
    assert (
        ids(read_trace(without(marks((0, 99), (100, 199)), *lacking).write(tmp_path / "a")))
        == set()
    )


def test_an_allocator_without_statistics_is_not_checked(tmp_path: Path) -> None:
    """TensorFlow's plain allocator writes sizes of 0 where its malloc does not tell them."""
    trace = TraceBuilder()
    for time in range(0, 100, 10):
        trace.allocate(time, 0x10 + time, 0, requested=100, allocator="cpu")
    for time in range(0, 100, 20):
        trace.free(200 + time, 0x10 + time, size=0, allocator="cpu")
    assert ids(read_trace(trace.write(tmp_path / "a.xplane.pb"))) == set()


def on_a_card(seed: int, *, growth: bool) -> TraceBuilder:
    """Return a trace of a card's allocator, simulated, beside one of pinned host memory."""
    rng = random.Random(seed)
    slots, requests, live, size_of = [], [], [], {}
    for number in range(400):
        if (
            number == 200
        ):  # everything goes, and what comes next fits no region: they are given back
            for name in live:
                slots.append(name), requests.append(0)
            live = []
        if live and rng.random() < 0.4:
            slots.append(live.pop(rng.randrange(len(live)))), requests.append(0)
        else:
            size_of[number] = int(2 ** rng.uniform(2, 21 if number < 200 else 24.5))
            live.append(number), slots.append(number), requests.append(size_of[number])
    buffer = {name: at for at, name in enumerate(size_of)}
    sequence = Sequence(
        slot=np.array([buffer[name] for name in slots]),
        request=np.array(requests, np.int64),
        instant=np.arange(len(slots)),
        requested_bytes=np.array(list(size_of.values()), np.int64),
        address=np.full(len(size_of), -1),
        row=np.arange(len(size_of)),
    )
    limit = 256 * MIB if growth else 2048 * MIB
    result = replay(sequence, BfcOptions.gpu(limit, growth=growth))
    assert result.failure is None or growth
    trace = TraceBuilder()
    columns: Any = (result.address, result.chunk_bytes, sequence.request)
    for at, (address, chunk, request) in enumerate(
        zip(*(column.tolist() for column in columns), strict=False)
    ):
        time = 10 * at + 10
        if request:
            trace.allocate(time, address, chunk, requested=request)
        else:
            trace.free(time, address)
        if at % 5 == 0:
            trace.allocate(time + 1, 0x1000, 256, requested=8, allocator="gpu_host_bfc", thread=2)
            trace.free(time + 2, 0x1000, allocator="gpu_host_bfc", thread=3)
    return trace


@pytest.mark.parametrize("growth", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_cards_trace_is_whole(seed: int, growth: bool, tmp_path: Path) -> None:
    raw = read_trace(on_a_card(seed, growth=growth).write(tmp_path / "a.xplane.pb"))
    assert ids(raw) == set()
    assert len(integrity_of(raw).counters) == 2
    assert "lost-events" in ids(altered(raw, lambda events: events.drop(index=[30, 31, 90])))


@pytest.mark.parametrize("seed", range(5))
def test_events_of_one_tick_are_put_in_order(seed: int) -> None:
    # GIVEN a clock that ticks slowly, so that the threads' events of a tick come one after the other
    raw = read_trace(sample_trace("eager"))
    rng = np.random.default_rng(seed)
    threads = np.repeat(rng.integers(0, 3, len(raw.events)), rng.integers(1, 9, len(raw.events)))
    threads = threads[: len(raw.events)]
    ticks = raw.events["time_ps"] // 10_000_000 * 10_000_000
    mixed = raw.events.assign(time_ps=ticks, thread=threads)
    mixed = mixed.sort_values(["time_ps", "thread"], kind="stable", ignore_index=True)
    assert not mixed["address"].equals(raw.events["address"])
    # WHEN it is measured THEN the sum is TensorFlow's all the same
    slow = replace(raw, events=mixed)
    assert "lost-events" not in ids(slow)
    assert "sums" not in ids(slow)
