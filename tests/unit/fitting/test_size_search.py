"""The search finds the bracket of any growing need in few estimates, each of another size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.fitting.estimate_at_size import SizeEstimate
from analyzer.fitting.fit_answer import SizeFailure
from analyzer.fitting.fit_target import fit_line
from analyzer.fitting.size_search import FoundSizes, SizeCurve, SizeSearch, tolerance_at
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import FailureKind, InputError
from analyzer.model.ranges import BoundedBytes
from analyzer.tracing.parse.run_folder import RunNote

NOTE = RunNote(step=StepConfig())
FIXED = 1_000_000


def make_estimate(size: int, need_bytes: int) -> SizeEstimate:
    return SizeEstimate(
        size=size,
        need_bytes=need_bytes,
        need_low_bytes=need_bytes - need_bytes // 20,
        need_high_bytes=need_bytes + need_bytes // 20,
        requested_bytes=need_bytes,
        allocated_bytes=need_bytes,
        requested=None,
        fixed_bytes=FIXED,
        op="",
        swaps=False,
        note=NOTE,
    )


class Step:
    """A step with a known need, which accepts sizes up to a largest one."""

    def __init__(self, need: Callable[[int], int], largest: int = 1 << 40) -> None:
        self.need = need
        self.largest = largest
        self.tried: list[int] = []

    def estimate(self, size: int) -> SizeEstimate:
        self.tried.append(size)
        if size > self.largest:
            raise InputError(f"size {size}")
        return make_estimate(size, self.need(size))

    def try_size(self, size: int) -> SizeEstimate | SizeFailure:
        if size > self.largest:
            self.tried.append(size)
            return SizeFailure(size=size, kind=FailureKind.INVALID_SHAPE, detail="too long")
        return self.estimate(size)


def search(step: Step, limit: int, first: int = 32, power: int = 1) -> FoundSizes:
    return SizeSearch(step, BoundedBytes.exactly(limit), first, power=power).find()


def check_bracket(step: Step, found: FoundSizes, limit: int) -> None:
    assert len(step.tried) == len(set(step.tried))
    assert sorted(found.curve.points) == found.curve.sizes
    assert found.failing is not None
    assert step.need(found.failing) > limit or found.failing > step.largest
    assert not found.fitting or step.need(found.fitting) <= limit
    assert found.failing - found.fitting <= tolerance_at(found.fitting)


@given(
    st.integers(0, 10_000_000),
    st.integers(100, 1_000_000),
    st.integers(1, 5000),
    st.integers(1, 300),
)
def test_a_straight_need_takes_five_estimates_at_most(
    fixed: int, each: int, largest: int, first: int
) -> None:
    limit = FIXED + fixed + each * largest + each // 2
    step = Step(lambda size: FIXED + fixed + each * size)
    found = search(step, limit, first)
    check_bracket(step, found, limit)
    assert found.fitting <= largest < (found.failing or 0)
    assert len(step.tried) <= 5


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("largest", [3, 40, 700])
def test_a_side_of_an_input_is_found_for_any_power(degree: int, largest: int) -> None:
    limit = FIXED + 5000 * largest**degree + 100
    step = Step(lambda size: FIXED + 5000 * size**degree)
    found = search(step, limit, 12, power=2)
    check_bracket(step, found, limit)
    assert len(step.tried) <= 9


def test_a_sum_of_powers_is_found() -> None:
    step = Step(lambda size: FIXED + 40_000 * size + 20 * size**2)
    limit = step.need(3000) + 10
    found = search(step, limit, 128, power=2)
    check_bracket(step, found, limit)
    assert len(step.tried) <= 8


def test_a_rewrite_that_raises_the_need_ends_in_a_bracket() -> None:
    step = Step(lambda size: FIXED + 10_000 * size + (5_000_000 if size > 3_000 else 0))
    limit = FIXED + 34_000_000
    found = search(step, limit)
    check_bracket(step, found, limit)
    assert 2_900 < found.fitting <= 3_000


def test_the_largest_size_that_the_step_accepts_is_found() -> None:
    step = Step(lambda size: FIXED + 1000 * size, largest=512)
    found = search(step, FIXED + 10_000_000, first=128)
    assert (found.fitting, found.failing) == (512, 513)
    assert found.refused is not None
    assert found.refused.kind is FailureKind.INVALID_SHAPE
    assert len(step.tried) <= 6


def test_a_refused_size_between_powers_of_two_leaves_a_narrow_bracket() -> None:
    step = Step(lambda size: FIXED + 1000 * size, largest=1000)
    found = search(step, FIXED + 10_000_000, first=128)
    assert found.failing is not None
    assert found.fitting <= 1000 < found.failing
    assert found.failing - found.fitting <= tolerance_at(found.fitting)


def test_nothing_fits() -> None:
    step = Step(lambda size: FIXED + 1000 * size)
    found = search(step, FIXED // 2)
    assert (found.fitting, found.failing) == (0, 1)


def test_a_need_that_does_not_depend_on_the_size_is_an_error() -> None:
    with pytest.raises(InputError, match="no more memory"):
        search(Step(lambda size: FIXED), 2 * FIXED)


def test_a_plateau_at_small_sizes_is_passed() -> None:
    step = Step(lambda size: max(3 * FIXED, FIXED + 1000 * size))
    limit = FIXED + 10_000_000
    check_bracket(step, search(step, limit), limit)


def test_a_first_size_that_is_refused_raises() -> None:
    with pytest.raises(InputError, match="size 32"):
        search(Step(lambda size: size, largest=16), FIXED)


def test_two_estimates_are_enough_if_runs_follow() -> None:
    step = Step(lambda size: FIXED + 10_000 * size)
    limit = BoundedBytes.exactly(FIXED + 10_000_000)
    found = SizeSearch(step, limit, 32, runs_follow=True).find()
    assert len(step.tried) == 2
    assert found.predicted == 1000


def fit_needs(needs: dict[int, int]) -> tuple[int | None, int | None]:
    curve = SizeCurve()
    for size, need_bytes in needs.items():
        curve.points[size] = make_estimate(size, need_bytes)
    return fit_line(curve, BoundedBytes.exactly(100 * FIXED))


def test_a_need_on_a_line_has_fixed_bytes_and_bytes_per_example() -> None:
    assert fit_needs({size: 2 * FIXED + 1000 * size for size in (8, 20, 32)}) == (2 * FIXED, 1000)


def test_the_fixed_bytes_are_at_least_the_variables() -> None:
    fixed, slope = fit_needs({32: 20 * FIXED, 64: 41 * FIXED})
    assert fixed == FIXED
    assert slope is not None
    assert slope == pytest.approx(0.617 * FIXED, rel=0.02)


@pytest.mark.parametrize(
    "needs",
    [
        {
            32: 22 * FIXED,
            58: 44 * FIXED,
            70: 58 * FIXED,
            75: 59 * FIXED,
        },  # grows faster than a line
        {32: 22 * FIXED},
        {32: 22 * FIXED, 500: 101 * FIXED},  # the second one does not fit
        {32: 22 * FIXED, 64: 22 * FIXED},
    ],
)
def test_a_need_that_is_no_line_has_none(needs: dict[int, int]) -> None:
    assert fit_needs(needs) == (None, None)
