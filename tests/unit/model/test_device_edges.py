"""Pairs of ops between devices: an edge between CPUs, a copy to and from a card."""

from __future__ import annotations

import pytest

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.host_copies import join_device_edges

FLOATS = TensorSpec("float32", (4,))


def pair(tensor: str, source: str, to: str, number: int = 0) -> list[Op]:
    places = {
        "tensor_name": f"edge_{number}",
        "send_device": f"/job:localhost/replica:0/task:0/device:{source}",
        "recv_device": f"/job:localhost/replica:0/task:0/device:{to}",
    }
    return [
        Op(f"send{number}", "_Send", (tensor,), attrs=places),
        Op(f"recv{number}", "_Recv", outputs=(FLOATS,), attrs=places),
    ]


def test_a_pair_of_cpus_is_an_edge() -> None:
    ops = [
        Op("x", "_Arg", outputs=(FLOATS,)),
        *pair("x:0", "CPU:0", "CPU:1"),
        *pair("recv0:0", "CPU:1", "CPU:0", 1),
        Op("y", "Relu", ("recv1:0",), outputs=(FLOATS,)),
        Op("z", "NoOp", control_inputs=("recv0", "send1")),
    ]
    joined = join_device_edges(ops)
    assert [op.name for op in joined] == ["x", "y", "z"]
    assert joined[1].inputs == ("x:0",)
    assert joined[2].control_inputs == ("x",)


@pytest.mark.parametrize(("source", "to"), [("CPU:0", "GPU:0"), ("GPU:1", "GPU:0")])
def test_a_pair_with_a_card_is_left(source: str, to: str) -> None:
    ops = [Op("x", "_Arg", outputs=(FLOATS,)), *pair("x:0", source, to)]
    assert join_device_edges(ops) == tuple(ops)


def test_pairs_that_send_to_each_other_end() -> None:
    ops = [*pair("recv1:0", "CPU:0", "CPU:1"), *pair("recv0:0", "CPU:1", "CPU:0", 1)]
    reader = Op("y", "Relu", ("recv0:0",), outputs=(FLOATS,))
    assert [op.name for op in join_device_edges([*ops, reader])] == ["y"]
