"""A trace's ops joined by name with a graph from outside the trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builders import TraceBuilder, analyze

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import ScopeTable, build_graph_index
from analyzer.tracing.derive.graph_join import SourceGraph, match_names
from analyzer.tracing.measure.measured_recording import open_measured

CALL = "StatefulPartitionedCall"


def spec(*shape: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec("float32", shape),)


def source() -> SourceGraph:
    """A layer, its gradient and an op that reads both, for a batch of 2."""
    ops = (
        Op("net/dense_1/MatMul", "MatMul", outputs=spec(2, 64)),
        Op("net/dense_1/Relu", "Relu", ("net/dense_1/MatMul:0",), outputs=spec(2, 64)),
        Op(
            "gradient_tape/net/dense_1/MatMul",
            "MatMul",
            ("net/dense_1/Relu:0",),
            outputs=spec(64, 64),
        ),
    )
    scopes = ScopeTable({"net/dense_1": ("layer", "dense")})
    gradients = ["gradient_tape/net/dense_1/MatMul:0"]
    index = build_graph_index(ops, gradients=gradients, scopes=scopes)

    return SourceGraph("the graph of train.py:build", index, 2)


def trace(path: Path) -> Path:
    """The same step with a batch of 8, after another model with a layer dense."""
    trace = TraceBuilder()
    names = (
        "net/dense_4/MatMul",
        "net/dense_4/Relu",
        "gradient_tape/net/dense_4/MatMul",
    )
    shapes = ((8, 64), (8, 64), (64, 64))
    trace.step(0, 100)
    trace.allocate(5, 0x9000, 256, op="Dataset", run_id=2)

    for number, (name, (rows, columns)) in enumerate(zip(names, shapes, strict=True)):
        trace.allocate(
            10 + number,
            0x10000 * (number + 1),
            rows * columns * 4,
            op=f"{CALL}/{name}",
            shape=f"[{rows},{columns}]",
            data_type=1,
            run_id=7,
        )

    for number in range(3):
        trace.free(50 + number, 0x10000 * (number + 1))
    return trace.write(path / "host.xplane.pb")


def test_layers_with_other_numbers_and_a_caller_are_joined(tmp_path: Path) -> None:
    # GIVEN a trace with other names and another batch size than the graph
    # WHEN it is measured with the graph
    measured = open_measured(trace(tmp_path), source=source())
    # THEN all tensors of the step's function are joined, and the batch size is that of the trace
    assert measured.join is not None
    assert (measured.join.tensors, measured.join.joined) == (3, 3)
    assert measured.join.batch_size == 8
    assert measured.join.says in measured.recording.notes
    # AND layers and edges are those of the graph, and each edge says so
    table = measured.recording.allocations
    rows = table[table["op"].astype(str).str.startswith(CALL)]
    assert set(rows["layer"].astype(str)) == {"dense"}
    graph = measured.recording.graph
    edge = (
        ("tensor", f"{CALL}/net/dense_4/MatMul:0"),
        ("op", f"{CALL}/net/dense_4/Relu"),
    )
    (found,) = graph.get_edge_data(*edge).values()
    assert found["evidence"] == "target"


def test_the_graph_of_another_program_states_nothing(tmp_path: Path) -> None:
    other = replace(
        source(), index=build_graph_index([Op("a/Relu", "Relu", outputs=spec(4))])
    )
    measured = open_measured(trace(tmp_path), source=other)
    assert measured.join is not None
    assert measured.join.joined == 0
    assert measured.recording.structure is not None
    assert "a/Relu" not in measured.recording.structure.ops


def test_names_match_without_the_name_of_the_model() -> None:
    # GIVEN two programs that name the model differently, or in one of them not at all
    ops = [
        "model/conv2d/Relu",
        "gradient_tape/model/conv2d/ReluGrad",
        "adam/Mul",
        "model/a/Mul",
    ]
    names = [
        "sequential/conv2d/Relu",
        "gradient_tape/sequential/conv2d_1/ReluGrad",
        "net/Mul",
    ]
    # THEN ops of the same layers match, and an op of the optimizer matches no op of a model
    assert match_names(names, ops) == {names[0]: ops[0], names[1]: ops[1]}
    assert match_names(["model_3/conv2d_7"], ["conv2d"]) == {
        "model_3/conv2d_7": "conv2d"
    }
    assert match_names(["conv2d"], ["sequential/conv2d"]) == {
        "conv2d": "sequential/conv2d"
    }


def test_a_trace_is_no_target_of_a_trace(tmp_path: Path) -> None:
    ended = analyze("trace", trace(tmp_path), "--target", tmp_path)
    assert ended.code == 2
    assert "is a trace, not a model or a step" in ended.err
    assert ended.err.count("\n") == 1
