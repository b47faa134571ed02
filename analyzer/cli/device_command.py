"""``analyze device``: a card's memory as TensorFlow and as the driver count it."""

from __future__ import annotations

from pathlib import Path

from analyzer.cli import shared_options as options
from analyzer.cli.gpus_command import list_gpus
from analyzer.cli.outputs import check_paths, print_answer, write_all


def device(
    run: Path | None = options.argument(
        None,
        help="A run folder or a trace: show the card's memory at the peak of its step.",
        metavar="[RUN]",
    ),
    pid: int | None = options.option("Show only this process, by its number in nvidia-smi.", min=1),
    measure: bool = options.option(
        "Start a small TensorFlow process on the card and measure the memory of the context, "
        "cuBLAS and cuDNN beside the pool.",
        "--measure",
        default=False,
    ),
    gpu: str = options.option(
        "Measure on a simulated card: t4, a100-80gb ... (Linux on x86-64).",
        default="",
        callback=list_gpus,
        is_eager=True,
    ),
    json: Path | None = options.JSON,
    force: bool = options.FORCE,
    quiet: bool = options.QUIET,
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
