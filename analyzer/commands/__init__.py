"""The command line: arguments, progress and exit codes; no analysis.

Exit codes: 0 fine, 1 a bug of ours, 2 bad input, 3 over a limit, 4 grew against a baseline,
5 the traced step ran out of memory, 130 interrupted, 129 and 143 ended by SIGHUP and SIGTERM.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from typing import Final

from analyzer.errors import AnalyzerError, ExitCode
from analyzer.interrupts import Terminated, raising_signals

_MESSAGE_WIDTH: Final = 4000
_OF_THE_MACHINE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
    | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)
"""Errors of the system that no program can help: a full disk, no right, no more processes."""


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())


def run() -> int:
    """Run the command line; return the exit code."""
    try:
        with raising_signals(_tell_signal):
            return _run()
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            _tell(str(interrupt))
        return int(ExitCode.INTERRUPTED)
    except Terminated as end:
        _tell(f"Ended by {end.name}.")
        return end.exit_code


def _run() -> int:
    from analyzer.commands.app import app  # Typer is read here, so that errors of ours are ours

    try:
        app(prog_name="analyze")
    except AnalyzerError as error:
        from analyzer.report.words import printable  # names in it may be a stranger's

        _tell(printable(error, _MESSAGE_WIDTH))
        if error.exit_code is ExitCode.BUG:
            _tell("This is a bug; please report it with this line.")
        return int(error.exit_code)
    except BrokenPipeError:  # `analyze … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        _tell(f"{error.filename or 'The machine'}: {error.strerror}.")
        return int(ExitCode.BAD_INPUT)
    except MemoryError:
        _tell("There is not enough host memory for the analysis itself.")
        return int(ExitCode.BAD_INPUT)
    except SystemExit as stop:
        if (interrupt := _interrupt_behind(stop)) is not None:
            raise interrupt from None
        return stop.code if isinstance(stop.code, int) else int(ExitCode.BUG if stop.code else 0)
    return int(ExitCode.OK)


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
