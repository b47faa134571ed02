"""What is read of a log: a record for each failed request, and the state of log and processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from analyzer.cards import gpus_named
from analyzer.model.choice import Choice
from analyzer.model.contract.report.oom_file import (
    AskedFor,
    OomBuffer,
    OomRefusals,
    OomSize,
)
from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import difference, find

_LIMITED_SHARE: Final = 0.8
"""Share of a card's memory. A lower limit was set, or follows from other processes."""

FRAMEWORKS: Final = {
    "jax": "JAX",
    "jaxlib": "JAX",
    "XlaRuntimeError": "JAX",
    "torch": "PyTorch",
    "torch_xla": "PyTorch/XLA",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "cupy": "CuPy",
    "onnxruntime": "ONNX Runtime",
}
"""Names of other frameworks by package."""


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


class Chunk(NamedTuple):
    """One chunk of a dump."""

    address: int
    size_bytes: int
    is_used: bool


class Card(Struct):
    """A card as TensorFlow describes it at its start."""

    index: int
    process: str = ""
    name: str = ""
    limit: Range | None = None  # of the pool; printed in whole MiB

    @property
    def memory(self) -> Range | None:
        """The memory that CUDA reports for a card of its name."""
        if not self.name:
            return None

        try:
            cards = gpus_named(self.name)
        except InputError:
            return None

        return Range.spanning(card.memory_bytes for card in cards)


class LoggedFailure(Struct):
    """A request for memory that failed, however many lines report it."""

    line: int
    process: str = ""
    kind: FailedAllocator = FailedAllocator.POOL
    text: str = ""
    reports: int = 1
    stamp: str = ""  # prefix of the allocator's line, with the time

    # the request
    size: Range | None = None
    rounded_bytes: int | None = None  # to a multiple of 256
    shape: tuple[int, ...] | None = None
    dtype: str = ""  # TensorFlow's name (``float``)
    op: str = ""  # from the error text
    op_type: str = ""
    requested_by: str = ""  # op on the allocator's line
    kernel: str = ""  # TensorFlow's line
    source: str = ""  # the user's line
    device: str = ""
    allocator: str = ""
    framework: str = ""  # package of another framework
    has_allocator_line: bool = False
    has_error_text: bool = False
    is_compiled: bool = False  # by XLA
    is_copy: bool = False

    # the allocator's dump
    size_classes: int = 0
    waste: Range | None = (
        None  # bytes in use beyond the requests, in these size classes
    )
    regions: list[int] = []  # bytes
    chunks: list[Chunk] = []
    omitted_chunks: int = 0
    used_sizes: list[tuple[int, int]] = []  # bytes and count of the chunks in use
    histogram_thread: str = ""  # the thread that prints them
    printed: dict[str, Range] = {}  # figures by name
    map: str = ""  # 100 of ``*`` used, ``x`` unused inside a used chunk, ``_`` free
    card_free: int | None = None  # bytes
    card_total: int | None = None

    # XLA's list of buffers
    plan_sums: dict[str, int] = {}
    buffers: list[OomBuffer] = []
    has_plan: bool = False

    # a cause beside TensorFlow's allocators
    other_cause: str = ""  # its row
    component: str = ""
    title: str = ""
    is_killed: bool = False

    # computed when the whole log is read
    card: Card | None = None  # None for the host and if no card is described
    request: AskedFor | None = None  # None if the log does not give its size
    requested: Range | None = None  # the sizes that it may have
    rounded: Range | None = None  # the sizes that its chunk may have
    figures: dict[str, Range] = {}
    holes: int | None = None  # number of free chunks
    is_complete: bool = False  # whether the dump lists every chunk
    sizes: list[OomSize] = []  # in use, those with most bytes first
    refusals: list[OomRefusals] = []
    budget: tuple[int, int] | None = None  # XLA's, and the larger plan that it reached

    @property
    def has_dump(self) -> bool:
        """Whether the log has a part of the dump."""
        parts = (self.waste, self.chunks, self.used_sizes, self.printed, self.map)
        return any(parts)

    @property
    def is_on_host(self) -> bool:
        """Whether the allocator's name says that it is the host's."""
        name = self.allocator.lower()
        return "host" in name or "cpu" in name

    @property
    def is_pinned(self) -> bool:
        """Whether it asked for pinned host memory, which is used for copies to a card."""
        return "host_bfc" in self.allocator.lower()

    @property
    def is_on_card(self) -> bool:
        """Whether card memory was requested."""
        if self.is_on_host or self.kind is FailedAllocator.HOST:
            return False
        return "gpu" in self.allocator.lower() or "gpu:" in self.device.lower()

    @property
    def framework_name(self) -> str:
        """Name of the framework; empty for TensorFlow and if unknown."""
        return FRAMEWORKS.get(self.framework, "")

    @property
    def in_use_bytes(self) -> int:
        """Bytes in use: the middle of their range, 0 if unknown."""
        in_use = self.figures.get("in_use")
        return 0 if in_use is None else in_use.middle

    @property
    def card_memory(self) -> Range | None:
        """The card's memory: as the failure prints it, else by the card's name."""
        if self.card_total is not None:
            return Range.exactly(self.card_total)
        return None if self.card is None else self.card.memory

    @property
    def limit_left(self) -> Range | None:
        """Limit minus bytes in use."""
        return difference(self.figures.get("limit"), self.figures.get("in_use"))

    @property
    def is_limited(self) -> bool:
        """Whether the limit is well below the memory of the card."""
        limit, total = self.figures.get("limit"), self.card_memory
        if limit is None or total is None:
            return False
        return limit.high < _LIMITED_SHARE * total.low


_MOST_FAILURES: Final = 500  # stored; more are counted
_RECENT: Final = 64  # failures that a later line may belong to
_LIBRARY_PATHS: Final = (
    *("site-packages", "dist-packages", "<frozen", "/lib/python", "\\lib\\", "\\Lib\\"),
)


class Log:
    """Everything that one log says about memory, as it was printed."""

    def __init__(self) -> None:
        self.lines = 0
        self.failures: list[LoggedFailure] = []
        self.more_failures = 0
        self.refusals: list[OomRefusals] = []
        self.tolerated: dict[
            str, tuple[int, Range]
        ] = {}  # count and largest, by allocator
        self.cards: list[Card] = []
        self.xla_budgets: list[tuple[int, int]] = []  # budget, and bytes reached
        self.garbage_collections = 0
        self.other_resources = 0  # lines about something other than memory
        self._processes: dict[str, Process] = {}

    def process_of(self, tag: str) -> Process:
        """Return the process that writes lines with a tag."""
        return self._processes.setdefault(tag, Process(tag))

    def add_failure(
        self,
        process: Process,
        line: LogLine,
        kind: FailedAllocator = FailedAllocator.POOL,
        *,
        reports: int = 0,
    ) -> LoggedFailure:
        """Return a new failure with the refusals before it; count it if there are too many."""
        failure = LoggedFailure(
            line.number, process.tag, kind, line.text.strip(), reports
        )
        failure.framework = process.framework
        failure.refusals = process.refusals
        process.refusals = []

        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(failure)
        else:
            self.more_failures += 1

        return failure

    def recent(self, process: Process) -> Iterator[LoggedFailure]:
        """Yield the last failures of a process, the latest first; lines without a tag match any."""
        for failure in reversed(self.failures[-_RECENT:]):
            if process.tag in ("", failure.process):
                yield failure

    def latest_of(self, process: Process) -> LoggedFailure | None:
        """Return the last failure with the tag of a process."""
        for failure in reversed(self.failures):
            if failure.process == process.tag:
                return failure

        return None

    def add_tolerated(self, allocator: str, size: Range, count: int = 1) -> None:
        """Count failed requests that the caller could do without."""
        times, largest = self.tolerated.get(allocator, (0, size))
        larger = max(largest, size, key=lambda each: each.middle)
        self.tolerated[allocator] = (times + count, larger)

    def find_waiting(self, process: Process, allocator: str) -> LoggedFailure | None:
        """Return the latest failure of an allocator whose dump has not started."""
        for failure in self.recent(process):
            if not failure.has_dump and failure.allocator in ("", allocator):
                return failure

        return None


class Process:
    """The state of one process: what its next lines may belong to."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.framework = ""  # package of another framework in a traceback
        self.frame = ""  # the last line of the user's code in a traceback
        self.node = ""  # an op that was named before its error
        self.error: LoggedFailure | None = (
            None  # the next lines of a text may describe it
        )

        self.current: dict[
            str, LoggedFailure
        ] = {}  # their dump is being read, by thread
        self.latest: LoggedFailure | None = None  # that of the thread that wrote last

        self.refusal: OomRefusals | None = None  # may continue
        self.refusals: list[OomRefusals] = []  # since the last failure
        self.is_in_buffers = False
        self.no_algorithm_lines = 0  # the next lines that may belong to a convolution
        self.is_new_workspace = False  # an op's kernel failed
        self.kernel = ""

        self.other: LoggedFailure | None = (
            None  # of another cause; the next lines may have its figures
        )
        self.other_lines = 0

    def select(self, thread: str, failure: LoggedFailure) -> None:
        """Give the next dump lines of a thread to a failure."""
        self.latest = failure
        self.current[thread] = failure

    def owner(self, thread: str) -> LoggedFailure | None:
        """Return the failure that a dump line of a thread belongs to."""
        return self.current.get(thread) if thread else self.latest

    def note_frame(self, text: str) -> bool:
        """Remember a traceback frame of the user's code; return False if the line is no frame."""
        match = find("frame", text)
        if match is None:
            return False

        path = match["path"]
        is_library = any(part in path for part in _LIBRARY_PATHS)
        if not is_library and not path.startswith("<"):
            self.frame = f"{path}:{match['line']}"
        return True
