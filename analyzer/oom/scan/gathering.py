"""A log's messages to everything that it says of memory, each failure once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, Final

from analyzer.oom.amounts import Amount, amount, exactly
from analyzer.oom.log_records import (
    Budget,
    DriverRefusal,
    Heard,
    Mishap,
    MishapKind,
    SeenCard,
    Survived,
    Wanted,
)
from analyzer.oom.scan import wordings
from analyzer.oom.scan.beside import take_beside
from analyzer.oom.scan.broken_texts import with_whole_texts
from analyzer.oom.scan.dumping import MOST_PIECES, opens_a_dump, take_dump_line
from analyzer.oom.scan.errortext import take_error_text
from analyzer.oom.scan.lines import Message, messages
from analyzer.oom.scan.process import LogProcess

MOST_MISHAPS: Final = 500
"""Failures that are kept; more are counted."""
_MOST_ROWS: Final = 10_000  # of a histogram, and refusals of the driver
_MOST_TAGS: Final = 256  # processes, cards and budgets told apart
_MOST_LABELS: Final = 10_000  # prefixes of lines that are remembered
_CARD_LINES: Final = 8  # lines on cards that are kept


def hear(stream: BinaryIO, name: str = "") -> Heard:
    """Read a log.

    Args:
        stream: Its bytes: plain, gzip, UTF-16, a notebook, JSON lines.
        name: What to call it in an error.

    Raises:
        InputError: its packing is damaged from the start.
    """
    return gather(messages(stream, name))


def gather(found: Iterable[Message]) -> Heard:
    """Take messages one after the other into what they say together."""
    gatherer = Gatherer()
    for message in with_whole_texts(found):
        gatherer.take(message)
    return gatherer.finished()


class Gatherer:
    """What was heard so far, and of each process what may still belong together."""

    def __init__(self) -> None:
        self.heard = Heard()
        self._processes: dict[str, LogProcess] = {}
        self._pieces = 0
        self._stamped: dict[tuple[str, str], Mishap] = {}
        self._labels: set[str] = set()
        self._ahead: int | None = None

    def take(self, message: Message) -> None:
        """Take one message."""
        self.heard.lines = message.number
        process = self._process(self._tag(message.tag, message.number))
        text = message.text
        if not text.strip():
            process.is_in_usage = False
            return
        if self._takes_failure(process, message) or self._takes_dump(process, message):
            return
        if self._takes_async(process, message) or self._takes_driver(process, message):
            return
        if take_error_text(self.heard, process, message, self.add):
            return
        if take_beside(self.heard, process, message, self.add):
            return
        _take_start(self.heard, process, text)

    def add(self, mishap: Mishap) -> Mishap:
        """Keep a failure; beyond the most that are kept it is counted alone."""
        if len(self.heard.mishaps) >= MOST_MISHAPS:
            self.heard.more_mishaps += 1
        else:
            self.heard.mishaps.append(mishap)
        return mishap

    def finished(self) -> Heard:
        """Return what was heard, after the last message."""
        self._set_survivors_apart()
        self._join_repeated()
        return self.heard

    def _tag(self, tag: str, line: int) -> str:
        """Return a line's tag; the number of a numbered line is none.

        The numbers of ``srun -l``'s tasks come again, those of lines go up with the lines.
        """
        label = tag.strip("[]")
        if not label.isdigit() or label in self._labels:
            return tag
        ahead = int(label) - line
        if ahead in (0, self._ahead):
            numbered = f"{tag[: -len(label)]}{int(label) - 1}" if tag == label else ""
            if numbered in self._processes and "" not in self._processes:
                process = self._processes[""] = self._processes.pop(numbered)
                process.tag = ""
                for mishap in self.heard.mishaps:
                    mishap.tag = "" if mishap.tag == numbered else mishap.tag
            self._labels.discard(numbered)
            self._ahead = ahead
            return ""
        self._ahead = ahead
        if len(self._labels) < _MOST_LABELS:
            self._labels.add(label)
        return tag

    def _process(self, tag: str) -> LogProcess:
        process = self._processes.get(tag)
        if process is None:
            if len(self._processes) >= _MOST_TAGS:
                tag = next(iter(self._processes))
                return self._processes[tag]
            process = self._processes[tag] = LogProcess(tag)
        return process

    def _takes_failure(self, process: LogProcess, message: Message) -> bool:
        text = message.text
        if "ut of memory" not in text and "an out of memory" not in text:
            return "Garbage collection: dealloc" in text and self._note_garbage()
        match = wordings.FAILED.search(text)
        if match is not None:
            size = amount(match[2]) or exactly(0)
            if wordings.NOT_A_FAILURE.search(text):
                self._note_survived(match[1], size, message.number)
                return True
            rounded = int(match[3]) if match[3] else None
            wanted = Wanted(size=size, rounded_bytes=rounded)
            mishap = self._begin(process, message, match[1], wanted)
            mishap.requested_by = _op_name(match[4] or "")
            return True
        match = wordings.FAILED_EIGEN.search(text)
        if match is not None:
            self._begin(process, message, "", Wanted(size=exactly(int(match[1]))))
            return True
        match = wordings.FAILED_OLD.search(text)
        if match is None:
            return False
        if wordings.NOT_A_FAILURE.search(text):
            self._note_survived("", amount(match[1]) or exactly(0), message.number)
            return True
        wanted = Wanted(size=amount(match[1]))
        before = process.taker(message.thread)
        if before is None or before.is_failure_line_seen:
            self._begin(process, message, "", wanted)
        else:
            before.wanted, before.is_failure_line_seen = wanted, True
            before.words = text
        return True

    def _begin(
        self, process: LogProcess, message: Message, allocator: str, wanted: Wanted
    ) -> Mishap:
        mishap = Mishap(
            MishapKind.POOL,
            message.number,
            tag=process.tag,
            wanted=wanted,
            allocator=allocator,
            words=message.text,
            is_failure_line_seen=True,
            refused=process.refusals,
        )
        process.refusals, process.refusal = [], None
        told = self._stamped.get((message.stamp, message.text)) if message.stamp else None
        if told is not None:  # the log has it twice, as where an excerpt stands before the whole
            told.told += 1
            mishap = told if told.dump.is_empty else mishap
            process.await_dump(message.thread, mishap)
            return mishap
        process.await_dump(message.thread, mishap)
        if message.stamp and len(self._stamped) < MOST_MISHAPS:
            self._stamped[message.stamp, message.text] = mishap
        return self.add(mishap)

    def _takes_dump(self, process: LogProcess, message: Message) -> bool:
        text = message.text
        head = wordings.DUMP_HEAD.search(text) if "llocator dump" in text else None
        taker = process.taker(message.thread)
        if head is not None:
            due = process.waiting_for(message.thread, head[1])
            taker = due or self._dump_alone(process, message, head[1])
            process.current[message.thread] = process.latest = taker
        elif (
            "Bin (" in text
            and opens_a_dump(text)
            and (taker is None or _has_begun_again(taker, text))
        ):
            begun = (each for each in process.dumping.get(message.thread, ()) if each is not taker)
            taker = (
                process.waiting_for(message.thread, "")
                or next((each for each in begun if not _has_begun_again(each, text)), None)
                or self._dump_alone(process, message, "")
            )
            process.current[message.thread] = process.latest = taker
        elif taker is None:
            if not _is_of_a_dump(message, text):
                process.limit_line = text if wordings.LIMIT_LINE.match(text) else ""
                return False
            taker = self._dump_alone(process, message, "")
            take_dump_line(taker.dump, process.limit_line)
        if not _may_take(taker, message, text):
            return False
        kept = len(taker.dump.pieces)
        if self._pieces > 2 * MOST_PIECES and "of size" in text and "Chunks of" not in text:
            taker.dump.pieces_cut += 1
            return True
        was_mapped = bool(taker.dump.map)
        if not take_dump_line(taker.dump, text):
            return False
        self._pieces += len(taker.dump.pieces) - kept
        if taker.dump.map and not was_mapped and taker.is_failure_line_seen:
            process.close_dump(message.thread, taker)
        return True

    def _dump_alone(self, process: LogProcess, message: Message, allocator: str) -> Mishap:
        """Begin a failure of which the dump comes first (to 1.0), or is all that the log has."""
        mishap = Mishap(MishapKind.POOL, message.number, tag=process.tag, allocator=allocator)
        mishap.refused, process.refusals = process.refusals, []
        process.await_dump(message.thread, mishap)
        return self.add(mishap)

    def _takes_async(self, process: LogProcess, message: Message) -> bool:
        text = message.text
        match = wordings.ASYNC.search(text)
        if match is not None:
            size, allocator = exactly(int(match[2])), match[1] or ""
            last = next((m for m in reversed(self.heard.mishaps) if m.tag == process.tag), None)
            if last is not None and _is_asked_again(last, allocator, size):
                last.told += 1
                last.histogram.clear()
                last.dump.stats.clear()
            else:
                last = self._begin(process, message, allocator, Wanted(size=size))
                last.kind = MishapKind.ASYNC
            process.current[message.thread] = process.latest = last
            process.is_in_histogram = False
            return True
        is_head = wordings.HISTOGRAM.search(text) is not None
        taker = process.taker(message.thread)
        if is_head and (taker is None or taker.kind is not MishapKind.ASYNC):
            taker = self._dump_alone(process, message, "")  # its list is printed of failures alone
            taker.kind = MishapKind.ASYNC
        if taker is None or taker.kind is not MishapKind.ASYNC:
            return False
        match = wordings.CARD_FREE.search(text)
        if match is not None:
            taker.card_free, taker.card_total = int(match[1]), int(match[2])
            return True
        if is_head:
            if not taker.histogram:
                process.is_in_histogram, process.histogram_thread = True, message.thread
            return True
        match = wordings.HISTOGRAM_ROW.match(text) if process.is_in_histogram else None
        is_own = message.thread == process.histogram_thread  # several threads may list at once
        if match is not None and is_own and len(taker.histogram) < _MOST_ROWS:
            taker.histogram.append((int(match[1]), int(match[2])))
        return match is not None or "CU_MEMPOOL_ATTR" in text

    def _takes_driver(self, process: LogProcess, message: Message) -> bool:
        text = message.text
        if "failed to alloc" not in text and "could not allocate pinned" not in text:
            return False
        match = wordings.REFUSED.search(text)
        is_host = match is None
        if match is None:
            match = wordings.HOST_REFUSED.search(text) or wordings.PINNED.search(text)
        if match is None:
            return False
        told = [each for each in match.groups() if each is not None]
        size, code = int(told[0]), told[1].strip()[:200] if len(told) > 1 else ""
        run = process.refusal
        if (
            run is not None
            and run.is_host == is_host
            and 0.8 * run.last_bytes < size <= run.last_bytes
        ):
            if size != run.last_bytes or not is_host:
                run.times += 1
            run.last_bytes = size
            return True
        run = DriverRefusal(message.number, process.tag, size, size, 1, code, is_host)
        process.refusal = run
        if len(self.heard.refusals) < _MOST_ROWS:
            if not is_host:
                process.refusals.append(len(self.heard.refusals))
            self.heard.refusals.append(run)
        return True

    def _note_survived(self, allocator: str, size: Amount, line: int) -> None:
        for each in self.heard.survived:
            if each.allocator == allocator:
                each.times += 1
                each.largest = max(each.largest, size, key=lambda known: known.middle)
                return
        if len(self.heard.survived) < _MOST_TAGS:
            self.heard.survived.append(Survived(line, allocator, 1, size))

    def _note_garbage(self) -> bool:
        self.heard.garbage += 1
        return True

    def _set_survivors_apart(self) -> None:
        """Move requests of the asynchronous allocator that failed without an error to what survived.

        It writes its line for every request that fails, those included that a convolution tries only
        (``gpu_cudamallocasync_allocator.cc``); where others of the log led to an error, they did not.
        """
        asynchronous = [m for m in self.heard.mishaps if m.kind is MishapKind.ASYNC]
        if not any(mishap.has_text for mishap in asynchronous):
            return
        for mishap in asynchronous:
            if not mishap.has_text and mishap.wanted.size is not None:
                self.heard.mishaps.remove(mishap)
                for _ in range(mishap.told):
                    self._note_survived(mishap.allocator, mishap.wanted.size, mishap.line)

    def _join_repeated(self) -> None:
        """Count a request that was made again and again without an error, in one state, once.

        XLA's autotuner asks anew for each way to compute an op that it tries; the allocator waits ten
        seconds each time for memory that others may give back.
        """
        kept: list[Mishap] = []
        for mishap in self.heard.mishaps:
            if kept and _is_repeated(kept[-1], mishap):
                kept[-1].told += mishap.told
            else:
                kept.append(mishap)
        self.heard.mishaps[:] = kept


def _op_name(told: str) -> str:
    """Return the op of a failure's line; a copy may have TensorFlow's advice in the same line."""
    return told.partition("If the cause")[0].strip().removeprefix("<null>")


def _is_repeated(last: Mishap, mishap: Mishap) -> bool:
    """Say whether two failures are one request without an error, in one state of the allocator."""
    is_bare = last.kind is mishap.kind is MishapKind.POOL and not (last.has_text or mishap.has_text)
    if not is_bare or not mishap.is_failure_line_seen or mishap.wanted.size is None:
        return False
    return all(
        getattr(last, name) == getattr(mishap, name)
        for name in ("tag", "allocator", "wanted", "requested_by")
    ) and (last.dump.stats, last.dump.map) == (mishap.dump.stats, mishap.dump.map)


def _is_asked_again(last: Mishap, allocator: str, size: Amount) -> bool:
    """Say whether a request is the last one, tried again: nothing came of it in between."""
    is_same = last.wanted.size == size and last.allocator == allocator
    return is_same and last.kind is MishapKind.ASYNC and not last.has_text


def _has_begun_again(taker: Mishap, text: str) -> bool:
    """Say whether a bin's line cannot belong to the dump that is being read."""
    match = wordings.BIN.search(text)
    if match is None:
        return False
    size = int(match[1])
    dump = taker.dump
    return bool(dump.stats or dump.map or any(each.size_bytes == size for each in dump.bins))


def _is_of_a_dump(message: Message, text: str) -> bool:
    """Say whether a line is of a dump whose beginning the log lacks."""
    if (
        wordings.PIECE.search(text)
        or wordings.CENSUS.search(text)
        or wordings.CENSUS_SUM.search(text)
    ):
        return True
    if wordings.STATS_LINE.match(text):
        return True
    return "bfc_allocator" in message.file and wordings.MAP.search(text) is not None


def _may_take(taker: Mishap, message: Message, text: str) -> bool:
    """Say whether a line may be of the failure's dump.

    The map alone looks like anyone's ruler: it is taken where a dump is being read or its head names the
    allocator's source. A second block of figures begins nothing.
    """
    if wordings.MAP.search(text):
        is_named = "bfc_allocator" in message.file
        return not taker.dump.map and (is_named or not taker.dump.is_empty)
    return True


def _take_start(heard: Heard, process: LogProcess, text: str) -> None:
    """Take what TensorFlow says when it starts, or XLA when it compiles."""
    process.card_age += 1
    match = wordings.CREATED.search(text)
    if match is not None:
        card = _card(heard, process, int(match[1]))
        size = int(match[2])
        card.name, card.limit = match[4].strip(), Amount(size << 20, (size + 1 << 20) - 1)
        return
    match = wordings.CREATED_OLD.search(text)
    if match is not None:
        _card(heard, process, int(match[1])).name = match[2].strip()
        return
    match = wordings.FOUND_CARD.search(text)
    if match is not None:
        process.card, process.card_age = _card(heard, process, int(match[1])), 0
    if not heard.cards and wordings.CARD_SIZE.search(text):
        process.card, process.card_age = _card(heard, process, 0), 0
    if process.card is not None and process.card_age <= _CARD_LINES:
        _describe(process.card, text)
    match = wordings.BUDGET.search(text)
    if match is not None and len(heard.budgets) < _MOST_TAGS:
        budget, reached = exactly(int(match[1])), exactly(int(match[2]))
        heard.budgets.append(Budget(heard.lines, budget, reached))


def _card(heard: Heard, process: LogProcess, index: int) -> SeenCard:
    for card in heard.cards:
        if card.index == index and card.tag == process.tag:
            return card
    card = SeenCard(index=index, tag=process.tag)
    if len(heard.cards) < _MOST_TAGS:
        heard.cards.append(card)
    return card


def _describe(card: SeenCard, text: str) -> None:
    match = wordings.CARD_NAME.search(text)
    if match is not None and not card.name:
        card.name = match[1].strip()[:80]
    match = wordings.CARD_SIZE.search(text)
    if match is not None:
        card.total = amount(match[1])
    match = wordings.CARD_LEFT.search(text)
    if match is not None:
        card.free = amount(match[1])
