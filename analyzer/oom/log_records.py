"""Records of one log: failed requests, refusals, warnings and cards, as they were printed.

Sizes are ``Range``: most logs print rounded sizes, and the range holds every size that is printed so.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

import msgspec
from msgspec import Struct

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import ITEM_BYTES, MOST_AXES, numpy_name
from analyzer.model.ranges import Range
from analyzer.model.units import GRANULE_BYTES, round_up

_UNITS: Final = "KMGTPE"
_PRINTED: Final = re.compile(r"(-?)(\d+(?:\.\d+)?)\s?([KMGTPE]?)(?:i?B|BYTES)?", re.IGNORECASE)
_LONGEST: Final = 40  # characters of a number
_MOST: Final = 1 << 62  # bytes; the sum of two is still a signed 64-bit number
_LARGEST_ITEM: Final = 16  # bytes of an element
MOST_BYTES: Final = 1 << 44  # of a chunk, or of all chunks of one size; more is a damaged line


def _match_size(text: str | None) -> tuple[str, str, str] | None:
    """Return sign, digits and unit of a printed size; None if it is none."""
    match = _PRINTED.fullmatch((text or "").strip().replace(",", "")[:_LONGEST])
    return None if match is None else (match[1], match[2], match[3].upper())


def parse_size(text: str | None) -> Range | None:
    """Return the range of sizes printed as ``text``, exact if in bytes; None if it is no size."""
    parts = _match_size(text)
    if parts is None:
        return None
    sign, digits, unit = parts
    if not unit:
        return None if "." in digits else Range.exactly(min(int(sign + digits), _MOST))
    decimals = len(digits.partition(".")[2])
    half = 0.5 / 10**decimals
    low = max(math.ceil((float(digits) - half) * 1024 - 1e-6), 0)
    high = math.floor((float(digits) + half) * 1024 + 1e-6)
    # C rounds ties to the even digit.
    low += f"{low / 1024:.{decimals}f}" != digits
    high -= f"{high / 1024:.{decimals}f}" != digits
    if float(digits) >= 1:  # less than 1 and more than 1024 are printed in other units
        low, high = max(low, 1024), min(high, 1024 * 1024 - 1)
    scale = 1024 ** _UNITS.index(unit)
    low, high = min(low * scale, _MOST), min(high * scale + scale - 1, _MOST)
    size = Range(low, max(low, high))
    return Range(-size.high, -size.low) if sign else size


def parse_rounded(text: str) -> Range | None:
    """Return the range of sizes that programs other than TensorFlow print as ``text``, else None.

    Units are binary (PyTorch, Ray and PaddlePaddle print GB for GiB), decimals rounded to the nearest.
    """
    parts = _match_size(text)
    if parts is None:
        return None
    _, digits, unit = parts
    scale = 1024 ** (_UNITS.index(unit) + 1) if unit else 1
    decimals = len(digits.partition(".")[2])
    value, half = Fraction(digits) * scale, Fraction(scale, 2 * 10**decimals) if decimals else 0
    low, high = math.ceil(value - half), math.floor(value + half)
    return Range(min(low, _MOST), min(max(low, high), _MOST))


def parse_count(text: str) -> int:
    """Return a number of bytes or things; 16 TiB for a larger one, which is damage."""
    return min(int(text), MOST_BYTES)


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Return the axes of a shape such as ``5, 4``; None if no tensor can have them."""
    axes = [axis for axis in text.replace(" ", "").split(",") if axis]
    if len(axes) > MOST_AXES or any(len(axis) > 18 or not axis.isdigit() for axis in axes):
        return None
    shape = tuple(map(int, axes))
    return shape if math.prod(shape) * _LARGEST_ITEM <= _MOST else None


def round_up_request(size_bytes: int) -> int:
    """Return the chunk size that the allocator looks for: a multiple of 256, at least 256."""
    return max(round_up(size_bytes), GRANULE_BYTES)


def difference(whole: Range | None, part: Range | None) -> Range | None:
    """Return the difference, at least 0; None if one of the two is not known."""
    return None if whole is None or part is None else (whole - part).at_least(0)


def shape_bytes(shape: tuple[int, ...], dtype: str) -> int | None:
    """Return the bytes of a tensor; None if its type is unknown."""
    item = ITEM_BYTES.get(numpy_name(dtype))
    return None if item is None else math.ceil(math.prod(shape) * item)


class FailedAllocator(Choice):
    """Which allocator had no memory."""

    POOL = "pool"  # TensorFlow's BFC allocator, on a card or on the host
    ASYNC = "async"  # CUDA's stream-ordered allocator (``cuda_malloc_async``)
    LIBRARY = "library"  # outside the pool: cuDNN, cuBLAS, the CUDA context
    HOST = "host"  # a killed process, NumPy, C++
    OTHER = "other"  # of another framework
    UNKNOWN = "unknown"  # the error text does not say


class OutOf(Choice):
    """The memory that ran out; unclear if a log does not say that memory ran out."""

    CARD = "card"
    HOST = "host"
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
    is_kill: bool = False
    facts: str = ""
    lines: int = 12


class DumpedChunk(Struct, frozen=True):
    """One chunk of a dump. ``region`` is the number of the region that lists it."""

    address: int
    size_bytes: int
    is_used: bool
    region: int


class DumpedBin(Struct, frozen=True):
    """One size class of a dump; ``requested`` are bytes of the chunks in use."""

    size_bytes: int
    chunks: int
    used_chunks: int
    total: Range
    used: Range
    requested: Range

    @property
    def free_chunks(self) -> int:
        """Number of free chunks."""
        return self.chunks - self.used_chunks

    @property
    def free(self) -> Range:
        """Bytes of the free chunks."""
        return (self.total - self.used).at_least(0)


class AllocatorDump(Struct):
    """A BFC allocator's dump; None and empty if the log lacks a part."""

    allocator: str = ""
    bins: list[DumpedBin] = []
    regions: list[int] = []  # bytes
    chunks: list[DumpedChunk] = []
    omitted_chunks: int = 0
    summary: list[tuple[int, int]] = []  # bytes and count of the sizes in use
    used: Range | None = None
    pool: Range | None = None
    limit: Range | None = None
    left: Range | None = None  # limit minus pool
    stats: dict[str, Range] = {}
    largest_free: Range | None = None
    map: str = ""  # 100 of ``*`` used, ``x`` unused inside a used chunk, ``_`` free

    @property
    def is_empty(self) -> bool:
        """Whether the log has nothing of the dump."""
        return not (self.bins or self.chunks or self.summary or self.stats or self.map or self.pool)


class PeakBuffer(Struct):
    """One of the largest buffers of a module that XLA compiled."""

    size: Range
    operator: str = ""
    label: str = ""
    shape: str = ""


class XlaBuffers(Struct):
    """XLA's list of a module's buffers: sums by name, and the largest buffers."""

    stats: dict[str, Range] = {}
    buffers: list[PeakBuffer] = []


class RequestedTensor(Struct):
    """The request as the log describes it."""

    size: Range | None = None
    rounded_bytes: int | None = None  # up to 256 bytes
    shape: tuple[int, ...] | None = None
    dtype: str = ""  # TensorFlow's name (``float``)


class LoggedFailure(Struct):
    """A request for memory that failed; one record, however many lines report it."""

    kind: FailedAllocator
    line: int
    tag: str = ""
    tensor: RequestedTensor = msgspec.field(default_factory=RequestedTensor)
    op: str = ""  # from the error text
    op_type: str = ""
    requested_by: str = ""  # op on the allocator's line
    kernel: str = ""  # TensorFlow's line
    device: str = ""
    allocator: str = ""
    source: str = ""  # the user's line
    text: str = ""
    reports: int = 1
    has_allocator_line: bool = False
    has_error_text: bool = False
    dump: AllocatorDump = msgspec.field(default_factory=AllocatorDump)
    card_free: int | None = None
    card_total: int | None = None
    xla: XlaBuffers | None = None
    is_compiled: bool = False
    usage: list[tuple[str, Range]] = []  # node and bytes
    refusals: list[RefusalRun] = []
    row: ComponentRow | None = None  # None for TensorFlow
    component: str = ""  # the row's, or the library that the line names
    title: str = ""
    framework: str = ""
    figures: dict[str, Range] = {}  # found by the row's ``facts``
    is_killed: bool = False
    is_copy: bool = False

    @property
    def memory(self) -> OutOf | None:
        """The memory that ran out; None for TensorFlow."""
        return None if self.row is None else self.row.memory

    @property
    def is_on_host(self) -> bool:
        """Whether the allocator's name says that it is the host's."""
        return "host" in self.allocator.lower() or "cpu" in self.allocator.lower()

    @property
    def is_pinned(self) -> bool:
        """Whether it asked for pinned host memory, which is used for copies to a card."""
        return "host_bfc" in self.allocator.lower()


class RefusalRun(Struct):
    """A run of requests that the driver refused, each about a tenth smaller than the one before."""

    line: int
    first_bytes: int
    last_bytes: int
    times: int
    code: str
    is_host: bool = False  # pinned host memory
    tag: str = ""


class ToleratedFailures(Struct):
    """Failed requests of one allocator that the caller could do without."""

    allocator: str
    times: int
    largest: Range


class LoggedCard(Struct):
    """A card as TensorFlow describes it at its start; ``limit`` of the pool is in whole MiB."""

    index: int
    tag: str = ""
    name: str = ""
    total: Range | None = None
    limit: Range | None = None


class LogRecords(Struct):
    """Everything that one log says about memory."""

    lines: int = 0
    failures: list[LoggedFailure] = []
    more_failures: int = 0
    refusals: list[RefusalRun] = []
    tolerated: list[ToleratedFailures] = []  # warnings that are no failures
    cards: list[LoggedCard] = []
    xla_budgets: list[tuple[int, int]] = []  # budget, and bytes reached
    garbage_collections: int = 0
    large_host: tuple[int, int] = (0, 0)  # count and largest of the warnings
    other_resources: int = 0  # lines about something other than memory
