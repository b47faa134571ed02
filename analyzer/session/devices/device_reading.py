"""Where the figures are read: in the user's own process, from outside one, or in a process of ours."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from analyzer.capture.process.child_process import Child
from analyzer.capture.process.launch import make_module_command
from analyzer.cards.driver_reading import environment_of, libraries_of, read_cards
from analyzer.model.contract.child_messages import CardFigures, ChildFailed
from analyzer.model.contract.device_figures import MeasuredStages
from analyzer.model.errors import InputError
from analyzer.model.user_cache import cache_folder
from analyzer.phantom.phantom_environment import (
    PhantomOptions,
    make_phantom_environment,
    parse_cards,
)
from analyzer.report.output_files import write_text
from analyzer.session.devices.device_account import (
    DeviceFile,
    account_of_cards,
    account_of_process,
    account_of_stages,
    no_card,
)
from analyzer.session.devices.run_account import account_of_run

_PROBE: Final = "analyzer.capture.run.device_probe"


@dataclass(frozen=True, eq=False)
class DeviceReport:
    """An account as one thing that can be printed and written.

    Attributes:
        document: The JSON contract, version 1.
    """

    document: DeviceFile

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The document as plain values."""
        found: dict[str, Any] = msgspec.to_builtins(self.document)
        return found

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the document."""
        write_text(Path(path), json.dumps(self.plain, indent=1, allow_nan=False) + "\n")

    def __str__(self) -> str:
        from analyzer.session.devices.device_telling import account_text

        return account_text(self.plain)


def device() -> DeviceReport:
    """Return TensorFlow's figures of this process and the driver's, read now.

    TensorFlow makes its devices where it has not yet, so call it where your program has set them up.
    Without a GPU the account says so.
    """
    from analyzer.capture.run.allocator_figures import read_process_figures

    figures = read_process_figures()
    if figures.reading is None and not figures.allocators:
        return DeviceReport(no_card(figures.refusal, os.environ))
    return DeviceReport(account_of_process(figures, os.environ))


def cards_of_machine() -> DeviceReport:
    """Return what the driver says of the machine's cards; no TensorFlow is started."""
    try:
        reading = read_cards()
    except InputError as error:
        return DeviceReport(no_card(error.message, os.environ))
    return DeviceReport(account_of_cards(reading, os.environ))


def device_of_run(folder: Path) -> DeviceReport:
    """Return the parts of a card at the peak of a run's step; no TensorFlow is started.

    Raises:
        InputError: it ran on no card, or on one that is not in the catalogue.
        TraceError: there is no readable run.
    """
    from analyzer.session.opening import open_result  # pandas and Numba: for this alone

    return DeviceReport(account_of_run(open_result(folder, search=False).report, str(folder)))


def process_from_outside(pid: int) -> DeviceReport:
    """Return what the driver and the system show of another process.

    Args:
        pid: Its number.

    Raises:
        InputError: there is no such process, or no GPU.
    """
    environment = environment_of(pid)
    if not (Path("/proc") / str(pid)).exists():
        raise InputError(
            f"There is no process {pid} here.", hint="Take the number from nvidia-smi."
        )
    document = account_of_cards(
        read_cards(), environment or {}, pid=pid, libraries=libraries_of(pid)
    )
    if environment is None:
        told = f"The environment of process {pid} is not shown to you."
        document = msgspec.structs.replace(document, notes=(*document.notes, told))
    return DeviceReport(document)


def measured_device(gpu: str = "") -> DeviceReport:
    """Start a small process with TensorFlow on a card, and return what each thing in it takes.

    Args:
        gpu: A card that is not there, by its name; empty for the machine's own.

    Raises:
        InputError: there is no GPU, or TensorFlow cannot use it.
    """
    if not gpu:
        read_cards()  # refuses where there is none, before anything is started
    with tempfile.TemporaryDirectory(prefix="analyze-") as place:
        folder = Path(place)
        environment = _environment(gpu, folder)
        return DeviceReport(account_of_stages(_probed(folder, environment, bool(gpu)), os.environ))


def _environment(gpu: str, folder: Path) -> dict[str, str]:
    environment = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "false", "TF_GPU_ALLOCATOR": ""}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if gpu:
        kept = cache_folder()
        options = PhantomOptions(gpus=parse_cards(gpu))
        environment |= make_phantom_environment(
            options, folder / "phantom" if kept is None else kept
        )
    return environment


def _probed(folder: Path, environment: Mapping[str, str], is_phantom: bool) -> MeasuredStages:
    log = folder / "probe.log"
    stages: MeasuredStages | None = None
    child = Child(make_module_command(_PROBE), log, folder, environment)
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
            f"TensorFlow cannot use a GPU here: {refusal or 'its process ended without a word'}.",
            hint="Check it with: python -c 'import tensorflow as tf; "
            "print(tf.config.list_physical_devices())'.",
        )
    return msgspec.structs.replace(stages, is_phantom=is_phantom)
