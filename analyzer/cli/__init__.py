"""The command line: arguments, progress and exit codes; no analysis.

Exit codes: 0 fine, 1 a bug of ours, 2 bad input, 3 over a limit, 4 grew against a baseline,
5 the traced step ran out of memory, 130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
from collections.abc import Callable
from typing import Final

from analyzer.model.errors import AnalyzerError, ExitCode
from analyzer.model.gc_pause import collect_rarely
from analyzer.model.interrupts import Terminated, raise_on_signals

_MESSAGE_WIDTH: Final = 4000  # characters of an error, at most
_OF_THE_MACHINE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
    | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBADF}
)
"""Errors of the system that no program can help: a full disk, no right, no more processes."""


class ScriptStatus(SystemExit):
    """The end of a command with the exit status of the user's own script."""


_OF_WRITING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def main() -> None:
    """Run the command line and exit."""
    collect_rarely()
    sys.exit(run())


def run() -> int:
    """Run the command line; return the exit code."""
    from analyzer.cli import stdout

    stdout.prepare()
    try:
        with raise_on_signals(_tell_signal):
            code = _guarded(_run)
            # What is still in the buffer would otherwise be written after all that could catch its
            # failure.
            left = _guarded(_flush)
            return code or left
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            _tell(str(interrupt))
        return int(ExitCode.INTERRUPTED)
    except Terminated as end:
        _tell(f"Ended by {end.name}.")
        return end.exit_code


def _flush() -> int:
    from analyzer.cli.stdout import printing

    with printing():
        pass
    return int(ExitCode.OK)


def _run() -> int:
    from analyzer.cli.app import app  # Typer is read here, so that errors of ours are ours

    try:
        app(prog_name="analyze")
    except SystemExit as stop:
        if (interrupt := _interrupt_behind(stop)) is not None:
            raise interrupt from None
        if isinstance(stop, ScriptStatus) and isinstance(stop.code, int):
            return stop.code
        # Nothing of ours ends with 1: it is Typer's word for a pipe that no one reads any more.
        return stop.code if isinstance(stop.code, int) and stop.code != 1 else int(ExitCode.OK)
    return int(ExitCode.OK)


def _guarded(call: Callable[[], int]) -> int:
    """Return the exit code of a call, with its error told in one line."""
    try:
        return call()
    except AnalyzerError as error:
        from analyzer.report.untrusted import printable  # names in it may be a stranger's

        _tell(printable(error, _MESSAGE_WIDTH))
        if error.exit_code is ExitCode.BUG:
            _tell("This is a bug; please report it with this line.")
        return int(error.exit_code)
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        unnamed = "Standard output or a file" if error.errno in _OF_WRITING else "The machine"
        _tell(f"{error.filename or unnamed}: {error.strerror}.")
        return int(ExitCode.BAD_INPUT)
    except MemoryError:
        _tell("There is not enough host memory for the analysis itself.")
        return int(ExitCode.BAD_INPUT)


def _interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the Ctrl-C that Typer turned into an exit, which is another in each of its versions."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error
        error = error.__cause__ or error.__context__
    return None


def _tell_signal(number: int) -> None:
    """Say at once that a signal was seen: what it ends may take seconds."""
    if number == signal.SIGINT:
        _tell("Interrupted: ending what runs; a second Ctrl-C ends it at once.")


def _tell(text: str) -> None:
    """Print a line of our own; the terminal itself may be gone."""
    with contextlib.suppress(OSError, ValueError):
        print(f"analyze: {text}", file=sys.stderr, flush=True)
