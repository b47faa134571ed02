"""Log lines about memory outside the pools: CUDA libraries, the host, the cards at the start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from analyzer.model.ranges import Range
from analyzer.oom.amounts import item_bytes, parse_size
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedCard,
    LoggedFailure,
    LogRecords,
    RequestedTensor,
)
from analyzer.oom.scan.lines import LogMessage
from analyzer.oom.scan.patterns import find
from analyzer.oom.scan.process import LogProcess

if TYPE_CHECKING:
    from analyzer.oom.scan.log_reader import LogReader

_HOST_PATTERNS: Final = (
    *("kernel_killed", "numpy_failed", "oom_killed", "bad_alloc", "python_failed", "killed"),
)
_CARD_LINES: Final = 8  # lines that describe one card
_MOST_CARDS: Final = 256  # stored; also of XLA's budgets
_LONGEST: Final = 2000  # characters of a text


def take_host_or_library(reader: LogReader, process: LogProcess, message: LogMessage) -> bool:
    """Read a line of a CUDA library or the host; return False if it is none."""
    text = message.text
    if match := find("large_host_request", text):
        count, largest = reader.records.large_host
        reader.records.large_host = (count + 1, max(largest, int(match["bytes"])))
        return True
    if match := find("library_failed", text):
        _add_report(reader, process, message, FailedAllocator.LIBRARY, match["words"])
        return True
    for name in _HOST_PATTERNS:
        match = find(name, text)
        if match is None or (name == "killed" and reader.records.failures):
            continue
        failure = _add_report(reader, process, message, FailedAllocator.HOST, text.strip())
        if name == "kernel_killed" and match["resident_kib"]:
            failure.resident_bytes = int(match["resident_kib"]) * 1024
        if name == "numpy_failed":
            shape = tuple(int(axis) for axis in match["shape"].replace(" ", "").split(",") if axis)
            item = item_bytes(match["dtype"])
            size = None if item is None else Range.exactly(math.ceil(math.prod(shape) * item))
            failure.tensor = RequestedTensor(size=size, shape=shape, dtype=match["dtype"])
        if name in ("numpy_failed", "python_failed"):
            failure.source = failure.source or process.frame
        return True
    return False


def _add_report(
    reader: LogReader, process: LogProcess, message: LogMessage, kind: FailedAllocator, text: str
) -> LoggedFailure:
    """Return the last failure if it is of the same kind and process, else a new one."""
    failures = reader.records.failures
    last = failures[-1] if failures else None
    if last is not None and last.kind is kind and last.tag == process.tag:
        last.reports += 1
        return last
    failure = reader.new_failure(process, message, kind, text[:_LONGEST])
    failure.has_error_text = True
    return reader.add(failure)


def take_start_line(records: LogRecords, process: LogProcess, text: str) -> None:
    """Read TensorFlow's description of a card at its start, or XLA's budget when it compiles."""
    process.card_age += 1
    if match := find("device_created", text):
        card = _find_card(records, process, int(match["index"]))
        mib = int(match["mib"])
        card.name, card.limit = match["name"].strip(), Range(mib << 20, (mib + 1 << 20) - 1)
        return
    if match := find("device_created_old", text):
        _find_card(records, process, int(match["index"])).name = match["name"].strip()
        return
    if match := find("card_found", text):
        process.card = _find_card(records, process, int(match["index"]))
        process.card_age = 0
    if not records.cards and find("card_size", text):
        process.card, process.card_age = _find_card(records, process, 0), 0
    if process.card is not None and process.card_age <= _CARD_LINES:
        _describe_card(process.card, text)
    match = find("xla_budget", text)
    if match and len(records.xla_budgets) < _MOST_CARDS:
        records.xla_budgets.append((int(match["budget"]), int(match["reached"])))


def _find_card(records: LogRecords, process: LogProcess, index: int) -> LoggedCard:
    for card in records.cards:
        if card.index == index and card.tag == process.tag:
            return card
    card = LoggedCard(index=index, tag=process.tag)
    if len(records.cards) < _MOST_CARDS:
        records.cards.append(card)
    return card


def _describe_card(card: LoggedCard, text: str) -> None:
    match = find("card_name", text)
    if match and not card.name:
        card.name = match["name"].strip()[:80]
    if match := find("card_size", text):
        card.total = parse_size(match["size"])
    if match := find("card_free_at_start", text):
        card.free = parse_size(match["size"])
