"""The convolutions' workspaces: what they add is worked out from who is alive where."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from analyzer.simulate.compiler.plan_uncertainty import XLA_LIMIT_BYTES, workspace_rise
from analyzer.tracing.parse.hlo import Hlo, Instruction
from analyzer.tracing.xla.buffer_plan import BufferPlan, Holder, PlanRegion, ValueUse


def made(kind: type, **known: Any) -> Any:
    """Make a record whose other fields are empty."""
    empty = {"str": "", "int": 0, "bool": False}
    values = {
        field.name: known.get(
            field.name, empty.get(str(getattr(field.type, "__name__", field.type)), ())
        )
        for field in fields(kind)
    }
    return kind(**values)


def instruction(number: int, name: str, **known: Any) -> Instruction:
    found: Instruction = made(Instruction, id=number, name=name, **{"parameter": None, **known})
    return found


def holder(name: str, offset: int, size: int, first: int, last: int) -> Holder:
    found: Holder = made(
        Holder, instruction=name, offset_bytes=offset, size_bytes=size, first=first, last=last
    )
    return found


def step(holders: list[Holder], size: int, moments: int) -> tuple[Hlo, BufferPlan]:
    """Return a module of one convolution, ``conv``, of 10 + 20 bytes into 30."""
    image = instruction(1, "image", shapes={(): ("int8", (10,))})
    kernel = instruction(2, "kernel", shapes={(): ("int8", (20,))})
    conv = instruction(
        3,
        "conv",
        opcode="custom-call",
        target="__cudnn$convForward",
        shapes={(): ("tuple", ()), (0,): ("int8", (30,)), (1,): ("uint8", (0,))},
        operands=(1, 2),
    )
    other = instruction(4, "other", opcode="custom-call", target="__cublas$gemm")
    hlo = made(
        Hlo,
        instructions={i.id: i for i in (image, kernel, conv, other)},
        schedule={0: (1, 2, 3, 4)},
        buffers={},
        roots={},
    )
    region = made(
        PlanRegion, size_bytes=size, use=ValueUse.TEMPORARY, holders=tuple(holders), moments=moments
    )
    return hlo, made(BufferPlan, regions=(region,), aliases={})


@pytest.mark.parametrize(
    ("size", "rise"),
    [
        (20, 0),  # fits between the operands and the result
        (21, 11),  # fits only if the result moves
        (40, 30),  # more than all 30 free bytes
    ],
)
def test_a_workspace_goes_where_there_is_room(size: int, rise: int) -> None:
    hlo, plan = step(
        [
            holder("image", 0, 10, 0, 4),
            holder("kernel", 10, 20, 1, 4),
            holder("conv", 50, 30, 2, 6),
            holder("later", 80, 10, 5, 6),
            holder("table", 90, 16, 0, 7),  # alive throughout: moves out of the way
        ],
        106,
        7,
    )
    assert workspace_rise(hlo, plan, size_bytes=size) == rise


def test_the_bound_is_operands_and_result() -> None:
    hlo, plan = step([holder("conv", 0, 30, 0, 2), holder("late", 0, 40, 2, 3)], 40, 3)
    assert workspace_rise(hlo, plan) == 60 - 10


def test_a_result_that_lies_elsewhere_has_its_place_in_the_schedule() -> None:
    hlo, plan = step([holder("kernel", 0, 100, 3, 5), holder("late", 0, 20, 6, 8)], 100, 9)
    assert (
        workspace_rise(hlo, plan, size_bytes=5) == 5
    )  # it runs after ``kernel``, while all bytes are taken


def test_no_algorithm_gets_more_than_xla_lets_it() -> None:
    hlo, plan = step([holder("conv", 0, 30, 0, 2)], 30, 3)
    assert workspace_rise(hlo, plan, size_bytes=1 << 40) == XLA_LIMIT_BYTES


def test_a_module_without_convolutions_has_none() -> None:
    hlo, plan = step([], 0, 1)
    bare = made(Hlo, instructions={4: hlo.instructions[4]}, schedule={}, buffers={}, roots={})
    assert workspace_rise(bare, plan) is None
