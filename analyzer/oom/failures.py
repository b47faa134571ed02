"""What is read of a log: a record for each failed request, and the state of log and processes."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from analyzer.cards.catalogue import gpus_named
from analyzer.model.contract.fields import Choice
from analyzer.model.contract.oom_file import (
    AskedFor,
    OomBuffer,
    OomRefusals,
    OomSize,
)
from analyzer.model.errors import InputError
from analyzer.model.units import Range
from analyzer.oom.lines import LogLine

_LEAST_LIMIT_BYTES = 256 << 20  # of a pool; nobody sets a lower limit

# Share of a card's memory. A lower limit was set, or follows from other processes.
_LIMITED_SHARE = 0.8


class FailedAllocator(Choice):
    """Which allocator had no memory."""

    POOL = "pool"  # TensorFlow's BFC allocator, on a card or on the host
    ASYNC = "async"  # CUDA's stream-ordered allocator (``cuda_malloc_async``)
    LIBRARY = "library"  # outside the pool: cuDNN, cuBLAS, the CUDA context
    HOST = "host"  # the process's own memory
    OTHER = "other"  # of another framework
    UNKNOWN = "unknown"  # the error text does not say


class Cause(Choice):
    """Why a request failed."""

    LARGER_THAN_CARD = "larger-than-card"
    LARGER_THAN_LIMIT = "larger-than-limit"
    FRAGMENTED = "fragmented"
    WASTED = "wasted-in-chunks"
    FULL = "full"
    DRIVER_REFUSED = "driver-refused"
    HELD_BY_OTHERS = "held-by-others"
    BESIDE_THE_POOL = "beside-the-pool"
    HOST = "host"
    CANNOT_TELL = "cannot-tell"


class LoggedFailure(Struct):
    """A request for memory that failed, however many lines report it."""

    line: int
    process: str = ""
    kind: FailedAllocator = FailedAllocator.POOL
    words: str = ""
    stamp: str = ""  # prefix of the allocator's line, with the time

    # the request
    size: Range | None = None  # of 256 sizes if the log rounds it to the chunk's
    shape: tuple[int, ...] | None = None
    dtype: str = ""  # TensorFlow's name (``float``)
    op: str = ""  # from the error text
    op_type: str = ""
    requested_by: str = ""  # op on the allocator's line
    source: str = ""  # the user's line
    device: str = ""
    allocator: str = ""
    framework: str = ""  # another one
    has_allocator_line: bool = False
    has_error_text: bool = False
    is_compiled: bool = False  # by XLA
    is_workspace: bool = False  # of a convolution; none of its algorithms had room
    makes_weights: bool = False  # in a call that creates or loads variables

    # the allocator's dump
    size_classes: int = 0
    waste: Range | None = None  # bytes in use beyond the requests, in these classes
    regions: list[int] = []  # bytes
    chunks: list[tuple[int, int, bool]] = []  # address, bytes, and whether it is used
    used_sizes: dict[int, int] = {}  # count of the chunks in use by their bytes
    printed: dict[str, Range] = {}  # figures by name
    map: str = ""  # 100 of ``*`` used, ``x`` unused inside a used chunk, ``_`` free

    # XLA's list of buffers
    plan_sums: dict[str, int] = {}
    buffers: list[OomBuffer] = []

    # a cause beside TensorFlow's allocators
    other_cause: str = ""  # its row
    component: str = ""
    title: str = ""

    # computed when the whole log is read
    card_name: str = ""  # its name
    card_limit: Range | None = None  # of the pool at the start of TensorFlow
    asked: AskedFor | None = None  # None if the log does not give its size
    limit: Range | None = None
    in_use: Range | None = None
    peak_in_use: Range | None = None
    pool: Range | None = None  # taken from the driver or the machine
    free: Range | None = None  # in the pool
    largest_hole: Range | None = None  # the largest free chunk
    room: Range | None = None  # that the limit leaves to the pool
    is_complete: bool = False  # whether the dump lists every chunk
    sizes: list[OomSize] = []  # in use, those with most bytes first
    refusals: list[OomRefusals] = []

    @property
    def has_dump(self) -> bool:
        """Whether the log has a part of the dump."""
        return any((self.waste, self.chunks, self.used_sizes, self.printed, self.map))

    @property
    def is_on_host(self) -> bool:
        """Whether the host's memory was requested."""
        name = self.allocator.lower()
        return "host" in name or "cpu" in name or self.kind is FailedAllocator.HOST

    @property
    def is_pinned(self) -> bool:
        """Whether it asked for pinned host memory, which is used for copies to a card."""
        return "host_bfc" in self.allocator.lower()

    @property
    def is_on_card(self) -> bool:
        """Whether card memory was requested."""
        place = f"{self.allocator} {self.device}".lower()
        return "gpu" in place and not self.is_on_host

    @property
    def in_use_bytes(self) -> int:
        """Bytes in use: the middle of their range, 0 if unknown."""
        return 0 if self.in_use is None else self.in_use.middle

    @property
    def card_memory(self) -> Range | None:
        """The card's memory: as the failure prints it, else by the card's name."""
        total = self.printed.get("total")
        if total is not None or not self.card_name:
            return total

        try:
            return Range.spanning(
                one.memory_bytes for one in gpus_named(self.card_name)
            )
        except InputError:
            return None

    @property
    def has_tiny_limit(self) -> bool:
        """Whether the limit is so low that other processes left it, not the user."""
        return (
            not (self.is_on_host or self.other_cause)
            and self.limit is not None
            and self.limit.high < _LEAST_LIMIT_BYTES
        )

    @property
    def has_low_limit(self) -> bool:
        """Whether the pool's limit is well below the card's memory, where the request would fit."""
        card = self.card_memory
        if card is None or self.limit is None or not self.is_on_card:
            return False

        asked_bytes = 0 if self.asked is None else self.asked.rounded_bytes
        is_limited = self.limit.high < _LIMITED_SHARE * card.low
        would_fit = self.in_use_bytes + asked_bytes < card.low

        return is_limited and would_fit and "free" not in self.printed


_MOST_FAILURES = 500  # stored; more are counted
_RECENT = 64  # failures that a later line may belong to


class Log:
    """Everything that one log says about memory, as it was printed."""

    def __init__(self) -> None:
        self.lines = 0
        self.failures: list[LoggedFailure] = []
        self.more_failures = 0
        self.refusals: list[OomRefusals] = []

        # count and largest size by allocator; the last one warned last
        self.tolerated: dict[str, tuple[int, Range]] = {}

        # name and limit by process and index
        self.cards: dict[tuple[str, str], tuple[str, Range]] = {}

        # bytes: the largest request of which the host's allocator warns
        self.large_allocation = 0

        self.bare_error: tuple[Process, LogLine] | None = None  # without any detail
        self.other_error: LogLine | None = None  # the last one, not about memory
        self.mention: LogLine | None = None  # a line about memory, of no known row
        self.last_line: LogLine | None = None  # that does not only name a node
        self._processes: dict[str, Process] = {}

    def process_of(self, tag: str) -> Process:
        """Return the process that writes lines with a tag."""
        return self._processes.setdefault(tag, Process(self, tag))

    def add_tolerated(self, allocator: str, size: Range) -> None:
        """Count failed requests that the caller could do without."""
        times, largest = self.tolerated.pop(allocator, (0, size))
        larger = max(largest, size, key=lambda each: each.middle)
        self.tolerated[allocator] = (times + 1, larger)


class Process:
    """The state of one process: what its next lines may belong to."""

    def __init__(self, log: Log, tag: str) -> None:
        self.log = log
        self.tag = tag
        self.framework = ""  # another one in a traceback
        self.frame = ""  # the last line of the user's code in a traceback
        self.makes_weights = False  # in the last traceback
        self.node = ""  # an op that was named before its error
        self.error: LoggedFailure | None = None  # that the next lines may describe

        # whose dump is read, by thread; without one, that of the thread that wrote last
        self.current: dict[str, LoggedFailure] = {}

        self.refusals: list[OomRefusals] = []  # since the last failure

    def add_failure(
        self,
        line: LogLine,
        kind: FailedAllocator = FailedAllocator.POOL,
    ) -> LoggedFailure:
        """Return a new failure with the refusals before it; count it if there are too many."""
        failure = LoggedFailure(line.number, self.tag, kind, line.text.strip())
        failure.framework = self.framework
        failure.refusals = self.refusals
        self.refusals = []

        if len(self.log.failures) < _MOST_FAILURES:
            self.log.failures.append(failure)
        else:
            self.log.more_failures += 1

        return failure

    def recent(self) -> Iterator[LoggedFailure]:
        """Yield the last failures of the process, the latest first; lines without a tag match any."""
        for failure in reversed(self.log.failures[-_RECENT:]):
            if self.tag in ("", failure.process):
                yield failure

    def select(self, thread: str, failure: LoggedFailure) -> None:
        """Give the next dump lines of a thread to a failure."""
        self.current[thread] = self.current[""] = failure
