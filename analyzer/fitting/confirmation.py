"""Run the predicted size and its neighbours, so that TensorFlow itself says which sizes fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from analyzer.fitting.estimate_at_size import StepAccess
from analyzer.fitting.fit_answer import ConfirmingRun
from analyzer.fitting.size_search import tolerance_at
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import AnalyzerError, ExitCode, FailureKind, InputError
from analyzer.phantom.phantom_environment import check_platform
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run

MOST_RUNS: Final = 6
"""Runs at most; two if the prediction is right."""

_STEPS: Final = 3
"""Steps of a run: the first allocates variables of the optimizer, the others repeat."""

_FIRST_STEP_DOWN: Final = 16
"""Divisor of the predicted size. If it and the safe size fail, go down by 1 / 16, then 2 / 16."""

_LONGEST_DETAIL: Final = 200  # characters


def has_phantom() -> bool:
    """Say whether a step can run on a simulated card on this machine."""
    try:
        check_platform()
    except AnalyzerError:
        return False
    return True


def make_run_options(options: CaptureOptions, limit_bytes: int | None) -> CaptureOptions:
    """Return the options of a run under a limit; None stands for the card's own limit."""
    return replace(options, steps=_STEPS, memory_limit_bytes=limit_bytes)


def run_at(access: StepAccess, options: CaptureOptions, size: int) -> ConfirmingRun:
    """Run a step and return whether it finished."""
    assert access.trial is not None
    folder = access.folder / f"run-{size}"
    try:
        failure = read_run(access.trial(options, folder) / RUN_FILE).error
    except AnalyzerError as error:
        if error.exit_code is ExitCode.BUG and error.kind is FailureKind.OTHER:
            raise
        return ConfirmingRun(size=size, ran=False, kind=error.kind, detail=_shorten(error.message))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if failure is None:
        return ConfirmingRun(size=size, ran=True)
    return ConfirmingRun(size=size, ran=False, kind=failure.kind, detail=_shorten(failure.message))


@dataclass
class RunBracket:
    """Runs of a step, and the bracket that they make.

    Attributes:
        run: Runs a size.
        refused: The smallest size known not to be possible; None for none.
        runs: The runs by size.
    """

    run: Callable[[int], ConfirmingRun]
    refused: int | None = None
    runs: dict[int, ConfirmingRun] = field(default_factory=dict)

    @property
    def fitting(self) -> int:
        """The largest size that ran, below every size that failed; 0 for none."""
        failing = self.failing
        ran = [size for size, run in self.runs.items() if run.ran]
        return max((size for size in ran if failing is None or size < failing), default=0)

    @property
    def failing(self) -> int | None:
        """The smallest size that failed or is refused; None for none."""
        failed = [size for size, run in self.runs.items() if not run.ran]
        return min([*failed, *([self.refused] if self.refused is not None else [])], default=None)

    def narrow(self, predicted: int, safe: int) -> None:
        """Run sizes until the bracket is narrow.

        Args:
            predicted: The largest size by the estimates.
            safe: A smaller size that fits by the upper bounds of the estimates.

        Raises:
            InputError: the step fails for a reason that is not its size.
        """
        sizes = [max(predicted, 1), max(safe, 1)]
        stride = tolerance_at(predicted)
        down = max(predicted // _FIRST_STEP_DOWN, 1)
        while len(self.runs) < MOST_RUNS:
            fitting, failing = self.fitting, self.failing
            if failing is not None and failing - fitting <= max(tolerance_at(fitting), 1):
                return
            if fitting and failing is None:
                size, stride = fitting + stride, 2 * stride
            elif fitting and failing is not None:
                near = fitting + stride if len(self.runs) == 1 else (fitting + failing) // 2
                size = min(near, failing - 1)
            elif sizes:
                size = sizes.pop(0)
                if size in self.runs or (failing is not None and size >= failing):
                    continue
            else:
                assert failing is not None
                size, down = max(failing - down, failing // 2, 1), 2 * down
            self._run(size)

    def _run(self, size: int) -> None:
        result = self.runs[size] = self.run(size)
        failed = [run for run in self.runs.values() if not run.ran]
        is_other = all(run.kind is FailureKind.OTHER for run in failed)
        if not result.ran and is_other and len(failed) == len(self.runs) > 1:
            raise InputError(
                f"The step fails at sizes {', '.join(map(str, sorted(self.runs)))}: {result.detail}"
            )


def _shorten(message: str) -> str:
    return message.partition("\n")[0][:_LONGEST_DETAIL]
