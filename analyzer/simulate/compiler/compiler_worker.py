"""The child process: loads the compiler, compiles one module, writes the answer.

``python -m analyzer.simulate.compiler.compiler_worker FOLDER`` reads request and module in FOLDER and
writes its answer there (``card_note``). XLA reads its flags once, from the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from analyzer.model.contract.card_note import (
    ANSWER_FILE,
    COMPILE_VERSION,
    MODULE_FILE,
    REQUEST_FILE,
    CompileAnswer,
    CompileRequest,
)
from analyzer.model.contract.child_messages import read_message, write_message
from analyzer.model.interrupts import die_with_parent
from analyzer.simulate.compiler.pjrt import PjrtError, Plugin


def main(folder: Path) -> None:
    """Compile the module in ``folder``; write the statistics, or the compiler's error, there."""
    die_with_parent()
    request = read_message(folder / REQUEST_FILE, CompileRequest, COMPILE_VERSION)
    try:
        plugin = Plugin(request.library)
        module = (folder / MODULE_FILE).read_bytes()
        answer = CompileAnswer(statistics=plugin.compile_for(request.target, module))
    except PjrtError as error:
        answer = CompileAnswer(refused=str(error))
    write_message(folder / ANSWER_FILE, answer)
    sys.stderr.flush()
    os._exit(0)  # skips the slow tear-down of the library


if __name__ == "__main__":
    main(Path(sys.argv[1]))
