"""The cells of a notebook as a script. Needs neither Jupyter nor TensorFlow."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Iterator
from typing import Any, Final

_FOREIGN_CELL: Final = re.compile(r"%%(?!time|capture|prun|timeit)")
"""Cell magics whose cell is no Python: %%bash, %%writefile, %%html."""

_HEAD: Final = "display = print\n"


def read_notebook(path: str) -> str:
    """Return the code cells of a notebook as a script, without magics and shell commands.

    Its lines are also what Python and the findings show for the notebook's path.

    Raises:
        SystemExit: it is no notebook with code.
    """
    try:
        with open(path, "rb") as file:
            cells = json.load(file)["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        text = "\n".join([_HEAD, *(_convert_cell(n, cell) for n, cell in enumerate(code, 1))])
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"{path} is not a notebook of format 4 ({type(error).__name__}). Convert it: "
            f"jupyter nbconvert --to script {path}"
        ) from None
    lines = text.splitlines(keepends=True)
    linecache.cache[path] = (len(text), None, lines, path)  # None: never read from the file
    return text


def _convert_cell(number: int, cell: dict[str, Any]) -> str:
    source = cell["source"]
    lines = "".join(source).splitlines()
    if lines and _FOREIGN_CELL.match(lines[0]):
        lines = []
    return "\n".join([f"# cell {number}", *_convert_lines(lines), ""])


def _convert_lines(lines: list[str]) -> Iterator[str]:
    for line in lines:
        code = line.lstrip()
        if code.startswith(("%", "!")):
            yield f"{line[: len(line) - len(code)]}pass  # {code}"
        else:
            yield line
