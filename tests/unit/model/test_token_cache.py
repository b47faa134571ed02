"""The tensors of a cache of keys and values, found in the graph of a loop."""

from __future__ import annotations

import pytest

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.buffer_sharing import find_cache
from analyzer.model.graph.graph_index import build_graph_index

CACHE, PART = TensorSpec("float32", (4, 2, 64, 8)), TensorSpec("float32", (4, 64, 8))
PLACE, TOKENS = TensorSpec("int32", (3,)), TensorSpec("int32", (4, 64))


def op(name: str, kind: str, *inputs: str, spec: TensorSpec = PART) -> Op:
    return Op(name, kind, inputs=inputs, outputs=(spec,))


def update(*around: Op) -> list[Op]:
    """Return the update of one part of a cache, and an attention that reads it."""
    return [
        *around,
        op("place", "Const", spec=PLACE),
        op("key", "MatMul", "x:0"),
        op("slice", "StridedSlice", "old:0", "place:0"),
        op("written", "XlaDynamicUpdateSlice", "slice:0", "key:0", "place:0"),
        op("new", "Pack", "written:0", "written:0", spec=CACHE),
        op("transpose", "Transpose", "written:0", "place:0"),
        op("scores", "MatMul", "transpose:0", "key:0"),
    ]


def test_a_loop_in_the_executor_carries_the_cache() -> None:
    ops = update(op("old", "Merge", "start:0", "next:0", spec=CACHE))
    ops += [
        op("start", "Fill", spec=CACHE),
        op("next", "NextIteration", "new:0", spec=CACHE),
    ]
    found = find_cache(build_graph_index(ops))
    assert found == {
        f"{name}:0" for name in ("start", "old", "slice", "written", "new", "next")
    }


def test_a_loop_that_xla_compiles_carries_the_cache() -> None:
    ops = [op("start", "Fill", spec=CACHE), op("while", "While", "start:0", spec=CACHE)]
    body = update(op("while/old", "Placeholder", spec=CACHE))
    ops += [
        op(
            one.name,
            one.type,
            *(i.replace("old", "while/old") for i in one.inputs),
            spec=one.outputs[0],
        )
        for one in body
    ]
    found = find_cache(build_graph_index(ops))
    assert found == {"while/old:0", "slice:0", "written:0", "new:0"}


@pytest.mark.parametrize("spec", [PART, TOKENS])
def test_an_update_outside_a_loop_or_of_tokens_is_no_cache(spec: TensorSpec) -> None:
    kind = "Fill" if spec is PART else "NextIteration"
    ops = [
        op("old", kind, spec=spec),
        op("written", "XlaDynamicUpdateSlice", "old:0", "key:0", "place:0", spec=spec),
    ]
    assert not find_cache(build_graph_index(ops))
