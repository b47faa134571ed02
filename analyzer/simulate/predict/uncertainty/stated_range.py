"""The stated range of a prediction, and the reasons for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist, mean, median_low, stdev
from typing import Final

from analyzer.model.contract.report.peak_figures import ScheduleRange, StatedRange
from analyzer.model.ranges import Range
from analyzer.model.tables import read_table
from analyzer.model.units import format_bytes
from analyzer.simulate.predict.prepared_step import Schedule
from analyzer.simulate.predict.sampling import (
    COVERAGE,
    EQUAL_SHARE,
    LIMIT_MARGIN,
    Chosen,
    Prediction,
    ScheduleSample,
)

SENTENCES: Final = read_table("simulate/predict/uncertainty/range_sentences.toml", dict[str, str])
MARGIN: Final = EQUAL_SHARE
"""Share of the peak added on both sides for bytes that no schedule shows: constants that the
runtime folds or shares, small buffers in Python, kernel scratch of a few kilobytes."""

FLOOR_BYTES: Final = 16 << 10  # smallest margin: about a hundred small buffers


def state_range(
    prediction: Prediction, chosen: Chosen, data_bytes: Mapping[str, int], unsized: int
) -> StatedRange:
    """Return the range of the peak and its reasons.

    Schedules cover the graph only. Bytes that the process holds beside it are added to all of them,
    so that the shown peak lies in its range. ``data_bytes`` as in the run note.
    """
    allocated, extra = chosen.allocated_bytes[prediction.main.threads], chosen.extra_bytes
    margin = max(int(MARGIN * prediction.peak_bytes), FLOOR_BYTES)
    less, more = _bound_unmodelled(prediction)
    requested = prediction.range
    because = [describe_schedules(prediction.main, extra)] if requested.width else []
    because += [
        SENTENCES[kind].format(format_bytes(size + extra))
        for kind, size in prediction.orders_bytes.items()
        if size not in prediction.main.range
    ]
    because += _describe_margins(margin, less, more, data_bytes)
    less += data_bytes.get("arrays", 0) + data_bytes.get("inputs", 0)
    more += data_bytes.get("cache", 0)
    # Other outcomes of decisions are not replayed: their distance to the schedules is added.
    below = prediction.main.range.low - requested.low + margin + less
    above = requested.high - prediction.main.range.high + margin + more
    limit = None
    if chosen.limits is not None:
        # A few samples understate the extremes; for evenly spread samples, by about the mean gap.
        gap = chosen.limits.width // max(len(allocated) - 1, 1)
        limit = chosen.limits.widened(gap, gap)
        limit = limit.widened(0, int(LIMIT_MARGIN * limit.high))
        sizes = (format_bytes(limit.low), format_bytes(limit.high))
        because.append(SENTENCES["limits"].format(*sizes, LIMIT_MARGIN))
        limit = limit.widened(below, above).at_least(0)
    requested = requested.shifted(extra).widened(margin + less, margin + more).at_least(0)
    chunks = estimate_allocated_range(allocated).widened(below, above).at_least(0)
    return StatedRange(
        limit_low_bytes=None if limit is None else limit.low,
        limit_high_bytes=None if limit is None else limit.high,
        low_bytes=requested.low,
        high_bytes=requested.high,
        allocated_low_bytes=chunks.low,
        allocated_high_bytes=chunks.high,
        because=tuple(because),
        schedules=tuple(
            _summarize(each, chosen.allocated_bytes[each.threads], extra)
            for each in prediction.by_threads
        ),
        unsized=unsized,
    )


def _describe_margins(
    margin: int, less: int, more: int, data_bytes: Mapping[str, int]
) -> Iterator[str]:
    yield SENTENCES["small"].format(format_bytes(margin))
    if less or more:
        yield SENTENCES["unmodelled"].format(format_bytes(less), format_bytes(more))
    for kind in ("arrays", "inputs", "cache"):
        if size := data_bytes.get(kind):
            yield SENTENCES[kind].format(format_bytes(size))


def _summarize(sample: ScheduleSample, allocated: Sequence[int], extra: int) -> ScheduleRange:
    return ScheduleRange(
        inter_op_threads=sample.threads,
        draws=len(sample.schedules),
        requested_bytes=sample.middle.peak_bytes + extra,
        requested_low_bytes=sample.range.low + extra,
        requested_high_bytes=sample.range.high + extra,
        allocated_bytes=median_low(allocated),
        allocated_low_bytes=min(allocated),
        allocated_high_bytes=max(allocated),
    )


def estimate_allocated_range(sizes_bytes: Sequence[int]) -> Range:
    """Return the range of one more allocated peak, with a chance of about 95 %.

    Many random differences of chunks add up, so peaks are nearly normal. The range is the prediction
    interval of a normal distribution, or that of the samples if it is wider.
    """
    sampled = Range.spanning(sizes_bytes)
    if len(sizes_bytes) < 2:
        return sampled
    middle, count = mean(sizes_bytes), len(sizes_bytes)
    quantile = NormalDist().inv_cdf((1 + COVERAGE) / 2)
    half_width = quantile * math.sqrt(1 + 1 / count) * stdev(sizes_bytes)
    return sampled.including(int(middle - half_width), int(middle + half_width))


def _bound_unmodelled(prediction: Prediction) -> tuple[int, int]:
    """Return the bytes that ops without a rule may hold less, and more, at the peak.

    Less: all of their results that are alive then. More: scratch of one op, as large as its results.
    """
    prepared = prediction.prepared
    nodes = prepared.kernels.unmodelled
    borrowing = [node for node, plan in enumerate(prepared.kernels.plans) if plan.borrows]
    if not nodes and not borrowing:
        return 0, 0
    alive = _sum_alive_at_peak(prediction.middle)
    ops = prepared.wiring.ops
    scratch = (sum(spec.size_bytes or 0 for spec in ops[node].outputs) for node in nodes)
    return sum(alive[node] for node in (*nodes, *borrowing)), max(scratch, default=0)


def describe_schedules(schedules: ScheduleSample, extra: int = 0) -> str:
    """Return a sentence about the peaks of sampled schedules, plus bytes held beside them."""
    threads, inside = schedules.threads, schedules.range
    place = f"{threads} inter-op threads" if threads > 1 else "one inter-op thread"
    ends = (schedules.peaks_bytes[0], inside.low, inside.high, schedules.peaks_bytes[-1])
    lowest, low, high, highest = (format_bytes(size + extra) for size in ends)
    median = format_bytes(schedules.middle.peak_bytes + extra)
    peak = f"between {low} and {high}, median {median}" if low != high else f"at {low}"
    if (lowest, highest) != (low, high):
        peak += f" (rarely between {lowest} and {highest})"
    count = len(schedules.peaks_bytes)
    return f"On {place} the order of ops varies: {count} sampled orders peak {peak}."


def _sum_alive_at_peak(schedule: Schedule) -> Counter[int]:
    """Return node -> bytes of its buffers alive at the schedule's peak."""
    alive: Counter[int] = Counter()
    table, peak = schedule.buffers, schedule.peak_instant
    rows = zip(table.node, table.size_bytes, table.born, table.dies, strict=True)
    for node, size, born, dies in rows:
        if size and born <= peak and (dies < 0 or dies > peak):
            alive[node] += size
    return alive
