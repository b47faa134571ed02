"""Names of ops in two runs of one program."""

from analyzer.tracing.derive.op_names import match_names


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
