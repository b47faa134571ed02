"""The batch found, and the next ones, run: TensorFlow itself says whether they fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from msgspec.structs import replace as changed

from analyzer.fitting.scaling.fit_answer import Confirmation, ConfirmingRun, FitAnswer
from analyzer.fitting.search.step_access import StepAccess
from analyzer.fitting.search.varied_size import BATCH, VariedSize
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import AnalyzerError, ExitCode, StepOutOfMemory, TargetError
from analyzer.phantom.phantom_environment import check_platform
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run

MOST_RUNS: Final = 8
"""Runs at most where one of them comes to its end: two where the prediction is right."""

_FIRST_STEP: Final = 16
"""What part of a size the first step below it is, where none of those that were expected to fit runs."""

_STEPS: Final = 3

_SPAN: Final = 32
"""Part of a size within which a run tells nothing about the next one where tensors are swapped to the
host: what is swapped moves the need by about as much (``SWAP_MARGIN`` of the search)."""

_CHANCES: Final = 4
"""Into how many parts sizes are divided of which it is not known whether they fit: the order of the ops
decides it, or the optimiser, which makes another graph from some size on."""

_LONGEST: Final = 300
"""Characters of why a run failed."""

_TRIALS_WITHOUT_ROOM: Final = ("No algorithm worked!", "No valid config found")
"""What TensorFlow and XLA's autotuner say where no algorithm that they try finds room for what it works
on: the error is not one of memory (``autotuner.cc``; ``conv_ops_gpu.h``)."""


def has_phantom() -> bool:
    """Say whether a step can run on a phantom card here."""
    try:
        check_platform()
    except AnalyzerError:
        return False
    return True


def run_options(options: CaptureOptions, limit_bytes: int | None) -> CaptureOptions:
    """Return how a step is run under a limit; None is the card's own."""
    return replace(options, steps=_STEPS, memory_limit_bytes=limit_bytes)


def confirmed(
    answer: FitAnswer,
    access: StepAccess,
    options: CaptureOptions,
    report: Callable[[str, float], None],
    varied: VariedSize = BATCH,
) -> FitAnswer:
    """Run the size found and the next ones; where they say otherwise, the answer is theirs.

    A run that fails for another reason than memory confirms nothing: the answer says so. On a CPU the
    limit is in whole MiB, rounded down.

    Args:
        answer: The answer without runs.
        access: How the step is captured and run at a batch.
        options: How the step is made and run.
        report: Called with the stage and the share done, 0 to 1.
        varied: What the size is of.
    """
    chosen = run_options(options, None if answer.limit_of == "card" else answer.limit_bytes)
    runs: dict[int, ConfirmingRun] = {}

    def tried(size: int) -> bool:
        if answer.taken is not None and size > answer.taken:
            return False
        if size not in runs:
            report(f"running {answer.noun} {answer.label(size)} to confirm", 0.94)
            try:
                runs[size] = run_at(access, varied.at(chosen, size), size)
            except TargetError as error:
                said = f"{error.message[:_LONGEST]} {error.hint}"
                raise TargetError(f"{answer.label(size)}: {said}") from None
        return runs[size].ran

    span = _told_apart(answer)
    expected = (answer.largest, answer.largest - span, answer.in_each, answer.safe)
    beyond = answer.forms.another_from
    try:
        best = _last_that_runs(expected, tried, runs, span=span, beyond=beyond)
    except TargetError as error:
        told = f"Not confirmed: a run failed, and not for want of memory. {error.message}"
        return changed(answer, notes=(*answer.notes, told))
    return changed(
        answer,
        confirmation=Confirmation(
            by="phantom" if answer.device == "gpu" else "cpu",
            runs=tuple(runs[size] for size in sorted(runs)),
            predicted=answer.largest,
        ),
        largest=best,
        safe=min(answer.safe, best),
        in_each=min(answer.in_each, best),
        orders_drawn=answer.orders_drawn if best == answer.largest else 0,
        orders_fitting=answer.orders_fitting if best == answer.largest else 0,
        most=max(answer.most, best),
    )


def _told_apart(answer: FitAnswer) -> int:
    """Return how far apart sizes are of which one run each tells more than chance does."""
    if answer.forms.swaps:
        return max(answer.largest // _SPAN, 1)
    if not answer.orders_drawn:  # XLA's order is one
        return 1
    unsure = (answer.forms.another_from or answer.largest) - answer.in_each
    return max(unsure // _CHANCES, 1)


def _last_that_runs(
    expected: Sequence[int],
    runs_at: Callable[[int], bool],
    done: dict[int, ConfirmingRun],
    *,
    span: int = 1,
    beyond: int | None = None,
) -> int:
    """Return the largest size that runs, by few runs; 0 where not even 1 does.

    Args:
        expected: Sizes that are expected to run: the largest, and smaller ones that more surely do.
        runs_at: Runs a size, where it was not run before; says whether it came to its end.
        done: The runs so far, by size.
        span: The least difference between two sizes that are run.
        beyond: One that is larger than all that run, as was found without a run; None for none known.
    """
    sizes = sorted({max(size, 1) for size in expected}, reverse=True)
    low = next((size for size in sizes if runs_at(size)), 0)
    high, stride = min((size for size, run in done.items() if not run.ran), default=0), span
    if low == sizes[0]:
        while beyond is None and len(done) < MOST_RUNS and runs_at(low + stride):
            low, stride = low + stride, 2 * stride
        high = beyond or low + stride
    stride = max(high // _FIRST_STEP, 1)
    while not low and high > 1:
        size = max(high - stride, high // 2 if len(done) < MOST_RUNS - 1 else 1, 1)
        low, high = (size, high) if runs_at(size) else (0, size)
        stride *= 2
    while high - low > span and len(done) < MOST_RUNS:
        middle = (low + high) // 2
        if runs_at(middle):
            low = middle
        else:
            high = middle
    return low


def run_at(access: StepAccess, options: CaptureOptions, size: int) -> ConfirmingRun:
    """Run a step, and say whether it came to its end.

    Args:
        access: The step, which can be run.
        options: How it is made and run.
        size: The size that these make it.

    Raises:
        TargetError: it fails for another reason than memory.
    """
    assert access.tried is not None
    folder = access.folder / f"run-{size}"
    try:
        noted = read_run(access.tried(options, folder) / RUN_FILE)
    except StepOutOfMemory as error:
        return ConfirmingRun(size=size, ran=False, detail=error.message)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failure = noted.error
    if failure is None:
        return ConfirmingRun(size=size, ran=True)
    is_memory = failure.exit_code is ExitCode.STEP_OUT_OF_MEMORY or any(
        words in failure.message for words in _TRIALS_WITHOUT_ROOM
    )
    if not is_memory:
        raise TargetError(failure.message)
    return ConfirmingRun(size=size, ran=False, detail=failure.message.partition("\n")[0][:200])
