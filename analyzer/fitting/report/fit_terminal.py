"""The answer of ``analyze fit`` as tables in the terminal. Computes nothing but what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.fitting.report.fit_words import sentences_of, step_words, whether_fits
from analyzer.fitting.scaling.fit_answer import CardAnswer, FitAnswer
from analyzer.model.units import format_bytes
from analyzer.report.terminal.fitted_tables import TableColumn, fitted_table, number, whole_numbers
from analyzer.report.terminal.remedies_section import remedies_section
from analyzer.report.untrusted import printable, printable_path

_ROWS: Final = 12  # of a table
_BAR: Final = 30  # cells of the longest bar
_LONGEST: Final = 400  # characters of a message


def print_answer(answer: FitAnswer, console: Console) -> None:
    """Print the whole answer."""
    console.print(render_answer(answer, console.width), markup=False)


def render_answer(answer: FitAnswer, width: int = 100) -> RenderableType:
    """Return the answer as one renderable, ``width`` columns wide."""
    is_good = answer.largest and answer.wanted_fits is not False
    parts: list[RenderableType] = [
        Text(f"{printable(answer.target, 200)}  {step_words(answer)}", style="bold"),
        Text(printable(answer.headline, 400), style="green" if is_good else "red"),
    ]
    parts += [Text(printable(sentence, 400)) for sentence in sentences_of(answer)]
    for table in _tables(answer, width):
        parts.append(Padding(table, (1, 0, 0, 0)))
    parts += remedies_section(answer.remedies, f" at {answer.noun} {answer.label(answer.remedied)}")
    parts += [Text(printable(note, 400), style="dim") for note in answer.notes]
    return Group(*map(whole_numbers, parts))


def _tables(answer: FitAnswer, width: int) -> Iterator[RenderableType]:
    if answer.curve:
        yield _curve(answer, width)
    if len(answer.moves) > 1:
        yield _moves(answer, width)
    if answer.cards:
        yield _cards(answer, width)


def _curve(answer: FitAnswer, width: int) -> RenderableType:
    points = answer.curve
    stride = -(-len(points) // _ROWS)
    marked = (answer.largest, answer.wanted)
    shown = [at for k, at in enumerate(points) if k % stride == 0 or at.size in marked]
    top = max(point.allocated_bytes for point in points) or 1
    columns = [
        number(answer.noun),
        number("requested"),
        number("allocated"),
        TableColumn(name="", least=8, rank=1),
    ]
    cells: list[list[str | Text]] = [
        [
            answer.label(point.size),
            format_bytes(point.requested_bytes),
            format_bytes(point.allocated_bytes),
            _bar(point.allocated_bytes, top, whether_fits(answer, point.size)),
        ]
        for point in shown
    ]
    return fitted_table(f"Peak against the {answer.noun}", columns, cells, width)


def _bar(size_bytes: int, top: int, whether: str) -> Text:
    """Return a bar; what does not fit, or may not, says so."""
    bar = "█" * max(round(_BAR * size_bytes / top), 1)
    return Text.assemble(bar, (f" {whether}" if whether else "", "red"))


def _moves(answer: FitAnswer, width: int) -> RenderableType:
    columns = [
        number(f"from {answer.noun}"),
        number("peak"),
        TableColumn(name="op at the peak", least=24, shorten=printable_path),
        TableColumn(name="layer", rank=1),
    ]
    cells: list[list[str | Text]] = [
        [
            answer.label(move.from_size),
            format_bytes(move.requested_bytes),
            printable(move.op or "(none)", _LONGEST),
            printable(move.layer, _LONGEST),
        ]
        for move in answer.moves[:_ROWS]
    ]
    return fitted_table("Where the peak lies", columns, cells, width)


def _cards(answer: FitAnswer, width: int) -> RenderableType:
    columns = [
        TableColumn(name="--gpu", least=20),
        number("memory"),
        number("limit"),
        *([number(answer.noun), number("safe")] if answer.cards[0].largest is not None else []),
        *([TableColumn(name=f"{answer.wanted}?", least=4)] if answer.wanted else []),
    ]
    title = "Cards" if answer.cards[0].largest is not None else f"Cards for batch {answer.wanted}"
    return fitted_table(title, columns, [_card(answer, card) for card in answer.cards], width)


def _card(answer: FitAnswer, card: CardAnswer) -> list[str | Text]:
    row: list[str | Text] = [
        printable(card.id, _LONGEST),
        format_bytes(card.memory_bytes),
        format_bytes(card.limit_bytes),
    ]
    if card.largest is not None:
        row += [answer.label(card.largest), answer.label(card.safe or 0)]
    if card.holds_wanted is not None:
        row.append("fits" if card.holds_wanted else Text("no", style="dim"))
    return row
