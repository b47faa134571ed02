"""What a log says of memory, as it was read: nothing here is worked out.

A log has *mishaps* (requests that failed), *refusals* of the driver or the host, *warnings* that sound
like failures, and *cards*. A mishap may have the dump of its allocator, the text of its error, and more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.model.choice import Choice
from analyzer.oom.amounts import Amount


class MishapKind(Choice):
    """Who could not give the memory."""

    POOL = "pool"
    """TensorFlow's own allocator (BFC), on a card or on the host."""
    ASYNC = "async"
    """CUDA's stream ordered allocator (``cuda_malloc_async``)."""
    LIBRARY = "library"
    """A library beside the pool: cuDNN, cuBLAS, the driver's context."""
    HOST = "host"
    """The machine's own memory: the system's killer, NumPy, C++."""
    UNKNOWN = "unknown"
    """The log has the error's text alone, and it does not say."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk of a dump: its address, its size and whether a tensor holds it."""

    address: int
    size_bytes: int
    is_used: bool
    region: int


@dataclass(frozen=True, slots=True)
class BinLine:
    """One line of a dump's bins. ``asked`` is what the clients asked for of what is in use.

    Up to TensorFlow 1.3 only free chunks are counted: ``counts_all`` is then False.
    """

    size_bytes: int
    chunks: int
    used_chunks: int
    total: Amount
    used: Amount
    asked: Amount
    counts_all: bool


@dataclass(slots=True)
class PoolDump:
    """The state of a BFC allocator as it was dumped; None and empty where the log lacks a part.

    Attributes:
        allocator: Its name, from the dump's head.
        bins: Its bins in the order of the log.
        free_in_bin: Free chunks of the wanted bin alone, as far as they are printed.
        regions: Bytes of each region, from TensorFlow 1.14 on.
        pieces: Its chunks in the order of the log.
        pieces_cut: Chunks that were read and not kept, because there were too many.
        census: In-use chunks of each size, of the summary: (bytes, count).
        used: The summary's total.
        pool: All regions.
        limit: The allocator's limit.
        left: What the limit leaves for more regions.
        stats: The block "Stats", by its names.
        largest_free: Largest free chunk as the newest wording prints it (2026), or a TPU's; else None.
        free: What is free, as a TPU's error has it; else None.
        map: 100 characters: ``*`` used, ``x`` used by part, ``_`` free.
    """

    allocator: str = ""
    bins: list[BinLine] = field(default_factory=list)
    free_in_bin: list[Amount] = field(default_factory=list)
    regions: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    pieces_cut: int = 0
    census: list[tuple[int, int]] = field(default_factory=list)
    used: Amount | None = None
    pool: Amount | None = None
    limit: Amount | None = None
    left: Amount | None = None
    stats: dict[str, Amount] = field(default_factory=dict)
    largest_free: Amount | None = None
    free: Amount | None = None
    map: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a dump was read."""
        return not (self.bins or self.pieces or self.census or self.stats or self.map or self.pool)


@dataclass(slots=True)
class PeakBuffer:
    """One of the largest buffers of a module that XLA compiled."""

    size: Amount
    operator: str = ""
    label: str = ""
    shape: str = ""


@dataclass(slots=True)
class XlaBuffers:
    """XLA's list of what a compiled module's buffers take."""

    stats: dict[str, Amount] = field(default_factory=dict)
    buffers: list[PeakBuffer] = field(default_factory=list)


@dataclass(slots=True)
class Wanted:
    """What failed, as far as the log says.

    Attributes:
        size: As it was printed.
        rounded_bytes: Rounded up to 256, from TensorFlow 1.15 on.
        shape: The tensor's; None where the log has none.
        dtype: Its type in TensorFlow's own word (``float``); empty where the log has none.
        is_temporary: A kernel's scratch tensor.
        node_dtype: The type that the op's own text has as ``T``, where the error has none (to 1.4).
    """

    size: Amount | None = None
    rounded_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    is_temporary: bool = False
    node_dtype: str = ""


@dataclass(slots=True)
class Mishap:
    """A request for memory that failed; told once, however often the log tells it.

    Attributes:
        kind: Who could not give it.
        line: Number of the line that told it first, from 1.
        tag: What the log puts before the lines of this process, such as a rank.
        wanted: What was asked for.
        op: The op by name, as the error's text has it.
        op_type: Its type.
        requested_by: The op as the allocator's line names it.
        kernel: File and line of TensorFlow's kernel.
        device: Full name of the device.
        allocator: Name of the allocator.
        where: The user's own file and line.
        words: The failing line itself, or the error's text.
        told: How often the log tells it.
        is_failure_line_seen: Whether the allocator's own line was read.
        dump: Its allocator's state.
        histogram: Live allocations of each size, of the asynchronous allocator: (bytes, count).
        card_free: What CUDA reported as free, with ``card_total``.
        card_total: All of the card's memory, as CUDA reports it.
        xla: The buffers of the module.
        is_compiled: Whether XLA's own words are in the text.
        usage: ``report_tensor_allocations_upon_oom``: (node, bytes).
        refused: Numbers of the refusals before it.
        resident_bytes: What a process that the system ended held of the machine's memory.
        has_text: Whether the error's own text was read.
    """

    kind: MishapKind
    line: int
    tag: str = ""
    wanted: Wanted = field(default_factory=Wanted)
    op: str = ""
    op_type: str = ""
    requested_by: str = ""
    kernel: str = ""
    device: str = ""
    allocator: str = ""
    where: str = ""
    words: str = ""
    told: int = 1
    is_failure_line_seen: bool = False
    dump: PoolDump = field(default_factory=PoolDump)
    histogram: list[tuple[int, int]] = field(default_factory=list)
    card_free: int | None = None
    card_total: int | None = None
    xla: XlaBuffers | None = None
    is_compiled: bool = False
    usage: list[tuple[str, Amount]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    resident_bytes: int | None = None
    has_text: bool = False


@dataclass(slots=True)
class DriverRefusal:
    """A run of requests that the driver refused, each a tenth smaller than the one before.

    ``is_host`` where pinned memory of the machine was asked for.
    """

    line: int
    tag: str
    first_bytes: int
    last_bytes: int
    times: int
    code: str
    is_host: bool = False


@dataclass(slots=True)
class Survived:
    """Warnings of one allocator that the caller says are no failure."""

    line: int
    allocator: str
    times: int
    largest: Amount


@dataclass(slots=True)
class SeenCard:
    """What the start of the log says of a card.

    Attributes:
        index: Its number; None where the line has none.
        name: Its name.
        total: Its memory.
        free: What was free of it when TensorFlow started.
        limit: The pool's limit, in whole mebibytes as it is printed.
    """

    index: int | None
    tag: str = ""
    name: str = ""
    total: Amount | None = None
    free: Amount | None = None
    limit: Amount | None = None


@dataclass(slots=True)
class Budget:
    """XLA could not bring a module under its budget by computing values again."""

    line: int
    budget: Amount
    reached: Amount


@dataclass(slots=True)
class Heard:
    """Everything that one log says of memory.

    Attributes:
        lines: Lines read.
        mishaps: Requests that failed, in the order of the log.
        more_mishaps: Failures beyond those that are kept.
        refusals: Runs of refusals.
        survived: Warnings that are no failures.
        cards: Cards as TensorFlow saw them when it started.
        budgets: Modules over XLA's budget.
        garbage: Times that regions were given back to make one larger.
        large_host: Warnings of a host allocation over a tenth of the memory: (times, largest).
        no_memory_words: Lines that say "exhausted" of something that is no memory.
    """

    lines: int = 0
    mishaps: list[Mishap] = field(default_factory=list)
    more_mishaps: int = 0
    refusals: list[DriverRefusal] = field(default_factory=list)
    survived: list[Survived] = field(default_factory=list)
    cards: list[SeenCard] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    garbage: int = 0
    large_host: tuple[int, int] = (0, 0)
    no_memory_words: int = 0
