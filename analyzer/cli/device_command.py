"""``analyze device``: a card's memory as TensorFlow and as the driver count it."""

from pathlib import Path

from analyzer.cli import shared_options as options
from analyzer.cli.outputs import check_paths, print_answer, write_all


def device(
    run: Path | None = None,
    pid: int | None = None,
    measure: bool = False,
    gpu: str = "",
    json: Path | None = None,
    force: bool = False,
    quiet: bool = False,
) -> None:
    """Show a card's memory as TensorFlow and as the driver count it, and explain each difference.

    In your own program: print(analyzer.device()). Without a GPU the command prints one line and exits
    with 0; --pid and --measure need one and exit with 2.
    """
    check_paths(json, force=force)
    if pid is not None:
        reason = "cannot be combined with --pid, which reads a running process"
        options.refuse_options(reason, "Leave one out.", measure=measure, gpu=gpu)
    if run is not None:
        reason = "cannot be combined with a run folder, which is read as saved"
        options.refuse_options(reason, "Leave one out.", pid=pid, measure=measure, gpu=gpu)

    from analyzer.session import device_reading as reading
    from analyzer.session.device_file import build_sections

    if run is not None:
        report = reading.read_run(run)
    elif pid is not None:
        report = reading.read_process(pid)
    else:
        has_probe = measure or bool(gpu)
        report = reading.measure_overhead(gpu) if has_probe else reading.read_machine()
    if not write_all((json, report.to_json)):
        print_answer(build_sections(report.document), quiet=quiet)
