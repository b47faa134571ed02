"""The largest size that fits under a limit, by replays of orders whose requests are forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from analyzer.allocator import BfcOptions
from analyzer.predict.representative import LIMIT_MARGIN
from analyzer.scaling.scaled_orders import ScaledOrder, ScaledOrders

MOST: Final = 1 << 24
"""Sizes are looked for up to this."""

_AHEAD: Final = 2
"""Sizes beyond one that fails that are tried too: best fit may do better with larger tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSizes:
    """The largest sizes that fit.

    Attributes:
        size: In the middle one of the orders of the figure's threads, or where ops wait for each other's
            memory in the one of one thread; 0 where none fits.
        safe: In every order of every kind, under every limit from the least that it may be, less a
            margin, to the most: what runs with less memory may fail with more.
        most: In the best of the orders, with the most that the limit may be.
        in_each: In each of the orders of the figure's threads, under the limit that is the figure: where
            it is less than ``size``, the order that a run takes decides. A gap between two of the orders
            is left for those that were not drawn.
        orders: How many orders of the figure's threads were tried; 0 where none was played.
        fitting: In how many of them ``size`` fits under the limit that is the figure.
        waits: Whether ``size`` is that of one thread: ops then wait for what other threads free.
    """

    size: int
    safe: int
    most: int
    in_each: int
    orders: int = 0
    fitting: int = 0
    waits: bool = False


def largest(
    orders: ScaledOrders,
    options: BfcOptions,
    limits: tuple[int, int, int],
    *,
    waiting: bool = True,
    bound: int = MOST,
) -> LargestSizes:
    """Search the largest sizes under a limit.

    Args:
        orders: The step's orders.
        options: The allocator's set-up but for its limit.
        limits: The limit that is the figure, the least and the most that it may be, bytes.
        waiting: Whether ops of several threads may wait for each other's memory.
        bound: Up to which size the orders' forms hold.
    """
    limit, low, high = limits

    def under(bytes_: int) -> BfcOptions:
        return replace(options, memory_limit_bytes=bytes_)

    near = 0
    found = []
    for order in orders.main:
        near = largest_of(order, under(limit), near, bound)
        found.append(near)
    found.sort()
    middle = found[(len(found) - 1) // 2]
    alone = min(_one_after_another(orders, under(limit), middle), bound) if waiting else 0
    careful = under(int(low / (1 + LIMIT_MARGIN)))
    safe = middle
    for order in orders.every:

        def holds(size: int, order: ScaledOrder = order) -> bool:
            return order.fits_throughout(size, careful, high)

        if safe and not holds(safe):
            safe = _last(holds, safe, safe)
    most = max(largest_of(order, under(high), middle, bound) for order in orders.every)
    size = max(middle, alone)
    gap = (found[-1] - found[0]) // max(len(found) - 1, 1)
    return LargestSizes(
        size=size,
        safe=min(safe, middle),
        most=max(most, size),
        in_each=max(found[0] - gap, 0),
        orders=len(found),
        fitting=sum(order.fits(size, under(limit)) for order in orders.main) if size else 0,
        waits=alone > middle,
    )


def _one_after_another(orders: ScaledOrders, options: BfcOptions, near: int) -> int:
    """Return the largest size that fits on one thread, where runs have several; 0 where they have not.

    On a CPU a request that finds no room waits up to 10 s for what other threads free
    (``AllocatorRetry``, ``allocator_retry.cc``), so that ops that do not fit side by side run one after
    another. A card's kernels are launched by one thread, which frees nothing while it waits.

    Args:
        orders: The orders.
        options: The allocator, with its limit.
        near: A size that is likely near.
    """
    if orders.target.gpu is not None or orders.main[0].threads == 1:
        return 0
    return max((largest_of(order, options, near) for order in orders.kinds.get(1, ())), default=0)


def largest_of(order: ScaledOrder, options: BfcOptions, near: int = 0, most: int = MOST) -> int:
    """Return the largest size at which an order comes to its end; 0 where it does at none.

    Args:
        order: The order.
        options: The allocator, with its limit.
        near: A size that is likely near; 0 where none is known.
        most: Up to which size it is looked for.
    """
    limit = options.memory_limit_bytes
    bound = _last(lambda size: order.least_bytes(size) <= limit, near, most)
    if not bound:
        return 0
    found = _last(lambda size: order.fits(size, options), min(near or bound, bound), bound)
    for ahead in range(found + 2, min(found + 2 + _AHEAD, bound + 1)):
        if order.fits(ahead, options):
            found = ahead
    return found


def _last(holds: Callable[[int], bool], near: int, most: int = MOST) -> int:
    """Return the last whole number from 1 to ``most`` at which something holds; 0 where it nowhere does.

    It holds up to a number and fails above, or nearly so.
    """
    low, high, stride = 0, most + 1, 1
    if near > 0:
        start = min(near, most)
        if holds(start):
            low = start
            while low + stride < high and holds(low + stride):
                low, stride = low + stride, 2 * stride
            high = min(high, low + stride)
        else:
            high = start
            while high - stride > 0 and not holds(high - stride):
                high, stride = high - stride, 2 * stride
            low = max(high - stride, 0)
    else:
        while stride <= most and holds(stride):
            low, stride = stride, 2 * stride
        high = min(high, stride)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
