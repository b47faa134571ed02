"""The child process: loads the compiler, compiles one module, writes what it says.

``python -m analyzer.compiler.compiler_worker FOLDER`` reads ``request.json`` and ``module.hlo.pb``
there and
writes ``answer.json``; XLA's flags are in the environment, where XLA reads them once. Only the
standard library is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

REQUEST: Final = "request.json"
MODULE: Final = "module.hlo.pb"
ANSWER: Final = "answer.json"

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def main(folder: Path) -> None:
    """Compile what ``folder`` asks for; leave the statistics, or the compiler's refusal, there."""
    _die_with_parent()
    from analyzer.compiler.pjrt import PjrtError, Plugin

    request = json.loads((folder / REQUEST).read_text("utf-8"))
    answer: dict[str, Any]
    try:
        plugin = Plugin(request["library"])
        statistics = plugin.compile_for(request["target"], (folder / MODULE).read_bytes())
        answer = {"statistics": statistics}
    except PjrtError as error:
        answer = {"refused": str(error)}
    unfinished = folder / f"{ANSWER}.part"
    unfinished.write_text(json.dumps(answer), encoding="utf-8")
    unfinished.replace(folder / ANSWER)
    sys.stderr.flush()
    os._exit(0)  # the library's own tear-down has nothing more to give


def _die_with_parent() -> None:
    """Ask Linux to end this process when the one that waits for it is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
