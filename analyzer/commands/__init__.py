"""The command line: arguments, progress and exit codes; no analysis.

Exit codes: 0 fine, 1 a bug of ours, 2 bad input, 3 over a limit, 4 grew against a baseline,
5 the traced step ran out of memory, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from analyzer.errors import AnalyzerError, ExitCode

_MESSAGE_WIDTH: Final = 4000


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())


def run() -> int:
    """Run the command line; return the exit code."""
    from analyzer.commands.app import app  # Typer is read here, so that errors of ours are ours

    try:
        app(prog_name="analyze")
    except AnalyzerError as error:
        from analyzer.report.untrusted import printable  # names in it may be a stranger's

        print(f"analyze: {printable(error, _MESSAGE_WIDTH)}", file=sys.stderr)
        if error.exit_code is ExitCode.BUG:
            print("analyze: This is a bug; please report it with this line.", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("analyze: Interrupted; nothing was written.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:  # `analyze … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(ExitCode.BUG if stop.code else 0)
    return int(ExitCode.OK)
