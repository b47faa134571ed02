"""What a compiled step asks for without an op's name: its one block, and its results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import build_graph_index
from analyzer.model.recording.attribution import label_eager
from analyzer.model.recording.labels import Labels
from analyzer.model.recording.records import Step
from analyzer.tracing.xla.buffer_plan import BufferPlan, PlanRegion, ValueUse
from analyzer.tracing.xla.trace_modules import name_call_requests


@pytest.mark.parametrize("infer", [True, False])
def test_what_outlives_a_compiled_step_is_its_result(infer: bool) -> None:
    table = pd.DataFrame(
        {
            "op": pd.Categorical(["", "", ""]),
            "allocator": "mklcpu",
            "run_id": 1,
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
            "run_id": 1,
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


def test_an_unnamed_buffer_from_before_the_steps_is_a_tensor_of_python() -> None:
    """TensorFlow copies an array of NumPy outside any op (``TF_NewTensor`` in ``tf_tensor.cc``)."""
    table = pd.DataFrame(
        {
            "op": pd.Categorical([""]),
            "allocator": "mklcpu",
            "run_id": 0,
            "region": "",
            "dtype": "",
            "born": [1],
            "dies": [40],
            "step": pd.array([pd.NA], dtype="Int64"),
        }
    )
    steps = (Step(index=0, number=0, first=10, last=19),)
    for is_captured, category in ((True, "constant"), (False, "unattributed")):
        labels, none = Labels(1), np.zeros(1, dtype=bool)
        phases = np.zeros(1, dtype=np.int8)
        label_eager(
            labels, table, steps, phases, {}, none, infer=False, jit=False, is_captured=is_captured
        )
        assert labels.apply(table)["category"].tolist() == [category]


def test_requests_of_compiled_calls_name_their_ops_in_graph_order() -> None:
    # GIVEN two calls with one assignment, and scratch memory of another thread between their requests
    spec = TensorSpec("float32", (1024,))
    attrs = {"_XlaMustCompile": True}
    calls = [Op(f"caller/f_{n}", "PartitionedCall", outputs=(spec,), attrs=attrs) for n in (1, 2)]
    structure = build_graph_index([*calls, Op("use", "Neg", inputs=("caller/f_2:0",))])
    regions = (region(ValueUse.OUTPUT, 4096), region(ValueUse.TEMPORARY, 8192))
    plan = BufferPlan(
        module="f", platform="cpu", regions=regions, parameters=(), aliases={}, outputs=(4096,)
    )
    plans = {"caller/f_1": plan, "caller/f_2": plan}
    table = pd.DataFrame(
        {
            "op": pd.Categorical([""] * 5),
            "allocator": "mklcpu",
            "run_id": 1,
            "born": range(5),
            "requested_bytes": [4096, 100, 8192, 4096, 8192],
            "step": pd.array([0] * 5, dtype="Int64"),
            **dict.fromkeys(("region", "tensor", "dtype", "shape"), ""),
        }
    )
    raw: Any = SimpleNamespace(events=pd.DataFrame({"thread": [1, 2, 1, 1, 1]}))
    # WHEN they are named THEN results are outputs, and the other thread's memory is not theirs
    found = name_call_requests(table, raw, plans, structure)
    assert found["op"].tolist() == ["caller/f_1", "", "caller/f_1", "caller/f_2", "caller/f_2"]
    assert found["tensor"].tolist() == ["caller/f_1:0", "", "", "caller/f_2:0", ""]


def region(use: ValueUse, size_bytes: int) -> PlanRegion:
    return PlanRegion(
        index=0,
        size_bytes=size_bytes,
        use=use,
        results=(),
        is_live_out=use is ValueUse.OUTPUT,
        is_tuple=False,
        dtype="float32",
        shape=None,
        op_name="",
    )
