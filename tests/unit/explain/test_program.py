"""What is said of a program from its readings and its stages, and what a failed request asked for."""

from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from analyzer.explain.analysis import Analysis
from analyzer.explain.running.data_held import find_filling_stage
from analyzer.explain.running.leaks import find_unexplained
from analyzer.explain.running.slope import measure_growth
from analyzer.model.contract.report_file import TrendFigures
from analyzer.model.contract.run_note import (
    DataStage,
    Reading,
    WatchNote,
)

MIB = 1 << 20


def seen(per_step_bytes: int, **fields: Any) -> WatchNote:
    readings = tuple(
        Reading(
            step=step,
            in_use_bytes=100 * MIB + per_step_bytes * step,
            host_bytes=per_step_bytes * step,
        )
        for step in range(1, 61)
    )
    return WatchNote(
        step="a call of f", warmup=3, steps=60, readings=readings, **fields
    )


def traced(kind: str = "cpu") -> Analysis:
    recording = SimpleNamespace(steps=[None] * 5, device=SimpleNamespace(kind=kind))
    return cast(Analysis, SimpleNamespace(recording=recording))


def trends(watch: WatchNote, kind: str = "gpu") -> TrendFigures:
    return measure_growth(traced(kind).recording, watch)[0]


@pytest.mark.parametrize(
    ("kind", "elements", "is_cause"),
    [("cpu", 100, True), ("cpu", 10, False), ("gpu", 100, False)],
)
def test_a_stage_explains_growth_that_it_may_still_hold(
    kind: str, elements: int, is_cause: bool
) -> None:
    stage = DataStage(
        kind="cache", where="train.py:4", elements=elements, element_bytes=MIB
    )
    watch = seen(MIB, stages=(stage,))
    found = find_filling_stage(traced(kind).recording, watch, trends(watch, kind))
    assert found is (stage if is_cause else None)


@pytest.mark.parametrize(("left_bytes", "ids"), [(MIB, ["grows"]), (256, [])])
def test_a_leak_without_a_holder_needs_tensors_that_outlive_their_step(
    left_bytes: int, ids: list[str]
) -> None:
    rows = pd.DataFrame({"step": range(5), "allocated_bytes": left_bytes})
    analysis = traced()
    analysis.recording.events = ()
    analysis.recording.allocations = rows.assign(
        dies=0, address=1, category="", op="f", source="", layer=""
    )
    watch = seen(MIB)
    flat = TrendFigures(trend="flat")

    found = find_unexplained(analysis, watch, trends(watch), flat)

    assert [one.id for one in found] == ids


def test_growth_of_the_host_without_a_holder_names_no_container() -> None:
    watch = seen(2 * MIB)
    _, host = measure_growth(traced("gpu").recording, watch)
    (found,) = find_unexplained(traced(), watch, TrendFigures(trend="flat"), host)
    assert found.id == "host-growth"
