"""The peak as a curve over the size, and the sizes at which it moves from one op to another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from analyzer.fitting.scaling.fit_answer import CurvePoint, PeakMove
from analyzer.fitting.scaling.scaled_orders import ScaledOrder, ScaledOrders
from analyzer.simulate.allocator import BfcOptions

POINTS: Final = 24
"""Sizes at which the chunks are laid out too."""

_SCANNED: Final = 512
"""Sizes at which the op of the peak is looked up; between two that differ it is searched."""


def middle_order(orders: ScaledOrders, size: int) -> ScaledOrder:
    """Return the order with the middle requested peak at a size, of those of the figure's threads."""
    ranked = sorted(orders.main, key=lambda order: int(order.live_bytes(size).max(initial=0)))
    return ranked[(len(ranked) - 1) // 2]


def curve_of(
    orders: ScaledOrders,
    order: ScaledOrder,
    last: int,
    options: BfcOptions,
    marked: Collection[int] = (),
) -> tuple[CurvePoint, ...]:
    """Return the peak at sizes spread evenly from 1 to ``last``.

    Args:
        orders: The step's orders.
        order: The one that is shown.
        last: The largest size.
        options: The allocator's set-up, with its limit.
        marked: Sizes that are among them.
    """
    points = []
    for size in sorted({*spread(last, POINTS), *marked}):
        points.append(
            CurvePoint(
                size=size,
                requested_bytes=peak_bytes(order, size),
                allocated_bytes=chunks_at(order, size, options),
                op=op_at_peak(orders, order, size),
            )
        )
    return tuple(points)


def chunks_at(order: ScaledOrder, size: int, options: BfcOptions) -> int:
    """Return the most bytes of chunks in use under the limit; with room for all where it fails there.

    Args:
        order: The order.
        size: The size.
        options: The allocator's set-up, with its limit.
    """
    chosen = options if order.fits(size, options) else options.unlimited()
    return order.allocated_bytes(size, chosen)


def peak_bytes(order: ScaledOrder, size: int) -> int:
    """Return the requested peak of the last step."""
    return int(order.live_bytes(size).max(initial=0))


def op_at_peak(orders: ScaledOrders, order: ScaledOrder, size: int) -> str:
    """Return the op whose request makes the peak; empty where it is no op's.

    Args:
        orders: The step's orders.
        order: One of them.
        size: The size of what the step is fed, such as its batch.
    """
    at = order.first + int(order.live_bytes(size).argmax())
    node = int(order.nodes[order.operations.slot[at]])
    return orders.names[node] if node >= 0 else ""


def moves_of(
    orders: ScaledOrders, order: ScaledOrder, last: int, layer_of: Callable[[str], str]
) -> tuple[PeakMove, ...]:
    """Return where the peak lies at size 1, and each size at which it moves to another op, up to a last.

    Args:
        orders: The step's orders.
        order: The one that is shown.
        last: The largest size.
        layer_of: The layer of an op.
    """
    sizes = spread(last, _SCANNED)
    ops = [op_at_peak(orders, order, size) for size in sizes]
    moves = [_move(order, 1, ops[0], layer_of)]
    for (low, before), (high, after) in zip(
        zip(sizes, ops, strict=True), zip(sizes[1:], ops[1:], strict=False), strict=False
    ):
        if before != after:
            at = _first(orders, order, low, high)
            moves.append(_move(order, at, op_at_peak(orders, order, at), layer_of))
    return tuple(moves)


def _move(order: ScaledOrder, size: int, op: str, layer_of: Callable[[str], str]) -> PeakMove:
    return PeakMove(
        from_size=size, op=op, layer=layer_of(op), requested_bytes=peak_bytes(order, size)
    )


def _first(orders: ScaledOrders, order: ScaledOrder, low: int, high: int) -> int:
    """Return the first size above ``low`` whose peak is another op's than at ``low``."""
    before = op_at_peak(orders, order, low)
    while high - low > 1:
        middle = (low + high) // 2
        if op_at_peak(orders, order, middle) == before:
            low = middle
        else:
            high = middle
    return high


def spread(last: int, count: int) -> Sequence[int]:
    """Return up to ``count`` whole numbers spread evenly from 1 to ``last``, both among them."""
    return sorted({*np.linspace(1, max(last, 1), count).round().astype(int).tolist()})
