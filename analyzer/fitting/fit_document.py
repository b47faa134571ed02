"""The answer of ``analyze fit`` as a document: paragraphs, tables and a chart."""

import shlex
from collections.abc import Iterator

from msgspec.structs import replace

from analyzer.fitting.fit_answer import CardAnswer, FitAnswer, SizePoint, insert_size
from analyzer.model.errors import FailureKind
from analyzer.model.units import format_bytes, format_option_bytes
from analyzer.report.actions import remedy_items, step_options
from analyzer.report.answer import versions_line
from analyzer.report.render.sections import (
    COLUMNS,
    Cell,
    CellValue,
    Document,
    Paragraph,
    Row,
    Section,
    Table,
    TableColumn,
    Tone,
)

_FITS = Cell("fits", "good")


def build_fit_document(answer: FitAnswer) -> Document:
    """Return an answer as a document."""
    is_good = bool(answer.largest) and answer.wanted_fits is not False
    step = (
        "inference" if answer.mode == "infer" else answer.mode,
        f"batch {answer.batch_size}" if answer.batch_size else "",
        answer.optimizer,
        answer.dtype_policy,
        "" if answer.jit is None else "XLA" if answer.jit else "op by op",
    )

    return Document(
        title=answer.target,
        subtitle=", ".join(filter(None, step)),
        headline=answer.headline,
        tone="good" if is_good else "bad",
        badge="run on a simulated card" if answer.is_run else "predicted",
        lead=tuple(map(Paragraph, explain_answer(answer))),
        sections=tuple(_sections(answer)),
        footer=versions_line(answer.versions),
        next_command=_suggest_next(answer),
    )


def _suggest_next(answer: FitAnswer) -> str:
    """Return the command that tries remedies, or that runs the safe batch if they were tried."""

    def repeat(batch_size: int | None, card: str = answer.card) -> list[str]:
        return step_options(batch_size, answer.mode, card, answer.options)

    command = "trace"
    size = answer.safe or 1

    if answer.shape:
        options = repeat(answer.batch_size)
        for shape in answer.shape.split(" "):
            options += ["--shape", insert_size(shape, size)]
    elif answer.limit_of == "cards":
        card = next((one for one in answer.cards if one.holds_wanted), answer.cards[0])
        command = "fit"
        options = repeat(answer.wanted, card.id)
    elif not answer.remedies:
        command = "fit"
        options = [*repeat(None), "--what-if", "all"]
    else:
        options = repeat(size)

    if answer.limit_of == "given":
        options += ["--limit", format_option_bytes(answer.limit_bytes)]

    return shlex.join(("analyze", command, answer.target, *options))


def _sections(answer: FitAnswer) -> Iterator[Section]:
    if answer.cards:
        yield Section("Cards", (_card_table(answer),))
    if answer.points:
        yield _size_section(answer)

    if answer.remedies:
        size = answer.label(answer.size_of_remedies)
        note = "each one was captured and estimated"
        items = tuple(remedy_items(answer.remedies))
        yield Section(f"Remedies at {answer.noun} {size}", items, note=note)

    if answer.notes:
        notes = (Paragraph(note, "muted", "- ") for note in answer.notes)
        yield Section("Notes", tuple(notes))


def explain_answer(answer: FitAnswer) -> Iterator[str]:
    """Yield sentences about the limit, the growth of the need and the safe size."""
    is_about_cards = answer.limit_of == "cards"
    if not is_about_cards:
        yield _explain_limit(answer)
    elif answer.wanted is None:
        yield (
            "`about` is the size that fits by a line between the needs below, and `safe` "
            "leaves 3 % of them."
        )

    if answer.bytes_per_example is not None:
        each = format_bytes(answer.bytes_per_example)
        yield f"Near that size, an example of the batch needs about {each}."

    noun = answer.noun.capitalize()

    for point in answer.points:
        if point.is_refused:
            yield f"{noun} {answer.label(point.size)} is not possible: {point.detail}"
            break

    if is_about_cards or not answer.largest:
        return

    if answer.safe:
        reserve = "3 % or more below the lowest limit"
        if answer.failing is not None:
            reserve = (
                "below the lowest limit, and 3 % or more below that of the largest"
            )
        yield f"{noun} {answer.label(answer.safe)} is safe: its need is {reserve}."
    else:
        yield "No size is safe: even the smallest one may need more than the limit."


def _explain_limit(answer: FitAnswer) -> str:
    limit = format_bytes(answer.limit_bytes + answer.beside_pool_bytes)
    if answer.beside_pool_bytes:
        return (
            f"Of the {limit} that a process may use on {answer.card_name}, CUDA's context "
            f"and libraries take {format_bytes(answer.beside_pool_bytes)}."
        )

    if answer.limit_of == "given" and answer.card_name:
        return (
            f"The given limit of {limit} is for TensorFlow's pool alone; CUDA's context "
            "and libraries come on top."
        )

    owner = "given" if answer.limit_of == "given" else "the memory of this machine"
    return f"The limit is {limit}, {owner}."


def _size_section(answer: FitAnswer) -> Section:
    beside = answer.beside_pool_bytes
    needs = [(point.need_bytes or 0) + beside for point in answer.points]
    top = max(needs) or 1
    rows: list[Row] = []

    for point, need in zip(answer.points, needs, strict=True):
        word = _describe_point(answer, point)
        tone: Tone = "good" if point.fits else "bad"
        size = answer.label(point.size)

        if point.need_bytes is None:
            rows.append((size, word, None, Cell(None, tone)))
        else:
            rows.append((size, word, need, Cell(need / top, tone)))

    columns = (TableColumn(answer.noun, "number"), *COLUMNS["sizes"])
    title = "Runs" if answer.is_run else "Estimates"

    return Section(f"{title} by {answer.noun} size", (Table(columns, tuple(rows)),))


def _describe_point(answer: FitAnswer, point: SizePoint) -> str:
    """Return the outcome of one size in words."""
    if point.fits:
        return "ran" if answer.is_run else "fits"
    if point.kind is FailureKind.TIMED_OUT:
        return "did not end in time"

    if point.is_refused:
        return f"is not possible ({point.kind})"

    return "ran out of memory" if answer.is_run else "does not fit"


def _card_table(answer: FitAnswer) -> Table:
    columns = [TableColumn("--gpu", "whole", least=24)]
    if answer.cards[0].price is not None:
        columns.append(TableColumn("per hour", "number"))

    columns.append(TableColumn("memory", "bytes"))
    if answer.wanted is None:
        columns += [TableColumn("safe", "number"), TableColumn("about", "number")]
    else:
        columns.append(TableColumn(f"{answer.noun} {answer.wanted}", least=4))

    rows: list[Row] = []
    fitting_first = sorted(answer.cards, key=lambda card: not card.holds_wanted)

    for card in fitting_first:
        row = _card_row(answer, card)
        name = card.id

        if rows and rows[-1][1:] == row:  # the same answer as the card before
            name = f"{rows.pop()[0]}, {name}"

        rows.append((name, *row))

    return Table(tuple(columns), tuple(rows))


def _card_row(answer: FitAnswer, card: CardAnswer) -> Row:
    """Return the cells of a card after its name."""
    row: list[CellValue] = []
    if card.price is not None:
        row.append(f"{card.price:g}")

    row.append(card.limit_bytes + card.beside_pool_bytes)  # as in a verdict
    if answer.wanted is None:
        row += [answer.label(card.safe or 0), answer.label(card.largest or 0)]
    else:
        row.append(_FITS if card.holds_wanted else Cell("no", "muted"))

    return tuple(row)


def add_headline(answer: FitAnswer) -> FitAnswer:
    """Return the answer with its headline."""
    headline = _state_largest(answer)
    if answer.wanted is not None:
        verdict = "fits" if answer.wanted_fits else "does not fit"
        if answer.wanted_fits and answer.wanted > answer.safe:
            verdict = "fits, but a safe one is smaller"

        wanted = f"{answer.noun.capitalize()} {answer.label(answer.wanted)} {verdict}."
        headline = f"{wanted} {headline}"

    return replace(answer, headline=headline)


def _state_largest(answer: FitAnswer) -> str:
    place = "this machine" if answer.limit_of == "machine" else "the limit"
    limit = format_bytes(answer.limit_bytes + answer.beside_pool_bytes)
    where = f"{answer.card_name or place} ({limit})"
    by = "" if answer.is_run else ", by estimate"

    if not answer.largest:
        smallest = answer.label(answer.failing or 1)
        return f"Not even {answer.noun} {smallest} fits {where}{by}."

    is_largest_known = answer.failing == answer.largest + 1
    verb = "is the largest that fits" if is_largest_known else "fits"
    failing = "larger ones were not tried"

    for point in answer.points:
        if point.size == answer.failing:
            failing = f"{answer.label(point.size)} {_describe_point(answer, point)}"

    named = f"{answer.noun.capitalize()} {answer.label(answer.largest)}"

    return f"{named} {verb} {where}{by}; {failing}."
