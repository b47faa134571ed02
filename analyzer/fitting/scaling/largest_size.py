"""The largest size that fits under a limit, by replays of orders whose requests are forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from analyzer.fitting.scaling.scaled_orders import ScaledOrder, ScaledOrders
from analyzer.simulate.allocator import BfcOptions
from analyzer.simulate.predict.representative import LIMIT_MARGIN

MOST: Final = 1 << 24
"""Sizes are looked for up to this."""

_AHEAD: Final = 2
"""Sizes beyond one that fails that are tried too: best fit may do better with larger tensors."""

_MOST: Final = 9
_FEWEST: Final = 3
"""Orders that are played together with the allocator, at most and at least."""

_NODE_RUNS: Final = 20_000
"""Nodes that one play of each of these may have, between the two."""

_STRIDES: Final = 128
"""Part of a size in strides of which each of these is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSizes:
    """The largest sizes that fit.

    Attributes:
        size: In the middle one of the orders of the figure's threads; 0 where none fits.
        safe: In every order of every kind, under every limit from the least that it may be, less a
            margin, to the most: what runs with less memory may fail with more.
        most: In the best of the orders, with the most that the limit may be.
        in_each: In each of the orders of the figure's threads, under the limit that is the figure: where
            it is less than ``size``, the order that a run takes decides. A gap between two of the orders
            is left for those that were not drawn.
        orders: How many orders of the figure's threads were tried; 0 where none was played.
        fitting: In how many of them ``size`` fits under the limit that is the figure.
    """

    size: int
    safe: int
    most: int
    in_each: int
    orders: int = 0
    fitting: int = 0


def largest(
    orders: ScaledOrders,
    options: BfcOptions,
    limits: tuple[int, int, int],
    *,
    bound: int = MOST,
) -> LargestSizes:
    """Search the largest sizes under a limit.

    Args:
        orders: The step's orders.
        options: The allocator's set-up but for its limit.
        limits: The limit that is the figure, the least and the most that it may be, bytes.
        bound: The largest size to answer with: up to it the orders' forms hold.
    """
    limit, low, high = limits

    def under(bytes_: int) -> BfcOptions:
        return replace(options, memory_limit_bytes=bytes_)

    near = 0
    as_drawn = []
    for order in orders.main:
        near = largest_of(order, under(limit), near, bound)
        as_drawn.append(near)
    found = sorted(as_drawn)
    middle = found[(len(found) - 1) // 2]
    careful = under(int(low / (1 + LIMIT_MARGIN)))
    safe = middle
    for order in orders.every:

        def holds(size: int, order: ScaledOrder = order) -> bool:
            return order.fits_throughout(size, careful, high)

        if safe and not holds(safe):
            safe = _last(holds, safe, safe)
    most = max(largest_of(order, under(high), middle, bound) for order in orders.every)
    fitting = sum(order.fits(middle, under(limit)) for order in orders.main) if middle else 0
    if orders.waiting is not None and middle:
        found = _where_threads_wait(orders, under(limit), as_drawn, bound)
        middle = found[(len(found) - 1) // 2]
        fitting = sum(size >= middle for size in found)
        most = max(most, found[-1])
    gap = (found[-1] - found[0]) // max(len(found) - 1, 1)
    return LargestSizes(
        size=middle,
        safe=min(safe, middle),
        most=max(most, middle),
        in_each=max(found[0] - gap, 0),
        orders=len(found),
        fitting=fitting,
    )


def _where_threads_wait(
    orders: ScaledOrders, options: BfcOptions, as_drawn: Sequence[int], bound: int
) -> list[int]:
    """Return the largest size at which some of the orders come to their end, rising.

    Their processes are played together with the allocator: a request without room waits for what other
    threads free. Each order's size is looked for in strides; that of the middle one is exact, and stands
    for those that end in the same stride.

    Args:
        orders: The orders.
        options: The allocator, with its limit.
        as_drawn: The largest size of each where no thread waits.
        bound: The largest to answer with.
    """
    count = min(max(_NODE_RUNS // len(orders.names), _FEWEST), _MOST, len(orders.main))
    near = max(sorted(as_drawn)[(len(as_drawn) - 1) // 2], 1)
    by_bytes = sorted(
        zip(orders.main, as_drawn, strict=True), key=lambda one: one[0].least_bytes(near)
    )
    chosen = [by_bytes[(2 * k + 1) * len(by_bytes) // (2 * count)] for k in range(count)]
    stride = max(near // _STRIDES, 1)
    found = []
    for order, drawn in chosen:

        def runs(strides: int, order: ScaledOrder = order, drawn: int = drawn) -> bool:
            return orders.runs(order, drawn + strides * stride, options)

        most = (bound - drawn) // stride
        near = drawn + _last(runs, min((near - drawn) // stride, most), most) * stride
        found.append((near, order))
    found.sort(key=lambda one: one[0])
    least, middle_order = found[(len(found) - 1) // 2]

    def runs_beyond(more: int) -> bool:
        return orders.runs(middle_order, least + more, options)

    beyond = min(stride - 1, bound - least)
    middle = least + (_last(runs_beyond, 0, beyond) if beyond else 0)
    return [middle if least <= size < least + stride else size for size, _ in found]


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
