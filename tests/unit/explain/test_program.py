"""What is said of a program from its readings and its stages, and what a failed request asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.out_of_memory import requested_by
from analyzer.explain.running import leaks
from analyzer.explain.running.data_held import find_filling_stage
from analyzer.explain.running.kept_objects import find_varying_shapes
from analyzer.explain.running.leaks import find_unexplained
from analyzer.explain.running.slope import ProgramGrowth, growth_of, measure_growth
from analyzer.model.contract.watch_note import DataStage, HeldTensors, Reading, WatchNote
from analyzer.model.recording.schema import TRIAL_ROLE

MIB = 1 << 20


def seen(per_step_bytes: int, **fields: Any) -> WatchNote:
    readings = tuple(
        Reading(step=step, in_use_bytes=100 * MIB + per_step_bytes * step) for step in range(1, 61)
    )
    return WatchNote(step="a call of f", warmup=3, steps=60, readings=readings, **fields)


def traced(kind: str = "cpu") -> Analysis:
    recording = SimpleNamespace(steps=[None] * 5, device=SimpleNamespace(kind=kind))
    return cast(Analysis, SimpleNamespace(recording=recording))


def trends(watch: WatchNote, kind: str = "gpu") -> ProgramGrowth:
    return measure_growth(traced(kind).recording, watch)


@pytest.mark.parametrize(
    ("kind", "elements", "is_cause"),
    [("cpu", 100, True), ("cpu", 10, False), ("gpu", 100, False)],
)
def test_a_stage_explains_growth_that_it_may_still_hold(
    kind: str, elements: int, is_cause: bool
) -> None:
    stage = DataStage(kind="cache", where="train.py:4", elements=elements, element_bytes=MIB)
    watch = seen(MIB, stages=(stage,))
    found = find_filling_stage(traced(kind).recording, watch, trends(watch, kind).device)
    assert found is (stage if is_cause else None)


def test_a_stage_explains_nothing_where_nothing_grows() -> None:
    stage = DataStage(kind="cache", where="train.py:4", elements=100, element_bytes=MIB)
    watch = seen(0, stages=(stage,))
    assert find_filling_stage(traced().recording, watch, trends(watch).device) is None


def test_arrays_that_a_container_keeps_are_told_with_its_line() -> None:
    kept = HeldTensors(holder="the list `rows`", where="train.py:9", count=5, size_bytes=5 * MIB)
    watch = seen(0, on_host=(kept,))
    (found,) = find_unexplained(traced(), watch, trends(watch))
    assert found.id == "grows-on-host"
    assert "grows by 1.00 MiB a step" in found.title
    assert "the list `rows` (train.py:9)" in found.title


def test_what_is_kept_now_and_then_is_told_where_it_explains_the_growth() -> None:
    analysis = traced()
    analysis.peak = SimpleNamespace(allocated_bytes=100 * MIB)  # type: ignore[assignment,misc]
    for count, told in ((30, "the list `kept` of a Callback (train.py:9)"), (10, "")):
        kept = HeldTensors(
            holder="the list `kept` of a Callback",
            where="train.py:9",
            count=count,
            size_bytes=count * MIB,
        )
        found = leaks._rare_leak(
            analysis,
            seen(MIB, held_later=(kept,), later_step=60),
            growth_of(seen(MIB).readings, 3),
        )
        assert (found is None) is (not told)
        assert found is None or told in found.title


@pytest.mark.parametrize(("size_bytes", "told"), [(0, 0), (8000, 1)])
def test_what_is_held_without_bytes_stays_of_no_step(size_bytes: int, told: int) -> None:
    """As the variables' handles that a function captures when it is first called."""
    analysis = traced()
    columns = ("step", "dies", "address", "category", "allocated_bytes", "op")
    analysis.recording.allocations = pd.DataFrame(columns=columns)  # type: ignore[misc]
    analysis.recording.events = pd.DataFrame()  # type: ignore[misc]
    held = HeldTensors(holder="the Function", where="a.py:1", count=8, size_bytes=size_bytes)
    assert len(leaks.leaks_by_holder(analysis, seen(0, held=(held,)))) == told


def test_growth_that_takes_a_million_steps_to_matter_is_not_told() -> None:
    watch = seen(300)
    assert not list(find_unexplained(traced(), watch, trends(watch)))


@pytest.mark.parametrize(
    ("message", "size_bytes"),
    [
        ("OOM when allocating tensor with shape[8,64] and type half on X by allocator Y", 1024),
        ("Out of memory while trying to allocate 6291456 bytes.", 6 * MIB),
        ("Out of memory while trying to allocate 1.50GiB. [Op:f]", 1536 * MIB),
        ("Out of memory while trying to allocate something", None),
    ],
)
def test_what_a_failed_request_asked_for(message: str, size_bytes: int | None) -> None:
    assert requested_by(message) == size_bytes


def steps_of(sizes: list[int], watch: WatchNote) -> Analysis:
    """Return an analysis of steps that each make one tensor of a size, in MiB, and free it."""
    count = len(sizes)
    rows = pd.DataFrame(
        {
            "op": ["matmul"] * count,
            "step": range(count),
            "requested_bytes": [size * MIB for size in sizes],
            "source": ["train.py:5"] * count,
            "role": "",
        }
    )
    allocated = np.zeros(2 * count + 1, dtype=np.int64)
    allocated[1::2] = rows["requested_bytes"]
    recording = SimpleNamespace(
        steps=[
            SimpleNamespace(index=index, first=2 * index, last=2 * index + 1)
            for index in range(count)
        ],
        allocator="cpu",
        watch=watch,
        events=pd.DataFrame(
            {"allocator": ["cpu"] * 2 * count, "fragmentation": [0.25] * 2 * count}
        ),
    )
    line = SimpleNamespace(allocated=allocated)
    analysis = SimpleNamespace(
        rows=rows, recording=recording, line=line, full_steps=recording.steps
    )
    return cast(Analysis, analysis)


def test_steps_of_varying_shapes_are_told_with_their_peaks() -> None:
    analysis = steps_of([10, 40, 20, 30, 15], seen(0, where="train.py:3"))
    (found,) = find_varying_shapes(analysis)
    assert "10.00 MiB to 40.00 MiB (train.py:3)" in found.title
    assert "25%" in found.detail
    assert found.evidence[0]["where"] == "train.py:5"


@pytest.mark.parametrize("sizes", [[40, 40, 40, 40, 10], [40] * 5, [40, 39, 38, 40, 40]])
def test_a_last_smaller_batch_is_no_varying_shape(sizes: list[int]) -> None:
    assert not list(find_varying_shapes(steps_of(sizes, seen(0))))


def test_trials_of_algorithms_are_no_varying_shapes() -> None:
    analysis = steps_of([400, 40, 41, 40, 300], seen(0))
    assert list(find_varying_shapes(analysis))
    analysis.rows.loc[[0, 4], "role"] = TRIAL_ROLE
    assert not list(find_varying_shapes(analysis))
