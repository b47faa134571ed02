"""One line of an allocator's dump, or of a program's list of buffers, added to its record."""

from typing import Final

from msgspec import Struct

from analyzer.model.ranges import Range
from analyzer.oom.log_records import (
    MOST_BYTES,
    AllocatorDump,
    DumpedBin,
    DumpedChunk,
    FailedAllocator,
    LoggedCard,
    LoggedFailure,
    LogRecords,
    PeakBuffer,
    RefusalRun,
    ToleratedFailures,
    XlaBuffers,
    parse_count,
    parse_size,
)
from analyzer.oom.scan.patterns import find, find_all, read_groups

_MOST_OPEN: Final = 16  # threads, and failures of one thread that wait for their dump
_MOST_ALLOCATORS: Final = 256  # with warnings
_LIBRARY_PATHS: Final = (
    *("site-packages", "dist-packages", "<frozen", "/lib/python", "\\lib\\", "\\Lib\\"),
)


class LogProcess(Struct):
    """The process that writes lines with one tag."""

    tag: str
    waiting: dict[str, list[LoggedFailure]] = {}  # failures whose dump may still come, by thread
    current: dict[str, LoggedFailure] = {}  # failures whose dump is being read, by thread
    latest: LoggedFailure | None = None  # that of the thread that wrote last
    error: LoggedFailure | None = None  # the failure that the next lines may describe
    node: str = ""
    frame: str = ""
    refusal: RefusalRun | None = None  # may continue
    refusals: list[RefusalRun] = []  # since the last failure
    card: LoggedCard | None = None
    card_lines: int = 0  # the next lines that may describe the card
    histogram_thread: str | None = None
    is_in_usage: bool = False
    is_in_buffers: bool = False
    no_algorithm_lines: int = 0
    has_kernel_line: bool = False
    kernel: str = ""
    framework: str = ""
    component: LoggedFailure | None = None  # the failure that the next lines may describe
    component_lines: int = 0
    component_name: str = ""  # its row
    memory_limit: Range | None = None
    limit_lines: int = 0

    def await_dump(self, thread: str, failure: LoggedFailure) -> None:
        """Expect a dump for a failure."""
        waiting = self.waiting.setdefault(thread, [])
        waiting.append(failure)
        del waiting[:-_MOST_OPEN]
        self.select(thread, failure)
        for by_thread in (self.waiting, self.current):
            if len(by_thread) > _MOST_OPEN:
                del by_thread[next(iter(by_thread))]

    def select(self, thread: str, failure: LoggedFailure) -> None:
        """Give the next dump lines of a thread to a failure."""
        self.current[thread] = self.latest = failure

    def owner(self, thread: str) -> LoggedFailure | None:
        """Return the failure that a dump line of a thread belongs to."""
        return self.current.get(thread) if thread else self.latest

    def find_waiting(self, thread: str, allocator: str) -> LoggedFailure | None:
        """Return the latest failure of an allocator whose dump has not started."""
        for failure in reversed(self.waiting.get(thread, ())):
            if failure.dump.is_empty and failure.allocator in ("", allocator):
                return failure
        return None

    def close_dump(self, thread: str, failure: LoggedFailure) -> None:
        """End a dump; the next lines go to the thread's next failure without one."""
        waiting = self.waiting.get(thread, [])
        if failure in waiting:
            waiting.remove(failure)
        due = [other for other in waiting if other.dump.is_empty]
        if due:
            self.select(thread, due[-1])
        else:
            self.current.pop(thread, None)

    def note_frame(self, text: str) -> bool:
        """Remember a traceback frame of the user's code; return False if the line is no frame."""
        match = find("frame", text)
        if match is None:
            return False
        path = match["path"]
        if not any(part in path for part in _LIBRARY_PATHS) and not path.startswith("<"):
            self.frame = f"{path}:{match['line']}"
        return True


def add_tolerated(records: LogRecords, allocator: str, size: Range, count: int = 1) -> None:
    """Count failed requests that the caller could do without."""
    known = next((one for one in records.tolerated if one.allocator == allocator), None)
    if known is not None:
        known.times += count
        known.largest = max(known.largest, size, key=lambda each: each.middle)
    elif len(records.tolerated) < _MOST_ALLOCATORS:
        records.tolerated.append(ToleratedFailures(allocator, count, size))


def move_tolerated(records: LogRecords) -> None:
    """Move requests of the asynchronous allocator without an error to the tolerated ones.

    It also logs requests with which a convolution tries an algorithm
    (``gpu_cudamallocasync_allocator.cc``). If others led to an error, these did not.
    """
    requests = [one for one in records.failures if one.kind is FailedAllocator.ASYNC]
    if not any(failure.has_error_text for failure in requests):
        return
    for failure in requests:
        if not failure.has_error_text and failure.tensor.size is not None:
            records.failures.remove(failure)
            add_tolerated(records, failure.allocator, failure.tensor.size, failure.reports)


def join_repeated(records: LogRecords) -> None:
    """Join requests that were repeated without an error in the same state of the allocator.

    XLA's autotuner repeats a request for each algorithm, and the allocator waits up to 10 s each time.
    """
    rows: list[LoggedFailure] = []
    last: tuple[object, ...] | None = None
    for one in records.failures:
        is_alone = one.kind is FailedAllocator.POOL and not one.has_error_text
        state = None
        if is_alone and one.has_allocator_line and one.tensor.size is not None:
            request = (one.tag, one.allocator, one.tensor, one.requested_by)
            state = (*request, one.dump.stats, one.dump.map)
        if state is not None and state == last:
            rows[-1].reports += one.reports
        else:
            rows.append(one)
        last = state
    records.failures[:] = rows


MOST_CHUNKS: Final = 200_000
"""Chunks that are stored of one dump; a pool of 80 GiB in chunks of 400 KiB has as many."""
MOST_ROWS: Final = 20_000  # regions, rows of the summary
_MOST_BINS: Final = 64
_MOST_BUFFERS: Final = 64  # of a program
_LONGEST: Final = 200  # characters of a label or a shape
_SUMMARY_FIELDS: Final = {"unallocated bytes": "left", "pool size": "pool", "pool limit": "limit"}


def add_dump_line(dump: AllocatorDump, text: str) -> bool:
    """Add one line to the dump; return False if the line is not part of a dump."""
    if "of size" in text or "llocator dump" in text:
        return _add_chunk(dump, text)
    if "Sum Total" in text or "memory_limit_" in text or "memory summary" in text:
        return _add_sum(dump, text)
    if match := find("dump_bin", text):
        total, used, requested = map(parse_size, match.group("total", "used", "requested"))
        has_room = len(dump.bins) < _MOST_BINS
        if has_room and total and used and requested and total.high < 1 << 50:
            least, chunks, in_use = map(parse_count, match.group("bytes", "chunks", "used_chunks"))
            dump.bins.append(DumpedBin(least, chunks, in_use, total, used, requested))
        return True
    if find("dump_heading", text):
        return True
    stats = find_all("stat", text)
    for match in stats:
        size = _parse_positive(match["size"])
        if size is not None:
            dump.stats.setdefault(match["name"], size)
    cells = None if stats else find("map", text)
    if cells:
        dump.map = cells["cells"]
    return bool(stats or cells)


def _add_chunk(dump: AllocatorDump, text: str) -> bool:
    if match := find("chunk", text):
        size_bytes = int(match["bytes"])
        if size_bytes > MOST_BYTES:
            return True
        if len(dump.chunks) >= MOST_CHUNKS:
            dump.omitted_chunks += 1
            return True
        region = max(len(dump.regions) - 1, 0)
        is_used = match["state"] != "Free"
        dump.chunks.append(DumpedChunk(int(match["address"], 16), size_bytes, is_used, region))
    elif match := find("summary_row", text):
        add_sizes(dump, *map(parse_count, match.group("bytes", "count")))
    elif match := find("region", text):
        if len(dump.regions) < MOST_ROWS:
            dump.regions.append(parse_count(match["bytes"]))
    elif match := find("dump_head", text):
        dump.allocator = match["allocator"]
    return match is not None


def add_sizes(dump: AllocatorDump, size_bytes: int, count: int) -> None:
    """Add a row of the list of sizes in use."""
    if len(dump.summary) < MOST_ROWS and size_bytes * count <= MOST_BYTES:
        dump.summary.append((size_bytes, count))


def _add_sum(dump: AllocatorDump, text: str) -> bool:
    if match := find("summary_total", text):
        dump.used = _parse_positive(match["size"])
    elif match := find("pool_line", text):
        sizes = map(_parse_positive, match.group("pool", "limit", "left"))
        dump.pool, dump.limit, dump.left = sizes
    elif match := find("pool_summary", text):
        for part in find_all("pool_summary_part", match["parts"]):
            size = _parse_positive(part["size"])
            if part["name"] in _SUMMARY_FIELDS:
                setattr(dump, _SUMMARY_FIELDS[part["name"]], size)
            elif part["name"].startswith("largest") and size is not None:
                known = dump.largest_free or size
                dump.largest_free = max(known, size, key=lambda one: one.middle)
    return match is not None


def _parse_positive(text: str) -> Range | None:
    size = parse_size(text)
    return None if size is None or size.low < 0 else size


def add_buffer(xla: XlaBuffers, text: str) -> bool:
    """Add a line of the list of buffers; return False if it is none."""
    stat = find("xla_stat", text)
    if stat is not None:
        fields = read_groups(stat)
        size = parse_size(fields["size"])
        if size is not None:
            xla.stats.setdefault(fields["name"], size)
        return True
    is_start = find("xla_buffer", text) is not None
    if is_start and len(xla.buffers) < _MOST_BUFFERS:
        xla.buffers.append(PeakBuffer(Range.exactly(0)))
    field = find("xla_field", text)
    if field is None or not xla.buffers:
        return is_start
    buffer, name, value = xla.buffers[-1], field["name"], field["value"].strip()
    size = parse_size(value.partition(" ")[0])
    if name == "Size":
        buffer.size = size or buffer.size
    elif name == "Operator":
        op = find("xla_op", value)
        buffer.operator = (op["name"] if op else value)[: 2 * _LONGEST]
    elif name.lower() == "xla label":
        buffer.label = value[:_LONGEST]
    else:
        buffer.shape = value[:_LONGEST]
        buffer.label = buffer.label or ("parameter" if "Parameter" in name else "")
    return True


_CARD_LINES: Final = 8  # lines that describe one card
_MOST_CARDS: Final = 256  # stored; also of XLA's budgets
_MOST_MIB: Final = 1 << 30  # 1 PiB


def take_start_line(records: LogRecords, process: LogProcess, text: str) -> None:
    """Read TensorFlow's description of a card, XLA's budget, or a warning of a large host request."""
    process.card_lines -= 1
    if match := find("device_created", text):
        fields = read_groups(match)
        card = _find_card(records, process, parse_count(fields["index"]))
        card.name = fields["name"].strip()
        if "mib" in fields:
            mib = min(parse_count(fields["mib"]), _MOST_MIB)
            card.limit = Range(mib << 20, (mib + 1 << 20) - 1)
        return
    found = find("card_found", text)
    if found or (not records.cards and find("card_size", text)):
        index = parse_count(found["index"]) if found else 0
        process.card, process.card_lines = _find_card(records, process, index), _CARD_LINES
    if process.card is not None and process.card_lines >= 0:
        card = process.card
        if match := find("card_name", text):
            card.name = card.name or match["name"].strip()[:80]
        if match := find("card_size", text):
            card.total = parse_size(match["size"])
    if (match := find("xla_budget", text)) and len(records.xla_budgets) < _MOST_CARDS:
        budget, reached = parse_size(match["budget"]), parse_size(match["reached"])
        if budget is not None and reached is not None:
            records.xla_budgets.append((budget.low, reached.low))
    if (match := find("large_host_request", text)) and (size := parse_size(match["bytes"])):
        count, largest = records.large_host
        records.large_host = (count + 1, max(largest, size.low))


def _find_card(records: LogRecords, process: LogProcess, index: int) -> LoggedCard:
    for card in records.cards:
        if card.index == index and card.tag == process.tag:
            return card
    card = LoggedCard(index=index, tag=process.tag)
    if len(records.cards) < _MOST_CARDS:
        records.cards.append(card)
    return card
