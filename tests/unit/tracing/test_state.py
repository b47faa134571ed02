"""Plain variables of a step made by hand, told apart by who writes them."""

from __future__ import annotations

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.contract.run_note import VariableNote
from analyzer.model.graph.graph_index import build_graph_index
from analyzer.model.recording.state_roles import find_roles_of_state
from analyzer.tracing.parse.run_folder import RunNote

VALUE = TensorSpec("float32", (8,))
HANDLE = TensorSpec("resource", ())
NAMES = ("weight", "sum", "momentum", "average")


def step(momentum_source: str) -> tuple[Op, ...]:
    """``sum += gradient``; ``momentum = momentum + SOURCE``; ``average = activation``."""
    arguments = [
        Op(name, "_Arg", attrs={"index": index}, outputs=(HANDLE,))
        for index, name in enumerate(NAMES)
    ]
    return (
        *arguments,
        Op("read_weight", "ReadVariableOp", inputs=("weight:0",), outputs=(VALUE,)),
        Op("forward", "Relu", inputs=("read_weight:0",), outputs=(VALUE,)),
        Op("gradient", "ReluGrad", inputs=("forward:0", "read_weight:0"), outputs=(VALUE,)),
        Op("add", "AssignAddVariableOp", inputs=("sum:0", "gradient:0")),
        Op("read_sum", "ReadVariableOp", inputs=("sum:0",), outputs=(VALUE,)),
        Op("read_momentum", "ReadVariableOp", inputs=("momentum:0",), outputs=(VALUE,)),
        Op("moved", "AddV2", inputs=("read_momentum:0", momentum_source), outputs=(VALUE,)),
        Op("write_momentum", "AssignVariableOp", inputs=("momentum:0", "moved:0")),
        Op("write_average", "AssignVariableOp", inputs=("average:0", "forward:0")),
    )


def roles(momentum_source: str, *more: Op) -> dict[str, str]:
    ops = (*step(momentum_source), *more)
    variables = [
        VariableNote(name, "float32", (8,), "constant", "state", trainable=False, argument=index)
        for index, name in enumerate(NAMES)
    ]
    note = RunNote(variables=tuple(variables), ops=ops)
    structure = build_graph_index(ops, gradients=["gradient:0"])
    return {
        NAMES[at]: category for at, (category, _) in find_roles_of_state(note, structure).items()
    }


def test_momentum_made_of_an_accumulators_value_is_optimizer_state() -> None:
    assert roles("read_sum:0") == {
        "weight": "parameter",
        "sum": "gradient",
        "momentum": "optimizer_state",
        "average": "parameter",
    }


def test_what_is_made_of_activations_only_is_no_optimizer_state() -> None:
    assert roles("forward:0")["momentum"] == "parameter"


def test_the_call_of_a_compiled_step_writes_nothing_itself() -> None:
    """An estimate knows the ops of a compiled step and the op that calls it, which takes gradients."""
    call = Op(
        "call",
        "StatefulPartitionedCall",
        inputs=("gradient:0", *(f"{name}:0" for name in NAMES)),
        attrs={"_XlaMustCompile": True},
    )
    assert roles("forward:0", call) == roles("forward:0")
