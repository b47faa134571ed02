"""Buffers of an all-reduce, told from the graph around it."""

from __future__ import annotations

import pytest

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import build_graph_index
from analyzer.model.recording.attribution import (
    PACKED_ROLE,
    REDUCED_ROLE,
    find_all_reduce_roles,
)


def op(name: str, kind: str, *inputs: str, outputs: int = 1) -> Op:
    return Op(
        name, kind, inputs=inputs, outputs=(TensorSpec("float32", (4,)),) * outputs
    )


@pytest.mark.parametrize("kind", ["CollectiveReduceV2", "NcclAllReduce"])
def test_what_is_packed_and_what_comes_out_is_named(kind: str) -> None:
    structure = build_graph_index(
        [
            op("a", "MatMul"),
            op("b", "MatMul"),
            op("pack", "ConcatV2", "a:0", "b:0"),
            op("view", "Identity", "pack:0"),
            op("reduce", kind, "view:0"),
            op("parts", "SplitV", "reduce:0", outputs=2),
            op("update", "ResourceApplyAdam", "parts:0"),
        ]
    )
    assert find_all_reduce_roles(structure) == {
        "reduce:0": REDUCED_ROLE,
        "pack:0": PACKED_ROLE,
        "parts:0": REDUCED_ROLE,
        "parts:1": REDUCED_ROLE,
    }


def test_a_gradient_that_is_reduced_as_it_is_keeps_its_name() -> None:
    structure = build_graph_index(
        [op("a", "MatMul"), op("reduce", "NcclAllReduce", "a:0")]
    )
    assert find_all_reduce_roles(structure) == {"reduce:0": REDUCED_ROLE}
    assert (
        find_all_reduce_roles(
            build_graph_index([op("a", "MatMul"), op("s", "SplitV", "a:0")])
        )
        == {}
    )
