"""``analyze device``: a card's memory as TensorFlow and as the driver count it."""

from pathlib import Path
from typing import Annotated

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import check_paths, print_answer, write_all


def device(
    run: Annotated[
        Path | None,
        options.argument(
            "A run folder or a trace: show the card's memory at the peak of its step.",
            metavar="[RUN]",
        ),
    ] = None,
    json: options.Json = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Show a card's memory as TensorFlow and as the driver count it, and explain each difference.

    In your own program: print(analyzer.device()). Without a GPU the command prints one line and exits
    with 0.
    """
    check_paths(json, force=force)

    from analyzer.session.device_report import build_sections, read_machine, read_run

    report = read_machine() if run is None else read_run(run)
    if not write_all((json, report.to_json)):
        print_answer(build_sections(report.document), quiet=quiet)
