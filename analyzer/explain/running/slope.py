"""Whether what is held after each step grows: a slope with its error, the warm-up kept apart.

The readings are cut into blocks of equal numbers of steps, and each block stands for its least reading:
what comes and goes (prefetched elements, a validation pass) lies above the floor that stays. The slope
is the median of the slopes between all pairs of floors (Theil 1950, Sen 1968), its error the quantiles
that Kendall's tau gives them at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final, Literal

from analyzer.model.contract.watch_note import Reading

Trend = Literal["grows", "flat", "cannot tell"]

_BLOCKS: Final = 16
"""Floors that a series is made into."""

_FEWEST: Final = 6
"""Floors below which no slope is told: of five, chance alone orders all once in 60 series."""

_QUANTILE: Final = 1.96
"""Of the normal distribution, for 95 %."""

_WARMUP_SHARE: Final = 0.2
"""Share of the steps that is left out besides the warm-up, and 3 steps of it at least."""

_NOISE_BYTES: Final = 4096
"""Growth over a whole series below which it is flat: sixteen chunks of the allocator's least size."""

_SPREADS: Final = 6
"""Median distances of the floors from their line, four standard deviations of a normal one, that a
growth has to exceed: what comes and goes with shapes that vary makes a slope now and then."""

_NOISE_SHARE: Final = 1e-3
"""The same as a share of what is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrowth:
    """How a series goes on after its warm-up.

    Attributes:
        trend: What it does.
        per_step_bytes: Slope, bytes a step.
        low_bytes, high_bytes: Its range at 95 %.
        first_step, last_step: The steps that it was told from.
        level_bytes: The last floor.
    """

    trend: Trend
    per_step_bytes: float = 0.0
    low_bytes: float = 0.0
    high_bytes: float = 0.0
    first_step: int = 0
    last_step: int = 0
    level_bytes: int = 0


def growth_of(
    readings: Sequence[Reading],
    warmup: int,
    value: Callable[[Reading], int | None] = lambda reading: reading.in_use_bytes,
) -> StepGrowth:
    """Return what a series of readings does.

    Args:
        readings: In order of the steps.
        warmup: Steps that are left out whatever they show.
        value: What is looked at of a reading; None where it was not read.
    """
    points = [(one.step, size) for one in readings if (size := value(one)) is not None]
    if not points:
        return StepGrowth(trend="cannot tell")
    last = points[-1][0]
    skipped = max(warmup, min(warmup + 3, last // 3), round(_WARMUP_SHARE * last))
    points = [point for point in points if point[0] > skipped]
    floors = _floors(points)
    if len(floors) < _FEWEST:
        return StepGrowth(trend="cannot tell", last_step=last)
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(floors, 2))
    count, n = len(floors), len(slopes)
    spread = _QUANTILE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = slopes[max(math.floor((n - spread) / 2), 0)]
    high = slopes[min(math.ceil((n + spread) / 2), n - 1)]
    middle = (slopes[(n - 1) // 2] + slopes[n // 2]) / 2
    steps = floors[-1][0] - floors[0][0]
    noise = max(_NOISE_BYTES, _NOISE_SHARE * floors[-1][1])
    spread_bytes = _SPREADS * _spread(floors, middle)
    trend: Trend = "cannot tell"
    if low > 0 and middle * steps > max(noise, spread_bytes):
        trend = "grows"
    elif high * steps <= noise:
        trend = "flat"
    return StepGrowth(
        trend=trend,
        per_step_bytes=middle,
        low_bytes=low,
        high_bytes=high,
        first_step=points[0][0],
        last_step=last,
        level_bytes=floors[-1][1],
    )


def _spread(floors: list[tuple[int, int]], slope: float) -> float:
    """Return the median distance of floors from a line of this slope through their middle, bytes."""
    rest = [size - slope * step for step, size in floors]
    return median(abs(one - median(rest)) for one in rest)


def _floors(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the least point of each block."""
    count = min(_BLOCKS, len(points) // 2 if len(points) > 2 * _FEWEST else len(points))
    if not count:
        return []
    bounds = [round(index * len(points) / count) for index in range(count + 1)]
    floors = [
        min(points[a:b], key=lambda point: point[1])
        for a, b in zip(bounds, bounds[1:], strict=False)
        if b > a
    ]
    return [one for index, one in enumerate(floors) if not index or one[0] > floors[index - 1][0]]
