"""The answer of ``analyze fit`` as a document: paragraphs, tables and a chart."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from analyzer.fitting.fit_answer import CardAnswer, FitAnswer
from analyzer.fitting.fit_headline import judge_size
from analyzer.model.units import format_bytes
from analyzer.report.next_command import step_options
from analyzer.report.render.charts import ChartLine, LineChart, draw_lines
from analyzer.report.render.sections import (
    Block,
    Cell,
    CellValue,
    Document,
    Figure,
    Figures,
    Paragraph,
    Section,
    Table,
    TableColumn,
    Tone,
)
from analyzer.report.report_sections import remedies_sections
from analyzer.report.words import versions_line

_VERDICT_TONES: dict[str, Tone] = {"fits": "good", "likely fits": "good", "may not fit": "warning"}


def build_fit_document(answer: FitAnswer) -> Document:
    """Return an answer as a document."""
    is_good = bool(answer.largest) and answer.wanted_fits is not False
    lead: list[Block] = []
    if answer.limit_of != "cards":
        lead.append(_figures(answer))
    lead += [Paragraph(sentence) for sentence in explain_answer(answer)]
    return Document(
        title=answer.target,
        subtitle=_describe_step(answer),
        headline=answer.headline,
        tone="good" if is_good else "bad",
        badge="predicted" if answer.confirmation is None else "predicted and run",
        lead=tuple(lead),
        sections=tuple(_sections(answer)),
        footer=versions_line(answer.versions),
        next_command=_suggest_next(answer),
    )


def _suggest_next(answer: FitAnswer) -> str:
    """Return the command that tries remedies, or that runs the safe batch if they were tried."""
    if answer.limit_of == "cards" or answer.shape:
        return ""
    if not answer.remedies:
        asked = ["--gpu", answer.card] if answer.card else []
        if answer.limit_of == "given":
            asked += ["--limit", f"{answer.limit_bytes}"]
        return shlex.join(("analyze", "fit", answer.target, *asked, "--what-if", "all"))
    options = step_options(answer.safe or 1, answer.mode, answer.jit, answer.card)
    return shlex.join(("analyze", "trace", answer.target, *options))


def _sections(answer: FitAnswer) -> Iterator[Section]:
    if answer.curve:
        yield _curve_section(answer)
    if answer.cards:
        yield Section("Cards", (_card_table(answer),))
    if answer.remedies:
        size = answer.label(answer.size_of_remedies)
        yield from remedies_sections(answer.remedies, f" at {answer.noun} {size}")
    if answer.notes:
        yield Section("Notes", tuple(Paragraph(note, "muted", "- ") for note in answer.notes))


def _figures(answer: FitAnswer) -> Figures:
    largest = "largest" if answer.is_bracketed else "fits"
    figures = [
        Figure(largest, answer.label(answer.largest), path="largest", is_main=True),
        Figure("safe", answer.label(answer.safe), path="safe"),
        Figure("limit", answer.limit_bytes + answer.beside_pool_bytes),
    ]
    if answer.peak_requested_bytes is not None:
        at = f"at {answer.label(answer.largest)}"
        figures += [
            Figure(
                f"requested peak {at}", answer.peak_requested_bytes, path="peak_requested_bytes"
            ),
            Figure("allocated", answer.peak_allocated_bytes, path="peak_allocated_bytes"),
        ]
    return Figures(tuple(figures))


def explain_answer(answer: FitAnswer) -> Iterator[str]:
    """Yield sentences about the limit, the safe size, the growth of the need and the runs."""
    low, high = answer.limit_low_bytes, answer.limit_high_bytes
    bounds = "" if low == high else f" ({format_bytes(low)} to {format_bytes(high)})"
    if answer.limit_of == "cards":
        yield (
            f"The allocator may use {format_bytes(low)} to {format_bytes(high)}, depending on the "
            "card. The sizes are interpolated between estimates for one card of each kind."
        )
    else:
        origin = {
            "card": f" on {answer.card_name}",
            "machine": ", the memory of this machine",
            "given": ", the given limit",
        }
        limit = format_bytes(answer.limit_bytes)
        beside = answer.beside_pool_bytes
        shown = (
            f"; another {format_bytes(beside)} are beside it (CUDA context, reserve for libraries)"
            if beside
            else ""
        )
        yield f"TensorFlow's pool may use {limit}{bounds}{origin[answer.limit_of]}{shown}."
    if answer.fixed_bytes is not None and answer.bytes_per_example is not None:
        fixed_bytes = answer.fixed_bytes + answer.beside_pool_bytes
        fixed, each = map(format_bytes, (fixed_bytes, answer.bytes_per_example))
        yield f"The step needs about {fixed} plus {each} per example of the batch."
    if answer.refused is not None:
        size = answer.label(answer.refused.size)
        yield f"{answer.noun.capitalize()} {size} is not possible: {answer.refused.detail}"
    if answer.limit_of != "cards":
        yield from _explain_margins(answer)
    sizes = ", ".join(map(answer.label, answer.captured_at))
    yield f"The step was captured and estimated, not run, at {answer.noun} {sizes}."
    yield from _explain_runs(answer)


def _explain_margins(answer: FitAnswer) -> Iterator[str]:
    if answer.largest:
        noun = answer.noun.capitalize()
        if answer.safe:
            yield (
                f"{noun} {answer.label(answer.safe)} is safe: the upper bound of its need fits the "
                "lower bound of the limit, with 3 % to spare."
            )
        else:
            yield "No size is safe: even the smallest one may need more than the limit."
    if answer.most is not None and answer.most > answer.largest and answer.confirmation is None:
        between = f"{answer.label(answer.largest + 1)} to {answer.label(answer.most)}"
        yield f"Sizes from {between} may fit, within the bounds of the estimate."
    if answer.swaps:
        advice = "" if answer.confirmation is not None else " --confirm runs it."
        yield (
            "TensorFlow swaps different tensors to the host in each run, so the need varies by a few "
            f"per cent.{advice}"
        )


def _explain_runs(answer: FitAnswer) -> Iterator[str]:
    confirmation = answer.confirmation
    if confirmation is None:
        return
    runtime = {
        "phantom": "TensorFlow's GPU runtime without the card",
        "cpu": "this CPU, with TensorFlow's allocator under the limit",
    }[confirmation.by]
    results = []
    for run in confirmation.runs:
        result = "ran" if run.ran else "ran out of memory"
        if run.has_failed and not run.is_out_of_memory:
            result = f"failed ({run.reason})"
        elif not run.ran and not run.has_failed:
            result = "did not end in time"
        results.append(f"{answer.label(run.size)} {result}")
    yield f"Runs on {runtime}: {', '.join(results)}."
    if confirmation.predicted != answer.largest:
        yield f"The estimates predicted {answer.label(confirmation.predicted)}."


def _curve_section(answer: FitAnswer) -> Section:
    needs = [point.need_bytes + answer.beside_pool_bytes for point in answer.curve]
    top = max(needs) or 1
    rows: list[tuple[CellValue, ...]] = []
    for point, need in zip(answer.curve, needs, strict=True):
        verdict = "" if answer.limit_of == "cards" else judge_size(answer, point.size)
        tone = _VERDICT_TONES.get(verdict, "bad")
        rows.append(
            (
                answer.label(point.size),
                need,
                Cell(need / top, tone, note=verdict),
                point.requested_bytes,
                point.allocated_bytes,
                point.op or "(none)",
            )
        )
    columns = (
        TableColumn(answer.noun, "number"),
        TableColumn("needs", "bytes"),
        TableColumn("", "bar", least=14, rank=2),
        TableColumn("requested", "bytes"),
        TableColumn("allocated", "bytes"),
        TableColumn("op at the peak", "path", least=20, rank=1),
    )
    blocks: list[Block] = [Table(columns, tuple(rows))]
    if len(answer.curve) > 1:
        blocks.insert(0, draw_lines(_chart(answer)))
    return Section(f"Memory by {answer.varied}", tuple(blocks))


def _chart(answer: FitAnswer) -> LineChart:
    lines = [
        ChartLine(
            "needs",
            "allocated",
            [(point.size, point.need_bytes + answer.beside_pool_bytes) for point in answer.curve],
        ),
        ChartLine(
            "requested",
            "requested",
            [(point.size, point.requested_bytes) for point in answer.curve],
        ),
    ]
    return LineChart(
        caption=f"Memory by {answer.varied}",
        lines=lines,
        limit_bytes=answer.limit_bytes + answer.beside_pool_bytes,
        marked_x=(answer.largest, f"{answer.noun} {answer.label(answer.largest)}"),
        x_text=lambda size: answer.label(size) if size else "0",
    )


def _card_table(answer: FitAnswer) -> Table:
    is_searched = answer.cards[0].largest is not None
    columns = [
        TableColumn("--gpu", least=20),
        TableColumn("memory", "bytes"),
        TableColumn("limit", "bytes"),
    ]
    if is_searched:
        columns += [TableColumn(answer.noun, "number"), TableColumn("safe", "number")]
    if answer.wanted:
        columns.append(TableColumn(f"{answer.noun} {answer.wanted}", least=4))
    return Table(tuple(columns), tuple(_card_row(answer, card) for card in answer.cards))


def _card_row(answer: FitAnswer, card: CardAnswer) -> tuple[CellValue, ...]:
    row: list[CellValue] = [card.id, card.memory_bytes, card.limit_bytes]
    if card.largest is not None:
        row += [answer.label(card.largest), answer.label(card.safe or 0)]
    if answer.wanted and card.holds_wanted is not None:
        row.append(Cell("fits", "good") if card.holds_wanted else Cell("no", "muted"))
    return tuple(row)


def _describe_step(answer: FitAnswer) -> str:
    parts = (
        "train" if answer.mode == "train" else "inference",
        f"batch {answer.batch_size}" if answer.batch_size else "",
        answer.optimizer,
        answer.dtype_policy,
        "XLA" if answer.jit else "op by op",
    )
    return ", ".join(part for part in parts if part)
