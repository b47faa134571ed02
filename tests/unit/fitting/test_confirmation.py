"""Runs end in a bracket, and the headline claims no more than they show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.fitting.fit_answer import Confirmation, ConfirmingRun, FitAnswer, SizeFailure
from analyzer.fitting.fit_document import add_headline, build_fit_document, judge_size
from analyzer.fitting.fit_target import _confirm
from analyzer.fitting.size_search import MOST_RUNS, RunBracket, find_time_limit, tolerance_at
from analyzer.model.errors import FailureKind, InputError
from analyzer.report.render.sections import Figures

MIB = 1 << 20


def run_up_to(largest: int, kind: FailureKind = FailureKind.OUT_OF_MEMORY) -> RunBracket:
    def run(size: int) -> ConfirmingRun:
        ran = size <= largest
        return ConfirmingRun(size=size, ran=ran, kind=None if ran else kind)

    return RunBracket(run)


@pytest.mark.parametrize(
    ("predicted", "run_s", "sizes"), [(1200, 20, [900, 1200]), (800, 50, [800])]
)
def test_quick_confirmation_starts_no_late_run(monkeypatch, predicted, run_s, sizes) -> None:
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    bracket = run_up_to(1000)
    run = bracket.run

    def run_slowly(size: int) -> ConfirmingRun:
        now_s[0] += run_s
        return run(size)

    bracket.run, bracket.is_quick = run_slowly, True
    bracket.narrow(predicted, 900)
    assert sorted(bracket.runs) == sizes


@given(st.integers(0, 5000), st.floats(0.8, 1.25), st.floats(0.7, 1.0))
def test_runs_bracket_the_largest_size(largest: int, error: float, safe: float) -> None:
    predicted = max(int(largest * error), 1)
    bracket = run_up_to(largest)
    bracket.narrow(predicted, int(predicted * safe))
    assert len(bracket.runs) <= MOST_RUNS
    assert bracket.fitting <= largest
    assert bracket.failing is not None
    assert bracket.failing > largest


@given(st.integers(1, 5000), st.integers(1, 40))
def test_runs_bracket_a_size_far_above_the_prediction(predicted: int, factor: int) -> None:
    bracket = run_up_to(predicted * factor)
    bracket.narrow(predicted, predicted)
    assert bracket.fitting > 0
    assert bracket.failing is not None
    assert bracket.fitting <= predicted * factor < bracket.failing <= 8 * bracket.fitting


@given(st.integers(100, 100_000), st.integers(2, 60))
def test_runs_bracket_a_size_far_below_the_prediction(predicted: int, factor: int) -> None:
    bracket = run_up_to(predicted // factor)
    bracket.narrow(predicted, predicted // 2)
    assert bracket.failing is not None
    assert 0 < bracket.fitting <= predicted // factor < bracket.failing <= 8 * bracket.fitting


@pytest.mark.parametrize("largest", [1, 7, 100, 5000])
def test_a_right_prediction_takes_two_runs(largest: int) -> None:
    bracket = run_up_to(largest)
    bracket.narrow(largest, largest // 2)
    assert bracket.fitting == largest
    assert bracket.failing == largest + tolerance_at(largest)
    assert len(bracket.runs) == 2


def test_an_aborted_launch_lowers_the_answer() -> None:
    bracket = run_up_to(90, FailureKind.TOO_LARGE)
    bracket.narrow(100, 95)
    assert 84 <= bracket.fitting <= 90


def test_a_size_known_to_be_refused_is_not_run() -> None:
    bracket = run_up_to(1000)
    bracket.refused = 513
    bracket.narrow(512, 400)
    assert list(bracket.runs) == [512]
    assert (bracket.fitting, bracket.failing) == (512, 513)


def test_a_step_that_fails_at_every_size_confirms_nothing() -> None:
    bracket = run_up_to(0, FailureKind.OTHER)
    with pytest.raises(InputError, match="fails at sizes 80, 100"):
        bracket.narrow(100, 80)


def run_with_timeouts(largest: int, *late: int) -> RunBracket:
    """Make a bracket whose runs at some sizes do not end."""
    bracket = run_up_to(largest)
    run_in_time = bracket.run

    def run(size: int) -> ConfirmingRun:
        if size in late:
            return ConfirmingRun(size=size, ran=False, kind=FailureKind.TIMED_OUT)
        return run_in_time(size)

    bracket.run = run
    return bracket


@pytest.mark.parametrize(
    ("late", "fitting", "failing"),
    [
        ((41,), 40, 44),
        ((41, 44), 40, None),
        ((40,), 39, 41),
        ((40, 36), 0, None),
    ],
)
def test_a_run_that_does_not_end_says_nothing_about_memory(
    late: tuple[int, ...], fitting: int, failing: int | None
) -> None:
    bracket = run_with_timeouts(40, *late)
    bracket.narrow(40, 36)
    assert (bracket.fitting, bracket.failing) == (fitting, failing)
    assert bracket.timeouts == len(late)
    assert len(bracket.runs) <= MOST_RUNS


def test_a_time_limit_grows_with_the_capture() -> None:
    assert find_time_limit({8: 2.0, 64: 90.0}, 60, "gpu") == 10 * 90 + 120
    assert find_time_limit({8: 2.0}, 60, "gpu") == 300
    assert find_time_limit({}, 60, "cpu") >= 300


def make_answer(
    runs: dict[int, bool | None] | None,
    largest: int,
    failing: int | None,
    refused: SizeFailure | None = None,
    wanted: int | None = None,
) -> FitAnswer:
    confirmation = None
    if runs is not None:
        kinds = {True: None, False: FailureKind.OUT_OF_MEMORY, None: FailureKind.TIMED_OUT}
        made = [
            ConfirmingRun(size=size, ran=bool(ran), kind=kinds[ran]) for size, ran in runs.items()
        ]
        confirmation = Confirmation(by="phantom", predicted=40, runs=tuple(made))
    return add_headline(
        FitAnswer(
            target="model.py:build",
            varied="batch size",
            mode="train",
            jit=False,
            optimizer="Adam",
            dtype_policy="float32",
            device="gpu",
            card="t4",
            card_name="Tesla T4",
            limit_of="given",
            limit_bytes=100 * MIB,
            limit_low_bytes=100 * MIB,
            limit_high_bytes=100 * MIB,
            largest=largest,
            failing=failing,
            safe=min(36, largest),
            most=44,
            refused=refused,
            wanted=wanted,
            confirmation=confirmation,
        )
    )


REFUSED = SizeFailure(size=41, kind=FailureKind.INVALID_SHAPE, detail="too long")


@pytest.mark.parametrize(
    ("answer", "headline"),
    [
        (
            make_answer({40: True, 41: False}, 40, 41),
            "Batch 40 is the largest that fits Tesla T4 (100.0 MiB): it ran on {by}, and 41 ran out "
            "of memory.",
        ),
        (
            make_answer({40: True, 44: False}, 40, 44),
            "Batch 40 ran on {by} and fits Tesla T4 (100.0 MiB); 44 ran out of memory.",
        ),
        (
            make_answer(None, 40, 41),
            "Batch 40 fits Tesla T4 (100.0 MiB) by estimate; 41 may not fit. Batch 36 is safe.",
        ),
        (
            make_answer(None, 40, 45),
            "Batch 40 fits Tesla T4 (100.0 MiB) by estimate; 45 does not fit. Batch 36 is safe.",
        ),
        (
            make_answer(None, 40, 41, REFUSED),
            "Batch 40 fits Tesla T4 (100.0 MiB) by estimate; 41 is not possible (invalid-shape). "
            "Batch 36 is safe.",
        ),
        (
            make_answer({40: True}, 40, 41, REFUSED),
            "Batch 40 ran on {by} and fits Tesla T4 (100.0 MiB); 41 is not possible (invalid-shape). "
            "Batch 36 is safe.",
        ),
        (
            make_answer({40: True, 41: None}, 40, 41),
            "Batch 40 ran on {by} and fits Tesla T4 (100.0 MiB); 41 may not fit by estimate. "
            "Batch 36 is safe.",
        ),
        (
            make_answer({40: True, 41: None}, 40, None),
            "Batch 40 ran on {by} and fits Tesla T4 (100.0 MiB); larger ones did not end in time.",
        ),
        (make_answer(None, 0, 1), "Batch 1 may not fit Tesla T4 (100.0 MiB), by estimate."),
        (make_answer(None, 0, 45), "Not even batch 45 fits Tesla T4 (100.0 MiB)."),
    ],
)
def test_the_headline_names_the_evidence(answer: FitAnswer, headline: str) -> None:
    assert answer.headline == headline.format(by="a simulated card")


def test_largest_is_never_claimed_without_a_failing_neighbour() -> None:
    for answer in (
        make_answer({40: True}, 40, None),
        make_answer({40: True, 44: False}, 40, 44),
        make_answer({40: True, 41: None}, 40, 41),
        make_answer({40: True}, 40, 41, REFUSED),
        make_answer({39: True, 41: False}, 40, 41),
        make_answer(None, 40, 41),
    ):
        assert not answer.is_bracketed
        assert "largest" not in answer.headline


def test_an_estimate_names_the_option_that_runs_it() -> None:
    answer = make_answer(None, 40, 41)
    assert add_headline(answer, can_confirm=True).headline.endswith("--confirm runs both.")
    assert "--confirm" not in answer.headline


def test_the_wanted_size_is_judged_first() -> None:
    answer = make_answer({40: True, 41: False}, 40, 41, wanted=48)
    assert answer.headline.startswith("Batch 48 does not fit. Batch 40 is the largest")
    estimated = make_answer(None, 40, 41)
    sizes = [judge_size(estimated, size) for size in (36, 40, 41, 50)]
    assert sizes == ["fits", "likely fits", "may not fit", "does not fit"]


def test_a_quick_confirmation_without_a_failing_run_names_the_next_size_by_estimate() -> None:
    bracket = run_up_to(1000)
    bracket.is_quick = True
    bracket.runs[40], bracket.seconds = ConfirmingRun(size=40, ran=True), [100.0]
    answer = add_headline(_confirm(make_answer(None, 40, None), bracket))
    assert (answer.largest, answer.failing) == (40, 41)
    assert "fits Tesla T4 (100.0 MiB); 41 may not fit by estimate." in answer.headline


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (make_answer({40: True, 41: False}, 40, 41), "first failing"),
        (make_answer(None, 40, 41), "first that may fail"),
    ],
)
def test_the_figures_show_the_largest_the_safe_and_the_first_failing_size(
    answer: FitAnswer, name: str
) -> None:
    figures = next(block for block in build_fit_document(answer).lead if isinstance(block, Figures))
    assert [figure.label for figure in figures.figures[:3]] == ["largest", "safe", name]
    assert figures.figures[2].value == answer.label(answer.failing or 0)
