"""What a compiled step asks for without an op's name: its one block, and its results."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analyzer.model.choice import Category
from analyzer.model.recording.records import Step
from analyzer.tracing.measure.attribution import label_eager
from analyzer.tracing.measure.attribution_labels import Labels


@pytest.mark.parametrize("infer", [True, False])
def test_what_outlives_a_compiled_step_is_its_result(infer: bool) -> None:
    table = pd.DataFrame(
        {
            "op": pd.Categorical(["", "", ""]),
            "allocator": "mklcpu",
            "region": "",
            "dtype": "",
            "born": [10, 11, 12],
            "dies": [
                12,
                25,
                40,
            ],  # the second is let go of when the next step returns, the third not
            "step": pd.array([0, 0, 0], dtype="Int64"),
        }
    )
    steps = (Step(index=0, number=0, first=10, last=19), Step(index=1, number=1, first=20, last=29))
    labels = Labels(3)
    phases = np.zeros(3, dtype=np.int8)
    none = np.zeros(3, dtype=bool)
    label_eager(labels, table, steps, phases, {}, none, infer=infer, jit=True)
    found = labels.apply(table)
    kept = Category.ACTIVATION if infer else Category.TEMPORARY
    open_ = Category.UNATTRIBUTED
    assert list(found["category"]) == [Category.TEMPORARY.value, kept.value, open_.value]
    assert found["role"][1] == "result of the step"


def test_what_python_brings_into_a_step_is_an_input_and_a_pool_threads_is_not() -> None:
    table = pd.DataFrame(
        {
            "op": pd.Categorical(["", "", "_EagerConst", "Relu"]),
            "allocator": "mklcpu",
            "region": "",
            "dtype": "",
            "born": [10, 11, 12, 13],
            "dies": [18, 18, 18, 18],
            "step": pd.array([0, 0, 0, 0], dtype="Int64"),
        }
    )
    labels = Labels(4)
    by_python = np.array([True, False, False, True])
    steps = (Step(index=0, number=0, first=10, last=19),)
    phases = np.zeros(4, dtype=np.int8)
    label_eager(labels, table, steps, phases, {}, by_python, infer=False, jit=False)
    told = labels.apply(table.assign(dtype="", shape=""))["category"].tolist()
    assert told == ["input", "temporary", "input", "temporary"]
