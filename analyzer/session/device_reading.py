"""Account for a card's memory: of this process, of another, of the machine, of a run, or measured."""

import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from analyzer.capture.process.child_process import Child, make_start_command
from analyzer.cards.driver_reading import environment_of, libraries_of, read_cards
from analyzer.model.contract.child_messages import CardFigures, ChildFailed
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
from analyzer.session.device_file import DeviceFile, build_sections, switches_of


@dataclass(frozen=True, eq=False)
class DeviceReport(DocumentOutput):
    """An account of a card's memory; ``document`` is the JSON document, version 1."""

    document: DeviceFile

    def __str__(self) -> str:
        from rich.console import Console

        from analyzer.report.render.terminal import print_terminal

        text = io.StringIO()
        console = Console(file=text, width=100, no_color=True)
        print_terminal(build_sections(self.document), console)
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
    """Return the parts of a card at the peak of a run's or trace's step, or raise an InputError."""
    from analyzer.session.opening import open_result  # imports pandas and Numba

    return DeviceReport(account_for_run(open_result(folder, search=False).report, str(folder)))


def read_process(pid: int) -> DeviceReport:
    """Return the memory of another process, as the driver shows it, or raise an InputError."""
    if not Path(f"/proc/{pid}").exists():
        hint = "Take the number from nvidia-smi."
        raise InputError(f"There is no process {pid} here.", hint=hint)
    environment, libraries = environment_of(pid), libraries_of(pid)
    document = account_from_driver(read_cards(), environment or {}, pid=pid, libraries=libraries)
    if environment is None:
        note = f"The environment of process {pid} is not readable for you."
        document = msgspec.structs.replace(document, notes=(*document.notes, note))
    return DeviceReport(document)


def measure_overhead(gpu: str = "") -> DeviceReport:
    """Start a small TensorFlow process on a card and measure its memory outside the pool.

    An empty ``gpu`` is the machine's own card, another name a simulated one. An InputError says that
    there is no GPU, or that TensorFlow cannot use it.
    """
    if not gpu:
        read_cards()  # refuses before a process is started
    answer: CardFigures | ChildFailed | None = None
    with tempfile.TemporaryDirectory(prefix="analyze-") as place:
        folder = Path(place)
        environment = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "false", "TF_GPU_ALLOCATOR": ""}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        if gpu:
            options = PhantomOptions(gpus=parse_cards(gpu))
            environment |= make_phantom_environment(options, cache_folder() or folder / "phantom")
        command = make_start_command("run.device_probe", str(folder))
        child = Child(command, folder / "probe.log", folder, environment)
        try:
            for message in child.messages():
                if isinstance(message, CardFigures | ChildFailed):
                    answer = message
        finally:
            child.close()
    if not isinstance(answer, CardFigures):
        reason = "its process ended without a message" if answer is None else answer.error
        raise InputError(
            f"TensorFlow cannot use a GPU here: {reason}.",
            hint="Check it with: python -c 'import tensorflow as tf; "
            "print(tf.config.list_physical_devices())'.",
        )
    stages = msgspec.structs.replace(answer.figures, is_phantom=bool(gpu))
    return DeviceReport(account_for_stages(stages, os.environ))
