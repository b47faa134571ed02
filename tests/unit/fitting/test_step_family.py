"""Steps that differ in a size alone: any size's graph from two, and what is no family."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analyzer.fitting.scaling.step_family import NotOneFamily, family_of
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.contract.run_note import Input, StepConfig
from analyzer.tracing.parse.run_folder import RunNote


def note(size: int, *, extra: tuple[Op, ...] = (), **shapes: tuple[int, ...]) -> RunNote:
    """A step that is fed ``x`` and gives each tensor of ``shapes``."""
    ops = [
        Op(name="x", type="_Arg", outputs=(TensorSpec("float32", (size, 4)),), attrs={"index": 0})
    ]
    ops += [
        Op(name=name, type="Relu", inputs=("x:0",), outputs=(TensorSpec("float32", shape),))
        for name, shape in shapes.items()
    ]
    return RunNote(
        kind="static",
        ops=(*ops, *extra),
        step=StepConfig(mode="train", batch_size=size),
        inputs=(Input(name="x", dtype="float32", shape=(size, 4)),),
    )


def shape_at(size: int, make: Any, at: tuple[int, ...] = (8, 12)) -> tuple[int, ...]:
    family = family_of({each: note(each, y=make(each)) for each in at})
    family.check(size, note(size, y=make(size)))
    made = {op.name: op for op in family.at(size).ops}
    shape = made["y"].outputs[0].shape
    assert shape is not None
    return tuple(shape)


def test_every_axis_that_holds_the_batch_follows_it() -> None:
    assert shape_at(100, lambda n: (n, 3, 7)) == (100, 3, 7)


def test_the_batch_may_be_any_axis_or_part_of_one() -> None:
    assert shape_at(100, lambda n: (20, n, 8)) == (20, 100, 8)
    assert shape_at(100, lambda n: (n * 49 + 2, 8)) == (4902, 8)


def test_two_axes_with_the_size_make_a_product() -> None:
    assert shape_at(100, lambda n: (n, n)) == (100, 100)


def test_a_flattened_square_needs_a_third_size() -> None:
    def square(n: int) -> tuple[int, ...]:
        return (n * n,)

    with pytest.raises(NotOneFamily, match="another shape at 100"):
        shape_at(100, square)
    assert shape_at(100, square, (8, 12, 16)) == (10_000,)


def test_the_note_follows_too() -> None:
    made = family_of({8: note(8), 12: note(12)}).at(20)
    assert made.step.batch_size == 20
    assert made.inputs[0].shape == (20, 4)


def test_a_constant_shape_follows_and_a_float_does_not() -> None:
    def with_constants(n: int) -> RunNote:
        target = {"dtype": "int32", "shape": [2], "values": [n, 7]}
        mean = {"dtype": "float32", "shape": [], "values": [1 / n]}
        many = {"dtype": "int32", "shape": [n], "values": list(range(n))}
        return note(
            n,
            extra=tuple(
                Op(
                    name=name,
                    type="Const",
                    outputs=(TensorSpec("int32", (2,)),),
                    attrs={"value": v},
                )
                for name, v in (("target", target), ("mean", mean), ("many", many))
            ),
        )

    made = {
        op.name: op for op in family_of({8: with_constants(8), 12: with_constants(12)}).at(20).ops
    }
    assert made["target"].attrs["value"]["values"] == [20, 7]
    assert made["mean"].attrs["value"]["values"] == [1 / 8]
    assert made["many"].attrs["value"] == {"dtype": "int32", "shape": [20]}


def test_other_ops_are_no_family() -> None:
    other = note(12, extra=(Op(name="folded", type="Const"),))
    with pytest.raises(NotOneFamily, match="1 ops are in one graph only"):
        family_of({8: note(8), 12: other})
    first = note(8, y=(8,))
    ops = (first.ops[0], replace(first.ops[1], type="Elu"))
    with pytest.raises(NotOneFamily, match="op y is another one"):
        family_of({8: first, 12: replace(note(12, y=(12,)), ops=ops)})


def test_where_the_form_does_not_hold_it_is_said() -> None:
    family = family_of({8: note(8, y=(8,)), 12: note(12, y=(12,))})
    with pytest.raises(NotOneFamily, match=r"1 ops have another shape at 20 .*\(y\)"):
        family.check(20, note(20, y=(21,)))
