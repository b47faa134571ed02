"""Why the pool is as large as it is, why a request failed, and what would give memory back.

Pure functions of a replay: dataclasses with numbers come out, sentences are made elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from analyzer.model.choice import Choice
from analyzer.model.errors import InputError
from analyzer.model.units import GRANULE_BYTES
from analyzer.simulate.allocator.bfc.bfc_allocator import Extension
from analyzer.simulate.allocator.bfc.bfc_options import (
    AsyncOptions,
    BfcOptions,
    Options,
    round_up,
)
from analyzer.simulate.allocator.minimum_limit import EXPECTED_RUNS, minimum_limit
from analyzer.simulate.allocator.pool_state import chunks_at
from analyzer.simulate.allocator.replay import Engine, Replay, choose, operations_done, replay
from analyzer.simulate.allocator.sequence import NOWHERE, Sequence

if TYPE_CHECKING:
    import pandas as pd


class Why(Choice):
    """What decided the size of a region."""

    WHOLE_LIMIT = "whole limit"
    FIRST = "first region"
    DOUBLING = "doubling"
    LARGE_REQUEST = "large request"
    LIMIT = "what the limit left"
    DRIVER = "what the driver had left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One region: which allocation caused it, and why it has the size that it has.

    Attributes:
        number: 0 for the first region.
        address, size_bytes: The region.
        why: What decided its size.
        op, instant, buffer, row: The allocation that no free chunk could serve.
        requested_bytes: What that asked for.
        planned_bytes: Size that the doubling rule had come to.
        free_bytes, largest_free_bytes: Free in the pool just before.
        fragmented: Whether enough was free in sum, and only in pieces too small.
    """

    number: int
    address: int
    size_bytes: int
    why: Why
    op: int
    instant: int
    buffer: int
    row: int
    requested_bytes: int
    planned_bytes: int
    free_bytes: int
    largest_free_bytes: int
    fragmented: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeChunk:
    """A free chunk that is too small for a request, and who holds it apart from others.

    Attributes:
        region, address, size_bytes: Where it is.
        below_row, above_row: Source rows of the buffers beside it; -1 at a region's edge or for
            a buffer without one.
        below_bytes, above_bytes: Bytes of their chunks, 0 at an edge.
    """

    region: int
    address: int
    size_bytes: int
    below_row: int
    below_bytes: int
    above_row: int
    above_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A request that no free chunk could serve.

    Attributes:
        op, instant, buffer, row: The allocation.
        requested_bytes, rounded_bytes: What it asked for.
        failed: Whether the pool could not grow either.
        free_bytes: Free in the pool.
        largest_free_bytes: The largest piece of it.
        n_free: How many pieces.
        short_bytes: What the largest piece lacks.
        chunks: The largest pieces, largest first.
    """

    op: int
    instant: int
    buffer: int
    row: int
    requested_bytes: int
    rounded_bytes: int
    failed: bool
    free_bytes: int
    largest_free_bytes: int
    n_free: int
    short_bytes: int
    chunks: tuple[FreeChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What another way of running would cost, beside how it is run now.

    Attributes:
        id: ``as-is``, ``restart``, ``fixed-shapes``, ``fragmentation-fraction``, ``growth``,
            ``no-growth`` or ``cuda-malloc-async``.
        setting: The value that is changed, in words; empty where there is none.
        fits: Whether the sequence succeeds under the limit given.
        peak_in_use_bytes, peak_pool_bytes: Under the limit given, until a failure.
        minimum_limit_bytes: Safe smallest limit; None where it was not asked for.
        limit_saved_bytes: Less than as it is; negative where it is more.
    """

    id: str
    setting: str
    fits: bool
    peak_in_use_bytes: int
    peak_pool_bytes: int
    minimum_limit_bytes: int | None
    limit_saved_bytes: int | None


def growth_history(result: Replay) -> tuple[Growth, ...]:
    """Return the regions that were taken, in order, each with its cause."""
    return tuple(_growth(result, extension) for extension in result.extensions)


def _growth(result: Replay, extension: Extension) -> Growth:
    op = extension.owner
    buffer = int(result.sequence.slot[op])
    return Growth(
        number=extension.number,
        address=extension.address,
        size_bytes=extension.size_bytes,
        why=_why(extension, result.options),
        op=op,
        instant=int(result.sequence.instant[op]),
        buffer=buffer,
        row=int(result.sequence.row[buffer]),
        requested_bytes=extension.requested_bytes,
        planned_bytes=extension.planned_bytes,
        free_bytes=extension.free_bytes,
        largest_free_bytes=extension.largest_free_bytes,
        fragmented=extension.free_bytes >= round_up(extension.requested_bytes),
    )


def _why(extension: Extension, options: Options) -> Why:
    if extension.size_bytes < extension.asked_bytes:
        return Why.DRIVER
    if isinstance(options, BfcOptions) and not options.growth:
        return Why.WHOLE_LIMIT
    rounded_bytes = round_up(extension.requested_bytes)
    if (
        extension.asked_bytes
        == extension.available_bytes
        < max(extension.planned_bytes, rounded_bytes + 1)
    ):
        return Why.LIMIT
    if rounded_bytes > extension.planned_bytes:
        return Why.LARGE_REQUEST
    return Why.FIRST if extension.number == 0 else Why.DOUBLING


def unserved(result: Replay, op: int | None = None, *, most: int = 20) -> Unserved:
    """Return which free chunks could not serve the allocation at ``op``, and why.

    Args:
        result: What an allocator did.
        op: An operation that failed or made the pool grow (see ``Growth``); by default the
            one that failed.
        most: How many free chunks to list.

    Raises:
        InputError: nothing failed and no operation is given, or it is no allocation.
    """
    if op is None:
        if result.failure is None:
            raise InputError("nothing failed.", hint="Name an operation that made the pool grow.")
        op = result.failure.op
    requested = int(result.sequence.request[op])
    if not requested:
        raise InputError(f"operation {op} is a free.")
    buffer = int(result.sequence.slot[op])
    chunks = chunks_at(result, op - 1)
    is_free = (chunks["buffer"] == NOWHERE).to_numpy()
    sizes = chunks["size_bytes"].to_numpy()
    free = np.flatnonzero(is_free)
    largest = int(sizes[free].max(initial=0))
    order = free[np.lexsort((chunks["address"].to_numpy()[free], -sizes[free]))][:most]
    return Unserved(
        op=op,
        instant=int(result.sequence.instant[op]),
        buffer=buffer,
        row=int(result.sequence.row[buffer]),
        requested_bytes=requested,
        rounded_bytes=round_up(requested),
        failed=result.failure is not None and result.failure.op == op,
        free_bytes=int(sizes[free].sum()),
        largest_free_bytes=largest,
        n_free=int(free.size),
        short_bytes=round_up(requested) - largest,
        chunks=_free_chunks(chunks, order.tolist()),
    )


def _free_chunks(chunks: pd.DataFrame, order: list[int]) -> tuple[FreeChunk, ...]:
    """Return the chunks at these rows of ``chunks_at``, each with its neighbours."""
    sizes, row = chunks["size_bytes"].to_numpy(), chunks["row"].to_numpy()
    region = chunks["region"].to_numpy()

    def beside(at: int, other: int) -> tuple[int, int]:
        if not 0 <= other < len(chunks) or region[other] != region[at]:
            return NOWHERE, 0
        return int(row[other]), int(sizes[other])

    listed = []
    for at in order:
        (below_row, below_bytes), (above_row, above_bytes) = beside(at, at - 1), beside(at, at + 1)
        listed.append(
            FreeChunk(
                region=int(region[at]),
                address=int(chunks["address"].iloc[at]),
                size_bytes=int(sizes[at]),
                below_row=below_row,
                below_bytes=below_bytes,
                above_row=above_row,
                above_bytes=above_bytes,
            )
        )
    return tuple(listed)


def remedies(
    sequence: Sequence,
    options: BfcOptions,
    *,
    steps: tuple[tuple[int, int], ...] = (),
    fractions: tuple[float, ...] = (0.0001, 0.001, 0.01),
    limits: bool = False,
    engine: Engine = Engine.AUTO,
) -> tuple[Remedy, ...]:
    """Replay the sequence as it is and in other ways, and compare what each takes.

    Args:
        sequence: What is allocated and freed.
        options: How it is run now.
        steps: First and last instant of each step, in order. *Restart* replays what lives at the
            last step's beginning and then that step, as a fresh process that loads a checkpoint.
            *Fixed shapes* is the same with the step that needs most: what remains if every step
            is like it.
        fractions: Fragmentation fractions to try.
        limits: Search each one's minimum limit, too, to one part in 512 of the requested peak;
            costs tens of replays each.
        engine: Which implementation replays.
    """
    ways: list[tuple[str, str, Sequence, Options]] = [("as-is", "", sequence, options)]
    steady = [ops for step in steps if (ops := _step_ops(sequence, step)) is not None]
    if steady:
        last = steady[-1]
        ways.append(("restart", "the last step alone", sequence.part(*last), options))
    if len(steady) > 1:
        live = sequence.live_requested_bytes()
        most = max(steady, key=lambda ops: int(live[ops[0] : ops[1] + 1].max()))
        ways.append(("fixed-shapes", "every step as its largest", sequence.part(*most), options))
    ways.extend(
        ("fragmentation-fraction", f"{f:g}", sequence, replace(options, fragmentation_fraction=f))
        for f in fractions
        if f != options.fragmentation_fraction
    )
    growth = replace(options, growth=not options.growth)
    ways.append(("no-growth" if options.growth else "growth", "", sequence, growth))
    unrounded = AsyncOptions(memory_limit_bytes=options.memory_limit_bytes)
    ways.append(("cuda-malloc-async", "", sequence, unrounded))
    if engine is Engine.AUTO:
        engine = choose(engine, len(sequence) * len(ways) * (EXPECTED_RUNS if limits else 1))
    requested = int(sequence.live_requested_bytes().max(initial=0))
    step_bytes = max(GRANULE_BYTES, round_up(requested >> 9))  # to one part in 512
    base: Remedy | None = None
    found: list[Remedy] = []
    for name, setting, what, how in ways:
        remedy = _remedy(name, setting, what, how, base, step_bytes if limits else None, engine)
        base = base or remedy
        found.append(remedy)
    return tuple(found)


def _step_ops(sequence: Sequence, step: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first and last operation of a step given in instants; None where it has none."""
    first = int(np.searchsorted(sequence.instant, step[0], side="left"))
    last = int(np.searchsorted(sequence.instant, step[1], side="right")) - 1
    return (first, last) if first <= last else None


def _remedy(
    name: str,
    setting: str,
    sequence: Sequence,
    options: Options,
    base: Remedy | None,
    step_bytes: int | None,
    engine: Engine,
) -> Remedy:
    result = replay(sequence, options, engine=engine)
    limit = None
    if step_bytes is not None:
        limit = minimum_limit(sequence, options, step_bytes=step_bytes, engine=engine).safe_bytes
    limit_saved = None
    if base is not None and base.minimum_limit_bytes is not None and limit is not None:
        limit_saved = base.minimum_limit_bytes - limit
    return Remedy(
        id=name,
        setting=setting,
        fits=result.failure is None,
        peak_in_use_bytes=result.peak_in_use_bytes,
        peak_pool_bytes=result.peak_pool_bytes,
        minimum_limit_bytes=limit,
        limit_saved_bytes=limit_saved,
    )


def fits(sequence: Sequence, options: Options, *, engine: Engine = Engine.AUTO) -> bool:
    """Tell whether the sequence succeeds under these options.

    Args:
        sequence: Requests and frees, in order.
        options: The allocator's limit, growth and other settings.
        engine: Which allocator replays: the reference, Numba's, or by the length.
    """
    return operations_done(sequence, options, engine=engine) == len(sequence)
