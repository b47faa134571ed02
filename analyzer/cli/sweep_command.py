"""``analyze sweep CONFIG.toml``: estimate every combination of models, batches, cards and remedies."""

from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import PageOutputs
from analyzer.cli.stdout import progress_bar
from analyzer.fitting.sweep_run import SWEEP_JSON, read_questions, run_sweep
from analyzer.model.contract.report_json import encode_report
from analyzer.model.machine import count_cores
from analyzer.report.output_files import write_text
from analyzer.session.work_engine import WorkEngine


def sweep(
    config: Annotated[
        Path,
        options.argument(
            "A TOML file with lists of models, batches, cards and remedies; see docs/fit.md."
        ),
    ],
    out: Annotated[
        Path | None,
        options.option(
            "Folder of the finished cells; default the configuration's path without "
            "its ending. An interrupted sweep continues there."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        options.option(
            "Parallel estimates; default half the cores.", panel=options.PLACE, least=1
        ),
    ] = None,
    scheduler: options.Scheduler = "",
    *,
    outputs: PageOutputs,
    csv: options.Csv = None,
) -> None:
    """Estimate every combination of models, batches, cards and remedies, and show them in a table.

    Each finished cell is a file, so an interrupted sweep continues.
    """
    outputs.check(config, others=[csv])
    questions = read_questions(config)
    folder = out or config.with_suffix("")
    engine = WorkEngine(scheduler=scheduler, workers=jobs or max(count_cores() // 2, 1))

    with progress_bar(outputs.progress) as progress:
        result = run_sweep(
            questions, config.stem, folder, engine=engine, progress=progress
        )

    from analyzer.fitting.sweep_run import build_sweep_document, sweep_to_csv
    from analyzer.report.render.page_shell import to_page

    document = build_sweep_document(result)
    result = replace(result, next_command=document.next_command)
    page, text = to_page(document), encode_report(result)
    write_text(folder / SWEEP_JSON, text)
    write_text(folder / "sweep.html", page)
    outputs.show(
        lambda path: write_text(path, text),
        lambda path: write_text(path, page),
        lambda: document,
        (csv, lambda path: write_text(path, sweep_to_csv(result))),
    )
