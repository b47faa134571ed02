"""The trend of memory over a program's steps: a slope with its range, without the warm-up.

The readings are cut into blocks of equally many steps, and each block is represented by its lowest
reading, the floor: temporary memory (prefetched batches, a validation pass) lies above it. The slope
is the median of the slopes between all pairs of floors (Theil 1950, Sen 1968), and its range is the
95 % interval by Kendall's tau.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from statistics import median
from typing import Final

from analyzer.model.contract.report.subject import TrendFigures
from analyzer.model.contract.watch_note import Reading, WatchNote
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import CPU_DEVICE, HOST_ALLOCATORS, card_number

_BLOCKS: Final = 16
_FEWEST: Final = 6
"""Fewest floors for a slope: five random floors are in monotone order once in 60 series."""

_QUANTILE: Final = 1.96  # 95 % interval of the normal distribution

_WARMUP_RATIO: Final = (
    0.2  # of the steps, skipped besides the warm-up; at least 3 steps
)

_NOISE_BYTES: Final = 4096
"""Growth over a series up to which it is flat: 16 chunks of the allocator's smallest size."""

_NOISE_RATIO: Final = 1e-3  # the same limit as a share of the last floor

_SPREADS: Final = 6
"""A growth must exceed the median distance of the floors from their line by this factor, four
standard deviations: varying shapes sometimes produce a slope by chance."""


def growth_of(
    readings: Sequence[Reading],
    warmup: int,
    value: Callable[[Reading], int | None] = lambda reading: reading.in_use_bytes,
) -> TrendFigures:
    """Return the trend of a series of readings, in order of the steps, without the warm-up.

    ``value`` is the number of a reading to use; None if it was not measured.
    """
    sizes = {one.step: value(one) for one in readings}
    points = sorted((step, size) for step, size in sizes.items() if size is not None)
    if not points:
        return TrendFigures(trend="cannot tell")

    last = points[-1][0]
    skipped = max(warmup, min(warmup + 3, last // 3), round(_WARMUP_RATIO * last))
    points = [point for point in points if point[0] > skipped]
    count = min(_BLOCKS, len(points) // 2 if len(points) > 2 * _FEWEST else len(points))
    bounds = [round(index * len(points) / max(count, 1)) for index in range(count + 1)]
    blocks = [points[a:b] for a, b in pairwise(bounds) if b > a]
    floors = [min(block, key=lambda point: point[1]) for block in blocks]
    if len(floors) < _FEWEST:
        return TrendFigures(trend="cannot tell", last_step=last)

    slopes = []
    for (step_a, size_a), (step_b, size_b) in combinations(floors, 2):
        slopes.append((size_b - size_a) / (step_b - step_a))

    slopes.sort()
    count, n = len(floors), len(slopes)
    spread = _QUANTILE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = slopes[max(math.floor((n - spread) / 2), 0)]
    high = slopes[min(math.ceil((n + spread) / 2), n - 1)]
    middle = median(slopes)
    steps = floors[-1][0] - floors[0][0]
    noise = max(_NOISE_BYTES, _NOISE_RATIO * floors[-1][1])
    rest = [size - middle * step for step, size in floors]
    spread_bytes = _SPREADS * median(abs(one - median(rest)) for one in rest)
    is_growing = low > 0 and middle * steps > max(noise, spread_bytes)
    is_flat = high * steps <= noise

    return TrendFigures(
        trend="grows" if is_growing else "flat" if is_flat else "cannot tell",
        per_step_bytes=middle,
        low_bytes=low,
        high_bytes=high,
        first_step=points[0][0],
        last_step=last,
        level_bytes=floors[-1][1],
    )


def measure_growth(
    recording: Recording, watch: WatchNote
) -> tuple[TrendFigures, TrendFigures]:
    """Return the trends of the allocator's bytes in use, and of the resident memory.

    On the CPU, the allocator's memory is a part of the process and is subtracted. It never shrinks.
    """
    highest_bytes = 0
    rest = []
    for one in watch.readings:
        if recording.device.kind == "cpu":
            highest_bytes = max(highest_bytes, one.in_use_bytes)
        if one.host_bytes is not None:
            rest.append(replace(one, host_bytes=max(one.host_bytes - highest_bytes, 0)))

    device = growth_of(watch.readings, watch.warmup)
    return device, growth_of(rest, watch.warmup, lambda one: one.host_bytes)


def find_own_peak(recording: Recording) -> int | None:
    """Return TensorFlow's own peak since the program's start, on the recorded device."""
    peaks = () if recording.watch is None else recording.watch.own_peaks
    if recording.allocator in HOST_ALLOCATORS - {CPU_DEVICE}:
        return None
    index = card_number(recording.allocator) or 0
    return peaks[index] or None if index < len(peaks) else None
