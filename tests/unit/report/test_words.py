"""Why a buffer is alive, in words."""

import pytest

from analyzer.findings.words import why_alive
from analyzer.measure.uses import Use


@pytest.mark.parametrize(
    ("op", "op_type", "told"),
    [
        ("tape/relu/ReluGrad", "ReluGrad", "kept for tape/relu/ReluGrad"),
        ("tape/relu/ReluGrad_1", "ReluGrad", "kept for tape/relu/ReluGrad_1"),
        (
            "conv/Conv2DBackpropFilter",
            "_MklNativeConv2DBackpropFilterWithBias",
            "kept for conv/Conv2DBackpropFilter",
        ),
        ("moments/mul_1", "Mul", "kept for moments/mul_1 (Mul)"),
        ("add", "AddV2", "kept for add (AddV2)"),
    ],
)
def test_an_ops_type_is_told_where_its_name_does_not(op: str, op_type: str, told: str) -> None:
    row = {"category": "activation", "variable": "", "role": ""}
    assert why_alive(row, Use(waits_for=op, waits_for_type=op_type)) == told
