"""Products that are left to cuBLAS: those of the named ops and of the same shapes, and nothing else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analyzer.simulate.compiler import compile_child
from analyzer.simulate.compiler.compile_child import without_triton

MODULE = gzip.decompress((Path(__file__).parent / "data" / "heads_of_96.hlo.pb.gz").read_bytes())
REFUSED = "gradient_tape/functional_1/multi_head_attention_1/value_1/MatMul/MatMul"


def test_the_ops_of_a_refusal_are_those_that_it_shows() -> None:
    told = (
        f'Couldn\'t find tiles: %dot.35 = f32[1]{{0}} dot(%a), metadata={{op_name="{REFUSED}" l=1}}'
    )
    assert set(compile_child._OP_NAME.findall(told)) == {REFUSED}
    assert not compile_child._OP_NAME.findall("Unknown flag")


def test_products_of_the_same_shapes_are_left_too_and_no_others() -> None:
    marked = without_triton(MODULE, [REFUSED])
    assert marked is not None
    before, after = (
        compile_child._Module.FromString(MODULE),
        compile_child._Module.FromString(marked),
    )
    changed = []
    for old, new in zip(before.computations, after.computations, strict=True):
        for one, other in zip(old.instructions, new.instructions, strict=True):
            if one != other:
                assert list(other.precision.operand_precision) == [2, 2]
                other.precision.CopyFrom(one.precision)
                changed.append(one)
    assert after.SerializeToString() == before.SerializeToString()  # fields that are not listed too
    assert any(one.metadata.op_name == REFUSED.encode() for one in changed)
    assert {one.opcode for one in changed} == {b"dot"}
    assert len({tuple(one.shape.dimensions) for one in changed}) == 1
    assert without_triton(marked, [REFUSED]) is None  # nothing more can be left to it


@pytest.mark.parametrize("module", [MODULE, b"\xff no module", b""])
def test_where_no_product_is_named_nothing_is_left(module: bytes) -> None:
    assert without_triton(module, ["no such op"]) is None
