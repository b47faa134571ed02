"""Why a buffer is alive, in words."""

import pytest
from make_recording import make_recording
from msgspec.structs import replace

from analyzer.explain.buffer_uses import BufferUse
from analyzer.explain.buffer_words import why_alive
from analyzer.model.contract.report.limit_figures import Basis, Need, Outcome, VerdictFigures
from analyzer.model.ranges import BoundedBytes
from analyzer.model.units import format_bytes
from analyzer.report.summary import need_words


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
    assert why_alive(row, BufferUse(waits_for=op, waits_for_type=op_type)) == told


def test_a_need_below_the_allocated_peak_is_explained() -> None:
    report = make_recording(60).report
    allocated = report.peak.allocated_bytes
    for size, is_below in ((allocated - 256, True), (allocated, False)):
        need = Need(steady_step=BoundedBytes.exactly(size), allocator=BoundedBytes.exactly(0))
        verdict = VerdictFigures(
            outcome=Outcome.NO_LIMIT, basis=Basis.MEASURED, need=need, headline=""
        )
        text = " ".join(need_words(replace(report, verdict=verdict)))
        assert (f"less than the {format_bytes(allocated)} allocated" in text) is is_below
