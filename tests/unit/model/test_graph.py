import json
from pathlib import Path

import networkx as nx
import pytest
from builders import opened_sample
from small_graphs import op as make_op

from analyzer.model.contract.run_note import (
    Op,
    TensorSpec,
)
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import (
    ScopeTable,
    build_graph_index,
    makes_activation,
)
from analyzer.model.graph.networkx_graph import build_graph, node_name

WITH_GRAPH = ["cnn", "jit", "lstm"]


def small_ops() -> list[Op]:
    return [
        Op("x", "Placeholder", outputs=(TensorSpec("float32", (2, -1)),)),
        Op("w", "Const", outputs=(TensorSpec("float32", (3, 4)),)),
        Op(
            "net/dense/MatMul",
            "MatMul",
            inputs=("x:0", "w:0"),
            outputs=(TensorSpec("float32", (2, 4)),),
            device="/device:CPU:0",
            source="a.py:3",
        ),
        Op("done", "NoOp", control_inputs=("net/dense/MatMul", "gone")),
    ]


def test_ops_tensors_and_edges() -> None:
    # GIVEN a product of two tensors
    graph = build_graph(build_graph_index(small_ops()))
    # THEN ops point to their tensors, tensors to their users, and a control edge to its op
    assert graph.nodes[("op", "net/dense/MatMul")] == {
        "kind": "op",
        "type": "MatMul",
        "layer": "net/dense",
        "phase": "forward",
        "source": "a.py:3",
        "device": "/device:CPU:0",
    }
    assert graph.nodes[("tensor", "net/dense/MatMul:0")] == {
        "kind": "tensor",
        "dtype": "float32",
        "shape": "[2,4]",
        "size_bytes": 32,
        "gradient": False,
    }
    assert graph.nodes[("tensor", "x:0")]["size_bytes"] is None
    edges = sorted(
        (a[1], b[1], data["control"]) for a, b, data in graph.edges(data=True)
    )
    assert edges == [
        ("net/dense/MatMul", "done", True),
        ("net/dense/MatMul", "net/dense/MatMul:0", False),
        ("w", "w:0", False),
        ("w:0", "net/dense/MatMul", False),
        ("x", "x:0", False),
        ("x:0", "net/dense/MatMul", False),
    ]


@pytest.mark.parametrize("name", ["infer", "jit"])
def test_node_link_can_be_read_back(name: str, tmp_path: Path) -> None:
    graph = opened_sample(name).graph
    opened_sample(name).to_graph(tmp_path / "a.graph.json")
    again = nx.node_link_graph(
        json.loads((tmp_path / "a.graph.json").read_text()), edges="edges"
    )
    assert set(again.nodes) == {node_name(node) for node in graph.nodes}
    assert again.number_of_edges() == graph.number_of_edges()
    for node, data in graph.nodes(data=True):
        assert again.nodes[node_name(node)] == data


@pytest.mark.parametrize("name", WITH_GRAPH)
def test_traced_allocations_join_the_graph(name: str) -> None:
    # GIVEN the buffers of the steady step that have an op
    result = opened_sample(name)
    rows = result.allocations
    named = rows[(rows["tensor"] != "") & (rows["op_type"] != "")]
    # THEN each one's tensor is a node of the graph, as is its op, and the types agree
    assert len(named)
    for tensor in named["tensor"].unique():
        assert ("tensor", tensor) in result.graph
    for op, op_type in set(zip(named["op"], named["op_type"], strict=True)):
        assert result.graph.nodes[("op", op)]["type"] == op_type


def test_a_tensors_size_is_what_was_asked_for() -> None:
    result = opened_sample("cnn")
    rows = result.allocations
    exact = rows[
        (rows["tensor"] != "") & (rows["step"] == 2) & (rows["role"] != "step input")
    ]
    sizes = nx.get_node_attributes(result.graph, "size_bytes")
    known = [
        (sizes[("tensor", tensor)], requested)
        for tensor, requested in zip(
            exact["tensor"], exact["requested_bytes"], strict=True
        )
        if sizes.get(("tensor", tensor)) is not None
    ]
    assert len(known) > 50
    assert all(size == requested for size, requested in known)


@pytest.mark.parametrize(
    ("op", "layer"),
    [
        ("net_1/conv_1/Conv2D", "net/conv"),
        ("gradient_tape/net_1/conv_1/Conv2DBackpropInput", "net/conv"),
        ("PartitionedCall/net_1/conv_1/Relu", "net/conv"),
        ("net_1/unknown/Relu", "net"),
        ("adam/Mul", ""),
        ("Elsewhere", ""),
    ],
)
def test_layers_are_told_by_their_noted_scopes(op: str, layer: str) -> None:
    scopes = ScopeTable(
        {
            "net_1": ("layer", "net"),
            "net_1/conv_1": ("layer", "net/conv"),
            "adam": ("optimizer", "adam"),
        }
    )
    assert scopes.layer_of(op) == layer


@pytest.mark.parametrize("start", ["EmptyTensorList", "Fill"])
def test_loops_that_begin_with_one_tensor_share_no_buffer(start: str) -> None:
    loops = [make_op("first", "Enter", "empty"), make_op("second", "Enter", "empty")]
    graph = build_graph_index([make_op("empty", start), *loops])
    assert Sharing(graph, ()).members("first:0") == ["first:0"]


def test_a_kernel_writes_into_its_input_if_the_batch_size_is_unknown() -> None:
    # GIVEN a step of any batch size, whose Relu makes no buffer of its own
    spec = (TensorSpec("float32", (-1, 8)),)
    ops = [Op("x", "MatMul", outputs=spec), Op("Relu", "Relu", ("x:0",), outputs=spec)]
    users = [Op("Grad", "ReluGrad", ("Relu:0",), outputs=spec)]
    sharing = Sharing(build_graph_index([*ops, *users]), {"x:0", "Grad:0"})
    # THEN the reader of the result uses the buffer of the input
    assert list(sharing.consumers("x:0")) == ["Relu", "Grad"]


def test_the_size_of_a_buffer_gives_its_batch() -> None:
    spec = TensorSpec("float32", (-1, 8))
    assert spec.of_size(32 * 8 * 4) == TensorSpec("float32", (32, 8))
    assert TensorSpec("float32", (4, 8)).of_size(256) is None


def test_the_buffer_of_a_sum_of_gradients_is_no_activation() -> None:
    # as Grappler splits a large ``AddN`` (``RewriteAddN`` in ``memory_optimizer.cc``)
    assert not makes_activation("TemporaryVariable")
