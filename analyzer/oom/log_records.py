"""Records of one log: failed requests, refusals, warnings and cards, as they were printed.

Sizes are ``Range``: most logs print rounded sizes, and the range holds every size that is printed so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from analyzer.model.choice import Choice
from analyzer.model.ranges import Range


class FailedAllocator(Choice):
    """Which allocator had no memory."""

    POOL = "pool"  # TensorFlow's BFC allocator, on a card or on the host
    ASYNC = "async"  # CUDA's stream-ordered allocator (``cuda_malloc_async``)
    LIBRARY = "library"  # outside the pool: cuDNN, cuBLAS, the CUDA context
    HOST = "host"  # a killed process, NumPy, C++
    OTHER = "other"  # of another framework or of a TPU
    UNKNOWN = "unknown"  # the error text does not say


class OutOf(Choice):
    """The memory that ran out; unclear if a log does not say that memory ran out."""

    CARD = "card"
    HOST = "host"
    TPU = "tpu"
    UNCLEAR = "unclear"


class LogPattern(Struct, frozen=True):
    """One row of a table: a pattern that is tried only on texts with one of the words ``any``."""

    pattern: str
    any: tuple[str, ...] = ("",)


class ComponentRow(LogPattern, frozen=True, kw_only=True):
    """One row of ``component_failures.toml``, which explains the fields."""

    component: str
    memory: OutOf
    title: str
    kind: FailedAllocator = FailedAllocator.OTHER
    cause: str = ""
    advice: str = ""
    fragmented_advice: str = ""
    is_kill: bool = False
    is_warning: bool = False
    facts: str = ""
    lines: int = 12


@dataclass(frozen=True, slots=True)
class DumpedChunk:
    """One chunk of a dump. ``region`` is the number of the region that lists it."""

    address: int
    size_bytes: int
    is_used: bool
    region: int


@dataclass(frozen=True, slots=True)
class DumpedBin:
    """One size class of a dump.

    ``requested`` are the bytes that were requested from the chunks in use. ``counts_all`` is False up to
    TensorFlow 1.3, which counts free chunks only.
    """

    size_bytes: int
    chunks: int
    used_chunks: int
    total: Range
    used: Range
    requested: Range
    counts_all: bool

    @property
    def free_chunks(self) -> int:
        """Number of free chunks."""
        return self.chunks - self.used_chunks if self.counts_all else self.chunks

    @property
    def free(self) -> Range:
        """Bytes of the free chunks."""
        return (self.total - self.used).at_least(0) if self.counts_all else self.total


@dataclass(slots=True)
class AllocatorDump:
    """A BFC allocator's dump; None and empty if the log lacks a part.

    ``free_in_bin`` are free chunks in the size class of the request, ``regions`` the bytes of each
    region (TensorFlow 1.14 and later), ``summary`` pairs of bytes and count whose total is
    ``used``. ``left`` is limit minus pool. ``map`` has 100 characters: ``*`` used, ``x`` unused
    inside a used chunk, ``_`` free.
    """

    allocator: str = ""
    bins: list[DumpedBin] = field(default_factory=list)
    free_in_bin: list[Range] = field(default_factory=list)
    regions: list[int] = field(default_factory=list)
    chunks: list[DumpedChunk] = field(default_factory=list)
    omitted_chunks: int = 0
    summary: list[tuple[int, int]] = field(default_factory=list)
    used: Range | None = None
    pool: Range | None = None
    limit: Range | None = None
    left: Range | None = None
    stats: dict[str, Range] = field(default_factory=dict)
    largest_free: Range | None = None
    free: Range | None = None
    map: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the log has nothing of the dump."""
        return not (self.bins or self.chunks or self.summary or self.stats or self.map or self.pool)


@dataclass(slots=True)
class PeakBuffer:
    """One of the largest buffers of a module that XLA compiled."""

    size: Range
    operator: str = ""
    label: str = ""
    shape: str = ""
    padding: Range | None = None


@dataclass(slots=True)
class XlaBuffers:
    """XLA's list of a module's buffers: sums by name, and the largest buffers."""

    stats: dict[str, Range] = field(default_factory=dict)
    buffers: list[PeakBuffer] = field(default_factory=list)


@dataclass(slots=True)
class RequestedTensor:
    """The request as the log describes it.

    Attributes:
        rounded_bytes: Size rounded up to 256 bytes; TensorFlow 1.15 and later.
        dtype: TensorFlow's name of the type (``float``); empty if the log has none.
        node_dtype: Attribute ``T`` of the op, for errors without a type (TensorFlow 1.4 and before).
    """

    size: Range | None = None
    rounded_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    node_dtype: str = ""


@dataclass(slots=True)
class LoggedFailure:
    """A request for memory that failed; one record, however many lines report it.

    ``op`` and ``op_type`` are from the error text, ``requested_by`` is the op on the allocator's line.
    ``source`` is the user's line, ``kernel`` TensorFlow's. ``histogram`` has pairs of bytes and count,
    ``usage`` of node and bytes (``report_tensor_allocations_upon_oom``). ``refusals`` are indices in
    ``LogRecords.refusals``. ``row`` is None and ``component`` empty for TensorFlow; ``figures`` are
    found by the row's ``facts``.
    """

    kind: FailedAllocator
    line: int
    tag: str = ""
    tensor: RequestedTensor = field(default_factory=RequestedTensor)
    op: str = ""
    op_type: str = ""
    requested_by: str = ""
    kernel: str = ""
    device: str = ""
    allocator: str = ""
    source: str = ""
    text: str = ""
    reports: int = 1
    has_allocator_line: bool = False
    has_error_text: bool = False
    dump: AllocatorDump = field(default_factory=AllocatorDump)
    histogram: list[tuple[int, int]] = field(default_factory=list)
    card_free: int | None = None
    card_total: int | None = None
    xla: XlaBuffers | None = None
    is_compiled: bool = False
    usage: list[tuple[str, Range]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    row: ComponentRow | None = None
    component: str = ""
    title: str = ""
    framework: str = ""
    figures: dict[str, Range] = field(default_factory=dict)
    is_killed: bool = False
    is_copy: bool = False

    @property
    def memory(self) -> OutOf | None:
        """The memory that ran out; None for TensorFlow."""
        return None if self.row is None else self.row.memory

    @property
    def is_warning(self) -> bool:
        """Whether the line alone is no failure."""
        return self.row is not None and self.row.is_warning

    @property
    def is_pinned(self) -> bool:
        """Whether it asked for pinned host memory, which is used for copies to a card."""
        return "host_bfc" in self.allocator.lower()


@dataclass(slots=True)
class RefusalRun:
    """A run of requests that the driver refused, each about a tenth smaller than the one before.

    ``is_host`` for pinned host memory.
    """

    line: int
    tag: str
    first_bytes: int
    last_bytes: int
    times: int
    code: str
    is_host: bool = False


@dataclass(slots=True)
class ToleratedFailures:
    """Failed requests of one allocator that the caller could do without."""

    line: int
    allocator: str
    times: int
    largest: Range


@dataclass(slots=True)
class LoggedCard:
    """A card as TensorFlow describes it at its start; ``limit`` of the pool is in whole MiB."""

    index: int
    tag: str = ""
    name: str = ""
    total: Range | None = None
    free: Range | None = None
    limit: Range | None = None


@dataclass(slots=True)
class LogRecords:
    """Everything that one log says about memory.

    ``tolerated`` are warnings that are no failures, ``xla_budgets`` pairs of budget and bytes reached,
    ``large_host`` the count and the largest of the warnings about host requests, ``other_resources`` the
    lines that report something other than memory as exhausted.
    """

    lines: int = 0
    failures: list[LoggedFailure] = field(default_factory=list)
    more_failures: int = 0
    refusals: list[RefusalRun] = field(default_factory=list)
    tolerated: list[ToleratedFailures] = field(default_factory=list)
    cards: list[LoggedCard] = field(default_factory=list)
    xla_budgets: list[tuple[int, int]] = field(default_factory=list)
    garbage_collections: int = 0
    large_host: tuple[int, int] = (0, 0)
    other_resources: int = 0
