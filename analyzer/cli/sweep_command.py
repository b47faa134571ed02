"""``analyze sweep CONFIG.toml``: estimate every combination of models, batches, cards and remedies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import Writer, check_not_input, check_paths, print_answer, write_all
from analyzer.cli.stdout import choose_progress, progress_bar
from analyzer.fitting.sweep_run import SWEEP_JSON, read_questions, run_sweep
from analyzer.model.contract.report.sweep_file import SweepFile
from analyzer.model.contract.report.writing import encode_report
from analyzer.report.output_files import write_text
from analyzer.session.work_engine import WorkEngine, local_cores


def sweep(
    config: Annotated[
        Path,
        typer.Argument(
            help="A TOML file with lists of models, batches, cards and remedies; see docs/fit.md.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        options.in_result(
            "Folder of the finished cells; default the configuration's path without its ending. An "
            "interrupted sweep continues there."
        ),
    ] = None,
    jobs: Annotated[
        int | None, options.in_device("Parallel estimates; default half the cores.", min=1)
    ] = None,
    scheduler: options.Scheduler = "",
    json: options.JsonFile = None,
    csv: options.CsvFile = None,
    html: options.HtmlFile = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Estimate every combination of models, batches, cards and remedies, and show them in a table.

    Each finished cell is a file, so an interrupted sweep continues.
    """
    check_not_input((json, csv, html), config)
    check_paths(json, csv, html, force=force)
    questions = read_questions(config)
    folder = out or config.with_suffix("")
    engine = WorkEngine(scheduler=scheduler, workers=jobs or max(local_cores() // 2, 1))
    with progress_bar(choose_progress(quiet, verbose)) as progress:
        result = run_sweep(questions, config.stem, folder, engine=engine, progress=progress)
    _deliver(result, folder, json, csv, html, quiet=quiet)


def _deliver(
    result: SweepFile,
    folder: Path,
    json: Path | None,
    csv: Path | None,
    html: Path | None,
    *,
    quiet: bool,
) -> None:
    """Write the files, two of them also into the sweep's folder, and print the table."""
    from analyzer.fitting.sweep_document import build_sweep_document, sweep_to_csv
    from analyzer.report.render.page_shell import to_page

    document = build_sweep_document(result)
    page = to_page(document)

    def writer(render: Callable[[SweepFile], str]) -> Writer:
        return lambda path: write_text(path, render(result))

    writer(encode_report)(folder / SWEEP_JSON)
    write_text(folder / "sweep.html", page)
    if not write_all(
        (json, writer(encode_report)),
        (csv, writer(sweep_to_csv)),
        (html, lambda path: write_text(path, page)),
    ):
        print_answer(document, quiet=quiet)
