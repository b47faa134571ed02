"""``analyze device`` and ``analyzer.device()``: read the figures and account for a card's memory.

They are read in the user's process, from outside a process, or in a process that is started for it.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from analyzer.capture.process.child_process import Child
from analyzer.capture.process.launch import make_module_command
from analyzer.cards.driver_reading import environment_of, libraries_of, read_cards
from analyzer.model.contract.child_messages import CardFigures, ChildFailed, MeasuredStages
from analyzer.model.errors import InputError
from analyzer.model.user_cache import cache_folder
from analyzer.phantom.phantom_environment import (
    PhantomOptions,
    make_phantom_environment,
    parse_cards,
)
from analyzer.report.output_files import DocumentOutput
from analyzer.session.device_account import (
    account_for_process,
    account_for_run,
    account_for_stages,
    account_from_driver,
)
from analyzer.session.device_file import DeviceFile, switches_of

if TYPE_CHECKING:
    from rich.console import Console

_PROBE: Final = "analyzer.capture.run.device_probe"
_WIDTH: Final = 100  # columns of the text


@dataclass(frozen=True, eq=False)
class DeviceReport(DocumentOutput):
    """An account of a card's memory; ``document`` is the JSON document, version 1."""

    document: DeviceFile

    def print(self, console: Console) -> None:
        """Print the account in the terminal."""
        from analyzer.report.render.terminal import print_terminal
        from analyzer.session.device_file import build_sections

        print_terminal(build_sections(self.document), console)

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        self.print(Console(file=text, width=_WIDTH, no_color=True))
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def device() -> DeviceReport:
    """Return the memory of this process as TensorFlow and the driver count it now.

    This initializes TensorFlow's devices, so call it after your program has configured them. Without a
    GPU the account says so.
    """
    from analyzer.capture.run.allocator_figures import read_process_figures

    figures = read_process_figures()
    if figures.reading is None and not figures.allocators:
        return _report_no_card(figures.refusal)
    return DeviceReport(account_for_process(figures, os.environ))


def _report_no_card(reason: str) -> DeviceReport:
    return DeviceReport(DeviceFile(headline=reason, switches=switches_of(os.environ)))


def read_machine() -> DeviceReport:
    """Return the driver's figures of this machine's cards, without TensorFlow."""
    try:
        reading = read_cards()
    except InputError as error:
        return _report_no_card(error.message)
    return DeviceReport(account_from_driver(reading, os.environ))


def read_run(folder: Path) -> DeviceReport:
    """Return the parts of a card at the peak of a run's or trace's step, without TensorFlow.

    Raises:
        InputError: the run used no card.
        TraceError: there is no readable run.
    """
    from analyzer.session.opening import open_result  # imports pandas and Numba

    return DeviceReport(account_for_run(open_result(folder, search=False).report, str(folder)))


def read_process(pid: int) -> DeviceReport:
    """Return the memory of another process as the driver and the system show it.

    Raises:
        InputError: there is no such process, or no GPU.
    """
    environment = environment_of(pid)
    if not (Path("/proc") / str(pid)).exists():
        raise InputError(
            f"There is no process {pid} here.", hint="Take the number from nvidia-smi."
        )
    document = account_from_driver(
        read_cards(), environment or {}, pid=pid, libraries=libraries_of(pid)
    )
    if environment is None:
        note = f"The environment of process {pid} is not readable for you."
        document = msgspec.structs.replace(document, notes=(*document.notes, note))
    return DeviceReport(document)


def measure_overhead(gpu: str = "") -> DeviceReport:
    """Start a small TensorFlow process on a card and measure its memory outside the pool.

    An empty ``gpu`` is the machine's own card, another name a simulated one.

    Raises:
        InputError: there is no GPU, or TensorFlow cannot use it.
    """
    if not gpu:
        read_cards()  # refuses before a process is started
    with tempfile.TemporaryDirectory(prefix="analyze-") as place:
        folder = Path(place)
        environment = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "false", "TF_GPU_ALLOCATOR": ""}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        if gpu:
            cache = cache_folder()
            options = PhantomOptions(gpus=parse_cards(gpu))
            environment |= make_phantom_environment(options, cache or folder / "phantom")
        stages = _run_probe(folder, environment)
    stages = msgspec.structs.replace(stages, is_phantom=bool(gpu))
    return DeviceReport(account_for_stages(stages, os.environ))


def _run_probe(folder: Path, environment: Mapping[str, str]) -> MeasuredStages:
    stages: MeasuredStages | None = None
    child = Child(make_module_command(_PROBE), folder / "probe.log", folder, environment)
    refusal = ""
    try:
        for message in child.messages():
            if isinstance(message, CardFigures):
                stages = message.figures
            elif isinstance(message, ChildFailed):
                refusal = message.error
    finally:
        child.close()
    if stages is None:
        raise InputError(
            f"TensorFlow cannot use a GPU here: {refusal or 'its process ended without a message'}.",
            hint="Check it with: python -c 'import tensorflow as tf; "
            "print(tf.config.list_physical_devices())'.",
        )
    return stages
