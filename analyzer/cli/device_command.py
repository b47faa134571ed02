"""``analyze device``: a card's memory as TensorFlow and as the driver count it."""

from analyzer.cli.outputs import check_paths, json_output, print_answer, write_all
from analyzer.cli.shared_options import Force, Full, Json, Quiet


def device(
    json: Json = None,
    full: Full = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Show the memory of this machine's cards as the driver counts it.

    In your own program, beside TensorFlow's figures: print(analyzer.device()). Without a GPU the command
    prints one line and exits with 0.
    """
    check_paths(json, force=force)

    from analyzer.session.device_report import build_sections, read_machine

    report = read_machine()

    if not write_all(json_output(json, report.to_json, is_full=full)):
        print_answer(build_sections(report.report), quiet=quiet)
