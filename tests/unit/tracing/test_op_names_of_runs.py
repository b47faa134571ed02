"""Names of ops in two runs of one program."""

import pytest

from analyzer.model.contract.run_note import Op
from analyzer.tracing.derive.op_names import find_scopes, match_names


@pytest.mark.parametrize(
    ("scope", "layer"),
    [
        ("net/dense", "net/dense"),
        ("Adam/update_1", ""),
        ("categorical_crossentropy", ""),
    ],
)
def test_an_optimizer_a_loss_and_a_replica_are_no_layers(
    scope: str, layer: str
) -> None:
    name = f"{scope}/Cast"
    assert find_scopes([Op(name, "Cast")], set()).layer_of(name) == layer


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
