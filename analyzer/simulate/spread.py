"""How much the minimum limit depends on the order of events, which no two runs share.

The executor of a ``tf.function`` starts ops from two threads or more, so neighbouring events swap
places from run to run. Peaks hardly move, but best fit is chaotic: one swap can send a large
tensor into another hole. Here a sequence is replayed in several orders that might as well have
happened, each made by moving every event by a few places at random, and the limit is searched for
each. Steps run eagerly or compiled by XLA keep their order; for those the single limit holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analyzer.simulate.limit import EXPECTED_RUNS, minimum_limit
from analyzer.simulate.options import Options, round_up
from analyzer.simulate.replay import Engine, choose
from analyzer.simulate.sequence import Sequence
from analyzer.units import GRANULE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSpread:
    """Minimum limits of one sequence in several orders.

    Attributes:
        own_bytes: The limit in the order given.
        limits_bytes: The limits in the other orders, ascending.
    """

    own_bytes: int
    limits_bytes: tuple[int, ...]

    @property
    def lowest_bytes(self) -> int:
        """Below this none of the orders tried succeeded."""
        return min(self.own_bytes, *self.limits_bytes)

    @property
    def median_bytes(self) -> int:
        """At this limit about half of the orders succeed."""
        return sorted((self.own_bytes, *self.limits_bytes))[(len(self.limits_bytes) + 1) // 2]

    @property
    def highest_bytes(self) -> int:
        """At this limit every order succeeded: the figure to be safe with."""
        return max(self.own_bytes, *self.limits_bytes)


def reordered(sequence: Sequence, rng: np.random.Generator, *, places: int) -> Sequence:
    """Return the sequence with each operation moved by up to ``places``; frees stay after births.

    What was alive before the first event keeps its order.
    """
    births = sequence.request > 0
    key = np.arange(len(sequence)) + rng.random(len(sequence)) * places
    key[sequence.instant < 0] = np.arange(int((sequence.instant < 0).sum())) - len(sequence)
    born = np.empty(sequence.n_buffers)
    born[sequence.slot[births]] = key[births]
    key[~births] = np.maximum(key[~births], born[sequence.slot[~births]])
    order = np.lexsort((~births, key))
    return replace(sequence, slot=sequence.slot[order], request=sequence.request[order])


def limit_spread(
    sequence: Sequence,
    options: Options,
    *,
    orders: int = 12,
    places: int = 4,
    seed: int = 0,
    engine: Engine = Engine.AUTO,
) -> LimitSpread:
    """Search the minimum limit in several orders, to one part in 512 of the requested peak.

    Args:
        sequence: What is allocated and freed.
        options: The allocator's set-up but for its limit.
        orders: How many orders to try beside the one given.
        places: By how many places an operation moves at most.
        seed: Of the random numbers; the same seed gives the same answer.
        engine: Which implementation replays.
    """
    if engine is Engine.AUTO:
        engine = choose(engine, len(sequence) * EXPECTED_RUNS * (orders + 1))
    requested = int(sequence.live_requested_bytes().max(initial=0))
    step_bytes = max(GRANULE_BYTES, round_up(requested >> 9))
    rng = np.random.default_rng(seed)
    tried = [sequence, *(reordered(sequence, rng, places=places) for _ in range(orders))]
    own, *others = (
        minimum_limit(one, options, step_bytes=step_bytes, engine=engine).limit_bytes
        for one in tried
    )
    return LimitSpread(own_bytes=own, limits_bytes=tuple(sorted(others)))
