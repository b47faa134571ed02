"""``analyze fit TARGET``: the largest batch that fits, and what else would make it fit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from analyzer.capture.targets.target_spec import parse_assumptions, parse_target
from analyzer.cards import find_gpu
from analyzer.cli import shared_options as options
from analyzer.cli.gpu_list import list_gpus
from analyzer.cli.outputs import check_not_read, check_paths, open_in_browser, write_all
from analyzer.cli.progress import progress_bar
from analyzer.cli.stdout import DASH, printing, terminal
from analyzer.fitting.scaling.fit_answer import FitAnswer, encode_answer
from analyzer.fitting.search.all_cards import fit_all
from analyzer.fitting.search.fit_target import FitQuestion, fit_target
from analyzer.fitting.search.varied_size import split_shapes
from analyzer.fitting.search.what_if import names_in
from analyzer.model.contract.capture_request import TargetKind
from analyzer.model.errors import ExitCode, InputError
from analyzer.model.units import parse_bytes
from analyzer.report.exports.output_files import write_text

_ALL: Final = "all"
_FOR_CPU: Final = "For this machine's CPU; --gpu NAME asks about a card."


@options.taking_groups
# Long: its options are its parameters.
def fit(
    target: Annotated[
        str,
        typer.Argument(
            help="keras:NAME, file.py:name, package.module:name, a .keras or .h5 file.",
            show_default=False,
        ),
    ],
    *,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="A batch that you want: says whether it fits. With an N in --shape: the batch.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            help="The card, such as t4 or a100-80gb; none is needed here. `all` asks every card of the "
            "catalogue, `--gpu list` lists them.",
            show_default=False,
            callback=list_gpus,
            is_eager=True,
        ),
    ] = "",
    limit: Annotated[
        str | None,
        typer.Option(
            help="What the allocator may use, such as 16GiB; default the card's own limit, or this "
            "machine's memory.",
            show_default=False,
        ),
    ] = None,
    confirm: Annotated[
        bool | None,
        typer.Option(
            "--confirm/--no-confirm",
            help="Run the batch found and the next one: on a phantom card (the default where there can "
            "be one), or for real on this CPU.",
            show_default=False,
        ),
    ] = None,
    remedies: Annotated[
        bool,
        typer.Option("--remedies", help="Capture and estimate the step with each remedy, too."),
    ] = False,
    what_if: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="The same for these alone, by name: mixed-float16, accumulate-4, remat-activations, "
            "optimizer-sgd, freeze …; a wrong name lists them.",
            show_default=False,
        ),
    ] = "",
    step: options.StepOptions,
    inter_op_threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads that run ops side by side; default this machine's.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="What to take for what the data decide. Repeatable.",
            rich_help_panel=options.CAPTURE,
            show_default=False,
        ),
    ] = None,
    json: options.JsonFile = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the answer as a page.", rich_help_panel=options.RESULT),
    ] = None,
    open_page: options.OpenPage = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the largest batch (or input) that fits a card or a limit, without running the step.

    A few captures give every tensor's bytes as a function of the batch; any batch is then a replay of
    the allocator. With an N in --shape (tokens=N; 32N,32N,3) it is the largest N that is looked for, at
    one batch. Exits with 3 where not even a size of 1 fits, or the batch wanted does not.
    """
    check_paths(json, html)
    spec = parse_target(target)
    check_not_read((json, html), spec.source)
    if spec.kind is TargetKind.TRACE:
        raise InputError(
            f"{spec.text} is a trace or an estimate of one batch: no other can be made of it.",
            hint="Name the model or step itself.",
        )
    is_all = gpu.strip().lower() == _ALL
    card = "" if is_all or not gpu else find_gpu(gpu).id
    shapes, varied = split_shapes(step.shape or [])
    chosen = replace(
        replace(step, shape=shapes).captured(),
        batch_size=batch_size,
        inter_op_threads=inter_op_threads,
        device="gpu" if card or is_all else "cpu",
        gpu=card,
        assume=parse_assumptions(assume or []),
    )
    names = names_in(what_if)
    question = FitQuestion(
        limit_bytes=None if limit is None else parse_bytes(limit),
        wanted=None if varied.shapes else batch_size,
        confirm=confirm,
        remedies=remedies or names == (),
        what_if=names or (),
        varied=varied,
    )
    if is_all:
        options.refuse_given(
            "cannot be honoured with --gpu all", "Name one card.", limit=limit, confirm=confirm,
            remedies=remedies, what_if=what_if, shape=varied.template,
        )  # fmt: skip
    elif not card and not quiet:
        print(_FOR_CPU, file=sys.stderr)
    with progress_bar() as progress:
        answer = (fit_all if is_all else fit_target)(spec, chosen, question, progress=progress)
    _deliver(answer, json, html, open_page=open_page, quiet=quiet)
    if not answer.largest or answer.wanted_fits is False:
        raise typer.Exit(int(ExitCode.OVER_LIMIT))


def _deliver(
    answer: FitAnswer, json: Path | None, html: Path | None, *, open_page: bool, quiet: bool
) -> None:
    from analyzer.fitting.report.fit_page import render_fit_page
    from analyzer.fitting.report.fit_terminal import print_answer

    def write_json(path: Path) -> None:
        write_text(path, encode_answer(answer).decode())

    def write_page(path: Path) -> None:
        write_text(path, render_fit_page(answer))

    wanted = ((json, write_json), (html, write_page))
    is_taken = write_all((path, write) for path, write in wanted if path is not None)
    if not is_taken and not quiet:
        with printing():
            print_answer(answer, terminal())
    if open_page:
        open_in_browser(None if html == DASH else html, write_page)
