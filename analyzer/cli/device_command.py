"""``analyze device``: a card's memory as TensorFlow and as the driver count it."""

from pathlib import Path

from analyzer.cli.outputs import check_paths, print_answer, write_all


def device(
    run: Path | None = None,
    json: Path | None = None,
    force: bool = False,
    quiet: bool = False,
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
