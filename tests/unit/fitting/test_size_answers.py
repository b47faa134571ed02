"""Answers of runs and of estimates, from a step whose processes are imitated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.fitting import fit_target, size_search
from analyzer.fitting.fit_answer import FitAnswer
from analyzer.fitting.fit_document import build_fit_document
from analyzer.fitting.fit_target import FitQuestion, Keep, fit_step
from analyzer.fitting.step_access import StepAccess
from analyzer.model.contract.child_messages import CaptureOptions, SizeRun
from analyzer.model.contract.run_note import RunFile, StepConfig
from analyzer.model.errors import FailureKind, InputError, StepOutOfMemory, TargetError

Fit = Callable[..., FitAnswer]
MIB = 1 << 20
LIMIT = 1000 * MIB
STEP = StepConfig(
    mode="train", jit=False, batch_size=32, optimizer="Adam", dtype_policy="float32"
)


class Step:
    """A step of 100 MiB and 5 MiB an example; ``is_open`` as its processes say."""

    def __init__(self, *, is_open: bool = True, error: Exception | None = None) -> None:
        self.is_open = is_open
        self.error = error
        self.processes: list[list[int]] = []

    def run(
        self, options: CaptureOptions, folder: Path, *, limit_s: float, next_size: Any
    ) -> Path:
        """Serve sizes like a child process; it ends at a lack of memory if it is not open."""
        size: int | None = options.batch_size
        self.processes.append([])
        if self.error is not None and options.is_open:
            raise self.error
        while size is not None:
            self.processes[-1].append(size)
            peak_bytes = (100 + 5 * size) * MIB
            is_open = self.is_open and options.is_open
            if peak_bytes > LIMIT and not is_open:
                raise StepOutOfMemory("stands still")
            run = SizeRun(peak_bytes=peak_bytes, fixed_bytes=100 * MIB, is_open=is_open)
            if peak_bytes > LIMIT:
                run = SizeRun(
                    kind=FailureKind.OUT_OF_MEMORY, detail="OOM", is_open=is_open
                )
            size = next_size(run)
            size = size if is_open else None
        return folder


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fit:
    """Return the search, with a step in place of its processes."""
    for module in (size_search, fit_target):
        monkeypatch.setattr(module, "can_run", lambda access, options: True)

    monkeypatch.setattr(size_search, "read_run_file", lambda path: RunFile(step=STEP))

    def search(
        step: Step, wanted: int = 32, keep: Keep = lambda answer: None
    ) -> FitAnswer:
        access = StepAccess(
            name="m",
            folder=tmp_path,
            capture=lambda *_: tmp_path,
            run_sizes=step.run,
        )
        options = CaptureOptions(gpu="t4", device="gpu", batch_size=wanted)
        question = FitQuestion(limit_bytes=LIMIT, wanted=wanted)
        return fit_step(access, options, question, keep)

    return search


@pytest.mark.parametrize("is_open", [True, False])
def test_the_largest_batch_ran_and_the_next_did_not(fit: Fit, is_open: bool) -> None:
    step = Step(is_open=is_open)
    answer = fit(step)
    assert (answer.largest, answer.failing) == (180, 182)
    assert answer.bytes_per_example == 5 * MIB
    assert answer.safe < answer.largest
    assert (100 + 5 * answer.safe) * 1.03 <= 1000
    assert answer.headline.startswith(
        "Batch 32 fits. Batch 180 fits Tesla T4 (1000.0 MiB)"
    )
    assert build_fit_document(answer).headline == answer.headline
    assert (len(step.processes) == 1) == is_open


def test_a_batch_that_does_not_fit_is_judged(fit: Fit) -> None:
    answer = fit(Step(), wanted=400)
    assert answer.wanted_fits is False
    assert 177 <= answer.largest <= 180
    assert "Batch 400 does not fit." in answer.headline


def test_a_step_that_needs_a_fixed_batch_gets_one(fit: Fit) -> None:
    step = Step(
        error=TargetError("the shape is not known", kind=FailureKind.INVALID_SHAPE)
    )
    assert fit(step).largest == 180


def test_a_step_that_xla_cannot_compile_runs_op_by_op(fit: Fit) -> None:
    class Refused(Step):
        def run(self, options: CaptureOptions, *args: Any, **others: Any) -> Path:
            if options.jit is not False:
                raise TargetError("no tile", kind=FailureKind.NOT_COMPILED)

            return super().run(options, *args, **others)

    answer = fit(Refused())
    assert answer.largest == 180
    assert "--no-jit" in answer.options


def test_a_fixed_batch_is_one_line(fit: Fit) -> None:
    class Fixed(Step):
        def run(self, *_: Any, **__: Any) -> Path:
            raise InputError("a batch of 8", kind=FailureKind.FIXED_SIZE)

    with pytest.raises(
        InputError, match=r"The batch size of m is fixed\. a batch of 8"
    ):
        fit(Fixed())


def test_a_size_that_ends_a_used_process_gets_a_new_one(fit: Fit) -> None:
    class Damaged(Step):
        """Any size ends a process in which memory ran out before."""

        def run(self, *args: Any, next_size: Any, **others: Any) -> Path:
            runs: list[SizeRun] = []

            def answer(run: SizeRun) -> int | None:
                if any(one.kind for one in runs):
                    raise TargetError("died of SIGABRT", kind=FailureKind.CRASHED)
                runs.append(run)
                return next_size(run)

            return super().run(*args, next_size=answer, **others)

    step = Damaged()
    assert fit(step, wanted=400).largest == 180
    assert len(step.processes) > 1


def test_an_interrupted_search_keeps_what_it_found(fit: Fit) -> None:
    class Interrupted(Step):
        def run(
            self,
            options: CaptureOptions,
            folder: Path,
            *,
            limit_s: float,
            next_size: Any,
        ) -> Path:
            next_size(SizeRun(peak_bytes=260 * MIB, fixed_bytes=0, is_open=True))
            raise KeyboardInterrupt

    kept: list[FitAnswer] = []
    with pytest.raises(KeyboardInterrupt):
        fit(Interrupted(), keep=kept.append)
    (answer,) = kept
    assert (answer.largest, answer.failing, answer.wanted_fits) == (32, None, True)
    assert answer.headline.startswith("Batch 32 fits.")
