"""The prediction: several schedules that the executor could take, and the middle one as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from analyzer.graph.ops import Op
from analyzer.kernels.device import CPU, KernelDevice
from analyzer.model import Step
from analyzer.predict.step import LARGE_OPS, Draw, Owner, Prepared, play, prepare
from analyzer.predict.table import allocations_of, unmodelled_of
from analyzer.xla.plan import Plan as XlaPlan

DRAWS: Final = 41
"""Schedules drawn: an odd number, so that the median is one of them."""

DRAWS_OF_LARGE: Final = 15
"""The same for a graph of at least :data:`analyzer.predict.step.LARGE_OPS` ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a step will ask the allocator for.

    Attributes:
        allocations: The middle draw, with the columns of :data:`analyzer.schema.ALLOCATIONS`.
        instants: Number of allocations and frees in it.
        steps: Its steps; more than one where a counter decides a branch.
        resident_bytes: Requested bytes alive before the last step.
        peak_bytes: Highest requested bytes of the last step, what is resident included.
        peak_instant: Where.
        low_bytes, high_bytes: Lowest and highest peak of all draws.
        draws_bytes: Peak of each draw, requested bytes, sorted.
        unmodelled: Op types without a rule: ``op_type``, ``count``, ``bytes``.
        undecided: Ops that decide a branch or a loop and whose value could not be followed.
        prepared: The graph and its kernels.
        seeds: The draws, from the lowest peak to the highest.
        seed: The middle draw.
    """

    allocations: pd.DataFrame
    instants: int
    steps: tuple[Step, ...]
    resident_bytes: int
    peak_bytes: int
    peak_instant: int
    low_bytes: int
    high_bytes: int
    draws_bytes: tuple[int, ...]
    unmodelled: pd.DataFrame
    undecided: tuple[str, ...]
    prepared: Prepared
    seeds: tuple[int, ...]
    seed: int


def predict(
    ops: Sequence[Op],
    owners: Sequence[Owner],
    *,
    threads: int = 1,
    draws: int | None = None,
    device: KernelDevice = CPU,
    compiled: Mapping[str, XlaPlan] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Prediction:
    """Predict the allocations of one step on a device, op by op.

    Args:
        ops: The graph that the executor runs.
        owners: The variables that it uses.
        threads: Intra-op threads of the device, which size oneDNN's scratchpads.
        draws: How many schedules to draw; None chooses by the size of the graph.
        device: The device that it runs on.
        compiled: Memory plans of the XLA-compiled functions, by the name of the op that calls one.
        progress: Called with the share done, 0 to 1.
    """
    prepared = prepare(ops, owners, threads=threads, device=device, compiled=compiled)
    played: list[Draw] = []
    count = draws or (DRAWS if len(ops) < LARGE_OPS else DRAWS_OF_LARGE)
    for seed in range(count):
        played.append(play(prepared, seed))
        if progress is not None:
            progress((seed + 1) / count)
    played.sort(key=lambda draw: draw.peak_bytes)
    middle = played[(len(played) - 1) // 2]
    return Prediction(
        allocations=allocations_of(prepared, middle),
        instants=middle.instants,
        steps=tuple(
            Step(index=index, number=index, first=first, last=last)
            for index, (first, last) in enumerate(middle.steps)
        ),
        resident_bytes=middle.resident_bytes,
        peak_bytes=middle.peak_bytes,
        peak_instant=middle.peak_instant,
        low_bytes=played[0].peak_bytes,
        high_bytes=played[-1].peak_bytes,
        draws_bytes=tuple(draw.peak_bytes for draw in played),
        unmodelled=unmodelled_of(prepared),
        undecided=tuple(prepared.wiring.ops[node].name for node in middle.undecided),
        prepared=prepared,
        seeds=tuple(draw.seed for draw in played),
        seed=middle.seed,
    )
