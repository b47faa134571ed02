"""Write results: a regular file completely or not at all, anything else in place.

A regular file is written next to its target and renamed, so a reader sees the old or the new content. A
device, a pipe or a descriptor (``/dev/stdout``, a shell's ``>(command)``) is written in place. So is a
file that a rename would change: one with hard links, another owner, in a read-only folder, or a mount.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final

from analyzer.model.contract.fields import ReportRecord
from analyzer.model.contract.report.writing import Json, encode_report, plain_report
from analyzer.model.errors import InputError
from analyzer.model.interrupts import delay_signals

_DESCRIPTORS: Final = re.compile(r"/dev/fd|/proc/(self|thread-self|\d+)(/task/\d+)?/fd")
_MOST_LINKS: Final = 40  # as in Linux
_NO_RENAME: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV})
"""Errors of creating or renaming a file in a folder whose existing file may still be writable."""


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file whose content becomes ``path`` if the block succeeds.

    A new file gets the permissions of the user's umask; an existing one keeps its own. Links are
    followed. A reader that closes its pipe early is no error.

    Raises:
        InputError: ``path`` cannot be written; it is unchanged.
    """
    try:
        with _write(path) as temporary:
            yield temporary
    except OSError as error:
        raise _refusal(path, error) from None


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_output(path: Path) -> None:
    """Check that a path is writable, as far as possible without writing.

    Raises:
        InputError: it is a folder, its folder does not exist, or it is not writable.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder.", hint="Name a file in it.")
        if is_descriptor(path):
            return
        if not path.parent.is_dir():
            raise InputError(f"There is no folder {path.parent}.", hint="Create it first.")
        temporary = _temporary_for(_real_path(path))
    except OSError as error:
        raise _refusal(path, error) from None
    if temporary is not None:
        temporary.unlink()


def is_descriptor(path: Path) -> bool:
    """Return whether a path, after links, is an open descriptor of a process."""
    return _descriptor_of(path) is not None


def is_regular(path: Path) -> bool:
    """Return whether writing to a path makes or changes a file, not a device or pipe."""
    return not is_descriptor(path) and (not path.exists() or path.is_file())


@contextlib.contextmanager
def _write(path: Path) -> Iterator[Path]:
    """Do the work of ``output_file``, with the system's errors."""
    target = _real_path(path)
    temporary = None if is_descriptor(path) else _temporary_for(target)
    if temporary is None:
        with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
            content = Path(folder) / "output"
            yield content
            _copy_into(content, path)
        return
    try:
        yield temporary
        _replace(temporary, target)
    finally:
        with delay_signals():
            temporary.unlink(missing_ok=True)


def _real_path(path: Path) -> Path:
    """Return the file behind links; a dangling link names a new file."""
    real = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        os.stat(real)  # raises for a loop of links
    return real


def _temporary_for(target: Path) -> Path | None:
    """Create the empty file that will replace ``target``; None if it is written in place.

    Raises:
        OSError: the target is not writable.
    """
    try:
        status = target.stat()
    except FileNotFoundError:
        return _create_next_to(target, None)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if stat.S_ISREG(status.st_mode):
        os.close(os.open(target, os.O_WRONLY))  # raises if it is not writable
    elif not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        return None
    try:
        return _create_next_to(target, status)
    except OSError as error:
        if error.errno in _NO_RENAME:
            return None
        raise


def _create_next_to(target: Path, status: os.stat_result | None) -> Path:
    """Create an empty file in the target's folder, with its owner and permissions if it exists."""
    temporary = target.parent / f".analyze-{secrets.token_hex(6)}"
    mode = 0o666 if status is None else 0o600  # the system applies the umask
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    if status is None:
        return temporary
    try:
        created = temporary.stat()
        if (created.st_uid, created.st_gid) != (status.st_uid, status.st_gid):
            os.chown(temporary, status.st_uid, status.st_gid)
        shutil.copystat(target, temporary)
    except OSError:
        temporary.unlink()
        raise
    return temporary


def _replace(temporary: Path, target: Path) -> None:
    """Rename ``temporary`` to ``target``, or copy its content if renaming is not possible."""
    with delay_signals():
        try:
            temporary.replace(target)
        except OSError as error:
            if error.errno not in _NO_RENAME or not target.exists():
                raise
            _copy_into(temporary, target)


def _copy_into(content: Path, path: Path) -> None:
    """Copy a file's content into ``path``, until the end or until a reader closes its pipe."""
    with contextlib.suppress(BrokenPipeError):
        with content.open("rb") as source, _open_in_place(path) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


def _open_in_place(path: Path) -> BinaryIO:
    """Open an own descriptor at its position, anything else from its start."""
    number = _descriptor_of(path)
    if number is None or number < 0:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # keep the order of the output
    return os.fdopen(os.dup(number), "wb")


def _descriptor_of(path: Path) -> int | None:
    """Return the descriptor of this process behind a path; -1 for another process, None for none."""
    place = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(os.path.dirname(place))
        name = os.path.basename(place)
        if _DESCRIPTORS.fullmatch(folder):
            own = folder == "/dev/fd" or folder.startswith(("/proc/self/", f"/proc/{os.getpid()}/"))
            return int(name) if own and name.isdecimal() else -1
        place = os.path.join(folder, name)
        if not os.path.islink(place):
            return None
        place = os.path.join(folder, os.readlink(place))
    return None


def _refusal(path: Path, error: OSError) -> InputError:
    is_full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
    return InputError(
        f"{path} cannot be written: {error.strerror or error}.",
        hint="Free some space, or name another file." if is_full else "Name another file.",
    )


class ReportOutput:
    """A result with a typed ``report``; ``document`` has its JSON values."""

    report: ReportRecord

    @cached_property
    def document(self) -> dict[str, Json]:
        """The report as JSON values, version 1."""
        return plain_report(self.report)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the document."""
        write_text(Path(path), encode_report(self.report))


class DocumentOutput:
    """A result with a typed ``document``; ``plain`` has its JSON values."""

    document: ReportRecord

    @cached_property
    def plain(self) -> dict[str, Json]:
        """The document as JSON values."""
        return plain_report(self.document)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the document."""
        write_text(Path(path), encode_report(self.document))
