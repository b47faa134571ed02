"""Failures of components other than TensorFlow's own allocators.

``component_failures.toml`` has one row for each wording: the component that failed, the memory that ran
out, and the figures to look for in the same line and in the next ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from analyzer.model.contract.fields import numpy_name, tensor_bytes
from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.model.units import parse_bytes
from analyzer.oom import log_records
from analyzer.oom.failure_case import find_framework
from analyzer.oom.scan.dump_lines import LogProcess
from analyzer.oom.scan.lines import LogMessage
from analyzer.oom.scan.patterns import COMPONENTS, compile_pattern, find, read_groups

if TYPE_CHECKING:
    from analyzer.oom.scan.log_reader import LogReader

_LONGEST: Final = 2000  # characters of a text
_AFFIXES: Final = re.compile(r"^quantity_|(?:_kib)?(?:_2)?$")
_LIMIT_LINES: Final = 6  # of a section "Limits:"
_UNKNOWN: Final = "unknown"  # the row that is tried only if nothing else reads the line
_CUDA_LIBRARIES: Final = ("cuDNN", "cuBLAS", "cuSOLVER", "cuFFT", "cuSPARSE", "cuRAND")
_JAX: Final = "external/xla/"  # folder of XLA's sources in JAX's logs
_LIBRARIES: Final = {"dnn": "cuDNN", **{name.lower(): name for name in _CUDA_LIBRARIES}}
_FACTS: Final = {name: compile_pattern(row.facts) for name, row in COMPONENTS.items() if row.facts}


def take_component(reader: LogReader, process: LogProcess, message: LogMessage) -> bool:
    """Read a failure of a component, or its figures; return False if the line has neither."""
    text = message.text
    if framework := find("framework", text):
        process.framework = read_groups(framework)["name"]
    _read_limit(process, text)
    for name in COMPONENTS:
        match = find(name, text) if name != _UNKNOWN else None
        if match is not None:
            _add_report(reader, process, message, name, match)
            return True
    failure, process.component_lines = process.component, process.component_lines - 1
    if failure is None or process.component_lines < 0:
        return False
    return _add_figures(failure, process, text, is_limited=failure.is_killed)


def take_unknown(reader: LogReader, process: LogProcess, message: LogMessage) -> None:
    """Read a report of exhausted memory in unknown words, if the log has no other failure."""
    match = None if reader.records.failures else find(_UNKNOWN, message.text)
    if match is not None:
        _add_report(reader, process, message, _UNKNOWN, match)


def finish_components(records: log_records.LogRecords) -> None:
    """Give the components' figures to their failures."""
    for failure in records.failures:
        figures, dump = failure.figures, failure.dump
        if "request" in figures:
            failure.tensor.size = figures["request"]
        if failure.component:
            free, total = figures.get("free"), figures.get("total")
            dump.limit, dump.used = figures.get("limit"), figures.get("used")
            failure.card_free = None if free is None else free.middle
            failure.card_total = None if total is None else total.middle


def _add_report(
    reader: LogReader, process: LogProcess, message: LogMessage, name: str, match: re.Match[str]
) -> None:
    row, text = COMPONENTS[name], message.text
    last = next((one for one in reversed(reader.records.failures) if one.tag == process.tag), None)
    is_unclear = row.memory is log_records.OutOf.UNCLEAR
    is_clearer = not is_unclear or bool(row.facts)
    if row.is_kill and not is_clearer and last is not None:
        last.is_killed = True  # the consequence of a known failure
        last.reports += last.row is row
        return
    if last is None or not _is_same(last, row, _read_figures(name, text).get("request")):
        last = reader.add_failure(process, message, row.kind, text.strip()[:_LONGEST], reports=0)
        last.has_error_text = True
    is_replaced = last.memory is log_records.OutOf.UNCLEAR and is_clearer
    if is_unclear and last.figures:
        is_replaced = False
    if not last.component or is_replaced or _is_general(last):
        last.row, last.component, last.kind, last.title = row, row.component, row.kind, row.title
    last.is_killed |= row.is_kill
    last.reports += 1
    default = "TensorFlow" if message.file else "the framework"
    _add_names(last, process, match, "JAX" if message.file.startswith(_JAX) else default)
    process.error = process.component = last
    process.component_name, process.component_lines = name, row.lines
    _add_figures(last, process, text, is_limited=row.is_kill)


def _is_same(
    last: log_records.LoggedFailure, row: log_records.ComponentRow, request: Range | None
) -> bool:
    """Return whether a row reports a known failure again; ``request`` is in the row's line."""
    if row.is_kill and last.is_killed:
        return True
    is_same = last.component == row.component
    is_library = not row.component and last.kind is log_records.FailedAllocator.LIBRARY
    is_more_precise = _is_general(last) and row.memory is log_records.OutOf.CARD
    if not (is_same or is_library or is_more_precise) or not last.component:
        return False
    return request is None or last.figures.get("request", request) == request


def _is_general(failure: log_records.LoggedFailure) -> bool:
    """Return whether only CUDA's own words are known, which any framework may print."""
    return failure.component == "CUDA" and not failure.figures


def _add_names(
    failure: log_records.LoggedFailure, process: LogProcess, match: re.Match[str], default: str
) -> None:
    groups = read_groups(match)
    framework = find_framework(process.framework)
    if not failure.component:  # the library in the line is the component
        library = _LIBRARIES.get(groups.get("library", "").lower(), "A CUDA library")
        failure.component = library
        failure.title = failure.title.format(library=library, framework=framework or default)
    if framework and failure.kind is log_records.FailedAllocator.LIBRARY:
        failure.component = f"{failure.component.partition(' (')[0]} ({framework})"
    failure.source = failure.source or process.frame
    if "shape" in groups:
        shape, dtype = log_records.parse_shape(groups["shape"]), groups["dtype"]
        size_bytes = tensor_bytes(numpy_name(dtype), shape)
        failure.tensor = log_records.RequestedTensor(shape=shape, dtype=dtype)
        if size_bytes is not None:
            failure.figures["request"] = failure.tensor.size = Range.exactly(size_bytes)


def _add_figures(
    failure: log_records.LoggedFailure, process: LogProcess, text: str, *, is_limited: bool
) -> bool:
    """Add the figures of a line, and a limit stated before; return whether there are any."""
    figures = _read_figures(process.component_name, text)
    if is_limited and process.memory_limit is not None:
        figures.setdefault("limit", process.memory_limit)
    for name, size in figures.items():
        known = failure.figures.setdefault(name, size)
        if name == "resident":
            failure.figures[name] = max(known, size)
    return bool(figures)


def _read_figures(name: str, text: str) -> dict[str, Range]:
    figures: dict[str, Range] = {}
    facts = _FACTS.get(name)
    for match in facts.finditer(text) if facts is not None else ():
        for group, found in match.groupdict().items():
            size = None if found is None else _parse_figure(group, found)
            if size is not None:
                figures.setdefault(_AFFIXES.sub("", group), size)
    return figures


def _parse_figure(group: str, text: str) -> Range | None:
    if group.startswith("quantity"):
        return _parse_quantity(text)
    if group.endswith("_kib"):
        return Range.exactly(log_records.parse_count(text) * 1024)
    size = log_records.parse_rounded(text)
    is_nonsense = size is not None and group == "total" and size.low >= 1 << 50
    return None if is_nonsense else size  # a driver in error reports a total of 2 ** 64 - 1


def _parse_quantity(text: str) -> Range | None:
    """Return a memory limit: ``512Mi`` is binary, ``512M`` decimal; exact, as it was written."""
    try:
        return Range.exactly(parse_bytes(text if text.endswith(("B", "b")) else f"{text}B"))
    except InputError:
        return None


def _read_limit(process: LogProcess, text: str) -> None:
    process.limit_lines -= 1
    match = find("stated_limit", text)
    if match is None:
        return
    if match["head"]:
        process.limit_lines = _LIMIT_LINES
    elif match["other_head"]:
        process.limit_lines = 0
    elif match["job"]:
        process.memory_limit = _parse_quantity(f"{match['job']}{(match['unit'] or 'M').upper()}i")
    elif process.limit_lines > 0 and match["quantity"]:
        process.memory_limit = _parse_quantity(match["quantity"])
