"""Categories of the values that the ops of a step compute."""

from __future__ import annotations

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import (
    PASSING_ROLES,
    Phase,
    build_graph_index,
    describe_value,
    find_gradient_ops,
)

FLOATS, COUNTS = TensorSpec("float32", (4, 4)), TensorSpec("int32", (2,))


def op(name: str, kind: str, *inputs: str, spec: TensorSpec = FLOATS) -> Op:
    return Op(name, kind, inputs=inputs, outputs=(spec,))


def test_results_after_the_first_gradient_are_gradients_and_copies_of_activations_are_not() -> (
    None
):
    tape = "gradient_tape/net"
    structure = build_graph_index(
        [
            op("net/dense", "MatMul"),
            op(f"{tape}/ones", "Fill"),
            op(f"{tape}/perm", "Const", spec=COUNTS),
            op(f"{tape}/copy", "Transpose", "net/dense:0", f"{tape}/perm:0"),
            op(f"{tape}/mul", "Mul", f"{tape}/ones:0", "net/dense:0"),
            op(f"{tape}/MatMul", "MatMul", f"{tape}/copy:0", f"{tape}/mul:0"),
            op(f"{tape}/relu", "ReluGrad", "net/dense:0"),
        ]
    )
    found = find_gradient_ops(structure)
    assert {f"{tape}/{name}" for name in ("ones", "mul", "MatMul", "relu")} <= found
    assert f"{tape}/copy" not in found
    assert "net/dense" not in found


def test_a_pass_frees_the_values_that_it_alone_reads() -> None:
    gradient = describe_value(Phase.BACKWARD, carries_gradient=True)
    activation = describe_value(Phase.FORWARD, is_activation=True)
    assert (gradient[0], activation[0]) == (Category.GRADIENT, Category.ACTIVATION)
    assert {gradient[1], activation[1]} == PASSING_ROLES
    for more in ({"of_variable": True}, {"is_kept": True}):
        phase = Phase.BACKWARD if "of_variable" in more else Phase.FORWARD
        assert describe_value(phase, **more)[1] not in PASSING_ROLES
