"""``analyze device``: what is called a card's memory, by TensorFlow and by the driver, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.gpu_list import list_gpus
from analyzer.cli.outputs import check_paths, write_all
from analyzer.cli.stdout import printing, terminal
from analyzer.model.errors import InputError

if TYPE_CHECKING:
    from analyzer.session.devices.device_reading import DeviceReport


def device(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder: the card's memory at the peak of its step.",
            metavar="[RUN]",
            show_default=False,
        ),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            min=1, help="Look at this process alone: as nvidia-smi numbers it.", show_default=False
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Start a small process with TensorFlow on the card and say what the context, "
            "cuBLAS and cuDNN take of it beside the pool.",
        ),
    ] = False,
    gpu: Annotated[
        str,
        typer.Option(
            help="Measure on a card that is not there: t4, a100-80gb ... (Linux on x86-64).",
            callback=list_gpus,
            is_eager=True,
        ),
    ] = "",
    json: Annotated[
        Path | None, typer.Option(help="Write the account as JSON; - for stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables.")] = False,
) -> None:
    """Show a card's memory as TensorFlow and as the driver count it, and name each difference.

    In a program of yours: print(analyzer.device()). Without a GPU it says so in one line and exits with
    0; with --pid or --measure, which need one, with 2.
    """
    check_paths(json)
    found = _asked(run, pid, measure, gpu)
    is_taken = write_all((path, found.to_json) for path in (json,) if path is not None)
    if not is_taken and not quiet:
        from analyzer.session.devices.device_telling import print_device

        with printing():
            print_device(found.plain, terminal())


def _asked(run: Path | None, pid: int | None, measure: bool, gpu: str) -> DeviceReport:
    """Return the account that was asked for.

    Args:
        run: A run folder.
        pid: A process.
        measure: Start a process of ours.
        gpu: The card that it runs on.

    Raises:
        InputError: two were asked for at once, or the one cannot be had.
    """
    if pid is not None and (measure or gpu):
        raise InputError(
            "--pid looks at a process that is there; --measure and --gpu start one.",
            hint="Leave one out.",
        )
    if run is not None and (pid is not None or measure or gpu):
        raise InputError(
            "A run folder says what was; --pid, --measure and --gpu look at what is.",
            hint="Leave one out.",
        )
    from analyzer.session.devices.device_reading import (
        cards_of_machine,
        device_of_run,
        measured_device,
        process_from_outside,
    )

    if run is not None:
        return device_of_run(run)
    if pid is not None:
        return process_from_outside(pid)
    return measured_device(gpu) if measure or gpu else cards_of_machine()
