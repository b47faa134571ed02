"""The command line: arguments, progress, outputs and exit codes; also plugins for pytest and IPython.

Inputs: command-line arguments. Outputs: text, files and an exit code. Restrictions: no analysis.

Exit codes: 0 fine, 1 a bug of ours, 2 bad input, 3 over a limit, 4 grew against a baseline,
5 the traced step ran out of memory, 130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP.
"""

import errno
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from analyzer.model.errors import (
    AnalyzerError,
    ExitCode,
    InputError,
    describe_import_error,
)
from analyzer.model.interrupts import Terminated, collect_rarely, raise_on_signals

# System errors outside our control: a full disk, missing permissions, no more processes.
_SYSTEM_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EBADF,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
    }
)


class ScriptStatus(SystemExit):
    """Ends the command with the exit status of the user's script."""


def main() -> None:
    """Run the command line and exit."""
    collect_rarely()
    code = run()

    # all is written: nothing is left to interrupt
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def run() -> int:
    """Run the command line; return the exit code."""
    from analyzer.cli import stdout

    stdout.prepare()

    try:
        with raise_on_signals(_report_signal):
            code = _guarded(_run)

            # here, while a failed write can still be reported
            flushed = _guarded(_flush)
            return code or flushed
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            _report(str(interrupt))

        return ExitCode.INTERRUPTED
    except Terminated as end:
        _report(f"Ended by {end.name}.")
        return end.exit_code


def _flush() -> int:
    from analyzer.cli.stdout import printing

    with printing():
        return ExitCode.OK


def _run() -> int:
    # here, so that _guarded reports its errors
    from analyzer.cli.app import (
        UsageError,
        run_app,
    )
    from analyzer.cli.stdout import has_reader

    try:
        return run_app(sys.argv[1:])
    except UsageError as error:
        place = "analyze"
        if error.ctx:
            place = error.ctx.command_path

        message = " ".join(error.format_message().split())
        end = "" if message.endswith((".", "?")) else "."
        param = getattr(error, "param", None)

        meaning = ""
        if param is not None and message.startswith("Missing"):
            meaning = f"{param.opts[0]}: {param.help} "

        hint = f"{meaning}{place} --help shows the usage."

        if type(error).__name__ == "NoSuchOption" and place == "analyze trace":
            hint = f"Options of a script follow --: analyze trace train.py -- --epochs 2. {hint}"

        raise InputError(f"{message}{end}", hint) from None
    except BrokenPipeError:
        # Typer prints the help by itself: `analyze trace --help | head`.
        if has_reader():
            raise

        return ExitCode.OK
    except ScriptStatus as stop:
        return int(stop.code or 0)
    except SystemExit as stop:
        # Rich, if nobody reads the pipe any more; our commands return codes
        if stop.code == 1:
            return ExitCode.OK

        raise


def _guarded(call: Callable[[], int]) -> int:
    """Return the exit code of a call; print its error in one line."""
    try:
        return call()
    except AnalyzerError as error:
        # names in the message are untrusted
        from analyzer.report.untrusted import (
            printable,
        )

        _report(printable(error, 4000))
        if error.exit_code is ExitCode.BUG:
            _report("This is a bug; please report it with this line.")

        return error.exit_code
    except OSError as error:
        if error.errno not in _SYSTEM_ERRORS:
            raise

        _report(f"{error.filename or 'This machine'}: {error.strerror}.")
    except MemoryError:
        _report("There is not enough host memory for the analysis itself.")
    except ImportError as error:
        if (error.name or "").startswith("analyzer"):
            raise

        _report(f"A package cannot be imported: {describe_import_error(error)}.")

    return ExitCode.BAD_INPUT


def _report_signal(number: int) -> None:
    """Acknowledge Ctrl-C at once, because ending the child may take seconds."""
    if number == signal.SIGINT:
        _report("Interrupted: ending the run. A second Ctrl-C ends it at once.")


def _report(text: str) -> None:
    """Print a line on stderr, if stderr still exists."""
    with suppress(OSError, ValueError):
        print(f"analyze: {text}", file=sys.stderr, flush=True)
