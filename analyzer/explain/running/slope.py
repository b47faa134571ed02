"""The trend of memory over a program's steps: a slope with its range, without the warm-up.

The readings are cut into blocks of equally many steps, and each block is represented by its lowest
reading, the floor: temporary memory (prefetched batches, a validation pass) lies above it. The slope
is the median of the slopes between all pairs of floors (Theil 1950, Sen 1968), and its range is the
95 % interval by Kendall's tau. A leak is never released, so the lower bound counts each floor as no
higher than the later ones.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from analyzer.model.contract.report_file import TrendFigures
from analyzer.model.contract.run_note import WatchNote
from analyzer.model.recording.records import Recording

_BLOCKS = 16

# Fewest floors for a slope: five random floors are in monotone order once in 60 series.
_FEWEST = 6

_QUANTILE = 1.96  # 95 % interval of the normal distribution

# of the steps, skipped besides the warm-up; at least 3 steps
_WARMUP_RATIO = 0.2

# Growth over a series up to which it is flat: 16 chunks of the allocator's smallest size.
_NOISE_BYTES = 4096

_NOISE_RATIO = 1e-3  # the same limit as a share of the last floor

# Growth a step that is no leak: Keras' ``predict`` leaves some objects of a call to Python's garbage
# collector, and a million such steps take less than 1 GiB.
SMALL_SLOPE_BYTES = 1024

# Floors that lie this close, as a share of the last one, and do not rise are flat.
_LEVEL_RATIO = 0.01

# A growth must exceed the median distance of the floors from their line by this factor, four standard
# deviations: varying shapes sometimes produce a slope by chance.
_SPREADS = 6


def growth_of(sizes: Mapping[int, int], warmup: int) -> TrendFigures:
    """Return the trend of the bytes after each step, without the warm-up."""
    points = sorted(sizes.items())
    if not points:
        return TrendFigures(trend="cannot tell")

    last = points[-1][0]
    skipped = max(warmup, min(warmup + 3, last // 3), round(_WARMUP_RATIO * last))
    points = [point for point in points if point[0] > skipped]
    floors = _find_floors(points)

    if len(floors) < _FEWEST:
        return TrendFigures(trend="cannot tell", last_step=last)

    low, middle, high = _find_slopes(floors)
    step, size = floors.T
    kept = np.minimum.accumulate(size[::-1])[::-1]
    low = min(low, _find_slopes(np.column_stack((step, kept)))[0])
    steps = step[-1] - step[0]

    level = int(size[-1])
    noise = max(_NOISE_BYTES, _NOISE_RATIO * level)
    rest = size - middle * step
    spread = _SPREADS * float(np.median(np.abs(rest - np.median(rest))))

    trend: Literal["grows", "flat", "cannot tell"] = "cannot tell"

    # One jump is no slope: the data of the first validation stay for the next one.
    rise = middle * steps - float(np.diff(rest).max())

    if low > 0 and rise > max(noise, spread):
        trend = "grows"
    elif (
        high * steps <= noise
        or high < SMALL_SLOPE_BYTES
        or (middle <= 0 and np.ptp(size) <= _LEVEL_RATIO * level)
    ):
        trend = "flat"

    return TrendFigures(
        trend=trend,
        per_step_bytes=middle,
        low_bytes=low,
        high_bytes=high,
        first_step=points[0][0],
        last_step=last,
        level_bytes=level,
    )


def _find_floors(points: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return step and size of the lowest reading of each block, shape (blocks, 2)."""
    count = len(points)
    if count > 2 * _FEWEST:
        count = min(_BLOCKS, count // 2)

    blocks = np.array_split(np.array(points), count) if count else []

    return np.array([block[block[:, 1].argmin()] for block in blocks])


def _find_slopes(floors: np.ndarray) -> tuple[float, float, float]:
    """Return the median slope between all pairs of floors, and its interval around it."""
    step, size = floors.T

    count = len(floors)
    first, second = np.triu_indices(count, 1)
    rises = size[second] - size[first]
    slopes = np.sort(rises / (step[second] - step[first]))

    variance = count * (count - 1) * (2 * count + 5) / 18
    spread = _QUANTILE * math.sqrt(variance)
    low = max(math.floor((len(slopes) - spread) / 2), 0)
    high = min(math.ceil((len(slopes) + spread) / 2), len(slopes) - 1)

    return float(slopes[low]), float(np.median(slopes)), float(slopes[high])


def measure_growth(
    recording: Recording, watch: WatchNote
) -> tuple[TrendFigures, TrendFigures]:
    """Return the trends of the allocator's bytes in use, and of the resident memory.

    On the CPU, the allocator's memory is a part of the process and is subtracted. It never shrinks.
    """
    highest_bytes = 0
    device = {}
    rest = {}

    for one in watch.readings:
        device[one.step] = one.in_use_bytes
        if recording.device.kind == "cpu":
            highest_bytes = max(highest_bytes, one.in_use_bytes)
        if one.host_bytes is not None:
            rest[one.step] = max(one.host_bytes - highest_bytes, 0)

    return growth_of(device, watch.warmup), growth_of(rest, watch.warmup)
