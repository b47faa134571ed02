"""The range that a prediction states, and what it comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, mean, median_low, stdev
from typing import Final

from analyzer.model.contract.report.trust_figures import DecidingOp, ScheduleRange, StatedRange
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator.minimum_limit import SharedLimits
from analyzer.simulate.predict.played_step import Draw
from analyzer.simulate.predict.representative import LIMIT_MARGIN, Chosen
from analyzer.simulate.predict.schedules import ALIKE, STATED, Prediction, Schedules

MARGIN: Final = ALIKE
"""Share of the peak added on both sides for what no schedule shows: constants that the runtime folds or
shares, small buffers that Python holds, kernels' scratch of a few kilobytes."""

FLOOR_BYTES: Final = 16 << 10
"""The least margin: a hundred or so small buffers."""


_DECIDING: Final = 8
"""Ops told of that decide the peak: those with the most bytes."""


# Long: the sentences about what the range comes from are most of it.
def uncertainty_of(prediction: Prediction, chosen: Chosen, *, unsized: int = 0) -> StatedRange:
    """Return the range of the peak, and what it comes from.

    The draws know the graph alone; what the process holds beside it (constants that the traced graph
    keeps, tensors of Python's) is added to all of them, so that the peak shown lies in its range.

    Args:
        prediction: The draws.
        chosen: The one shown, and what the chunks of the others need.
        unsized: How many tensors have a size that is not known, and count as nothing.
    """
    allocated = chosen.allocated_bytes
    margin = max(int(MARGIN * prediction.peak_bytes), FLOOR_BYTES)
    less, more = _unmodelled(prediction)
    beside = chosen.beside_bytes
    spread = prediction.high_bytes - prediction.low_bytes
    # What else the data may decide was not laid out in chunks: as far as it is from the draws.
    kind = prediction.kinds[0]
    below, above = kind.low_bytes - prediction.low_bytes, prediction.high_bytes - kind.high_bytes
    chunks_low, chunks_high = allocated_ends(allocated[kind.threads])
    chunks_low = min((chunks_low, *chosen.unseen_bytes))
    chunks_high = max((chunks_high, *chosen.unseen_bytes))
    deciding = deciding_ops(prediction) if spread else []
    because = [told(kind, beside)] if spread else []
    because += [
        _told_aside(other, beside)
        for other in prediction.kinds[1:]
        if not kind.low_bytes <= other.middle_bytes <= kind.high_bytes
    ]
    because.append(f"Small buffers outside the step's graph: {format_bytes(margin)} either way.")
    if less or more:
        because.append(
            f"Ops without a rule, and Python's, may hold {format_bytes(less)} less, where a "
            f"result takes over other memory, or {format_bytes(more)} more, for scratch as large as a "
            "result."
        )
    limit_low = limit_high = None
    if chosen.limits is not None:
        low, high = widened(chosen.limits, len(allocated[kind.threads]))
        high += int(LIMIT_MARGIN * high)
        limit_low = max(low - below - margin - less, 0)
        limit_high = high + above + margin + more
        because.append(
            f"Of the orders drawn none runs under a memory limit below {format_bytes(low)}, and each "
            f"from {format_bytes(high)} on, with {LIMIT_MARGIN:.0%} to spare; between the two some do."
        )
    return StatedRange(
        limit_low_bytes=limit_low,
        limit_high_bytes=limit_high,
        low_bytes=max(prediction.low_bytes + beside - margin - less, 0),
        high_bytes=prediction.high_bytes + beside + margin + more,
        allocated_low_bytes=max(chunks_low - below - margin - less, 0),
        allocated_high_bytes=chunks_high + above + margin + more,
        because=tuple(because),
        deciding_ops=tuple(deciding),
        schedules=tuple(
            _schedule(each, allocated[each.threads], beside) for each in prediction.kinds
        ),
        unsized=unsized,
    )


def widened(limits: SharedLimits, count: int) -> tuple[int, int]:
    """Return between which limits it is chance whether one more order runs.

    The ends of a few draws lie within those of all: of evenly spread ones by the mean gap between two.

    Args:
        limits: What the draws give.
        count: How many draws.
    """
    gap = (limits.safe_bytes - limits.least_bytes) // max(count - 1, 1)
    return limits.least_bytes - gap, limits.safe_bytes + gap


def allocated_ends(sizes_bytes: Sequence[int]) -> tuple[int, int]:
    """Return between which bytes one more allocated peak lies with a chance of 95 % or so.

    Which chunks are handed out whole is chance, and what adds up of many chances is nearly normal: the
    ends are those of a normal distribution with the mean and the spread of the draws, or the lowest and
    the highest draw where those lie further out.

    Args:
        sizes_bytes: Allocated peaks of draws.
    """
    low, high = min(sizes_bytes), max(sizes_bytes)
    if len(sizes_bytes) > 1:
        middle, count = mean(sizes_bytes), len(sizes_bytes)
        apart = (
            NormalDist().inv_cdf((1 + STATED) / 2) * math.sqrt(1 + 1 / count) * stdev(sizes_bytes)
        )
        low, high = min(low, int(middle - apart)), max(high, int(middle + apart))
    return low, high


def _schedule(kind: Schedules, allocated: Sequence[int], beside: int) -> ScheduleRange:
    return ScheduleRange(
        inter_op_threads=kind.threads,
        draws=len(kind.seeds),
        requested_bytes=kind.middle_bytes + beside,
        requested_low_bytes=kind.low_bytes + beside,
        requested_high_bytes=kind.high_bytes + beside,
        allocated_bytes=median_low(allocated),
        allocated_low_bytes=min(allocated),
        allocated_high_bytes=max(allocated),
    )


def _unmodelled(prediction: Prediction) -> tuple[int, int]:
    """Return the bytes that ops without a rule may hold less, and more, at the peak.

    Less: all of their results that are alive then. More: one op's scratch, the size of its results.
    """
    prepared = prediction.prepared
    nodes = prepared.kernels.unmodelled
    borrowing = [node for node, plan in enumerate(prepared.kernels.plans) if plan.borrows]
    if not nodes and not borrowing:
        return 0, 0
    alive = _alive_at_peak(prediction.middle)
    ops = prepared.wiring.ops
    scratch = (sum(spec.size_bytes or 0 for spec in ops[node].outputs) for node in nodes)
    return sum(alive[node] for node in (*nodes, *borrowing)), max(scratch, default=0)


def deciding_ops(prediction: Prediction) -> list[DecidingOp]:
    """Return the ops whose order decides the peak.

    Their buffers are alive at the peak of the highest draw and not at that of the lowest, or the
    other way round (then ``bytes`` is negative).
    """
    prepared = prediction.prepared
    low, high = prediction.ends
    difference = _alive_at_peak(high)
    difference.subtract(_alive_at_peak(low))
    ops = prepared.wiring.ops
    found = sorted(difference.items(), key=lambda item: (-abs(item[1]), item[0]))
    return [
        DecidingOp(op=ops[node].name, op_type=ops[node].type, bytes=size)
        for node, size in found[:_DECIDING]
        if size and node >= 0
    ]


def told(kind: Schedules, beside: int = 0) -> str:
    """Return a sentence about the peaks of one kind of draws, with what is held beside them."""
    where = f"On {kind.threads} inter-op threads" if kind.threads > 1 else "On one inter-op thread"
    ends = (kind.draws_bytes[0], kind.low_bytes, kind.high_bytes, kind.draws_bytes[-1])
    lowest, low, high, highest = (format_bytes(size + beside) for size in ends)
    rare = [
        f"as {word} as {size}"
        for word, size, end in (("low", lowest, low), ("high", highest, high))
        if size != end
    ]
    rarely = f" (rarely {' or '.join(rare)})" if rare else ""
    middle = format_bytes(kind.middle_bytes + beside)
    peak = f"between {low} and {high}{rarely}, the middle one at {middle}"
    if low == high:
        peak = f"at {low}{rarely}"
    return (
        f"{where} the executor may run ops in several orders: {len(kind.seeds)} that were drawn peak "
        f"{peak}."
    )


def _told_aside(kind: Schedules, beside: int) -> str:
    """Return a sentence about draws on other threads than those that the range is of."""
    where = f"{kind.threads} inter-op threads" if kind.threads > 1 else "one inter-op thread"
    return (
        f"The range is for the threads of a run here; on {where} the step would peak at about "
        f"{format_bytes(kind.middle_bytes + beside)} (--inter-op-threads {kind.threads})."
    )


def _alive_at_peak(draw: Draw) -> Counter[int]:
    """Return node -> bytes of its buffers alive at the draw's peak."""
    alive: Counter[int] = Counter()
    buffers = draw.buffers
    for node, size, born, dies in zip(
        buffers.node, buffers.size_bytes, buffers.born, buffers.dies, strict=True
    ):
        if size and born <= draw.peak_instant and (dies < 0 or dies > draw.peak_instant):
            alive[node] += size
    return alive
