"""``analyze sweep CONFIG.toml``: an estimate for each model, batch, card and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import Writer, check_not_read, check_paths, write_all
from analyzer.cli.progress import progress_bar
from analyzer.cli.stdout import printing, terminal
from analyzer.fitting.sweep.sweep_config import questions_in
from analyzer.fitting.sweep.sweep_run import SWEEP_JSON, run_sweep
from analyzer.model.contract.report.sweep_file import SweepFile
from analyzer.model.contract.report.writing import encode_report
from analyzer.report.exports.output_files import write_text
from analyzer.session.engines.work import WorkEngine, local_cores


def sweep(
    config: Annotated[
        Path,
        typer.Argument(
            help="A TOML file: models, batches, cards and remedies, each a list; see docs/sweep.md.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the finished cells; default the configuration's name beside it, without "
            "its ending. A sweep that was interrupted goes on there.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Estimates at a time; default half the cores.", show_default=False
        ),
    ] = None,
    scheduler: options.Scheduler = "",
    json: options.JsonFile = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Write the cells as CSV.", rich_help_panel=options.RESULT),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the sweep as a page.", rich_help_panel=options.RESULT),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Estimate every combination of models, batches, cards and remedies, and show them in a table.

    Each finished cell is a file: what was interrupted or killed goes on where it was.
    """
    check_paths(json, csv, html)
    check_not_read((json, csv, html), config)
    questions = questions_in(config)
    folder = out or config.with_suffix("")
    workers = jobs or max(local_cores() // 2, 1)
    with progress_bar() as progress:
        made = run_sweep(
            questions,
            config.stem,
            folder,
            engine=WorkEngine(scheduler=scheduler, workers=workers),
            progress=progress,
        )
    _deliver(made, folder, json, csv, html, quiet=quiet)


def _deliver(
    made: SweepFile,
    folder: Path,
    json: Path | None,
    csv: Path | None,
    html: Path | None,
    *,
    quiet: bool,
) -> None:
    from analyzer.fitting.sweep_report.sweep_page import render_sweep_page
    from analyzer.fitting.sweep_report.sweep_table import print_sweep, sweep_csv

    texts = {
        "json": lambda: encode_report(made),
        "csv": lambda: sweep_csv(made),
        "html": lambda: render_sweep_page(made),
    }
    write_text(folder / SWEEP_JSON, texts["json"]())
    write_text(folder / "sweep.html", texts["html"]())
    wanted = {"json": json, "csv": csv, "html": html}

    def writer_of(name: str) -> Writer:
        return lambda path: write_text(path, texts[name]())

    is_taken = write_all(
        (path, writer_of(name)) for name, path in wanted.items() if path is not None
    )
    if not is_taken and not quiet:
        with printing():
            print_sweep(made, terminal())
