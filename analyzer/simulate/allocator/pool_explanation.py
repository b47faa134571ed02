"""The cause of each region, the chunks of the pool, and the memory under other settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Choice
from analyzer.model.errors import AccountingError, InputError
from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc.bfc_allocator import Extension
from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions
from analyzer.simulate.allocator.limit_search import EXPECTED_RUNS
from analyzer.simulate.allocator.minimum_limit import minimum_limit
from analyzer.simulate.allocator.replay import Engine, Replay, choose, replay
from analyzer.simulate.allocator.sequence import NOWHERE, Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_CHUNKS: Final = 20
"""Free chunks that are listed at a failure."""

_FRACTIONS: Final = (0.0001, 0.001, 0.01)
"""Fragmentation fractions that are compared."""


class Why(Choice):
    """Rule that determined the size of a region."""

    WHOLE_LIMIT = "whole limit"
    FIRST = "first region"
    DOUBLING = "doubling"
    LARGE_REQUEST = "large request"
    LIMIT = "rest of the limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A region and the allocation that caused it.

    Attributes:
        op, instant, row: The allocation that no free chunk could serve.
        free_bytes, largest_free_bytes: Free in the pool just before.
        fragmented: Whether enough was free in total, but only in chunks that are too small.
    """

    number: int
    size_bytes: int
    why: Why
    op: int
    instant: int
    row: int
    requested_bytes: int
    free_bytes: int
    largest_free_bytes: int
    fragmented: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeChunk:
    """A free chunk that is too small for a request, with its neighbours.

    Attributes:
        below_row, above_row: Source rows of the neighbouring buffers; -1 at the edge of a region or
            for a buffer without a row.
        below_bytes, above_bytes: Bytes of their chunks; 0 at an edge.
    """

    size_bytes: int
    below_row: int
    below_bytes: int
    above_row: int
    above_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """The request that did not fit, and the free chunks.

    Attributes:
        requested_bytes, rounded_bytes: Bytes asked for.
        free_bytes, largest_free_bytes: Free in the pool.
        chunks: The largest free chunks, largest first.
    """

    row: int
    requested_bytes: int
    rounded_bytes: int
    free_bytes: int
    largest_free_bytes: int
    n_free: int
    chunks: tuple[FreeChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The memory that a sequence takes under other settings.

    Attributes:
        id: ``as-is``, ``restart``, ``fixed-shapes``, ``fragmentation-fraction``, ``growth``,
            ``no-growth`` or ``cuda-malloc-async``.
        peak_in_use_bytes, peak_pool_bytes: Under the limit, until a failure.
        minimum_limit_bytes: Smallest safe limit.
        limit_saved_bytes: Minimum limit of ``as-is`` minus this one; None for ``as-is``.
    """

    id: str
    setting: str
    fits: bool
    peak_in_use_bytes: int
    peak_pool_bytes: int
    minimum_limit_bytes: int
    limit_saved_bytes: int | None = None


def growth_history(result: Replay) -> tuple[Growth, ...]:
    """Return the regions in the order in which they were taken, each with its cause."""
    sequence = result.sequence
    return tuple(
        Growth(
            number=extension.number,
            size_bytes=extension.size_bytes,
            why=_find_rule(extension, result.options),
            op=extension.owner,
            instant=int(sequence.instant[extension.owner]),
            row=int(sequence.row[sequence.slot[extension.owner]]),
            requested_bytes=extension.requested_bytes,
            free_bytes=extension.free_bytes,
            largest_free_bytes=extension.largest_free_bytes,
            fragmented=extension.free_bytes >= round_up(extension.requested_bytes),
        )
        for extension in result.extensions
    )


def _find_rule(extension: Extension, options: BfcOptions) -> Why:
    if not options.growth:
        return Why.WHOLE_LIMIT
    rounded_bytes = round_up(extension.requested_bytes)
    planned_bytes, available_bytes = extension.planned_bytes, extension.available_bytes
    if extension.size_bytes == available_bytes < max(planned_bytes, rounded_bytes + 1):
        return Why.LIMIT
    if rounded_bytes > planned_bytes:
        return Why.LARGE_REQUEST
    return Why.FIRST if extension.number == 0 else Why.DOUBLING


def unserved(result: Replay) -> Unserved:
    """Return the request that failed, and the free chunks that were too small for it.

    Raises:
        InputError: nothing failed.
    """
    failure = result.failure
    if failure is None:
        raise InputError("The replay has no failed request.")
    chunks = chunks_at(result, failure.op - 1)
    sizes, address = chunks["size_bytes"].to_numpy(), chunks["address"].to_numpy()
    free = np.flatnonzero((chunks["buffer"] == NOWHERE).to_numpy())
    largest_first = free[np.lexsort((address[free], -sizes[free]))]
    return Unserved(
        row=failure.row,
        requested_bytes=failure.requested_bytes,
        rounded_bytes=failure.rounded_bytes,
        free_bytes=int(sizes[free].sum()),
        largest_free_bytes=int(sizes[free].max(initial=0)),
        n_free=int(free.size),
        chunks=tuple(_find_neighbours(chunks, int(at)) for at in largest_first[:_MOST_CHUNKS]),
    )


def chunks_at(result: Replay, op: int) -> pd.DataFrame:
    """Return the chunks after operation ``op``, including free ones, by address.

    Free neighbours are always merged, so the free chunks of a region are the gaps between its
    chunks in use.

    Returns:
        A table of region (index), address, size_bytes, buffer and source row (-1 if free).
    """
    base, length = _find_regions(result, op)
    sequence = result.sequence
    balance = np.zeros(sequence.n_buffers, np.int64)
    births = np.where(sequence.request[: op + 1] > 0, 1, -1)
    np.add.at(balance, sequence.slot[: op + 1], births)
    buffer = np.flatnonzero(balance)
    address, size = (column[buffer] for column in result.buffers())
    # There is a gap before each chunk in use and at the end of each region; most are empty.
    starts = np.sort(np.concatenate([base, address + size]))
    ends = np.sort(np.concatenate([address, base + length]))
    gaps = ends > starts
    table: pd.DataFrame = pd.DataFrame(
        {
            "address": np.concatenate([address, starts[gaps]]),
            "size_bytes": np.concatenate([size, (ends - starts)[gaps]]),
            "buffer": np.concatenate([buffer, np.full(int(gaps.sum()), NOWHERE)]),
        }
    ).sort_values("address", ignore_index=True)
    owner = table["buffer"].to_numpy()
    table["region"] = np.searchsorted(base, table["address"].to_numpy(), side="right") - 1
    table["row"] = np.where(owner != NOWHERE, sequence.row[owner], NOWHERE)
    total, pool_bytes = int(table["size_bytes"].sum()), int(length.sum())
    if total != pool_bytes:
        raise AccountingError(f"chunks of {total} bytes do not tile a pool of {pool_bytes}")
    return table


def _find_regions(result: Replay, op: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return address and bytes of the regions after an operation; joined ones are one region."""
    regions = {one.address: one.size_bytes for one in result.extensions if one.owner <= op}
    for one in result.releases:
        if one.op <= op:
            taken = [e.owner for e in result.extensions if e.address == one.address]
            if not any(one.op <= owner <= op for owner in taken):
                regions.pop(one.address, None)
    address = np.array(sorted(regions), np.int64)
    size = np.array([regions[at] for at in address.tolist()], np.int64)
    if result.options.coalesce_regions and address.size:
        first = np.flatnonzero(np.append(True, address[1:] != (address + size)[:-1]))
        address, size = address[first], np.add.reduceat(size, first)
    return address, size


def _find_neighbours(chunks: pd.DataFrame, at: int) -> FreeChunk:
    """Return the free chunk in row ``at`` of ``chunks_at`` with its neighbours."""
    sizes, row = chunks["size_bytes"].to_numpy(), chunks["row"].to_numpy()
    region = chunks["region"].to_numpy()

    def find(other: int) -> tuple[int, int]:
        if not 0 <= other < len(chunks) or region[other] != region[at]:
            return NOWHERE, 0
        return int(row[other]), int(sizes[other])

    (below_row, below_bytes), (above_row, above_bytes) = find(at - 1), find(at + 1)
    return FreeChunk(
        size_bytes=int(sizes[at]),
        below_row=below_row,
        below_bytes=below_bytes,
        above_row=above_row,
        above_bytes=above_bytes,
    )


def remedies(
    sequence: Sequence,
    options: BfcOptions,
    *,
    steps: tuple[tuple[int, int], ...] = (),
    engine: Engine = Engine.AUTO,
) -> tuple[Remedy, ...]:
    """Replay a sequence under other settings, and compare the memory that each takes.

    Minimum limits are searched with a precision of 1/512 of the requested peak.

    Args:
        steps: First and last instant of each step, in order. *Restart* replays the buffers alive at
            the start of the last step and then this step, like a new process that loads a
            checkpoint. *Fixed shapes* does the same with the step of the highest peak: the need if
            all steps have its shapes.
    """
    cases: list[tuple[str, str, Sequence, BfcOptions]] = [("as-is", "", sequence, options)]
    ranges = [ops for step in steps if (ops := _step_operations(sequence, step)) is not None]
    live = sequence.live_requested_bytes()
    if ranges:
        cases.append(("restart", "the last step alone", sequence.part(*ranges[-1]), options))
    if len(ranges) > 1:
        largest = max(ranges, key=lambda ops: int(live[ops[0] : ops[1] + 1].max()))
        part = sequence.part(*largest)
        cases.append(("fixed-shapes", "every step as its largest", part, options))
    for share in _FRACTIONS:
        if share != options.fragmentation_fraction:
            other = replace(options, fragmentation_fraction=share)
            cases.append(("fragmentation-fraction", f"{share:g}", sequence, other))
    other = replace(options, growth=not options.growth)
    cases.append(("no-growth" if options.growth else "growth", "", sequence, other))
    if engine is Engine.AUTO:
        engine = choose(engine, len(sequence) * (len(cases) + 1) * EXPECTED_RUNS)
    step_bytes = max(GRANULE_BYTES, round_up(int(live.max(initial=0)) >> 9))
    compared = [_replay_case(*case, step_bytes, engine) for case in cases]
    compared.append(_replay_without_rounding(sequence, options.memory_limit_bytes))
    base = compared[0]
    return (
        base,
        *(
            replace(one, limit_saved_bytes=base.minimum_limit_bytes - one.minimum_limit_bytes)
            for one in compared[1:]
        ),
    )


def _step_operations(sequence: Sequence, step: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first and last operation of a step given in instants; None if it has none."""
    first = int(np.searchsorted(sequence.instant, step[0], side="left"))
    last = int(np.searchsorted(sequence.instant, step[1], side="right")) - 1
    return (first, last) if first <= last else None


def _replay_case(
    name: str,
    setting: str,
    sequence: Sequence,
    options: BfcOptions,
    step_bytes: int,
    engine: Engine,
) -> Remedy:
    result = replay(sequence, options, engine=engine)
    limit = minimum_limit(sequence, options, step_bytes=step_bytes, engine=engine).safe_bytes
    return Remedy(
        id=name,
        setting=setting,
        fits=result.failure is None,
        peak_in_use_bytes=result.peak_in_use_bytes,
        peak_pool_bytes=result.peak_pool_bytes,
        minimum_limit_bytes=limit,
    )


def _replay_without_rounding(sequence: Sequence, limit_bytes: int) -> Remedy:
    """Return the memory under ``cuda_malloc_async``, whose requests are not rounded.

    TensorFlow does not see how the driver's own pool rounds and fragments. So the sequence fails
    only if the sum of its live requests exceeds the limit.
    """
    live = sequence.live_requested_bytes()
    is_over = live > limit_bytes
    done = int(np.argmax(is_over)) if is_over.any() else len(sequence)
    peak_bytes = int(live[:done].max(initial=0))
    needed = sequence.without(sequence.spare) if sequence.spare.any() else sequence
    return Remedy(
        id="cuda-malloc-async",
        setting="",
        fits=done == len(sequence),
        peak_in_use_bytes=peak_bytes,
        peak_pool_bytes=peak_bytes,
        minimum_limit_bytes=int(needed.live_requested_bytes().max(initial=0)),
    )
