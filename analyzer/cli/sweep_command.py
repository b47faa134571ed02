"""``analyze sweep CONFIG.toml``: estimate every combination of models, cards and batches."""

from pathlib import Path
from typing import Annotated

from msgspec import to_builtins

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import PageOutputs
from analyzer.cli.stdout import progress_bar
from analyzer.fitting.sweep_run import build_sweep_document, read_requests, run_sweep
from analyzer.model.contract.report_json import encode_report
from analyzer.model.machine import count_cores
from analyzer.report.output_files import write_text
from analyzer.session.work_engine import WorkEngine


def sweep(
    config: Annotated[
        Path,
        options.argument(
            "A TOML file with lists of models, cards and batches; see docs/fit.md."
        ),
    ],
    out: Annotated[
        Path | None,
        options.option(
            "Folder of the estimates, one for each cell; default the configuration's "
            "path without its ending. An interrupted sweep continues there."
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
    """Estimate every combination of models, cards and batches, and show them in a table.

    Each cell is the folder of an estimate, so an interrupted sweep continues.
    """
    outputs.check(config, others=[csv])
    requests = read_requests(config, out or config.with_suffix(""))
    engine = WorkEngine(scheduler=scheduler, workers=jobs or max(count_cores() // 2, 1))

    with progress_bar(outputs.progress) as progress:
        result = run_sweep(requests, engine, progress)

    document = build_sweep_document(result)

    def write_page(path: Path) -> None:
        from analyzer.report.render.page_shell import to_page

        write_text(path, to_page(document))

    def write_csv(path: Path) -> None:
        import pandas as pd

        table = pd.DataFrame(to_builtins(result.cells))
        write_text(path, table.to_csv(index=False))

    outputs.show(
        lambda path: write_text(path, encode_report(result)),
        write_page,
        lambda: document,
        (csv, write_csv),
    )
