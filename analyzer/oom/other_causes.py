"""Ways to run out of memory beside TensorFlow's own allocators.

``wordings.toml`` has one row for each: the component that failed, and the figures to look for in
the same line and in the next ones.
"""

import re
from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.failures import (
    FRAMEWORKS,
    FailedAllocator,
    Log,
    LoggedFailure,
    Process,
)
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import (
    OTHER_CAUSES,
    Wording,
    compile_pattern,
    find,
    parse_size,
    read_groups,
)

_LONGEST: Final = 2000  # characters of a text
_JAX: Final = "external/xla/"  # folder of XLA's sources in JAX's logs
_AFFIXES: Final = re.compile(r"^kib_|_2$")
_WORD: Final = re.compile(r"[A-Za-z_]+")
_LIBRARIES: Final = {"dnn": "cuDNN", "cudnn": "cuDNN", "cublas": "cuBLAS"}
_FACTS: Final = {name: compile_pattern(row.facts) for name, row in OTHER_CAUSES.items()}


def take_other_cause(log: Log, process: Process, line: LogLine) -> bool:
    """Read a failure of another component, or its figures; return False if the line has neither."""
    text = line.text
    if framework := find("framework", text):
        process.framework = read_groups(framework)["name"]

    for name in OTHER_CAUSES:
        match = find(name, text) if name != "unknown" else None
        if match is not None:
            _add_report(log, process, line, name, match)
            return True

    failure = process.other
    process.other_lines -= 1

    if failure is None or process.other_lines < 0:
        return False
    return _add_figures(failure, text)


def take_unknown_cause(log: Log, process: Process, line: LogLine) -> None:
    """Read a report of exhausted memory in unknown words, if the log has no other failure."""
    match = None if log.failures else find("unknown", line.text)
    if match is not None:
        _add_report(log, process, line, "unknown", match)


def _add_report(
    log: Log, process: Process, line: LogLine, name: str, match: re.Match[str]
) -> None:
    """Add a failure, or a line that reports the last one again."""
    row = OTHER_CAUSES[name]
    last = log.latest_of(process)
    if last is not None and row.is_kill and row.is_unclear:
        last.is_killed = True  # the consequence of a known failure
        last.reports += last.other_cause == name
        return

    known = OTHER_CAUSES.get(last.other_cause) if last else None
    if last is None or known is None or not _is_same(last, row, name, line.text):
        last = log.add_failure(process, line)
        last.text = last.text[:_LONGEST]
        last.has_error_text = True

    if known is None or known.is_unclear or not last.other_cause:
        _name_cause(last, process, line, name, match)

    last.is_killed |= row.is_kill
    last.reports += 1
    process.error = process.other = last
    process.other_lines = row.lines
    _add_figures(last, line.text)


def _is_same(last: LoggedFailure, row: Wording, name: str, text: str) -> bool:
    """Return whether a row reports a known failure of another cause again."""
    if row.is_kill and last.is_killed:
        return True
    if last.kind != row.kind or (name != last.other_cause and row.component):
        return False

    request = _read_figures(name, text).get("request")
    return request in (None, last.printed.get("request", request))


def _name_cause(
    failure: LoggedFailure,
    process: Process,
    line: LogLine,
    name: str,
    match: re.Match[str],
) -> None:
    """Note the component that failed."""
    row, groups = OTHER_CAUSES[name], read_groups(match)
    failure.other_cause = name
    failure.kind = FailedAllocator(row.kind)
    failure.source = failure.source or process.frame

    packages = [word for word in _WORD.findall(line.text) if word in FRAMEWORKS]
    packages.append("jax" if line.file.startswith(_JAX) else process.framework)
    framework = FRAMEWORKS.get(packages[0], "")
    library = groups.get("library", "")
    library = _LIBRARIES.get(library.lower(), library) or "A CUDA library"
    default = "TensorFlow" if line.file else "another framework"
    failure.title = row.title.format(library=library, framework=framework or default)
    failure.component = row.component or library

    if row.kind == FailedAllocator.OTHER:
        failure.component = framework or row.component or "another framework"
    elif row.kind == FailedAllocator.LIBRARY and framework:
        failure.component += f" ({framework})"


def _add_figures(failure: LoggedFailure, text: str) -> bool:
    """Add the figures of a line; return whether there are any."""
    figures = _read_figures(failure.other_cause, text)
    for name, size in figures.items():
        failure.printed.setdefault(name, size)

    failure.size = failure.printed.get("request")
    return bool(figures)


def _read_figures(name: str, text: str) -> dict[str, Range]:
    figures: dict[str, Range] = {}
    if not OTHER_CAUSES[name].facts:
        return figures

    for match in _FACTS[name].finditer(text):
        for group, printed in match.groupdict().items():
            unit = "KiB" if group.startswith("kib_") else ""
            size = parse_size(f"{printed}{unit}")
            is_damaged = size is not None and size.low >= 1 << 50
            if size is not None and not is_damaged:
                figures.setdefault(_AFFIXES.sub("", group), size)

    return figures
