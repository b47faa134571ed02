"""The first screen of a report: the verdict, its figures and the categories, for every output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from analyzer.model.choice import Category
from analyzer.model.contract.report.limit_figures import Outcome
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.units import format_bytes
from analyzer.report.render.sections import Figure, Tone
from analyzer.report.words import (
    CATEGORY_LABELS,
    basis_words,
    need_words,
    peak_notes,
    place_words,
    program_words,
    range_words,
    reason_words,
)

OUTCOME_TONES: Final[dict[Outcome, Tone]] = {
    Outcome.FITS: "good",
    Outcome.DOES_NOT_FIT: "bad",
    Outcome.FAILED: "bad",
    Outcome.CANNOT_TELL: "warning",
}


def category_tone(category: str) -> Tone:
    """Return the colour of a category."""
    return cast("Tone", str(category))  # each category is a tone


class Share(NamedTuple):
    """One category at the peak: its bytes and its share of the requested peak."""

    category: Category
    label: str
    size_bytes: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The answer of a report in words: ``basis`` is ``measured``, ``predicted`` or ``simulated``.

    ``notices`` are warnings to read before any figure; ``sentences`` have basis, place and range of the
    peak; ``reasons`` are sources and assumptions.
    """

    headline: str
    tone: Tone
    basis: str
    notices: tuple[str, ...]
    need: tuple[str, ...]
    sentences: tuple[str, ...]
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]
    shares: tuple[Share, ...]


def summarize(report: ReportFile) -> Summary:
    """Return the summary of a report; a report of an earlier version may lack a verdict."""
    verdict, integrity, basis = report.verdict, report.integrity, basis_words(report)
    cautions = verdict.cautions if verdict is not None else ()
    sentences = (
        basis,
        place_words(report),
        *peak_notes(report),
        *(() if report.program is None else program_words(report.program)),
        range_words(report),
        "" if integrity is None else integrity.replay_says,
    )
    sizes = report.categories_at_peak.by_category()
    total = sum(sizes.values())
    peak = f"Peak {format_bytes(report.peak.allocated_bytes)} allocated"
    return Summary(
        headline=peak if verdict is None else verdict.headline,
        tone="strong" if verdict is None else OUTCOME_TONES.get(verdict.outcome, "strong"),
        basis=basis.split()[0].lower(),
        notices=(
            *(() if integrity is None else integrity.says),
            *((f"Caution: {'; '.join(cautions)}.",) if cautions else ()),
        ),
        need=tuple(need_words(report)),
        sentences=tuple(filter(None, sentences)),
        reasons=(*reason_words(report), *report.notes),
        figures=tuple(_figures(report)),
        shares=tuple(
            Share(category, CATEGORY_LABELS[category.value], size, size / total)
            for category in Category
            if (size := sizes[category.value])
        ),
    )


def _figures(report: ReportFile) -> Iterator[Figure]:
    """Yield the need and the limit first, then the other numbers in a fixed order."""
    peak, verdict = report.peak, report.verdict
    has_need = verdict is not None and verdict.need_bytes is not None
    if verdict is not None and has_need:
        meaning = "largest memory of the process"
        if report.error:
            meaning = "least memory that reaches the failed request"
        yield Figure("needs", verdict.need_bytes, meaning, "verdict.need_bytes", is_main=True)
        on_card = verdict.limit_of == "card"
        meaning = f"memory of {verdict.card}" if on_card else "the given limit of the pool"
        yield Figure("limit", verdict.limit_bytes, meaning, "verdict.limit_bytes")
    for label, meaning, size_bytes in (
        ("requested", "bytes that live tensors asked for", peak.requested_bytes),
        ("allocated", "bytes of the chunks that hold them", peak.allocated_bytes),
        ("pool", "bytes that the allocator took from the driver", peak.pool_bytes),
    ):
        is_main = label == "allocated" and not has_need
        yield Figure(label, size_bytes, meaning, f"peak.{label}_bytes", is_main)
