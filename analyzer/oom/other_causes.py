"""Ways to run out of memory beside TensorFlow's own allocators.

``wordings.toml`` has one row for each: the component that failed, and the figures to look for in
the same line and in the next ones.
"""

import re
from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.failures import FailedAllocator, LoggedFailure, Process
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import FACTS, OTHER_CAUSES, find, parse_size, read_groups

_FRAMEWORKS: Final = {
    "jax": "JAX",
    "jaxlib": "JAX",
    "XlaRuntimeError": "JAX",
    "xla": "JAX",  # the folder of its sources in JAX's logs
    "torch": "PyTorch",
    "torch_xla": "PyTorch/XLA",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "MXNet": "MXNet",
    "cupy": "CuPy",
    "onnxruntime": "ONNX Runtime",
}
"""Names of other frameworks by package, folder or error."""
_LONGEST: Final = 2000  # characters of a text
_NEAR: Final = 200  # lines after a failure that may have its figures
_AFFIXES: Final = re.compile(r"^kib_|_\d$")
_LIBRARIES: Final = {"dnn": "cuDNN", "cudnn": "cuDNN", "cublas": "cuBLAS"}


def take_other_cause(process: Process, line: LogLine) -> bool:
    """Read a failure of another component, or its figures; return False if the line has neither."""
    text = line.text
    if framework := find("framework", line.file + text):
        process.framework = _FRAMEWORKS.get(read_groups(framework)["name"], "")

    for name in OTHER_CAUSES:
        if name != "unknown" and _take_report(process, line, name):
            return True

    failure = process.other
    if failure is None or line.number > failure.line + _NEAR:
        return False
    return _add_figures(failure, text)


def take_unknown_cause(process: Process, line: LogLine) -> None:
    """Read a report of exhausted memory in unknown words, if the log has no other failure."""
    if not process.log.failures:
        _take_report(process, line, "unknown")


def _take_report(process: Process, line: LogLine, name: str) -> bool:
    """Add a failure of a cause, or a line that reports the last one again; False for others."""
    match = find(name, line.text)
    if match is None:
        return False

    row = OTHER_CAUSES[name]
    last = next(process.recent(), None)
    if last is not None and row.is_kill and row.is_unclear:
        last.is_killed = True  # the consequence of a known failure
        return True

    if last is None or not _is_same(last, name, line.text):
        last = process.add_failure(line)
        last.words = last.words[:_LONGEST]
        last.has_error_text = True

    known = OTHER_CAUSES.get(last.other_cause)
    if known is None or known.is_unclear:
        _name_cause(last, process, name, read_groups(match).get("library", ""))

    last.is_killed |= row.is_kill
    process.error = process.other = last
    _add_figures(last, line.text)
    return True


def _is_same(last: LoggedFailure, name: str, text: str) -> bool:
    """Return whether a row reports a known failure of another cause again."""
    row = OTHER_CAUSES[name]
    if not last.other_cause:
        return False
    if row.is_kill and last.is_killed:
        return True
    if last.kind != row.kind or (name != last.other_cause and row.component):
        return False

    request = _read_figures(name, text).get("request")
    return request in (None, last.printed.get("request", request))


def _name_cause(
    failure: LoggedFailure, process: Process, name: str, library: str
) -> None:
    """Note the component that failed."""
    row = OTHER_CAUSES[name]
    failure.other_cause = name
    failure.kind = FailedAllocator(row.kind)
    failure.source = failure.source or process.frame

    framework = process.framework
    is_foreign = failure.kind is FailedAllocator.OTHER
    owner = "another framework" if is_foreign else "TensorFlow"
    library = _LIBRARIES.get(library.lower(), library) or "A CUDA library"
    failure.title = row.title.format(library=library, framework=framework or owner)
    failure.component = row.component or library

    if is_foreign:
        failure.component = framework or row.component or owner
    elif failure.kind is FailedAllocator.LIBRARY and framework:
        failure.component += f" ({framework})"


def _add_figures(failure: LoggedFailure, text: str) -> bool:
    """Add the figures of a line; return whether there are any."""
    figures = _read_figures(failure.other_cause, text)
    failure.printed = figures | failure.printed
    failure.size = failure.printed.get("request")
    return bool(figures)


def _read_figures(name: str, text: str) -> dict[str, Range]:
    figures: dict[str, Range] = {}
    if not OTHER_CAUSES[name].facts:
        return figures

    for match in FACTS[name].finditer(text):
        for group, printed in match.groupdict().items():
            unit = "KiB" if group.startswith("kib_") else ""
            size = parse_size(f"{printed}{unit}")
            if size is not None and size.low < 1 << 50:  # more is damage
                figures.setdefault(_AFFIXES.sub("", group), size)

    return figures
