"""The page's first screen in words, taken from the report: the verdict, the figures, the categories.

Nothing is counted here, and no verdict worked out: ``judgement`` did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from analyzer.explain.verdict.fit_verdict import basis_of
from analyzer.model.contract.categories import Category
from analyzer.model.contract.report.limit_figures import Outcome, VerdictFigures
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.trust_figures import StatedRange
from analyzer.model.units import format_bytes
from analyzer.report.integrity_words import damage_lines, is_damaged, labelled, replay_line
from analyzer.report.render.sections import Figure
from analyzer.report.report_words import (
    assumed_words,
    card_words,
    closer_words,
    need_range_words,
    program_words,
    trial_words,
)

CATEGORY_LABELS: Final[dict[str, str]] = {
    "parameter": "Parameters",
    "optimizer_state": "Optimizer state",
    "gradient": "Gradients",
    "activation": "Activations",
    "input": "Inputs",
    "temporary": "Temporaries",
    "constant": "Constants",
    "unattributed": "Unattributed",
}


_LOOKS: Final = {
    "fits": "fits",
    "does not fit": "over",
    "cannot tell": "tight",
    "no limit given": "open",
    "failed": "failed",
}

_FOUND: Final = {
    "measured": "Measured on",
    "predicted": "Predicted, nothing was run, for",
    "phantom": "TensorFlow's own GPU runtime without a card, no kernel was run, for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One category at the peak: its bytes, its part of the whole, and where its bar begins."""

    category: str
    label: str
    size_bytes: int
    share_ratio: float
    offset_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScreen:
    """The first screen of the report: the report's verdict with what stands around it.

    Attributes:
        look: Class of the colours: ``fits``, ``tight``, ``over``, ``failed`` or ``open``.
        headline: The answer in one line.
        cautions: What to doubt, in few words each.
        basis: What the figures rest on: ``measured``, ``predicted`` or ``phantom``.
        sentences: How it was found, where the peak is, how sure the number is.
        reasons: What the figures rest on, to be unfolded.
        figures, shares: The row of figures, and the categories.
    """

    look: str
    headline: str
    cautions: tuple[str, ...]
    basis: str
    sentences: tuple[str, ...]
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]
    shares: tuple[Share, ...]


def first_screen(report: ReportFile) -> FirstScreen:
    """Return the report's answer in words; nothing of it is worked out here."""
    answer = _answer(report)
    says = () if report.fit is None else report.fit.says
    because = () if report.uncertainty is None else report.uncertainty.because
    return FirstScreen(
        look=_LOOKS[answer.outcome],
        headline=labelled(report, answer.headline),
        cautions=answer.cautions,
        basis=answer.basis,
        sentences=tuple(_sentences(report)),
        reasons=(*says, *because, *assumed_words(report), *report.notes),
        figures=tuple(_figures(report)),
        shares=tuple(_shares(report.categories_at_peak.by_category())),
    )


def _answer(report: ReportFile) -> VerdictFigures:
    """Return the report's verdict; that no limit was given where an earlier version wrote none."""
    return report.verdict or VerdictFigures(
        outcome=Outcome.NO_LIMIT,
        basis=basis_of(report.kind),
        headline=f"Peak {format_bytes(report.peak.allocated_bytes)} allocated",
    )


def error_line(message: str) -> str:
    """Return the line of an error that says what happened.

    TensorFlow puts the places of the call first, each on two lines, and what happened after them.
    """
    lines = [line.strip() for line in str(message).splitlines()]
    places = ('File "', "Detected at node", "Graph execution error", "[[{{", "Hint:")
    told = [line for line in lines if line and not line.startswith(places)]
    short = [line for line in told if "OOM when" in line] or told[-1:] or lines[:1]
    line = short[0] if short else ""
    return line if len(line) <= 300 else f"{line[:300]}…"


def what_if_words(report: ReportFile) -> str:
    """Name the other settings that the trace was replayed under; empty where there are none."""
    replayed = report.what_if
    if replayed is None:
        return ""
    words = [f"a limit of {format_bytes(replayed.memory_limit_bytes)}"]
    words.append("a growing pool" if replayed.growth else "a pool taken whole at the start")
    if replayed.fragmentation_fraction:
        words.append(f"an internal_fragmentation_fraction of {replayed.fragmentation_fraction}")
    return ", ".join(words)


def _sentences(report: ReportFile) -> list[str]:
    """Say how it was found, where the peak is, and how sure the number is."""
    peak, device = report.peak, report.device
    found = _FOUND[_answer(report).basis]
    if is_damaged(report):
        found = "Measured, from a damaged trace, on"
    named = device.name or device.kind or "an unnamed device"
    sentences = [*damage_lines(report), f"{found} {named}."]
    where = []
    if peak.step is not None:
        where.append(f"in step {peak.step}")
    if peak.op:
        where.append(f"when {peak.op} asks for memory")
    if peak.layer:
        where.append(f"layer {peak.layer}")
    if where:
        sentences.append(f"The requested peak is {', '.join(where)}.")
    sentences += [*trial_words(report), *card_words(report)]
    if report.program is not None:
        sentences += [f"{line.rstrip('.')}." for line in program_words(report.program)]
    if report.uncertainty is not None:
        sentences += _likely(report.uncertainty, need_range_words(report))
    sentences += [line for line in (closer_words(report), replay_line(report)) if line]
    return sentences


def _likely(stated: StatedRange, need: str) -> list[str]:
    """Say between what the peak and the least limit are likely to lie; nothing without a range."""
    if stated.low_bytes is None or stated.high_bytes is None:
        return []
    low, high = format_bytes(stated.low_bytes), format_bytes(stated.high_bytes)
    likely = f"Likely between {low} and {high} requested"
    if stated.allocated_low_bytes is not None and stated.allocated_high_bytes is not None:
        low = format_bytes(stated.allocated_low_bytes)
        likely += f", {low} and {format_bytes(stated.allocated_high_bytes)} allocated"
    if need:
        likely += f"; the least limit between {need.replace(' to ', ' and ')}"
    return [f"{likely}."]


def _figures(report: ReportFile) -> Iterator[Figure]:
    peak, answer = report.peak, _answer(report)
    sizes = {
        "requested": ("bytes the live tensors asked for", peak.requested_bytes),
        "allocated": ("bytes of the chunks that hold them", peak.allocated_bytes),
        "pool": ("bytes the allocator took from the driver", peak.pool_bytes),
        "process": ("pool, context, libraries and kernels", peak.process_bytes),
    }
    for label, (meaning, size_bytes) in sizes.items():
        path = f"peak.{label}_bytes"
        yield Figure(label=label, meaning=meaning, path=path, value=size_bytes)
    on_card = answer.limit_of == "card"
    yield Figure(
        label="limit",
        meaning=f"TensorFlow's limit on {answer.card}" if on_card else "the limit given",
        path="verdict.limit_bytes",
        value=answer.limit_bytes,
    )
    gets_as_far = "least limit that gets as far"
    yield Figure(
        label="needs",
        meaning=gets_as_far if report.error else "least memory limit it runs under",
        path="verdict.need_bytes",
        value=answer.need_bytes,
    )


def _shares(categories: Mapping[str, int]) -> list[Share]:
    total = sum(categories.values())
    shares, before = [], 0
    for category in Category:
        size_bytes = categories[category.value]
        shares.append(
            Share(
                category=category.value,
                label=CATEGORY_LABELS[category.value],
                size_bytes=size_bytes,
                share_ratio=size_bytes / total if total else 0.0,
                offset_ratio=before / total if total else 0.0,
            )
        )
        before += size_bytes
    return shares
