"""Search the largest size that fits: one method for every model, card, graph rewrite and XLA plan.

Each size is captured and estimated once and becomes a point of a curve. A line through the points leads
to the next size (secant method). Once a size fits and another does not, the search narrows the bracket
between the two by interpolation, or by bisection if two estimates in a row lie on the same side.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from analyzer.fitting.estimate_at_size import SizeEstimate, SizeEstimates
from analyzer.fitting.fit_answer import SizeFailure
from analyzer.model.errors import InputError
from analyzer.model.ranges import BoundedBytes

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
    """Estimates by size, and straight lines between them in a power of the size.

    ``power`` is 1 for a batch; of an input, it is a first guess.
    """

    def __init__(self, power: int = 1) -> None:
        self._power = power
        self.points: dict[int, SizeEstimate] = {}

    @property
    def sizes(self) -> list[int]:
        """The estimated sizes, rising."""
        return sorted(self.points)

    def power(self) -> float:
        """Return the power of the size with which the need grows.

        For an input it is the slope between the outermost estimates on logarithmic scales.
        """
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


class SizeSearch:
    """Searches the largest size of a step under a limit.

    If runs follow, an interpolated size is close enough. ``power`` is that of ``SizeCurve``.
    """

    def __init__(
        self,
        estimates: SizeEstimates,
        limit: BoundedBytes,
        first_size: int,
        *,
        power: int = 1,
        runs_follow: bool = False,
        report: Callable[[str, float], None] = lambda stage, share: None,
    ) -> None:
        self.curve = SizeCurve(power)
        self._estimates = estimates
        self._limit = limit
        self._first_size = max(first_size, 1)
        self._runs_follow = runs_follow
        self._report = report
        self._tried: list[int] = []
        self._refused: SizeFailure | None = None

    def find(self) -> FoundSizes:
        """Search and return the bracket."""
        self.estimate(self._first_size)
        while len(self._tried) < _MOST_ESTIMATES and (size := self._next_size()) is not None:
            self.estimate(size)
        fitting, failing = self._bracket()
        predicted = fitting
        if self._runs_follow and fitting:
            guess = self.curve.size_at(self._limit.bytes)
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
        self._report(f"estimating size {size}", min(0.15 * len(self._tried), 0.85))
        call = self._estimates.try_size if self._tried else self._estimates.estimate
        self._tried.append(size)
        result = call(size)
        if isinstance(result, SizeEstimate):
            self.curve.points[size] = result
        elif self._refused is None or size < self._refused.size:
            self._refused = result

    def _fits(self, size: int) -> bool:
        return self.curve.points[size].need_bytes <= self._limit.bytes

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
        guess = self.curve.size_at(self._limit.bytes, figure)
        nearest = min(abs(size - guess) for size in points)
        is_near = self._runs_follow and len(points) > 1 and nearest <= guess // _RUN_PARTS
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
