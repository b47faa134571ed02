"""A sequence through an allocator: what would have happened under this limit, with this growth.

>>> sequence = from_events(events)                                # doctest: +SKIP
>>> replay(sequence, BfcOptions.gpu(8 << 30)).failure             # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from analyzer.model.choice import Choice
from analyzer.model.errors import AccountingError
from analyzer.simulate.allocator.bfc.bfc_options import AsyncOptions, BfcOptions, Options, round_up
from analyzer.simulate.allocator.bfc.chunks import Extension
from analyzer.simulate.allocator.bfc.reference import BfcAllocator
from analyzer.simulate.allocator.numba import compiled_allocator as compiled
from analyzer.simulate.allocator.sequence import NOWHERE, Caution, Sequence
from analyzer.simulate.allocator.sequence_runner import ReferenceAllocator, allocator_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

COMPILE_FROM_OPERATIONS: Final = 2_000_000
"""From about here compiling (5 s) and running is faster than the reference (0.4 million/s)."""

KEEP_FROM_OPERATIONS: Final = 500_000
"""The same where what is compiled is kept, so that later commands need only load it."""

LOAD_FROM_OPERATIONS: Final = 200_000
"""From about here loading what was compiled earlier (0.5 s) and running is faster."""

_ADDRESS, _CHUNK, _IN_USE, _POOL, _LARGEST = range(compiled.OUT_COLUMNS)


class Engine(Choice):
    """Which of the two equal implementations does the work."""

    AUTO = "auto"
    REFERENCE = "reference"
    COMPILED = "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """The allocation that did not fit, and how things stood.

    Attributes:
        op, instant, buffer, row: Which operation of the sequence, event, buffer and source row.
        requested_bytes, rounded_bytes: What it asked for.
        in_use_bytes, pool_bytes, free_bytes, largest_free_bytes: Just before it.
        available_bytes: What the limit left beside the pool.
    """

    op: int
    instant: int
    buffer: int
    row: int
    requested_bytes: int
    rounded_bytes: int
    in_use_bytes: int
    pool_bytes: int
    free_bytes: int
    largest_free_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A wholly free region given back to the driver, at operation ``op`` that needed room."""

    address: int
    size_bytes: int
    op: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What an allocator did with a sequence. Columns have a row for each operation done.

    Attributes:
        sequence, options: What was replayed, and how.
        address: Address of the operation's chunk; -1 where the allocator shows none.
        chunk_bytes: Bytes of that chunk.
        in_use_bytes, pool_bytes, largest_free_bytes, requested_bytes: After the operation.
        extensions: Regions taken, in order; ``owner`` is the operation that caused it.
        releases: Regions given back, in order.
        failure: What did not fit, None where all did; columns end before it.
        engine: Which implementation ran.
    """

    sequence: Sequence
    options: Options
    address: Table
    chunk_bytes: Table
    in_use_bytes: Table
    pool_bytes: Table
    largest_free_bytes: Table
    requested_bytes: Table
    extensions: tuple[Extension, ...]
    releases: tuple[Release, ...]
    failure: FailedRequest | None
    engine: Engine

    def __len__(self) -> int:
        return int(self.address.size)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What had to be put right in the input."""
        return self.sequence.cautions

    @property
    def instant(self) -> Table:
        """Row of the events table that each operation is."""
        return self.sequence.instant[: len(self)]

    @property
    def fragmentation(self) -> NDArray[np.float64]:
        """(free - largest free) / free after each operation; not a number where none is free."""
        return self.fragmentation_after(slice(None))

    def fragmentation_after(self, places: Table | slice) -> NDArray[np.float64]:
        """Return the same after some operations."""
        free = self.pool_bytes[places] - self.in_use_bytes[places]
        share = np.full(free.size, np.nan)
        np.divide(free - self.largest_free_bytes[places], free, out=share, where=free > 0)
        return share

    @property
    def peak_in_use_bytes(self) -> int:
        """Most bytes of chunks in use at once."""
        return int(self.in_use_bytes.max(initial=0))

    @property
    def peak_pool_bytes(self) -> int:
        """Most bytes taken from the driver at once."""
        return int(self.pool_bytes.max(initial=0))

    @property
    def peak_requested_bytes(self) -> int:
        """Most requested bytes alive at once."""
        return int(self.requested_bytes.max(initial=0))

    def check(self) -> None:
        """Check that bytes in use are the sum of the chunks, and no less than was asked for.

        Raises:
            AccountingError: they are not.
        """
        births = self.sequence.request[: len(self)] > 0
        sums = np.cumsum(np.where(births, self.chunk_bytes, -self.chunk_bytes))
        if not np.array_equal(sums, self.in_use_bytes):
            at = int(np.argmax(sums != self.in_use_bytes))
            raise AccountingError(
                f"operation {at}: {self.in_use_bytes[at]} bytes in use, chunks sum up to {sums[at]}"
            )
        if (self.requested_bytes > self.in_use_bytes).any():
            raise AccountingError("more is requested than in use")
        if (self.in_use_bytes > self.pool_bytes).any():
            raise AccountingError("more is in use than the pool holds")

    def buffers(self) -> tuple[Table, Table]:
        """Return address and chunk bytes of each buffer, -1 and 0 where it was not placed."""
        address = np.full(self.sequence.n_buffers, NOWHERE)
        size = np.zeros(self.sequence.n_buffers, np.int64)
        slot = self.sequence.slot[: len(self)]
        address[slot], size[slot] = self.address, self.chunk_bytes
        return address, size


def replay(
    sequence: Sequence,
    options: Options,
    *,
    engine: Engine = Engine.AUTO,
    follow_addresses: bool = False,
) -> Replay:
    """Run a sequence through an allocator and return what it did.

    Args:
        sequence: What is allocated and freed.
        options: The allocator's set-up.
        engine: Which implementation; both give the same. By default the compiled one for long
            sequences, where Numba is installed.
        follow_addresses: Put regions where the source says they were. Right where the options
            are those under which the trace was made: addresses then equal the trace's.
    """
    if isinstance(options, AsyncOptions):
        return _replay_async(sequence, options)
    chosen = choose(engine, len(sequence))
    run = _run_compiled if chosen is Engine.COMPILED else _run_reference
    columns, extensions, releases = run(sequence, options, follow_addresses)
    done = columns.shape[0]
    failure = None
    if done < len(sequence):
        last = columns[-1] if done else np.zeros(compiled.OUT_COLUMNS, np.int64)
        in_use, pool, largest = (int(last[i]) for i in (_IN_USE, _POOL, _LARGEST))
        failure = _failure(sequence, options, done, in_use, pool, largest)
    return Replay(
        sequence=sequence,
        options=options,
        address=columns[:, _ADDRESS],
        chunk_bytes=columns[:, _CHUNK],
        in_use_bytes=columns[:, _IN_USE],
        pool_bytes=columns[:, _POOL],
        largest_free_bytes=columns[:, _LARGEST],
        requested_bytes=sequence.live_requested_bytes()[:done],
        extensions=tuple(extensions),
        releases=tuple(releases),
        failure=failure,
        engine=chosen,
    )


def operations_done(sequence: Sequence, options: Options, *, engine: Engine = Engine.AUTO) -> int:
    """Return how many operations succeed before one fails: all of them where the sequence fits.

    Args:
        sequence: Requests and frees, in order.
        options: The allocator's limit, growth and other settings.
        engine: Which allocator replays: the reference, Numba's, or by the length.
    """
    if isinstance(options, AsyncOptions):
        over = sequence.live_requested_bytes() > options.memory_limit_bytes
        return int(np.argmax(over)) if over.any() else len(sequence)
    is_compiled = choose(engine, len(sequence)) is Engine.COMPILED
    allocator = allocator_of(options, sequence.n_buffers, is_compiled=is_compiled)
    return allocator.feed(sequence.slot, sequence.request)


def in_use_bytes(sequence: Sequence, options: BfcOptions, *, engine: Engine = Engine.AUTO) -> Table:
    """Return the bytes of chunks in use after each operation that succeeds before one fails.

    As ``replay`` says them, for half the work where the reference does it.

    Args:
        sequence: Requests and frees, in order.
        options: The allocator's limit, growth and other settings.
        engine: Which allocator replays: the reference, Numba's, or by the length.
    """
    if choose(engine, len(sequence)) is Engine.COMPILED:
        return replay(sequence, options, engine=Engine.COMPILED).in_use_bytes
    told: list[int] = []
    ReferenceAllocator(options).feed(sequence.slot, sequence.request, in_use=told)
    return np.array(told, np.int64)


def choose(engine: Engine, n_operations: int) -> Engine:
    """Return the implementation that ``n_operations`` are best replayed by."""
    if engine is Engine.AUTO:
        is_long = (
            compiled.is_loaded()
            or n_operations >= COMPILE_FROM_OPERATIONS
            or (n_operations >= KEEP_FROM_OPERATIONS and compiled.is_keepable())
            or (n_operations >= LOAD_FROM_OPERATIONS and compiled.is_kept())
        )
        return Engine.COMPILED if is_long else Engine.REFERENCE
    return engine


def _run_compiled(
    sequence: Sequence, options: BfcOptions, follow_addresses: bool
) -> tuple[Table, list[Extension], list[Release]]:
    allocator = compiled.CompiledAllocator(options, sequence.n_buffers)
    columns = np.empty((len(sequence), compiled.OUT_COLUMNS), np.int64)
    known = sequence.known_address if follow_addresses else np.empty(0, np.int64)
    done = allocator.feed(sequence.slot, sequence.request, known=known, out=columns)
    releases = [Release(address=a, size_bytes=n, op=op) for a, n, op in allocator.releases]
    return columns[:done], allocator.extensions, releases


def _run_reference(
    sequence: Sequence, options: BfcOptions, follow_addresses: bool
) -> tuple[Table, list[Extension], list[Release]]:
    bfc = BfcAllocator(options)
    columns: list[tuple[int, int, int, int, int]] = []
    known = sequence.known_address.tolist() if follow_addresses else []
    releases: list[Release] = []
    held: dict[int, int] = {}
    for op, (slot, request) in enumerate(
        zip(sequence.slot.tolist(), sequence.request.tolist(), strict=True)
    ):
        if request:
            hint = known[op] if known and known[op] != NOWHERE else None
            address = bfc.allocate(request, owner=op, region_address=hint)
            while len(releases) < len(bfc.released):
                at, size_bytes = bfc.released[len(releases)]
                releases.append(Release(address=at, size_bytes=size_bytes, op=op))
            if address is None:
                break
            held[slot] = address
            size_bytes = bfc.chunk_at(address).size_bytes
        else:
            address = held.pop(slot)
            size_bytes = bfc.chunk_at(address).size_bytes
            bfc.free(address)
        columns.append(
            (address, size_bytes, bfc.in_use_bytes, bfc.pool_bytes, bfc.largest_free_bytes)
        )
    table = np.array(columns, np.int64).reshape(-1, compiled.OUT_COLUMNS)
    return table, bfc.extensions, releases


def _failure(
    sequence: Sequence, options: Options, op: int, in_use: int, pool: int, largest: int
) -> FailedRequest:
    buffer = int(sequence.slot[op])
    requested = int(sequence.request[op])
    return FailedRequest(
        op=op,
        instant=int(sequence.instant[op]),
        buffer=buffer,
        row=int(sequence.row[buffer]),
        requested_bytes=requested,
        rounded_bytes=requested if isinstance(options, AsyncOptions) else round_up(requested),
        in_use_bytes=in_use,
        pool_bytes=pool,
        free_bytes=pool - in_use,
        largest_free_bytes=largest,
        available_bytes=options.memory_limit_bytes - pool,
    )


def _replay_async(sequence: Sequence, options: AsyncOptions) -> Replay:
    """Count requests without rounding; the driver's pool keeps the most it ever held."""
    live = sequence.live_requested_bytes()
    done = operations_done(sequence, options)
    in_use = live[:done]
    pool = np.maximum.accumulate(in_use) if done else in_use
    failure = None
    if done < len(sequence):
        before = int(in_use[-1]) if done else 0
        failure = _failure(sequence, options, done, before, before, 0)
    return Replay(
        sequence=sequence,
        options=options,
        address=np.full(done, NOWHERE),
        chunk_bytes=sequence.requested_bytes[sequence.slot[:done]],
        in_use_bytes=in_use,
        pool_bytes=pool,
        largest_free_bytes=pool - in_use,
        requested_bytes=in_use,
        extensions=(),
        releases=(),
        failure=failure,
        engine=Engine.REFERENCE,
    )
