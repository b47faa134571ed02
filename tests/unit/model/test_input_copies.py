"""Which tensors are an input once more, told from the graph."""

from __future__ import annotations

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.buffer_sharing import find_copies_of_inputs
from analyzer.model.graph.graph_index import build_graph_index

BATCH, SCALAR = TensorSpec("float32", (8, 4)), TensorSpec("float32", ())


def op(name: str, kind: str, *inputs: str, made: TensorSpec = BATCH) -> Op:
    return Op(name, kind, inputs=inputs, outputs=(made,))


def test_casts_turns_and_scales_of_an_input_are_copies_and_what_a_layer_makes_is_none() -> (
    None
):
    structure = build_graph_index(
        [
            op("x", "_Arg"),
            op("scale", "Const", made=SCALAR),
            op("other", "Const"),
            op("cast", "Cast", "x:0"),
            op("view", "Reshape", "cast:0"),
            op("scaled", "RealDiv", "view:0", "scale:0"),
            op("turned", "Transpose", "scaled:0"),
            op("added", "AddV2", "x:0", "other:0"),
            op("hidden", "MatMul", "turned:0", "other:0"),
            op("late", "Cast", "hidden:0"),
        ]
    )
    assert find_copies_of_inputs(structure) == {
        "cast:0": "Cast",
        "scaled:0": "RealDiv",
        "turned:0": "Transpose",
    }


def test_a_variable_that_a_step_is_given_is_no_data() -> None:
    handle = TensorSpec("resource", ())
    structure = build_graph_index(
        [op("v", "_Arg", made=handle), op("cast", "Cast", "v:0")]
    )
    assert find_copies_of_inputs(structure) == {}
