"""No answer of a search contradicts its own numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from analyzer.cards import all_gpus, memory_limit
from analyzer.fitting import all_cards, fit_target
from analyzer.fitting.estimate_at_size import SizeEstimate, StepAccess
from analyzer.fitting.fit_answer import ConfirmingRun, FitAnswer, SizeFailure
from analyzer.fitting.fit_document import build_fit_document, explain_answer, judge_size
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import FailureKind, InputError
from analyzer.tracing.parse.run_folder import RunNote

MIB = 1 << 20
ANSWERS = 1500
CARD_ANSWERS = 40
ACCESS = StepAccess(
    name="model", folder=Path("none"), capture=lambda *_: Path(), trial=lambda *_: Path()
)


class Step:
    """A step with a random need, with bounds, that may refuse large sizes; its real need differs."""

    def __init__(self, draw: random.Random) -> None:
        self.fixed = draw.randrange(1, 4000) * MIB
        self.each = draw.randrange(1, 400) * MIB // draw.choice((1, 10, 100))
        self.jump = draw.randrange(1, 200), draw.choice((0, 0, 500 * MIB))
        self.below, self.above = draw.choice((0, 0.02, 0.2)), draw.choice((0.03, 0.1, 0.5))
        self.refused = draw.choice((None, None, draw.randrange(33, 300)))
        self.error = draw.uniform(0.7, 1.4)
        self.is_slow = draw.random() < 0.1

    def need(self, size: int) -> int:
        return self.fixed + self.each * size + (self.jump[1] if size > self.jump[0] else 0)

    def estimate(self, size: int) -> SizeEstimate:
        found = self.try_size(size)
        if isinstance(found, SizeFailure):
            raise InputError(found.detail)
        return found

    def try_size(self, size: int) -> SizeEstimate | SizeFailure:
        if self.refused is not None and size >= self.refused:
            return SizeFailure(size=size, kind=FailureKind.INVALID_SHAPE, detail="too long")
        need = self.need(size)
        return SizeEstimate(
            size=size, need_bytes=need, need_low_bytes=int(need * (1 - self.below)),
            need_high_bytes=int(need * (1 + self.above)), requested_bytes=int(0.9 * need),
            allocated_bytes=int(0.95 * need), requested=None, fixed_bytes=self.fixed, op="op",
            swaps=False, note=RunNote(step=StepConfig()),
        )  # fmt: skip

    def run(self, size: int, limit: int) -> ConfirmingRun:
        if self.is_slow:
            return ConfirmingRun(size=size, ran=False, kind=FailureKind.TIMED_OUT, detail="slow")
        ran = self.need(size) * self.error <= limit
        kind = None if ran else FailureKind.OUT_OF_MEMORY
        return ConfirmingRun(size=size, ran=ran, kind=kind, detail="" if ran else "no memory")


def answer_generated(monkeypatch: pytest.MonkeyPatch, draw: random.Random, step: Step) -> FitAnswer:
    def estimates(*_: object, **__: object) -> Step:
        step.folder_of = step.capture_s = {}  # type: ignore[attr-defined]
        return step

    gpu = draw.choice(all_gpus())
    limit = draw.choice((None, draw.randrange(500, 40_000) * MIB))
    least = memory_limit(gpu).bytes if limit is None else min(limit, memory_limit(gpu).bytes)
    monkeypatch.setattr(fit_target, "SizeEstimates", estimates)
    monkeypatch.setattr(fit_target, "has_phantom", lambda: True)
    monkeypatch.setattr(fit_target, "find_time_limit", lambda *_: 1.0)
    monkeypatch.setattr(fit_target, "run_at", lambda _a, _o, size, _s: step.run(size, least))
    question = fit_target.FitQuestion(
        limit_bytes=limit,
        wanted=draw.choice((None, draw.randrange(1, 400))),
        confirm=draw.random() < 0.5,
    )
    options = CaptureOptions(gpu=gpu.id, batch_size=draw.choice((1, 8, 32)))
    return fit_target.fit_step(ACCESS, options, question, lambda stage, share: None)


def check_sizes(answer: FitAnswer) -> None:
    """Check the sizes against each other and against the runs."""
    assert 0 <= answer.safe <= answer.largest
    assert answer.most is None or answer.most >= answer.largest
    assert answer.failing is None or answer.failing > answer.largest
    for run in answer.runs:
        assert not (run.ran and run.size > answer.largest)
        assert not (run.has_failed and run.size <= answer.largest)
        assert not run.ran or judge_size(answer, run.size) == "fits"
        assert not run.has_failed or judge_size(answer, run.size) == "does not fit"
    if answer.wanted is not None:
        verdict = judge_size(answer, answer.wanted)
        assert answer.wanted_fits == (verdict in ("fits", "likely fits"))
        assert answer.headline.startswith(f"Batch {answer.wanted} {verdict}")


def check_curve(answer: FitAnswer) -> None:
    """Check the verdict of each estimate against its need, unless a run says otherwise."""
    if answer.confirmation is not None:
        return
    for point in answer.curve:
        verdict = judge_size(answer, point.size)
        if point.need_high_bytes > answer.limit_low_bytes:
            assert verdict != "fits", point
        if point.need_low_bytes <= answer.limit_high_bytes:
            assert verdict != "does not fit", point
        if verdict in ("fits", "likely fits"):
            assert point.need_bytes <= answer.limit_bytes


def check_words(answer: FitAnswer) -> None:
    """Check the headline and the sentences against the sizes."""
    words = answer.headline if answer.wanted is None else answer.headline.partition(". ")[2]
    if answer.largest:
        assert words.startswith(f"Batch {answer.largest:,} ")
    else:
        assert "fit" in words
        assert not any(run.ran for run in answer.runs)
    between = re.search(
        r"Sizes from ([\d,]+) to ([\d,]+) may fit", " ".join(explain_answer(answer))
    )
    if between is not None:
        first, last = (int(one.replace(",", "")) for one in between.groups())
        assert answer.largest < first <= last
        assert all(judge_size(answer, size) == "may not fit" for size in (first, last))
    safe = re.search(r"Batch ([\d,]+) is safe", words)
    assert safe is None or safe[1] == f"{answer.safe:,}"
    assert build_fit_document(answer).headline == answer.headline


CHECKS: tuple[Callable[[FitAnswer], None], ...] = (check_sizes, check_curve, check_words)


def test_no_answer_contradicts_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(11)
    for _ in range(ANSWERS):
        step = Step(draw)
        answer = answer_generated(monkeypatch, draw, step)
        for check in CHECKS:
            check(answer)


def test_no_table_of_cards_contradicts_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(12)

    @contextmanager
    def access(*_: object):
        yield ACCESS

    monkeypatch.setattr(all_cards, "access_target", access)
    for _ in range(CARD_ANSWERS):
        step = Step(draw)
        step.refused = None
        monkeypatch.setattr(all_cards, "SizeEstimates", lambda *_, step=step, **__: step)
        wanted = draw.choice((None, draw.randrange(1, 400)))
        prices = {gpu: draw.uniform(0.1, 9) for gpu in draw.sample(all_gpus(), draw.choice((0, 3)))}
        question = fit_target.FitQuestion(wanted=wanted, prices=prices)
        answer = all_cards.fit_all_cards(None, CaptureOptions(), question, lambda *_: None)
        sizes = [card.largest or 0 for card in answer.cards]
        assert answer.largest == max(sizes)
        told = " ".join(explain_answer(answer))
        assert ("are read from it" in told) == (not prices)
        for card in answer.cards:
            assert 0 <= (card.safe or 0) <= (card.largest or 0) <= (card.most or 0)
            if wanted is not None:
                assert card.holds_wanted == (wanted <= (card.largest or 0))
            need = step.need(max(card.largest or 0, 1))
            assert card.largest == 0 or need <= 1.02 * card.limit_bytes or step.jump[1]
        if wanted is not None:
            assert answer.wanted_fits == any(card.holds_wanted for card in answer.cards)
