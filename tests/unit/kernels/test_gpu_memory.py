"""Which tensors lie on the card, and the copies that TensorFlow puts in between."""

import pytest

from analyzer.model.contract.run_note import Op, TensorSpec
from analyzer.model.graph.host_copies import (
    COPY,
    insert_host_copies,
    is_input_on_host,
    is_output_on_host,
)

INT = TensorSpec("int32", (32, 64))
FLOAT = TensorSpec("float32", (32, 64))
TRUTH = TensorSpec("bool", (32, 64))


def op(name, kind, inputs=(), outputs=(), device=""):
    return Op(name, kind, inputs=tuple(inputs), outputs=tuple(outputs), device=device)


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "on_host"),
    [
        ("AddV2", (INT, INT), INT, True),  # "a special GPU kernel for int32"
        ("AddV2", (FLOAT, FLOAT), FLOAT, False),
        ("Equal", (INT, INT), TRUTH, True),
        ("Equal", (FLOAT, FLOAT), TRUTH, False),
        ("Cast", (FLOAT,), INT, False),
        ("Transpose", (INT, INT), INT, False),
        ("Reshape", (INT, INT), INT, True),
        ("Shape", (FLOAT,), TensorSpec("int64", (2,)), True),
        ("Sum", (FLOAT, INT), FLOAT, False),
        ("LoopCond", (TRUTH,), TRUTH, True),
        ("_Arg", (), INT, True),
        ("_Arg", (), TensorSpec("int64", (32,)), False),
        ("_Arg", (), TensorSpec("resource", ()), True),
        ("StringToNumber", (TensorSpec("string", (4,)),), FLOAT, True),
    ],
)
def test_where_an_output_lies(kind, inputs, output, on_host):
    assert is_output_on_host(op("a", kind, outputs=(output,)), 0, inputs) is on_host


def test_the_users_own_placement_counts():
    placed = op("a", "AddV2", outputs=(FLOAT,), device="/job:localhost/device:CPU:0")
    assert is_output_on_host(placed, 0, (FLOAT, FLOAT))


def test_indices_are_read_on_the_card_and_axes_on_the_host():
    gather = op("a", "GatherV2", outputs=(FLOAT,))
    specs = (FLOAT, INT, TensorSpec("int32", ()))
    assert [is_input_on_host(gather, k, specs) for k in range(3)] == [
        False,
        False,
        True,
    ]
    total = op("a", "Sum", outputs=(FLOAT,))
    assert [is_input_on_host(total, k, (FLOAT, INT)) for k in range(2)] == [False, True]


def test_token_ids_are_copied_to_the_card_once_for_all_readers():
    graph = [
        op("ids", "_Arg", outputs=(INT,)),
        op("table", "_Arg", outputs=(TensorSpec("resource", ()),)),
        op("look_up", "ResourceGather", ["table:0", "ids:0"], [FLOAT]),
        op("sum", "UnsortedSegmentSum", ["look_up:0", "ids:0", "count:0"], [FLOAT]),
        op("count", "Const", outputs=(TensorSpec("int32", ()),)),
        op("next", "AddV2", ["ids:0", "ids:0"], [INT]),
    ]
    done = insert_host_copies(graph)
    copies = [one for one in done if one.type == COPY]
    assert [copy.inputs for copy in copies] == [("ids:0",)]
    assert copies[0].outputs == (INT,)
    assert not is_output_on_host(copies[0], 0, (INT,))
    by_name = {one.name: one for one in done}
    copied = f"{copies[0].name}:0"
    assert by_name["look_up"].inputs == ("table:0", copied)
    assert by_name["sum"].inputs == ("look_up:0", copied, "count:0")
    assert by_name["next"].inputs == ("ids:0", "ids:0")  # a host kernel


def test_a_graph_on_the_card_alone_is_left_as_it_is():
    graph = [op("x", "_Arg", outputs=(FLOAT,)), op("y", "Relu", ["x:0"], [FLOAT])]
    assert insert_host_copies(graph) == graph
