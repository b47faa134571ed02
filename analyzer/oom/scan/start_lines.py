"""Log lines before a failure: the cards at TensorFlow's start, XLA's budget, large host requests."""

from __future__ import annotations

from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.amounts import parse_count, parse_size
from analyzer.oom.log_records import LoggedCard, LogRecords
from analyzer.oom.scan.patterns import find
from analyzer.oom.scan.process import LogProcess

_CARD_LINES: Final = 8  # lines that describe one card
_MOST_CARDS: Final = 256  # stored; also of XLA's budgets
_MOST_MIB: Final = 1 << 30  # 1 PiB


def take_start_line(records: LogRecords, process: LogProcess, text: str) -> None:
    """Read TensorFlow's description of a card, XLA's budget, or a warning of a large host request."""
    process.card_age += 1
    if match := find("device_created", text):
        card = _find_card(records, process, parse_count(match["index"]))
        mib = min(parse_count(match["mib"]), _MOST_MIB)
        card.name, card.limit = match["name"].strip(), Range(mib << 20, (mib + 1 << 20) - 1)
        return
    if match := find("device_created_old", text):
        _find_card(records, process, parse_count(match["index"])).name = match["name"].strip()
        return
    if match := find("card_found", text):
        process.card = _find_card(records, process, parse_count(match["index"]))
        process.card_age = 0
    if not records.cards and find("card_size", text):
        process.card, process.card_age = _find_card(records, process, 0), 0
    if process.card is not None and process.card_age <= _CARD_LINES:
        _describe_card(process.card, text)
    budget, reached = None, None
    if match := find("xla_budget", text):
        budget, reached = parse_size(match["budget"]), parse_size(match["reached"])
    if budget is not None and reached is not None and len(records.xla_budgets) < _MOST_CARDS:
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


def _describe_card(card: LoggedCard, text: str) -> None:
    match = find("card_name", text)
    if match and not card.name:
        card.name = match["name"].strip()[:80]
    if match := find("card_size", text):
        card.total = parse_size(match["size"])
    if match := find("card_free_at_start", text):
        card.free = parse_size(match["size"])
