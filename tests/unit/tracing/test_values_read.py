"""Values of a phantom card that decide what runs."""

from __future__ import annotations

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import build_graph_index
from analyzer.tracing.measure.values_read import (
    find_value_dependent_ops,
    warn_about_values,
)


def op(name: str, kind: str, *inputs: str, dtype: str = "bool", source: str = "") -> Op:
    return Op(
        name, kind, inputs=inputs, outputs=(TensorSpec(dtype, ()),), source=source
    )


def test_a_loss_that_decides_is_named_with_its_line() -> None:
    structure = build_graph_index(
        [
            op("loss", "Mean", dtype="float32"),
            op("limit", "Const", dtype="float32"),
            op("small", "Less", "loss:0", "limit:0", source="train.py:15"),
            op("way", "Switch", "loss:0", "small:0"),
            op("other", "Switch", "limit:0", "small:0"),
            op("found", "Where", "small:0", dtype="int64"),
        ]
    )
    assert find_value_dependent_ops(structure) == ["small at train.py:15", "found"]
    assert "small at train.py:15, found. No kernel" in warn_about_values(structure)[0]


def test_what_the_host_computes_and_whether_gradients_are_finite_is_right() -> None:
    structure = build_graph_index(
        [
            op("count", "Merge", "start:0", dtype="int32"),
            op("start", "Const", dtype="int32"),
            op("trips", "Const", dtype="int32"),
            op("more", "Less", "count:0", "trips:0"),
            op("loop", "LoopCond", "more:0"),
            op("gradient", "MatMul", dtype="float16"),
            op("finite", "IsFinite", "gradient:0"),
            op("all", "All", "finite:0"),
            op("way", "Switch", "gradient:0", "all:0"),
        ]
    )
    assert find_value_dependent_ops(structure) == []
    assert warn_about_values(structure) == warn_about_values(None) == []
