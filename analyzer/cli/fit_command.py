"""``analyze fit TARGET``: find the largest batch that fits, and changes that make more fit."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace as replace_fields

from analyzer.capture.targets.target_spec import parse_assumptions, parse_target
from analyzer.cards.catalogue import read_prices
from analyzer.cli.outputs import PageOutputs, name_device
from analyzer.cli.shared_options import (
    PLACE,
    STEP,
    Assume,
    StepFlags,
    WhatIfNames,
    argument,
    option,
    refuse_options,
)
from analyzer.cli.stdout import print_news, progress_bar
from analyzer.fitting.fit_answer import FitAnswer, describe_cards, split_shapes
from analyzer.fitting.fit_target import FitQuestion, fit_all_cards, fit_target
from analyzer.fitting.remedy_plans import parse_remedies
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.contract.report_file import encode_report
from analyzer.model.errors import AnalyzerError, ExitCode
from analyzer.model.interrupts import Terminated
from analyzer.model.units import parse_bytes
from analyzer.report.output_files import write_text
from analyzer.simulated_card.card_environment import normalize_cards


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options that only ``fit`` has."""

    batch_size: Annotated[
        int | None,
        option(
            "Say if this batch fits. If --shape contains N, this is the batch of the search.",
            panel=STEP,
            least=1,
        ),
    ] = None
    gpu: Annotated[
        str,
        option(
            "Card, such as t4 or a100-80gb; the machine needs none. `all` answers for "
            "every card of the catalogue, `analyze gpus list` shows them.",
            panel=PLACE,
        ),
    ] = ""
    prices: Annotated[
        Path | None,
        option(
            "With --gpu all: a CSV table of your prices per hour, lines `card,price`. "
            "Judges only these cards, and names the cheapest that fits --batch-size.",
            panel=PLACE,
            metavar="FILE",
        ),
    ] = None
    limit: Annotated[
        str | None,
        option(
            "Memory limit of the allocator, such as 16GiB; default the card's own, or "
            "this machine's memory.",
            panel=PLACE,
        ),
    ] = None
    what_if: WhatIfNames = ""
    assume: Assume = None


def fit(
    target: Annotated[
        str,
        argument(
            "keras:NAME, hub:PRESET, file.py:name, package.module:name, a .keras or .h5 file."
        ),
    ],
    *,
    asked: FitOptions,
    step: StepFlags,
    outputs: PageOutputs,
) -> None:
    """Find the largest batch (or input) that fits a card or a limit.

    With --gpu the step runs on a simulated card, if possible; otherwise it is estimated. With an N
    in --shape (tokens=N; 32N,32N,3) the search is for the largest N at one batch size. Exits with 3
    if not even size 1 fits, or if --batch-size does not.
    """
    spec = parse_target(target)
    outputs.check(spec.source, *filter(None, (asked.prices,)))
    is_all = asked.gpu.strip().lower() == "all"
    chosen, question = _make_question(asked, step, is_all)

    if not is_all:
        name_device(asked.gpu, is_quiet=outputs.quiet)

    search = fit_all_cards if is_all else fit_target
    known: list[FitAnswer] = []
    keep = partial(_keep, known, is_quiet=outputs.quiet)

    try:
        with progress_bar(outputs.progress):
            answer = search(spec, chosen, question, keep)
    except (KeyboardInterrupt, Terminated, AnalyzerError):
        for last in known[-1:]:
            _show(last, outputs)

        raise

    _show(answer, outputs)
    if not answer.largest or answer.wanted_fits is False:
        raise typer.Exit(ExitCode.OVER_LIMIT)


def _keep(known: list[FitAnswer], answer: FitAnswer, *, is_quiet: bool) -> None:
    """Keep the answer so far for an early end, and print a line about the cards new in it."""
    shown = [card.id for one in known for card in one.cards]

    new = [card for card in answer.cards if card.id not in shown]
    if new:
        new.sort(key=lambda card: card.limit_bytes)
        print_news(describe_cards(new, answer), is_quiet=is_quiet)

    known.append(answer)


def _show(answer: FitAnswer, outputs: PageOutputs) -> None:
    """Write and print an answer."""
    from analyzer.fitting.fit_document import build_fit_document
    from analyzer.report.render.page_shell import to_page

    document = build_fit_document(answer)
    answer = replace_fields(answer, next_command=document.next_command)
    outputs.show(
        lambda path: write_text(path, encode_report(answer)),
        lambda path: write_text(path, to_page(document)),
        lambda: document,
    )


def _make_question(
    asked: FitOptions,
    step: StepFlags,
    is_all: bool,
) -> tuple[CaptureOptions, FitQuestion]:
    """Return the options of the captures and the question of the search."""
    card = "" if is_all or not asked.gpu else normalize_cards(asked.gpu)
    shapes, varied = split_shapes(step.shape or [])
    chosen = replace(step, shape=shapes).to_capture(
        batch_size=asked.batch_size,
        device="gpu" if card or is_all else "cpu",
        gpu=card,
        assume=parse_assumptions(asked.assume or []),
    )

    if is_all:
        refuse_options(
            "cannot be combined with --gpu all",
            "Name one card.",
            limit=asked.limit,
            what_if=asked.what_if,
            shape=" ".join(varied),
        )
    else:
        refuse_options("needs --gpu all", "Add it.", prices=asked.prices)

    question = FitQuestion(
        limit_bytes=None if asked.limit is None else parse_bytes(asked.limit),
        wanted=None if varied else asked.batch_size,
        remedies=parse_remedies(asked.what_if),
        varied=varied,
        prices={} if asked.prices is None else read_prices(asked.prices),
    )

    return chosen, question
