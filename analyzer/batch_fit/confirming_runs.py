"""The batch found, and the next ones, run: TensorFlow itself says whether they fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from msgspec.structs import replace as changed

from analyzer.batch_fit.step_access import StepAccess
from analyzer.batch_fit.varied_size import BATCH, VariedSize
from analyzer.capture.phantom.core_library import refuse_elsewhere
from analyzer.contract.messages.capture_request import CaptureOptions
from analyzer.errors import AnalyzerError, ExitCode, StepOutOfMemory, TargetError
from analyzer.parse.logdir import RUN_FILE
from analyzer.parse.run_folder import read_run
from analyzer.scaling.fit_answer import Confirmation, ConfirmingRun, FitAnswer

MOST_RUNS: Final = 8
"""Runs at most: two where the prediction is right."""

_STEPS: Final = 3

_LONGEST: Final = 300
"""Characters of why a run failed."""

_TRIALS_WITHOUT_ROOM: Final = ("No algorithm worked!", "No valid config found")
"""What TensorFlow and XLA's autotuner say where no algorithm that they try finds room for what it works
on: the error is not one of memory (``autotuner.cc``; ``conv_ops_gpu.h``)."""


def has_phantom() -> bool:
    """Say whether a step can run on a phantom card here."""
    try:
        refuse_elsewhere()
    except AnalyzerError:
        return False
    return True


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
    assert access.run is not None
    own = answer.limit_of == "card"
    chosen = replace(options, steps=_STEPS, memory_limit_bytes=None if own else answer.limit_bytes)
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

    try:
        best = _last_that_runs(answer.largest, tried, runs, (answer.in_each, answer.safe))
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


def _last_that_runs(
    start: int,
    runs_at: Callable[[int], bool],
    done: dict[int, ConfirmingRun],
    likely: Sequence[int] = (),
) -> int:
    """Return the largest size that runs, by few runs about a first one; 0 where none was found.

    Below one that fails two close by are tried, then those more likely to run, then halves.

    Args:
        start: The first size.
        runs_at: Runs a size, and says whether it came to its end.
        done: The runs made.
        likely: Smaller sizes that are more likely to run.
    """
    low, high, stride = 0, 0, 1
    size = max(start, 1)
    if runs_at(size):
        low = size
        while len(done) < MOST_RUNS and runs_at(low + stride):
            low, stride = low + stride, 2 * stride
        high = low + stride
    else:
        high = size
        downwards = [high - 1, high - 3, *sorted(likely, reverse=True)]
        while high > 1 and len(done) < MOST_RUNS:
            below = [size for size in downwards if 0 < size < high]
            size = below[0] if below else max(high // 2, 1)
            if runs_at(size):
                low = size
                break
            high = size
    while low and high - low > 1 and len(done) < MOST_RUNS:
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
    assert access.run is not None
    folder = access.folder / f"run-{size}"
    try:
        noted = read_run(access.run(options, folder) / RUN_FILE)
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
