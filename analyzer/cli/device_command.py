"""``analyze device``: a card's memory as TensorFlow and as the driver count it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli import shared_options as options
from analyzer.cli.gpu_list import list_gpus
from analyzer.cli.outputs import check_paths, print_answer, write_all

if TYPE_CHECKING:
    from analyzer.session.device_reading import DeviceReport


def device(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder or a trace: show the card's memory at the peak of its step.",
            metavar="[RUN]",
            show_default=False,
        ),
    ] = None,
    pid: Annotated[
        int | None, options.option("Show only this process, by its number in nvidia-smi.", min=1)
    ] = None,
    measure: Annotated[
        bool,
        options.option(
            "Start a small TensorFlow process on the card and measure the memory of the context, "
            "cuBLAS and cuDNN beside the pool.",
            "--measure",
        ),
    ] = False,
    gpu: Annotated[
        str,
        options.option(
            "Measure on a simulated card: t4, a100-80gb ... (Linux on x86-64).",
            callback=list_gpus,
            is_eager=True,
        ),
    ] = "",
    json: options.JsonFile = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Show a card's memory as TensorFlow and as the driver count it, and explain each difference.

    In your own program: print(analyzer.device()). Without a GPU the command prints one line and exits
    with 0; --pid and --measure need one and exit with 2.
    """
    check_paths(json, force=force)
    report = _make_report(run, pid, measure, gpu)
    if not write_all((json, report.to_json)):
        from analyzer.session.device_file import build_sections

        print_answer(build_sections(report.document), quiet=quiet)


def _make_report(run: Path | None, pid: int | None, measure: bool, gpu: str) -> DeviceReport:
    """Return the report that the options ask for."""
    if pid is not None:
        reason = "cannot be combined with --pid, which reads a running process"
        options.refuse_options(reason, "Leave one out.", measure=measure, gpu=gpu)
    if run is not None:
        reason = "cannot be combined with a run folder, which is read as saved"
        options.refuse_options(reason, "Leave one out.", pid=pid, measure=measure, gpu=gpu)
    from analyzer.session.device_reading import (
        measure_overhead,
        read_machine,
        read_process,
        read_run,
    )

    if run is not None:
        return read_run(run)
    if pid is not None:
        return read_process(pid)
    return measure_overhead(gpu) if measure or gpu else read_machine()
