"""The log as an ``OomDocument``: each failure with its figures, its cause and its advice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

from analyzer.model.contract.report.oom_file import (
    OomCard,
    OomDocument,
    OomFailure,
    OomPlan,
    OomSurvived,
)
from analyzer.model.units import format_bytes, times
from analyzer.oom.advice import find_advice, write_fit_command
from analyzer.oom.cause import find_cause
from analyzer.oom.failures import Card, FailedAllocator, Log, LoggedFailure
from analyzer.oom.figures import compute_figures, find_request, sizes_in_use
from analyzer.oom.model_names import ModelTensor, add_names
from analyzer.oom.read_log import read_log
from analyzer.report.output_files import DocumentOutput

_MOST_SIZES: Final = 200  # of one failure
_MOST_BUDGETS: Final = 4  # notes on XLA's budgets
_LONGEST: Final = 2000  # characters of a failure's text
_TEXTS: Final = ("device", "op_type", "requested_by", "kernel", "source", "allocator")


@dataclass(frozen=True, eq=False)
class OomReport(DocumentOutput):
    """The explanation of a log: its JSON document, and its failures for the drawing."""

    document: OomDocument
    failures: list[LoggedFailure] = field(repr=False)

    def with_model(
        self,
        tensors: Iterable[ModelTensor],
        model_name: str,
        *,
        is_target: bool = False,
    ) -> OomReport:
        """Return the report with a model's tensors named; ``is_target``: a command can use it."""
        document = add_names(self.document, tensors, model_name, is_target=is_target)
        return replace(self, document=document)


def read_oom_log(stream: BinaryIO, name: str) -> OomReport:
    """Read a log and explain it, or raise an InputError for a damaged gzip header."""
    log = read_log(stream, name)
    return OomReport(explain_log(log, name), log.failures)


def explain_log(log: Log, name: str) -> OomDocument:
    """Return the document of a log, and fill in the figures of its failures."""
    budgets = [pair for pair in log.xla_budgets if pair[0] < pair[1]]
    for failure in log.failures:
        _compute(failure, log)
        failure.budget = max(budgets, default=None)

    failures = tuple(map(_describe_failure, log.failures))
    survived = log.tolerated.items()
    return OomDocument(
        log=name,
        lines=log.lines,
        headline=_write_headline(log, failures),
        failures=failures,
        failures_not_shown=log.more_failures,
        refusals=tuple(log.refusals),
        survived=tuple(
            OomSurvived(who, count, size.middle) for who, (count, size) in survived
        ),
        notes=tuple(_write_notes(log)),
        next_command=write_fit_command(log.failures[0]) if log.failures else None,
    )


def _compute(failure: LoggedFailure, log: Log) -> None:
    """Fill in what follows from the lines of a failure."""
    failure.card = _find_card(failure, log)
    if failure.other_cause:
        total, free = failure.printed.get("total"), failure.printed.get("free")
        failure.card_total = total.middle if total else None
        failure.card_free = free.middle if free else None

    failure.request = request = find_request(failure)
    compute_figures(failure)
    chunk_bytes = request.rounded_bytes if request else None

    if request and failure.kind is FailedAllocator.ASYNC:
        chunk_bytes = request.requested_bytes

    failure.sizes = sizes_in_use(failure, chunk_bytes)

    if failure.is_pinned:
        failure.refusals = [
            run
            for run in log.refusals
            if run.is_host
            and run.process == failure.process
            and run.line <= failure.line
        ]


def _find_card(failure: LoggedFailure, log: Log) -> Card | None:
    """Return the card that the allocator or the device names, or the only one if they name none."""
    device = failure.device.rpartition("/")[2].lower()
    if failure.is_on_host or "host" in device or "cpu" in device:
        return None

    cards = [card for card in log.cards if card.process == failure.process] or log.cards
    number = re.search(r"\d+", f"{failure.allocator} {device}")
    if number is None:
        return cards[0] if len(cards) == 1 else None
    return next((card for card in cards if str(card.index) == number[0]), None)


def _describe_failure(failure: LoggedFailure) -> OomFailure:
    verdict = find_cause(failure)
    names = (
        "limit",
        "in_use",
        "peak_in_use",
        "pool",
        "free",
        "largest_hole",
        "room",
        "left",
    )
    fields: dict[str, Any] = {name: getattr(failure, name) or None for name in _TEXTS}
    ranges = {}

    for name in (*names, "waste"):
        size = failure.figures.get(name)
        fields[f"{name}_bytes"] = None if size is None else size.middle
        if size is not None and not size.is_exact:
            ranges[f"{name}_bytes"] = (size.low, size.high)

    plan = (
        OomPlan(failure.plan_sums, tuple(failure.buffers)) if failure.has_plan else None
    )
    return OomFailure(
        line=failure.line,
        told=max(failure.reports, 1),
        process=failure.process,
        kind=str(failure.kind),
        component=failure.component or _name_component(failure),
        op=failure.op or failure.requested_by or failure.op_type or None,
        asked=failure.request,
        holes=failure.holes,
        regions=len(failure.regions) or None,
        ranges=ranges,
        card=_describe_card(failure),
        verdict=verdict,
        sizes=tuple(failure.sizes[:_MOST_SIZES]),
        remedies=tuple(find_advice(failure, verdict.id)),
        compiled=plan,
        words=failure.text[:_LONGEST],
        **fields,
    )


def _name_component(failure: LoggedFailure) -> str:
    framework = failure.framework_name
    if not failure.is_compiled:
        return framework or "TensorFlow"
    return f"{framework} (XLA)" if framework else "XLA"


def _describe_card(failure: LoggedFailure) -> OomCard | None:
    total = failure.card_memory
    if failure.card is None and failure.card_total is None:
        return None
    return OomCard(
        name=failure.card.name if failure.card else None,
        total_bytes=total.middle if total is not None else None,
        free_bytes=failure.card_free,
        is_from_catalogue=total is not None and failure.card_total is None,
    )


def _write_headline(log: Log, failures: tuple[OomFailure, ...]) -> str:
    count = len(failures) + log.more_failures
    if count:
        more = "" if count == 1 else f" The first of {count:,} failures."
        return f"{failures[0].verdict.title}{more}"

    runs = [run for run in log.refusals if not run.is_host]
    largest = format_bytes(
        max((run.first_bytes for run in runs or log.refusals), default=0)
    )

    if runs:
        least = format_bytes(min(run.last_bytes for run in runs))
        sizes = largest if least == largest else f"{largest} down to {least}"
        count = sum(run.times for run in runs)
        text = f"No tensor failed in this log, but the driver refused the pool {times(count)}: "
        return f"{text}{sizes}."

    if log.refusals:
        text = "No tensor failed in this log. The driver refused pinned host memory, up to "
        return f"{text}{largest}; TensorFlow usually continues without it."

    if log.tolerated:
        return "No out-of-memory failure: TensorFlow recovered from the requests in the warnings."
    return "No out-of-memory failure in this log."


def _write_notes(log: Log) -> Iterator[str]:
    for allocator, (count, largest) in log.tolerated.items():
        yield (
            f"{allocator} warned {times(count)} of a failed request (at most {largest}) from "
            "which TensorFlow recovered; it prints at most ten such warnings."
        )

    if log.garbage_collections:
        yield (
            f"The pool returned regions to the driver {times(log.garbage_collections)} to make "
            "a larger one: memory growth is on."
        )

    for budget, reached in log.xla_budgets[:_MOST_BUDGETS]:
        yield (
            f"XLA could not bring a module below {budget:,} bytes by rematerialization; "
            f"it reached {format_bytes(reached)}."
        )

    if log.other_resources:
        yield (
            "Something other than memory is exhausted (disk space, a message's size, a quota): "
            f"the log says so {times(log.other_resources)}."
        )
    elif not (log.failures or log.tolerated or log.refusals):
        yield (
            "TensorFlow writes a failure to stderr; redirect both streams: "
            "python train.py > train.log 2>&1."
        )
