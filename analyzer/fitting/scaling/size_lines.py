"""Which size to try next, and what a line between those that were tried says of the largest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from analyzer.fitting.scaling.largest_size import MOST, LargestSizes
from analyzer.model.errors import InputError
from analyzer.simulate.predict.representative import LIMIT_MARGIN

_FURTHER: Final = 1.25
"""How much further than on the line through the first size and the last that fits one is tried."""

_CLOSE: Final = 8
"""A span of sizes in which the next one is looked for on a line, however the last ones came out."""


class SizeRefused(InputError):  # noqa: N818 - reads as what happened
    """The step cannot be made at a size.

    Args:
        message, hint: As of every error.
        size: The size.
    """

    def __init__(self, message: str, *, hint: str = "", size: int) -> None:
        super().__init__(message, hint=hint)
        self.size = size


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeNeed:
    """What one size needs, by an estimate of its own.

    Attributes:
        low_bytes, bytes, high_bytes: The least memory limit, and its range.
        requested_bytes, allocated_bytes: Its peak.
        op: The op whose request makes the peak.
        requested_ends_bytes: Between which the requested peak lies, by the order of the ops; None where
            one order stands for all.
    """

    low_bytes: int
    bytes: int
    high_bytes: int
    requested_bytes: int
    allocated_bytes: int
    op: str = ""
    requested_ends_bytes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """The limit: the figure, and the least and the most that it may be, bytes."""

    bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def three(self) -> tuple[int, int, int]:
        """The figure, the least, the most."""
        return self.bytes, self.low_bytes, self.high_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGrowth:
    """How a need grows with the size, as far as that is known before any capture.

    Attributes:
        power: Of the size, about: the line between two needs is one in this power.
        degree: Of an input: 1 of a sequence, 2 of an image. What holds its places against each other is
            of twice that, so that three needs lie on a sum of both. 0 where the line is straight.
        nothing_bytes: The need at a size of 0, about: the variables.
    """

    power: int = 1
    degree: int = 0
    nothing_bytes: int = 0


STRAIGHT: Final = SizeGrowth()
"""A batch's."""


def from_nothing(variables: int, size: int, need: int, limit: int, power: int = 1) -> int:
    """Return nearly the largest size under a limit, by a line from the variables, at 0, to one need.

    Args:
        variables: Bytes of the variables.
        size: A size.
        need: The bytes that it needs.
        limit: The limit, bytes.
        power: Of the size with which the need grows, about.
    """
    return max(int(meets((0, variables), (size, max(need, variables + 1)), limit, power)), 1)


def meets(low: tuple[int, int], high: tuple[int, int], limit: int, power: int) -> float:
    """Return the size at which the line through two needs, in a power of the size, meets a limit.

    Args:
        low, high: A size and its need, the higher one the larger.
        limit: The limit, bytes.
        power: Of the size.
    """
    slope = (high[1] - low[1]) / (high[0] ** power - low[0] ** power)
    return float(max(low[0] ** power + (limit - low[1]) / slope, 0.0) ** (1 / power))


def sides_of(needs: Mapping[int, SizeNeed], limit: int) -> tuple[int, int]:
    """Return the largest size that fits and the smallest that does not; 0 where there is none.

    Args:
        needs: What sizes need.
        limit: The limit, bytes.
    """
    fitting = max((size for size, need in needs.items() if need.bytes <= limit), default=0)
    failing = min((size for size, need in needs.items() if need.bytes > limit), default=0)
    return fitting, failing


def next_size(needs: dict[int, SizeNeed], limit: int, growth: SizeGrowth = STRAIGHT) -> int | None:
    """Return the size to try next; None where the answer lies between two that were tried.

    Between one that fits and one that does not it lies on the line between them. Where the last two
    tried lay on one side, it lies on the line through the two nearest to the limit, or in the middle: a
    compiler that recomputes as memory gets short (XLA does, near the card's size) bends the line. The
    one after the last that fits is not tried where a need is not known that closely.

    Args:
        needs: What sizes need, in the order in which they were tried.
        limit: The limit, bytes.
        growth: How the need grows with the size.
    """
    fitting, failing = sides_of(needs, limit)
    if failing and (failing - fitting <= 1 or _is_past_telling(needs, limit)):
        return None
    if len(needs) == 1:
        return max(failing // 2, 1) if failing else 2 * fitting
    if not failing:
        first = min(needs)
        begun, ended = needs[first].bytes, needs[fitting].bytes
        most = MOST
        if ended > begun:
            beyond = meets((first, begun), (fitting, ended), limit, growth.power) - fitting
            most = fitting + int(_FURTHER * beyond)
        stride = fitting - max((size for size in needs if size < fitting), default=0)
        creeps = stride < max(fitting // 16, 2)
        least = fitting + (2 * stride if creeps else 1)
        return max(min(crossing(needs, limit, growth), most, 16 * fitting), least)
    if not fitting:
        return min(max(crossing(needs, limit, growth), 1), failing - 1)
    bent = _bent(needs, limit, growth)
    last = [need.bytes <= limit for need in needs.values()][-2 if bent is None else -3 :]
    if len(set(last)) == 1 and failing - fitting > _CLOSE:
        guess = crossing(needs, limit, growth)
        margin = (failing - fitting) // _CLOSE
        inside = fitting + margin <= guess <= failing - margin
        return guess if inside else (fitting + failing) // 2
    ends = [(size, needs[size].bytes) for size in (fitting, failing)]
    guess = int(meets(ends[0], ends[1], limit, growth.power) if bent is None else bent)
    return min(max(guess, fitting + 1), failing - 1)


def _is_past_telling(needs: Mapping[int, SizeNeed], limit: int) -> bool:
    """Say whether the next size fits by no line, and differs by less than is known of a need.

    Args:
        needs: What sizes need; one at least does not fit.
        limit: The limit, bytes.
    """
    fitting, failing = sides_of(needs, limit)
    if not fitting:
        return False
    last = needs[fitting]
    each = (needs[failing].bytes - last.bytes) / (failing - fitting)
    return last.bytes + each > limit and last.high_bytes - last.low_bytes > each


def crossing(needs: Mapping[int, SizeNeed], limit: int, growth: SizeGrowth = STRAIGHT) -> int:
    """Return where the line through the sizes nearest to the limit meets it, rounded down.

    Args:
        needs: What sizes need.
        limit: The limit, bytes.
        growth: How the need grows with the size.
    """
    bent = _bent(needs, limit, growth)
    if bent is not None:
        return max(int(bent), 1)
    near = sorted(needs, key=lambda size: abs(needs[size].bytes - limit))[:2]
    (low, high) = sorted(near)
    if needs[high].bytes <= needs[low].bytes:
        return 2 * high
    ends = [(size, needs[size].bytes) for size in (low, high)]
    return max(int(meets(ends[0], ends[1], limit, growth.power)), 1)


def _bent(needs: Mapping[int, SizeNeed], limit: int, growth: SizeGrowth) -> float | None:
    """Return where three needs meet a limit that are a sum of an input's places and of their pairs.

    An image's tokens grow with the square of its side, what they hold against each other with the
    fourth power: a line in the square alone goes far beyond a limit, or stops far below it.

    Args:
        needs: What sizes need.
        limit: The limit, bytes.
        growth: How the need grows with the size.

    Returns:
        None where too few are known, or they do not rise. Where they bend the other way, a line's.
    """
    known = {size: need.bytes for size, need in needs.items()}
    if not growth.degree or len(known) < 2:
        return None
    chosen = sorted(known, key=lambda size: abs(math.log(max(known[size], 1) / max(limit, 1))))[:3]
    points = [(size**growth.degree, known[size]) for size in chosen]
    if len(points) < 3:
        points.append((0, growth.nothing_bytes))
    (u0, y0), (u1, y1), (u2, y2) = sorted(points)
    first = (y1 - y0) / (u1 - u0)
    bend = ((y2 - y1) / (u2 - u1) - first) / (u2 - u0)
    linear = first - bend * (u0 + u1)
    free = y0 - first * u0 + bend * u0 * u1 - limit
    root = linear * linear - 4 * bend * free
    if first <= 0 or root < 0:
        return None
    if bend <= 0:
        low, high = sorted(chosen[:2])
        ends = (low, known[low]), (high, known[high])
        return meets(*ends, limit, growth.degree) if known[high] > known[low] else None
    places = max((math.sqrt(root) - linear) / (2 * bend), 0.0)
    return float(places ** (1 / growth.degree))


def between(needs: Mapping[int, SizeNeed], limit: int) -> int:
    """Return where the line through the nearest sizes on both sides of the limit meets it.

    Where all lie on one side, the line goes through the smallest and the largest: through two sizes side
    by side it would say nothing of others far away.

    Args:
        needs: What sizes need; two at least.
        limit: The limit, bytes.
    """
    fitting, _ = sides_of(needs, limit)
    above = [size for size, need in needs.items() if size > fitting and need.bytes > limit]
    ends = (fitting, min(above)) if fitting and above else (min(needs), max(needs))
    return crossing({size: needs[size] for size in ends}, limit)


def largest_by_line(needs: dict[int, SizeNeed], limit: int) -> Callable[[LimitRange], LargestSizes]:
    """Return what tells the largest sizes from what was captured: between, a line.

    What grows with a power of the size lies under the line between two sizes.
    """

    def answer(limits: LimitRange) -> LargestSizes:
        fitting, _ = sides_of(needs, limit)
        careful = int(limits.low_bytes / (1 + LIMIT_MARGIN))
        safe = max((s for s, need in needs.items() if need.high_bytes <= careful), default=0)
        each = max((s for s, need in needs.items() if need.high_bytes <= limit), default=0)
        most = min(
            (s for s, need in needs.items() if need.low_bytes > limits.high_bytes), default=0
        )
        if len(needs) > 1:
            widened = {
                size: SizeNeed(
                    low_bytes=need.low_bytes,
                    bytes=need.high_bytes,
                    high_bytes=need.high_bytes,
                    requested_bytes=need.requested_bytes,
                    allocated_bytes=need.allocated_bytes,
                )
                for size, need in needs.items()
            }
            over = min(
                (s for s, need in needs.items() if need.high_bytes > careful), default=fitting + 1
            )
            safe = max(safe, min(crossing(widened, careful), over - 1, fitting))
        return LargestSizes(
            size=fitting,
            safe=min(safe, fitting),
            most=max(most - 1 if most else fitting, fitting),
            in_each=max(each, min(safe, fitting)),
        )

    return answer
