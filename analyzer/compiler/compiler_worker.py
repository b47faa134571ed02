"""The child process: loads the compiler, compiles one module, writes what it says.

``python -m analyzer.compiler.compiler_worker FOLDER`` reads ``request.json`` and ``module.hlo.pb``
there and
writes ``answer.json``; XLA's flags are in the environment, where XLA reads them once. Only the
standard library is needed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from analyzer.parent_death import die_with_parent

REQUEST: Final = "request.json"
MODULE: Final = "module.hlo.pb"
ANSWER: Final = "answer.json"


def main(folder: Path) -> None:
    """Compile what ``folder`` asks for; leave the statistics, or the compiler's refusal, there."""
    die_with_parent()
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
