"""The command line: arguments, progress and exit codes; no analysis.

Exit codes: 0 fine, 1 a bug of ours, 2 bad input, 3 over a limit, 4 grew against a baseline,
5 the traced step ran out of memory, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Final

from analyzer.errors import AnalyzerError, ExitCode, InputError

_MESSAGE_WIDTH: Final = 4000
_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())


def run() -> int:
    """Run the command line; return the exit code."""
    from analyzer.commands import stdout

    stdout.prepare()
    code = _guarded(_run)
    # What is still in the buffer would otherwise be written after all that could catch its failure.
    left = _guarded(_flush)
    return code or left


def _flush() -> int:
    from analyzer.commands.stdout import printing

    with printing():
        pass
    return int(ExitCode.OK)


def _run() -> int:
    from analyzer.commands.app import app  # Typer is read here, so that errors of ours are ours

    try:
        app(prog_name="analyze")
    except SystemExit as stop:
        # Nothing of ours ends with 1: it is Typer's word for a pipe that no one reads any more.
        return stop.code if isinstance(stop.code, int) and stop.code != 1 else int(ExitCode.OK)
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        raise InputError(
            f"Standard output or a file cannot be written: {error.strerror}.",
            hint="Make room, or write elsewhere.",
        ) from None
    return int(ExitCode.OK)


def _guarded(call: Callable[[], int]) -> int:
    """Return the exit code of a call, with its error told in one line."""
    try:
        return call()
    except AnalyzerError as error:
        from analyzer.report.text import printable  # names in it may be a stranger's

        print(f"analyze: {printable(error, _MESSAGE_WIDTH)}", file=sys.stderr)
        if error.exit_code is ExitCode.BUG:
            print("analyze: This is a bug; please report it with this line.", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("analyze: Interrupted; nothing was written.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
