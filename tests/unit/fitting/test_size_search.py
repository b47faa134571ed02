"""Which sizes are captured on the way to the largest that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from analyzer.fitting.scaling.size_lines import LimitRange, SizeNeed, SizeRefused
from analyzer.fitting.scaling.size_search import FoundSizes, SizeSearch
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.contract.run_note import Input, StepConfig, ThreadsNote
from analyzer.tracing.parse.run_folder import RunNote

MIB = 1 << 20


class Captures:
    """Stands for captures of a step with one tensor of its own.

    Attributes:
        captured: Sizes that were asked for, in order.
    """

    def __init__(self, shape: Callable[[int], tuple[int, ...]], folded_to: int = 0) -> None:
        self.shape, self.folded_to = shape, folded_to
        self.captured: list[int] = []

    def note(self, size: int) -> RunNote:
        self.captured.append(size)
        x = Op(name="x", type="_Arg", outputs=(TensorSpec("float32", (size, 64)),))
        own = Op(
            name="own", type="RandomUniform", outputs=(TensorSpec("float32", self.shape(size)),)
        )
        last = Op(name="last", type="Tanh", inputs=("own:0",), outputs=own.outputs)
        result = Op(name="result", type="_Retval", inputs=("last:0",), attrs={"index": 0})
        extra = (Op(name="fill", type="NoOp"),) if size > self.folded_to else ()
        return RunNote(
            kind="static",
            ops=(replace(x, attrs={"index": 0}), own, last, result, *extra),
            step=StepConfig(mode="infer", batch_size=size),
            inputs=(Input(name="x", dtype="float32", shape=(size, 64)),),
            threads=ThreadsNote(intra_op=1, inter_op=1, inter_op_fixed=True),
        )

    def need(self, size: int) -> Any:
        raise AssertionError("no size is estimated by itself")

    need_made = need


def found(
    captures: Captures, limit_mib: int, power: int = 1, start: int = 32, degree: int = 1
) -> FoundSizes:
    limit = limit_mib * MIB
    limits = LimitRange(bytes=limit, low_bytes=limit, high_bytes=limit)
    search = SizeSearch(
        captures, lambda target: limits, start, power=power, degree=degree, report=lambda *_: None
    )
    return search.find()


def test_what_an_images_tokens_are_held_against_each_other_for_is_of_the_fourth_degree() -> None:
    captures = Captures(lambda size: (size * size, size * size))
    answer = found(captures, 64, power=2, start=8, degree=2)
    assert answer.forms.is_closed_form
    side = answer.sizes.size  # two tensors of side^4 floats
    assert 8 * side**4 <= 64 * MIB < 8 * (side + 2) ** 4


def test_three_captures_are_enough_for_a_step_whose_ops_are_the_same() -> None:
    captures = Captures(lambda size: (size, 1000))
    answer = found(captures, 64)
    assert answer.forms.is_closed_form
    assert len(captures.captured) <= 3
    assert answer.sizes.size in captures.captured


def test_sizes_are_compared_with_those_of_the_same_ops() -> None:
    captures = Captures(lambda size: (size, 1000), folded_to=3000)
    answer = found(captures, 64)
    assert answer.forms.is_closed_form
    assert len(captures.captured) <= 5


def test_the_batch_against_itself_in_one_axis_is_found_by_three_captures() -> None:
    captures = Captures(lambda size: (size * size,))
    answer = found(captures, 64)
    assert answer.forms.is_closed_form
    most = int((64 * MIB / 4) ** 0.5)
    assert 0.6 * most < answer.sizes.size <= most
    assert len(captures.captured) <= 6


class Swapping(Captures):
    """A step that the optimiser swaps tensors of from a size on, other ones at each capture."""

    def note(self, size: int) -> RunNote:
        note = super().note(size)
        swap = Op(name=f"swap_out_{len(self.captured)}", type="_CopyFromGpuToHost")
        return replace(note, ops=(*note.ops, swap)) if size > 4000 else note

    def need(self, size: int) -> SizeNeed:
        needs = size * 8000 * (98 + 2 * (size % 2)) // 100
        return SizeNeed(
            low_bytes=needs,
            bytes=needs,
            high_bytes=needs,
            requested_bytes=needs,
            allocated_bytes=needs,
        )


def test_where_tensors_are_swapped_few_sizes_are_captured_and_the_answer_says_so() -> None:
    captures = Swapping(lambda size: (size, 1000))
    answer = found(captures, 64)
    assert answer.forms.swaps
    assert not answer.forms.is_closed_form
    assert "swaps tensors to the host" in answer.forms.why_not
    assert len(captures.captured) <= 4
    most = 64 * MIB / 8000
    assert 0.9 * most < answer.sizes.size <= most / 0.98
    assert answer.sizes.in_each == answer.sizes.safe < 0.96 * most


class Rewritten(Captures):
    """A step that the optimiser makes another graph of from a size on, which needs a twentieth more."""

    def note(self, size: int) -> RunNote:
        note = super().note(size)
        if size <= self.folded_to:
            return note
        more = (TensorSpec("float32", (size, 1050)),)
        ops = tuple(
            replace(op, outputs=more) if op.name in ("own", "last") else op for op in note.ops
        )
        return replace(note, ops=ops)


def test_where_another_graph_does_not_fit_the_largest_is_the_last_of_the_first_graph() -> None:
    most = found(Captures(lambda size: (size, 1000)), 64).sizes.size
    for threshold in (int(0.97 * most), int(0.99 * most)):
        captures = Rewritten(lambda size: (size, 1000), folded_to=threshold)
        answer = found(captures, 64)
        assert answer.forms.is_closed_form
        assert 0.97 * threshold < answer.sizes.size <= threshold
        assert answer.forms.another_from is not None
        assert threshold < answer.forms.another_from <= most
        assert answer.sizes.most == answer.forms.another_from - 1
        assert len(captures.captured) <= 7


class Refusing(Captures):
    """A step that takes no size above one, as one with a table of positions does.

    Attributes:
        names: Whether a refusal names the largest size.
    """

    names = True

    def note(self, size: int) -> RunNote:
        if size > self.folded_to:
            rows = self.folded_to if self.names else "fewer"
            raise SizeRefused(f"{size} positions, and {rows} rows", size=size)
        return super().note(size)


@pytest.mark.parametrize(("takes", "names"), [(512, True), (32, True), (500, False)])
def test_the_largest_size_that_the_step_takes_bounds_the_search(takes: int, names: bool) -> None:
    captures = Refusing(lambda size: (size, 1000), folded_to=takes)
    captures.names = names
    answer = found(captures, 64)
    assert (answer.bound, answer.sizes.size) == (takes, takes)
    assert answer.refusal.startswith(f"{takes + 1} positions")
    assert len(captures.captured) <= (4 if names else 14)
