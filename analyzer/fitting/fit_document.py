"""The answer of ``analyze fit`` as a document: paragraphs, tables and a chart."""

import dataclasses
import shlex
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from analyzer.fitting.fit_answer import FitAnswer, insert_size
from analyzer.fitting.size_search import MOST_SIZE
from analyzer.model.tables import read_table
from analyzer.model.units import format_bytes, format_option_bytes
from analyzer.report.actions import remedy_items, step_options
from analyzer.report.render.charts import ChartLine, LineChart, draw_lines
from analyzer.report.render.sections import (
    COLUMNS,
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
from analyzer.report.summary import versions_line

_VERDICT_TONES: dict[str, Tone] = {"fits": "good", "likely fits": "good", "may not fit": "warning"}
_FITS = Cell("fits", "good")
_SENTENCES = read_table("fitting/fit_sentences.toml", dict[str, str])


def build_fit_document(answer: FitAnswer) -> Document:
    """Return an answer as a document."""
    is_good = bool(answer.largest) and answer.wanted_fits is not False
    lead: list[Block] = [] if answer.limit_of == "cards" else [_figures(answer)]
    lead += [Paragraph(sentence) for sentence in explain_answer(answer)]
    step = (
        "inference" if answer.mode == "infer" else answer.mode,
        f"batch {answer.batch_size}" if answer.batch_size else "",
        answer.optimizer,
        answer.dtype_policy,
        "XLA" if answer.jit else "op by op",
    )
    return Document(
        title=answer.target,
        subtitle=", ".join(filter(None, step)),
        headline=answer.headline,
        tone="good" if is_good else "bad",
        badge="predicted" if answer.confirmation is None else "predicted and run",
        lead=tuple(lead),
        sections=tuple(_sections(answer)),
        footer=versions_line(answer.versions),
        next_command=_suggest_next(answer),
    )


def append_answer(page: Document, answer: FitAnswer) -> Document:
    """Return the document of a log with the answer for its card at the end, without other cards."""
    own = build_fit_document(replace(answer, cards=()))
    parts = (dataclasses.replace(section, level=2) for section in own.sections)
    return dataclasses.replace(
        page,
        headline=f"{page.headline} {own.headline}",
        sections=(*page.sections, Section("The batch that fits", own.lead), *parts),
        next_command=own.next_command,
    )


def _suggest_next(answer: FitAnswer) -> str:
    """Return the command that tries remedies, or that runs the safe batch if they were tried."""
    repeat = partial(step_options, mode=answer.mode, jit=answer.jit, given=answer.options)
    command, options = "trace", repeat(answer.safe or 1, card=answer.card)
    if answer.shape:
        options = repeat(answer.batch_size, card=answer.card)
        for shape in answer.shape.split(" "):
            options += ["--shape", insert_size(shape, answer.safe or 1)]
    elif answer.limit_of == "cards":
        card = next((one for one in answer.cards if one.holds_wanted), answer.cards[0])
        command, options = "fit", repeat(answer.wanted, card=card.id)
    elif not answer.remedies:
        command, options = "fit", [*repeat(None, card=answer.card), "--what-if", "all"]
    if answer.limit_of == "given":
        options += ["--limit", format_option_bytes(answer.limit_bytes)]
    return shlex.join(("analyze", command, answer.target, *options))


def _sections(answer: FitAnswer) -> Iterator[Section]:
    first = [_curve_section(answer)] if answer.curve else []
    first += [Section("Cards", (_card_table(answer),))] if answer.cards else []
    yield from reversed(first) if answer.is_priced else first
    if answer.remedies:
        size = answer.label(answer.size_of_remedies)
        note = "each one was captured and estimated"
        items = remedy_items(answer.remedies)
        yield Section(f"Remedies at {answer.noun} {size}", items, note=note)
    if notes := answer.notes:
        yield Section("Notes", tuple(Paragraph(note, "muted", "- ") for note in notes))


def _figures(answer: FitAnswer) -> Figures:
    label, failing = answer.label(answer.largest), answer.failing
    is_sure = failing is not None and judge_size(answer, failing) == "does not fit"
    name = "first failing" if is_sure else "first that may fail"
    figures = [
        Figure("largest", label, path="largest", is_main=True),
        Figure("safe", answer.label(answer.safe), path="safe"),
        *([Figure(name, answer.label(failing), path="failing")] if failing else []),
        Figure("limit", answer.limit_bytes + answer.beside_pool_bytes),
    ]
    requested, allocated = answer.peak_requested_bytes, answer.peak_allocated_bytes
    if requested is not None:
        peak = f"peak at {answer.noun} {label}"
        figures += [
            Figure("requested", requested, peak, path="peak_requested_bytes"),
            Figure("allocated", allocated, peak, path="peak_allocated_bytes"),
        ]
    return Figures(tuple(figures))


def explain_answer(answer: FitAnswer) -> Iterator[str]:
    """Yield sentences about the limit, the safe size, the growth of the need and the runs."""
    low, high, beside = answer.limit_low_bytes, answer.limit_high_bytes, answer.beside_pool_bytes
    label, noun, is_run = answer.label, answer.noun.capitalize(), answer.confirmation is not None
    is_cards = answer.limit_of == "cards"
    bounds = "" if low == high else f" ({format_bytes(low)} to {format_bytes(high)})"
    if is_cards:
        yield _SENTENCES["columns"].format(answer.noun)
        if not answer.is_priced:
            yield _SENTENCES["curve"]
    else:
        origin = {
            "card": f" on {answer.card_name}",
            "machine": ", the memory of this machine",
            "given": ", the given limit",
        }[answer.limit_of]
        others = f"; context and libraries take another {format_bytes(beside)}" if beside else ""
        yield f"TensorFlow's pool may use {format_bytes(answer.limit_bytes)}{bounds}{origin}{others}."
    if answer.fixed_bytes is not None and answer.bytes_per_example is not None:
        fixed, each = map(format_bytes, (answer.fixed_bytes + beside, answer.bytes_per_example))
        yield f"The step needs about {fixed} plus {each} per example of the batch."
    if answer.refused is not None:
        yield f"{noun} {label(answer.refused.size)} is not possible: {answer.refused.detail}"
    if answer.limit_of != "cards" and answer.largest:
        safe = _SENTENCES["safe"].format(noun, label(answer.safe))
        yield safe if answer.safe else _SENTENCES["unsafe"]
    if answer.most is not None and answer.most > answer.largest and not is_run:
        between = f"{label(answer.largest + 1)} to {label(answer.most)}"
        yield f"Sizes from {between} may fit, within the bounds of the estimate."
    if answer.swaps:
        yield _SENTENCES["swaps"] + ("" if is_run or is_cards else " --confirm runs it.")
    if answer.confirmation is not None:
        results = ", ".join(f"{label(run.size)} {run.outcome}" for run in answer.runs)
        yield f"Runs on {_name_runtime(answer)}: {results}."
        if answer.confirmation.predicted != answer.largest:
            yield f"The estimate alone gave {label(answer.confirmation.predicted)} as the largest."


def _curve_section(answer: FitAnswer) -> Section:
    needs = [point.need_bytes + answer.beside_pool_bytes for point in answer.curve]
    top = max(needs) or 1
    rows: list[tuple[CellValue, ...]] = []
    for point, need in zip(answer.curve, needs, strict=True):
        verdict = "" if answer.limit_of == "cards" else judge_size(answer, point.size)
        tone = _VERDICT_TONES.get(verdict, "bad")
        bar = Cell(need / top, tone, note=verdict)
        peaks = point.requested_bytes, point.allocated_bytes
        rows.append((answer.label(point.size), need, bar, *peaks, point.op or "(none)"))
    columns = (TableColumn(answer.noun, "number"), *COLUMNS["curve"])
    blocks: list[Block] = [Table(columns, tuple(rows))]
    if len(answer.curve) > 1:
        blocks.insert(0, draw_lines(_chart(answer)))
    return Section(f"Memory by {answer.varied}", tuple(blocks))


def _chart(answer: FitAnswer) -> LineChart:
    beside = answer.beside_pool_bytes
    needs = [(point.size, point.need_bytes + beside) for point in answer.curve]
    requested = [(point.size, point.requested_bytes) for point in answer.curve]
    marks = {answer.safe: ("safe", "safe"), answer.largest: ("marked", "largest")}
    if answer.failing is not None:
        marks[answer.failing] = ("failing", judge_size(answer, answer.failing))
    (first, low), (last, high) = needs[0], needs[-1]
    limit_bytes = answer.limit_bytes + beside
    return LineChart(
        caption=f"The need is {format_bytes(low)} at {answer.noun} {answer.label(first)} and "
        f"{format_bytes(high)} at {answer.label(last)}; the limit is {format_bytes(limit_bytes)}.",
        lines=[
            ChartLine("needs", "allocated", needs),
            ChartLine("requested", "requested", requested),
        ],
        limit_bytes=limit_bytes,
        marks=[
            (size, look, f"{words}: {answer.noun} {answer.label(size)}")
            for size, (look, words) in marks.items()
            if size
        ],
        x_text=lambda size: answer.label(size) if size else "0",
    )


def _card_table(answer: FitAnswer) -> Table:
    columns = [
        TableColumn("--gpu", "whole", least=24),
        *([TableColumn("per hour", "number")] if answer.is_priced else []),
        TableColumn("memory", "bytes", rank=2),
        TableColumn("limit", "bytes"),
    ]
    if answer.cards[0].largest is not None:
        columns += [TableColumn(name, "number") for name in ("safe", answer.noun, "at most")]
    if answer.wanted:
        columns.append(TableColumn(f"{answer.noun} {answer.wanted}", least=4))
    rows: list[tuple[CellValue, ...]] = []
    for card in answer.cards:
        price = [] if card.price is None else [f"{card.price:g}"]
        row: list[CellValue] = [*price, card.memory_bytes, card.limit_bytes]
        if card.largest is not None:
            row += map(answer.label, (card.safe or 0, card.largest, card.most or card.largest))
        if answer.wanted and card.holds_wanted is not None:
            row.append(_FITS if card.holds_wanted else Cell("no", "muted"))
        if rows and rows[-1][1:] == tuple(row):  # the same answer as the card before
            row.insert(0, f"{rows.pop()[0]}, {card.id}")
        else:
            row.insert(0, card.id)
        rows.append(tuple(row))
    focus = None
    if answer.limit_of != "cards":
        focus = next((place for place, row in enumerate(rows) if row[-1] == _FITS), 0)
    return Table(tuple(columns), tuple(rows), focus=focus)


def add_headline(answer: FitAnswer, *, can_confirm: bool = False) -> FitAnswer:
    """Return the answer with its headline; ``can_confirm``: whether ``--confirm`` would run the step."""
    headline = _state_largest(answer, can_confirm=can_confirm)
    if answer.wanted is not None:
        verdict = judge_size(answer, answer.wanted)
        if verdict == "fits" and answer.wanted > answer.safe:
            verdict = "fits, with less than 3 % to spare"
        wanted = f"{answer.noun.capitalize()} {answer.label(answer.wanted)} {verdict}."
        headline = f"{wanted} {headline}"
    return replace(answer, headline=headline)


def judge_size(answer: FitAnswer, size: int) -> str:
    """Return ``fits``, ``likely fits``, ``may not fit`` or ``does not fit`` for a size."""
    if size <= answer.safe or any(run.ran and run.size >= size for run in answer.runs):
        return "fits"
    if size <= answer.largest:
        return "likely fits"
    has_failed = any(run.has_failed and run.size <= size for run in answer.runs)
    is_above = answer.most is not None and size > answer.most
    is_refused = answer.refused is not None and size >= answer.refused.size
    return "does not fit" if has_failed or is_above or is_refused else "may not fit"


def _state_largest(answer: FitAnswer, *, can_confirm: bool) -> str:
    place = "this machine" if answer.limit_of == "machine" else "the limit"
    limit = format_bytes(answer.limit_bytes + answer.beside_pool_bytes)
    where = f"{answer.card_name or place} ({limit})"
    noun, runtime = answer.noun.capitalize(), _name_runtime(answer)
    if not answer.largest:
        size = answer.failing or 1
        if judge_size(answer, size) == "may not fit":
            return f"{noun} {answer.label(size)} may not fit {where}, by estimate."
        return f"Not even {answer.noun} {answer.label(size)} fits {where}."
    named = f"{noun} {answer.label(answer.largest)}"
    if answer.is_bracketed:
        failing = f"{answer.label(answer.largest + 1)} {_describe_failing(answer)}"
        return f"{named} is the largest that fits {where}: it ran on {runtime}, and {failing}."
    fits = f"{named} fits {where} by estimate"
    if answer.confirmation is not None:
        fits = f"{named} ran on {runtime} and fits {where}"
    if answer.failing is None:
        others = "larger ones were not tried"
        if answer.largest >= MOST_SIZE:
            others = f"sizes above {MOST_SIZE:,} are not tried"
        elif any(run.size > answer.largest for run in answer.runs):
            others = "larger ones did not end in time"
        return f"{fits}; {others}."
    sentences = [f"{fits}; {answer.label(answer.failing)} {_describe_failing(answer)}."]
    has_failed = any(run.has_failed and run.size == answer.failing for run in answer.runs)
    if not has_failed and answer.safe < answer.largest:
        safe = f"{noun} {answer.label(answer.safe)} is" if answer.safe else "No size is"
        sentences.append(f"{safe} safe.")
    if can_confirm:
        sentences.append("--confirm runs both.")
    return " ".join(sentences)


def _describe_failing(answer: FitAnswer) -> str:
    """Return the verb for the size that does not fit, with its evidence."""
    assert answer.failing is not None
    for run in answer.runs:
        if run.has_failed and run.size == answer.failing:
            return run.outcome
    if answer.refused is not None and answer.refused.size == answer.failing:
        return f"is not possible ({answer.refused.kind})"
    verdict = judge_size(answer, answer.failing)
    return verdict if answer.confirmation is None else f"{verdict} by estimate"


def _name_runtime(answer: FitAnswer) -> str:
    is_phantom = answer.confirmation is not None and answer.confirmation.by == "phantom"
    return "a simulated card" if is_phantom else "this CPU"
