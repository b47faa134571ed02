"""Write results: a regular file completely or not at all, anything else in place.

A regular file is written next to its target and renamed, so a reader sees the old or the new content.
Devices, pipes and standard output are written in place.
"""

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from analyzer.model.contract.fields import ReportRecord, StrPath
from analyzer.model.contract.report_file import Json, encode_report, plain_report
from analyzer.model.errors import InputError
from analyzer.model.interrupts import delay_signals


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file whose content becomes ``path`` if the block succeeds.

    Links are followed. A reader that closes its pipe early is no error. If ``path`` cannot be written,
    an InputError is raised and ``path`` is unchanged.
    """
    with _explain_errors(path):
        if not is_regular(path):
            with TemporaryDirectory(prefix="analyze-") as folder:
                content = Path(folder) / "output"
                yield content
                _copy_into(content, path)

            return

        temporary = _create_next_to(path)

        try:
            yield temporary

            with delay_signals():
                temporary.replace(os.path.realpath(path))
        finally:
            with delay_signals():
                temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_output(path: Path) -> None:
    """Raise an InputError if a path is not writable, as far as that shows without writing."""
    with _explain_errors(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder.", hint="Name a file in it.")

        if not path.exists() and not path.parent.is_dir():
            raise InputError(
                f"There is no folder {path.parent}.",
                hint="Create it first.",
            )

        if is_regular(path):
            _create_next_to(path).unlink()


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}.",
            hint="Check its space and permissions, or name another file.",
        ) from None


def is_regular(path: Path) -> bool:
    """Return whether writing to a path makes or changes a file, not a device, pipe or descriptor."""
    folder = os.path.realpath(path.parent)
    if folder == "/dev" or folder.startswith("/proc/"):
        return False

    return not path.exists() or path.is_file()


def _create_next_to(path: Path) -> Path:
    """Create the empty file that will replace a regular file, with its permissions."""
    with suppress(FileNotFoundError):
        path.stat()  # raises for a loop of links

    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))

    temporary = target.parent / f".analyze-{secrets.token_hex(6)}"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))

    if target.exists():
        shutil.copymode(target, temporary)

    return temporary


def _copy_into(content: Path, path: Path) -> None:
    """Append a file's content to ``path``, until the end or until a reader closes its pipe."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # keep the order of the output

    opened = os.open(path, os.O_WRONLY | os.O_APPEND)

    with suppress(BrokenPipeError), content.open("rb") as source:
        with os.fdopen(opened, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


class ReportOutput:
    """A result with a typed ``report``; ``document`` has its JSON values, version 1."""

    report: ReportRecord

    @cached_property
    def document(self) -> dict[str, Json]:
        """The report as JSON values."""
        return plain_report(self.report)

    def to_json(self, path: StrPath) -> None:
        """Write the document."""
        write_text(Path(path), encode_report(self.report))
