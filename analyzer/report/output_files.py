"""Where a result is written to: files whole or not at all, anything else as it is.

A regular file is written beside itself and renamed, so that whoever reads it sees the old content or
the new. What is no regular file (a device, a pipe, a descriptor of this process such as
``/dev/stdout`` or a shell's ``>(command)``) is written into and never replaced, and so is a file that
cannot be replaced as it is: one with other names (hard links), another owner, in a folder that takes no
new file, or mounted by itself.
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
from pathlib import Path
from typing import BinaryIO, Final

from analyzer.model.errors import InputError
from analyzer.model.interrupts import delay_signals

_DESCRIPTORS: Final = re.compile(r"/dev/fd|/proc/(self|thread-self|\d+)(/task/\d+)?/fd")
_MOST_LINKS: Final = 40  # what Linux follows
_NOT_HERE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV})
"""Why a file may not be made or renamed in a folder, and may be written to all the same."""


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Give a temporary file whose content goes to ``path`` when the block ends well.

    A new file gets the rights that the user's umask leaves; one that exists keeps its own. Links are
    followed. A reader that closes its pipe has read enough: that is no error.

    Raises:
        InputError: ``path`` cannot be written to; it is as it was.
    """
    try:
        with _written(path) as temporary:
            yield temporary
    except OSError as error:
        raise _refusal(path, error) from None


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    with output_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_output(path: Path) -> None:
    """Refuse a path that cannot be written to, as far as that shows without writing.

    Raises:
        InputError: it is a folder, is in none, or may not be written to.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder.", hint="Name a file in it.")
        if is_descriptor(path):
            return
        if not path.parent.is_dir():
            raise InputError(f"There is no folder {path.parent}.", hint="Make it first.")
        temporary = _to_become(_real(path))
    except OSError as error:
        raise _refusal(path, error) from None
    if temporary is not None:
        temporary.unlink()


def is_descriptor(path: Path) -> bool:
    """Say whether a path names a descriptor that some process has open, links followed."""
    return _descriptor_of(path) is not None


def is_regular(path: Path) -> bool:
    """Say whether writing to ``path`` makes or changes a file, and no device or pipe."""
    return not is_descriptor(path) and (not path.exists() or path.is_file())


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Do as ``output_file`` says; errors of the system are raised as they are."""
    target = _real(path)
    temporary = None if is_descriptor(path) else _to_become(target)
    if temporary is None:
        with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
            content = Path(folder) / "output"
            yield content
            _pour(content, path)
        return
    try:
        yield temporary
        _replace(temporary, target)
    finally:
        with delay_signals():
            temporary.unlink(missing_ok=True)


def _real(path: Path) -> Path:
    """Return the file behind links; a link that leads nowhere names the file to be made."""
    real = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        os.stat(real)  # a circle of links has no end, and is told here
    return real


def _to_become(target: Path) -> Path | None:
    """Make the empty file that is to become ``target``; None where that has to be written into.

    Raises:
        OSError: it may not be written to.
    """
    try:
        there = target.stat()
    except FileNotFoundError:
        return _beside(target, None)
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    _check_writable(target, there)
    if not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
        return None
    try:
        return _beside(target, there)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return None
        raise


def _check_writable(target: Path, there: os.stat_result) -> None:
    """Raise OSError where what exists may not be written to; a pipe is not opened for it."""
    if stat.S_ISREG(there.st_mode):
        os.close(os.open(target, os.O_WRONLY))
    elif not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))


def _beside(target: Path, there: os.stat_result | None) -> Path:
    """Make an empty file in ``target``'s folder, with the owner and the rights of what is ``there``.

    Raises:
        OSError: it cannot be made there, or cannot be given to the owner (EPERM).
    """
    temporary = target.parent / f".analyze-{secrets.token_hex(6)}"
    rights = 0o666 if there is None else 0o600  # less the umask, which the system sees to
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, rights))
    if there is None:
        return temporary
    try:
        made = temporary.stat()
        if (made.st_uid, made.st_gid) != (there.st_uid, there.st_gid):
            os.chown(temporary, there.st_uid, there.st_gid)
        shutil.copystat(target, temporary)
    except OSError:
        temporary.unlink()
        raise
    return temporary


def _replace(temporary: Path, target: Path) -> None:
    """Let ``temporary`` become ``target``, or its content where the file itself cannot be replaced."""
    with delay_signals():
        try:
            temporary.replace(target)
        except OSError as error:
            if error.errno not in _NOT_HERE or not target.exists():
                raise
            _pour(temporary, target)


def _pour(content: Path, path: Path) -> None:
    """Write the content of a file into what ``path`` names; less where a reader wants no more."""
    with contextlib.suppress(BrokenPipeError):
        with content.open("rb") as source, _opened(path) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


def _opened(path: Path) -> BinaryIO:
    """Open what is written into: an own descriptor where it stands, anything else from its start."""
    number = _descriptor_of(path)
    if number is None or number < 0:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what was printed before comes before
    return os.fdopen(os.dup(number), "wb")


def _descriptor_of(path: Path) -> int | None:
    """Return the number of the descriptor of this process that ``path`` leads to.

    Returns:
        -1 for a descriptor of another process; None where it leads to none.
    """
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
    return InputError(
        f"{path} cannot be written: {error.strerror or error}.",
        hint="Make room there, or name another file."
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
        else "Name another file.",
    )
