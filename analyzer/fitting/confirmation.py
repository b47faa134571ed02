"""Run the predicted size and its neighbours, so that TensorFlow itself says which sizes fit."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from analyzer.fitting.estimate_at_size import StepAccess
from analyzer.fitting.fit_answer import ConfirmingRun
from analyzer.fitting.size_search import MOST_SIZE, tolerance_at
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import Failure
from analyzer.model.errors import AnalyzerError, ExitCode, FailureKind, InputError
from analyzer.phantom.phantom_environment import check_platform
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run

MOST_RUNS: Final = 8  # runs at most; two if the prediction is right

RUN_STEPS: Final = 3
"""Steps of a run: the first allocates variables of the optimizer, the others repeat."""

_FIRST_STEP_DOWN: Final = 16
"""Divisor of the predicted size. If it and the safe size fail, go down by 1 / 16, then 4 / 16."""

_STEP_GROWTH: Final = 4
"""Factor between steps on one side. Upwards they start at 1 / 64 of the predicted size, so that eight
runs reach 45 to 85 times that size."""

_LEAST_LIMIT_S: Final = {"gpu": 300.0, "cpu": 1800.0}
"""Least time limit of a run, seconds, by device: a CPU computes the step, a simulated card does not."""

_CAPTURES_IN_LIMIT: Final = 10
_BASE_LIMIT_S: Final = 120.0
"""The time limit of a run is 10 times its capture and 120 s, if that is more. A fork of a process with
threads may hang in a lock."""

_MOST_TIMEOUTS: Final = 2  # runs that did not end, after which no more are started
_LONGEST_DETAIL: Final = 200  # characters


def has_phantom() -> bool:
    """Say whether a step can run on a simulated card on this machine."""
    try:
        check_platform()
    except AnalyzerError:
        return False
    return True


def find_time_limit(capture_s: Mapping[int, float], size: int, device: str) -> float:
    """Return the seconds after which a run of a size is ended; ``capture_s`` are by size."""
    near_s = capture_s[min(capture_s, key=lambda known: abs(known - size))] if capture_s else 0.0
    return max(_LEAST_LIMIT_S[device], _CAPTURES_IN_LIMIT * near_s + _BASE_LIMIT_S)


def run_at(
    access: StepAccess, options: CaptureOptions, size: int, limit_s: float = math.inf
) -> ConfirmingRun:
    """Run a step for up to ``limit_s`` seconds and return whether it finished."""
    assert access.trial is not None
    folder = access.folder / f"run-{size}"
    failure: Failure | AnalyzerError | None
    try:
        failure = read_run(access.trial(options, folder, limit_s=limit_s) / RUN_FILE).error
    except AnalyzerError as error:
        if error.exit_code is ExitCode.BUG and error.kind is FailureKind.OTHER:
            raise
        failure = error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if failure is None:
        return ConfirmingRun(size=size, ran=True)
    detail = failure.message.partition("\n")[0][:_LONGEST_DETAIL]
    return ConfirmingRun(size=size, ran=False, kind=failure.kind, detail=detail)


@dataclass
class RunBracket:
    """Runs of a step by size, and the bracket that they make."""

    run: Callable[[int], ConfirmingRun]
    refused: int | None = None  # the smallest size known not to be possible
    most: int = MOST_SIZE  # no larger size is run
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
        failed = [size for size, run in self.runs.items() if run.has_failed]
        return min([*failed, *([self.refused] if self.refused is not None else [])], default=None)

    @property
    def timeouts(self) -> int:
        """The number of runs that did not end in time."""
        return sum(not run.ran and not run.has_failed for run in self.runs.values())

    def narrow(self, predicted: int, safe: int) -> None:
        """Run the predicted size, the safe one and others until the bracket is narrow."""
        first_sizes, up = [max(predicted, 1), max(safe, 1)], tolerance_at(predicted)
        down = max(predicted // _FIRST_STEP_DOWN, 1)
        while len(self.runs) < MOST_RUNS and self.timeouts < _MOST_TIMEOUTS:
            fitting, failing = self.fitting, self.failing
            if failing is not None and failing - fitting <= tolerance_at(fitting):
                return
            if fitting and failing is None:
                size, up = min(fitting + up, self.most), _STEP_GROWTH * up
            elif fitting and failing is not None:
                near = fitting + up if len(self.runs) == 1 else math.isqrt(fitting * failing)
                size = min(max(near, fitting + 1), failing - 1)
            elif first_sizes:
                size = first_sizes.pop(0)
                if size in self.runs or (failing is not None and size >= failing):
                    continue
            elif failing is None:  # no run ended in time
                return
            else:
                size, down = max(failing - down, failing // 8, 1), _STEP_GROWTH * down
            if size in self.runs:  # the largest size of all, or a run that did not end in time
                return
            self._run(size)

    def _run(self, size: int) -> None:
        result = self.runs[size] = self.run(size)
        failed = [run for run in self.runs.values() if run.has_failed]
        is_other = all(run.kind is FailureKind.OTHER for run in failed)
        if result.has_failed and is_other and len(failed) == len(self.runs) > 1:
            sizes = ", ".join(map(str, sorted(self.runs)))  # the reason is not the size
            raise InputError(f"The step fails at sizes {sizes}: {result.detail}")
