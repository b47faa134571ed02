"""What is said of a program from its readings and its stages, and what a failed request asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from analyzer.explain.analysis import Analysis
from analyzer.explain.running.data_held import find_filling_stage
from analyzer.explain.running.kept_objects import find_varying_shapes
from analyzer.explain.running.slope import measure_growth
from analyzer.model.contract.report_file import TrendFigures
from analyzer.model.contract.watch_note import (
    DataStage,
    Reading,
    WatchNote,
)
from analyzer.model.recording.schema import TRIAL_ROLE

MIB = 1 << 20


def seen(per_step_bytes: int, **fields: Any) -> WatchNote:
    readings = tuple(
        Reading(step=step, in_use_bytes=100 * MIB + per_step_bytes * step)
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
    assert found.evidence[0]["where"] == "train.py:5"


def test_trials_of_algorithms_are_no_varying_shapes() -> None:
    analysis = steps_of([400, 40, 41, 40, 300], seen(0))
    assert list(find_varying_shapes(analysis))
    analysis.rows.loc[[0, 4], "role"] = TRIAL_ROLE
    assert not list(find_varying_shapes(analysis))
