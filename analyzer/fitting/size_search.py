"""Search the largest size that fits: one method for every model, card, graph rewrite and XLA plan.

Each size is captured and estimated once and becomes a point of a curve. A line through the points leads
to the next size (secant method). Once a size fits and another does not, the search narrows the bracket
between the two by interpolation, or by bisection if two estimates in a row lie on the same side.
Runs at the predicted size and its neighbours confirm it, so that TensorFlow itself says which fit.
"""

import math
import shutil
import time
from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Final

from analyzer.fitting.estimate_at_size import SizeEstimate, SizeEstimates, StepAccess
from analyzer.fitting.fit_answer import ConfirmingRun, SizeFailure
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import Failure
from analyzer.model.errors import AnalyzerError, ExitCode, FailureKind, InputError
from analyzer.model.ranges import BoundedBytes
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run

MOST_SIZE: Final = 1 << 24  # no size above this is tried
_MOST_ESTIMATES: Final = 16  # sizes to try at most. Usual searches end after 3 to 5.

_BRACKET_PARTS: Final = 64
"""The search ends if the bracket is at most 1 / 64 of the size: below 128, neighbouring sizes."""

_RUN_PARTS: Final = 8
"""If runs follow, stop when the interpolated size is within 1 / 8 of an estimated size."""

_LONGEST_STEP: Final = 1024  # largest factor from the largest fitting size to the next size to try

_PLATEAU_STEP: Final = 16
"""The next size is so many times larger if the need did not grow: at small batches the variables' start
may need more than a step."""

_LONGEST_PLATEAU: Final = 1000
"""A need that does not grow while the size grows this much does not depend on the size."""

_POWERS: Final = (1.0, 4.0)
"""Powers of an input's side with which a need may grow: 1 for a recurrent layer over a sequence, 4 for
attention between the pixels of an image."""

Figure = Callable[[SizeEstimate], int]
"""One figure of an estimate in bytes, such as the upper bound of its need."""


def need_of(point: SizeEstimate) -> int:
    """Return the need of an estimate."""
    return point.need_bytes


class SizeCurve:
    """Estimates by size, and lines between them in a ``power`` of the size: 1 for a batch."""

    def __init__(self, power: int = 1) -> None:
        self._power = power
        self.points: dict[int, SizeEstimate] = {}

    @property
    def sizes(self) -> list[int]:
        """The estimated sizes, rising."""
        return sorted(self.points)

    def power(self) -> float:
        """Return the power of the size with which the need grows; of an input, by its estimates."""
        if self._power == 1 or len(self.points) < 2:
            return float(self._power)
        low, high = self.points[self.sizes[0]], self.points[self.sizes[-1]]
        needs = [max(point.need_bytes - low.fixed_bytes, 1) for point in (low, high)]
        slope = math.log(needs[1] / needs[0]) / math.log(high.size / low.size)
        return min(max(slope, _POWERS[0]), _POWERS[1])

    def value_at(self, size: int, figure: Figure) -> int:
        """Return a figure at a size: of its own estimate, else of the line between two others."""
        if size in self.points:
            return figure(self.points[size])
        ends = self._values(figure)
        above = bisect(ends, size, key=lambda end: end[0])
        around = ends[above - 1 : above + 1] if 0 < above < len(ends) else ends
        (x0, y0), (x1, y1), power = around[0], around[-1], self.power()
        share: float = (size**power - x0**power) / (x1**power - x0**power)
        return max(round(y0 + (y1 - y0) * share), 0)

    def size_at(self, limit_bytes: int, figure: Figure = need_of) -> int:
        """Return the size at which a figure crosses a limit, rounded down; 0 if at no size.

        The crossing lies on the line through the two estimates around it. Above all estimates the line
        goes through the smallest and the largest one, below them through the two smallest ones. A
        single estimate gives a line from the variables at size 0.
        """
        ends = self._values(figure)
        over = next((place for place, end in enumerate(ends) if end[1] > limit_bytes), None)
        low, high = ends[0], ends[-1]
        if over is not None:
            low, high = ends[max(over - 1, 0)], ends[max(over, 1)]
        if high[1] <= low[1]:  # no growth between the two
            low = (0, min(low[1], high[1] - 1))
        power = self.power()
        slope: float = (high[1] - low[1]) / (high[0] ** power - low[0] ** power)
        crossing: float = max(low[0] ** power + (limit_bytes - low[1]) / slope, 0.0) ** (1 / power)
        return min(math.floor(crossing + 1e-9), MOST_SIZE)

    def _values(self, figure: Figure) -> list[tuple[int, int]]:
        """Return the figure by size; before a single estimate, the variables at size 0."""
        values = [(size, figure(self.points[size])) for size in self.sizes]
        if len(values) == 1:
            values.insert(0, (0, self.points[values[0][0]].fixed_bytes))
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSizes:
    """The result of a search."""

    curve: SizeCurve
    fitting: int  # the largest estimated size that fits; 0 if none does
    # the smallest size that does not fit or is not possible; None if none was found
    failing: int | None
    # the largest size that fits by the curve: ``fitting``, or between the two if runs follow
    predicted: int
    # the smallest size that is not possible for a reason other than memory
    refused: SizeFailure | None


def tolerance_at(size: int) -> int:
    """Return the width of the bracket at which a search ends."""
    return max(size // _BRACKET_PARTS, 1)


@dataclass(eq=False, slots=True)
class SizeSearch:
    """Searches the largest size of a step under a limit.

    If runs follow, an interpolated size is close enough. ``power`` is that of ``SizeCurve``.
    """

    estimates: SizeEstimates
    limit: BoundedBytes
    first_size: int
    power: InitVar[int] = 1
    runs_follow: bool = False
    report: Callable[[str, float], None] = lambda stage, share: None
    curve: SizeCurve = field(init=False)
    _tried: list[int] = field(default_factory=list)
    _refused: SizeFailure | None = None

    def __post_init__(self, power: int) -> None:
        self.curve = SizeCurve(power)

    def find(self) -> FoundSizes:
        """Search and return the bracket."""
        self.estimate(max(self.first_size, 1))
        while len(self._tried) < _MOST_ESTIMATES and (size := self._next_size()) is not None:
            self.estimate(size)
        fitting, failing = self._bracket()
        predicted = fitting
        if self.runs_follow and fitting:
            guess = self.curve.size_at(self.limit.bytes)
            predicted = max(fitting, min(guess, (failing or guess + 1) - 1))
        return FoundSizes(
            curve=self.curve,
            fitting=fitting,
            failing=failing,
            predicted=predicted,
            refused=self._refused,
        )

    def estimate(self, size: int) -> None:
        """Try a size, unless it was tried before; raise if it is the first and not possible."""
        if size in self._tried:
            return
        self.report(f"estimating size {size}", min(0.15 * len(self._tried), 0.85))
        call = self.estimates.try_size if self._tried else self.estimates.estimate
        self._tried.append(size)
        result = call(size)
        if isinstance(result, SizeEstimate):
            self.curve.points[size] = result
        elif self._refused is None or size < self._refused.size:
            self._refused = result

    def _fits(self, size: int) -> bool:
        return self.curve.points[size].need_bytes <= self.limit.bytes

    def _bracket(self) -> tuple[int, int | None]:
        """Return the largest size that fits, 0 for none, and the smallest above that does not."""
        failing = [size for size in self.curve.points if not self._fits(size)]
        failing += [self._refused.size] if self._refused else []
        least = min(failing, default=None)
        fitting = (one for one in self.curve.points if self._fits(one))
        return max((one for one in fitting if least is None or one < least), default=0), least

    def _next_size(self) -> int | None:
        """Return the next size to try; None if the bracket is narrow enough."""
        points, (fitting, failing) = self.curve.points, self._bracket()
        stride = tolerance_at(fitting)
        if failing is not None and failing - fitting <= stride:
            return None
        # The first line is steeper without the start of the process.
        figure = (
            need_of if len(points) > 1 else lambda one: min(one.need_bytes, one.allocated_bytes)
        )
        guess = self.curve.size_at(self.limit.bytes, figure)
        nearest = min(abs(size - guess) for size in points)
        is_near = self.runs_follow and len(points) > 1 and nearest <= guess // _RUN_PARTS
        if failing is None:
            if self._is_on_plateau():
                return min(_PLATEAU_STEP * fitting, MOST_SIZE)
            if fitting >= MOST_SIZE or is_near:
                return None
            return min(max(guess, fitting + stride), _LONGEST_STEP * fitting, MOST_SIZE)
        if self._refused is not None and failing == self._refused.size and guess >= failing:
            return _next_below_refusal(fitting, failing)
        if not fitting:
            return max(min(guess, failing - tolerance_at(failing)), 1)
        if is_near:
            return None
        last = [size for size in self._tried[-2:] if size in points]
        if len(self._tried) > 3 and len(last) == 2 and self._fits(last[0]) == self._fits(last[1]):
            return (fitting + failing) // 2
        return min(max(guess, fitting + stride), max(failing - stride, fitting + 1))

    def _is_on_plateau(self) -> bool:
        """Say whether the need did not grow up to the largest size; raise if it never grows."""
        sizes = self.curve.sizes
        low, high = self.curve.points[sizes[0]], self.curve.points[sizes[-1]]
        if high.size == low.size or high.need_bytes > low.need_bytes:
            return False
        if high.size >= _LONGEST_PLATEAU * low.size:
            raise InputError(
                f"The step needs no more memory at size {high.size} than at {low.size}.",
                hint="If its own code sets the batch size, change it there.",
            )
        return True


def _next_below_refusal(fitting: int, refused: int) -> int:
    """Return the next size between a fitting size and a refused one.

    Layers accept sizes up to a round number, such as the rows of a table of positions. So the powers of
    two are tried first, then the size after one, then the middle.
    """
    middle = 1 << (math.isqrt(max(fitting, 1) * refused).bit_length() - 1)
    power_of_two = middle if middle > fitting else 2 * middle
    if power_of_two < refused:
        return power_of_two
    return fitting + 1 if fitting & (fitting - 1) == 0 else (fitting + refused) // 2


MOST_RUNS: Final = 8  # runs at most; two if the prediction is right

RUN_STEPS: Final = 3  # of a run: the first allocates variables of the optimizer, the others repeat

_FIRST_STEP_DOWN: Final = 16
"""Divisor of the predicted size. If it and the safe size fail, go down by 1 / 16, then 4 / 16."""

_BRACKET_S: Final = 30.0  # seconds after which a quick confirmation does not narrow a bracket
_QUICK_S: Final = 90.0  # seconds in which a quick confirmation ends after a size ran

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
    is_quick: bool = False  # whether the user did not request the runs
    runs: dict[int, ConfirmingRun] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)  # of each run

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
            used_s, longest_s = sum(self.seconds), max(self.seconds, default=0.0)
            is_late = used_s > _BRACKET_S if failing is not None else used_s + longest_s > _QUICK_S
            if self.is_quick and fitting and is_late:
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
        start_s = time.monotonic()
        result = self.runs[size] = self.run(size)
        self.seconds.append(time.monotonic() - start_s)
        failed = [run for run in self.runs.values() if run.has_failed]
        is_other = all(run.kind is FailureKind.OTHER for run in failed)
        if result.has_failed and is_other and len(failed) == len(self.runs) > 1:
            sizes = ", ".join(map(str, sorted(self.runs)))  # the reason is not the size
            raise InputError(f"The step fails at sizes {sizes}: {result.detail}")
