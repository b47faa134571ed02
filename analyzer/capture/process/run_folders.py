"""Run folders: written in a staging folder, then published whole, never over another run.

A new folder is renamed into place. If the folder exists (empty, mounted, or an earlier run that may be
replaced), the parts of the run are moved into it; other files in it stay.
"""

import datetime
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from analyzer.model.contract.child_messages import TargetSpec
from analyzer.model.contract.run_note import RUN_FORMAT
from analyzer.model.errors import InputError
from analyzer.model.interrupts import delay_signals
from analyzer.tracing.parse.run_folder import RUN_FILE

LOG_FILE = "capture.log"
PARTS = (
    *("plugins", "graph.json.gz"),
    *("kept.json", "report.json", "report.html", LOG_FILE),
    *("plan*.hlo.pb.gz", RUN_FILE),
)


def make_default_path(spec: TargetSpec) -> Path:
    """Return ``traces/NAME-TIME`` in the working folder, with a number if that exists."""
    now = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    path = first = Path("traces") / f"{spec.name}-{now}"
    number = 1

    while os.path.lexists(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")

    return path


def check_writable(out: Path, *, force: bool) -> None:
    """Raise InputError if ``out`` is a file, or not empty and not a run that may be replaced."""
    with convert_os_errors(out):
        with suppress(FileNotFoundError):
            out.stat()  # raises for a circle of links

        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file.", "Name a folder with --out.")
        if not out.is_dir() or not any(out.iterdir()):
            return

    if not force:
        raise InputError(
            f"{out} is not empty.",
            "Name another --out, or add --force.",
        )

    if not _is_run(out):
        raise InputError(
            f"{out} is not empty, and holds no run to replace.",
            "Name another --out.",
        )


@contextmanager
def make_staging_folder(out: Path) -> Iterator[Path]:
    """Make a temporary folder next to ``out``, or in it if it exists; return its whole path."""
    with convert_os_errors(out):
        real = Path(os.path.realpath(out))
        parents = (real.parent, *real.parent.parents)
        missing = [folder for folder in parents if not folder.exists()]

        real.parent.mkdir(parents=True, exist_ok=True)
        place = real if real.is_dir() else real.parent
        staging = place / f".analyze-{secrets.token_hex(6)}"
        staging.mkdir()

    try:
        yield staging
    finally:
        with delay_signals():
            shutil.rmtree(staging, ignore_errors=True)
            for folder in missing:
                with suppress(OSError):
                    folder.rmdir()  # fails if not empty


def publish(staging: Path, out: Path, *, force: bool) -> Path:
    """Move the finished staging folder to ``out``, which it may already lie in."""
    with convert_os_errors(out), delay_signals():
        real = Path(os.path.realpath(out))
        if staging.parent != real:
            staging.rename(real)  # fails if another program has made it meanwhile
            return out

        if not force and any(part != staging for part in real.iterdir()):
            raise InputError(
                f"{out} is no longer empty.",
                "Name another --out, or add --force.",
            )

        _remove_parts(real)

        # The note comes last: without it the folder is no run.
        parts = sorted(staging.iterdir(), key=lambda part: part.name == RUN_FILE)

        for part in parts:
            part.rename(real / part.name)

    return out


def remove_run(folder: Path) -> None:
    """Remove a run from ``folder``, and the folder too if nothing else is in it."""
    with delay_signals():
        _remove_parts(folder)
        with suppress(OSError):
            folder.rmdir()


def _is_run(folder: Path) -> bool:
    """Return whether a folder holds a run; other programs may also write a run.json."""
    try:
        note = json.loads((folder / RUN_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False

    return isinstance(note, dict) and note.get("format") == RUN_FORMAT


def _remove_parts(folder: Path) -> None:
    for pattern in PARTS:
        for part in folder.glob(pattern):
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


@contextmanager
def convert_os_errors(out: Path) -> Iterator[None]:
    """Convert an OSError in the block to an InputError about ``out``."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror or error}.",
            "Name another --out.",
        ) from None
