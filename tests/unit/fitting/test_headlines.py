"""What an answer says of the size that was asked about, and of runs that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from analyzer.fitting.scaling.fit_answer import Confirmation, ConfirmingRun, FitAnswer, FormsUsed
from analyzer.fitting.scaling.largest_size import MOST
from analyzer.fitting.search import confirming_runs
from analyzer.fitting.search.confirming_runs import confirmed
from analyzer.fitting.search.fit_target import _said, limits_for
from analyzer.fitting.search.step_access import StepAccess
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError, TargetError

ANSWER = FitAnswer(
    target="step",
    varied="batch size",
    mode="train",
    jit=False,
    optimizer="Adam",
    dtype_policy="float32",
    device="cpu",
    card="",
    card_name="",
    limit_of="given",
    limit_bytes=1 << 20,
    limit_low_bytes=1 << 20,
    limit_high_bytes=1 << 20,
    largest=40,
    safe=36,
    in_each=38,
    most=44,
    orders_drawn=9,
    orders_fitting=6,
    peak_requested_bytes=1 << 19,
    peak_allocated_bytes=1 << 19,
    forms=FormsUsed(captured_at=(32, 40), checked_at=(40,), is_closed_form=True),
)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (36, "Batch 36 fits."),
        (38, "Batch 38 fits, with less than 3 % to spare."),
        (40, "Batch 40 likely fits."),
        (44, "Batch 44 may not fit."),
        (45, "Batch 45 does not fit."),
    ],
)
def test_the_headline_begins_with_what_was_asked(wanted: int, said: str) -> None:
    answer = _said(replace(ANSWER, wanted=wanted))
    assert answer.headline.startswith(f"{said} Batch 40 is the largest that likely fits")


def test_nothing_is_said_of_sizes_that_are_not_looked_for() -> None:
    said = _said(replace(ANSWER, largest=MOST, in_each=MOST, safe=MOST, most=MOST)).headline
    assert said == f"Batch {MOST} fits the limit given (1.00 MiB); larger ones were not looked for."


def test_where_no_run_ends_it_is_not_said_that_a_batch_of_1_does_not() -> None:
    runs = tuple(ConfirmingRun(size=size, ran=False) for size in (17, 37, 40))
    answer = replace(
        ANSWER, largest=0, confirmation=Confirmation(by="cpu", runs=runs, predicted=40)
    )
    assert "not even batch 17" in _said(answer).headline
    assert "batch of 1" not in _said(answer).headline


def test_a_run_that_fails_otherwise_leaves_the_answer_unconfirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that counts in 32 bits ends the process of a batch that memory would hold."""

    def fail(*_: object) -> ConfirmingRun:
        raise TargetError("The process died of SIGABRT: Check failed: work_element_count >= 0")

    monkeypatch.setattr(confirming_runs, "run_at", fail)
    access = StepAccess("step", lambda at, folder: folder, lambda at, folder: folder, Path())
    answer = confirmed(ANSWER, access, CaptureOptions(), lambda stage, share: None)
    assert replace(answer, notes=()) == ANSWER
    assert "40: The process died" in answer.notes[0]


@pytest.mark.parametrize("given", [0, -1, 1 << 50])
def test_a_limit_that_no_allocator_has_is_refused_at_once(given: int) -> None:
    with pytest.raises(InputError, match="cannot be simulated"):
        limits_for(None, given)
