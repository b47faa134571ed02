"""Error texts of TensorFlow, XLA, libraries and the system, matched to the allocator's line.

A log reports one failed request many times: the allocator, the op's kernel, the rendezvous, each of
"N root error(s)", Python's exception and the exceptions that it caused. The bytes that a shape and a
type need identify the request. ``wordings.toml`` has one row for each way to run out of memory beside
TensorFlow's allocators: the component that failed, and the figures to look for in the next lines.
"""

import re

from analyzer.model.contract.fields import numpy_name, tensor_bytes
from analyzer.model.contract.oom_file import OomBuffer
from analyzer.model.units import Range
from analyzer.oom.failures import FailedAllocator, LoggedFailure, Process
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import (
    FACTS,
    NAMES,
    OTHER_CAUSES,
    find,
    parse_shape,
    parse_size,
    read_groups,
)

_NEAR = 200  # lines after a failure that may have its figures
_AFTER_ERROR = 3  # lines from an error to the message that it ended a notebook's kernel
_AFFIXES = re.compile(r"^kib_|_\d$")

# Texts that report a request for memory, in the order in which they are tried.
_ERRORS = ("tensor_error", "module_error", "error_without_size", "copy_error")


def take_error_text(process: Process, line: LogLine) -> bool:
    """Read a line of an error text, or one around it; return False if it is none."""
    text = line.text

    if tried := find("autotuning_failed", text):
        for known in process.recent():  # without one, it failed for another reason
            if not (known.has_error_text or known.requested_by):
                known.op = tried["op"]
                known.has_error_text = known.is_compiled = True

        return True

    match = next(filter(None, (find(name, text) for name in _ERRORS)), None)

    if match is not None:
        process.error = _take_failure(process, line, match)
        _complete(process.error, process, line)
        return True

    if find("other_resource", text):
        process.log.bare_error = None  # an error's class stands before its reason
        process.log.other_error = line
    elif find("bare_error", text) or (
        find("hint", text) and not process.log.other_error
    ):
        process.log.bare_error = process.log.bare_error or (process, line)

    return _take_context(process, text)


def _take_failure(
    process: Process,
    line: LogLine,
    match: re.Match[str],
) -> LoggedFailure:
    """Return the failure that an error text reports, a new one if no known failure may be it."""
    fields = read_groups(match)
    is_compiled = "module" in fields
    is_workspace = is_compiled and "CUDNN" in line.text

    # TensorFlow warns of each request for a module or a workspace, and calls it no failure
    warned = next(reversed(process.log.tolerated), "") if is_compiled else ""
    shape = parse_shape(match["shape"]) if "shape" in match.re.groupindex else None
    dtype = fields.get("dtype", "")
    size = parse_size(fields.get("bytes") or fields.get("size"))
    tensor = tensor_bytes(numpy_name(dtype), shape)
    wanted = LoggedFailure(
        line.number,
        words=line.text.strip(),
        size=size if tensor is None else Range.exactly(tensor),
        shape=shape,
        dtype=dtype,
        op_type=fields.get("type", ""),
        device=fields.get("device", ""),
        allocator=fields.get("allocator", warned if is_workspace else ""),
        is_workspace=is_workspace,
    )

    failure = _find_known(process, wanted) or process.add_failure(line)
    for name in (
        "words",
        "size",
        "shape",
        "dtype",
        "op_type",
        "device",
        "allocator",
    ):
        setattr(failure, name, getattr(failure, name) or getattr(wanted, name))

    failure.allocator = failure.allocator or warned
    failure.has_allocator_line |= bool(warned)
    failure.is_workspace |= is_workspace

    if is_workspace:
        sizes = filter(None, (failure.size, size))
        failure.size = min(sizes, key=lambda one: one.middle, default=None)
    elif is_compiled:
        failure.is_compiled = True
        failure.size = size if size and size.is_exact else failure.size

    return failure


def _find_known(process: Process, wanted: LoggedFailure) -> LoggedFailure | None:
    """Return the latest failure without a text that may have made a request, else a repeated one.

    A convolution for which no algorithm had room is one failure. The least of their workspaces was the
    last that could have helped.
    """
    repeated = None
    size = wanted.size

    for failure in process.recent():
        is_again = wanted.is_workspace and failure.is_workspace
        has_names = wanted.allocator in ("", failure.allocator or wanted.allocator)
        has_device = wanted.device in ("", failure.device or wanted.device)
        # an eager op is not in the graph of an op with a name
        has_size = not (failure.op and "__wrapped__" in wanted.words)

        if size and failure.size and not is_again:
            has_size = failure.size.intersection(size) is not None

        if failure.other_cause or not (has_names and has_device and has_size):
            continue

        if is_again or not failure.has_error_text:
            return failure
        if failure.shape == wanted.shape or failure.words == wanted.words:
            repeated = repeated or failure

    return repeated


def _complete(failure: LoggedFailure, process: Process, line: LogLine) -> None:
    """Add the names in an error text, and those on the lines before it."""
    text = line.text
    failure.has_error_text = True
    failure.framework = failure.framework or process.framework

    _add_names(failure, text)

    if not failure.op and _may_be_requested_by(failure, process.node):
        failure.op = process.node
    if not line.file:
        failure.source = failure.source or process.frame
        failure.makes_weights |= process.makes_weights

    process.node = ""


def _take_context(process: Process, text: str) -> bool:
    """Read a line before or after an error text."""
    if named := find("node_line", text):
        process.node = named["name"]
        return True

    if frame := find("frame", text):
        process.frame = f"{frame['path']}:{frame['line']}"
        return True

    if "Traceback (most recent call last)" in text:
        process.frame = ""
        process.makes_weights = False
        return True

    if find("weight_frame", text):
        process.makes_weights = True
        return True

    failure = process.error
    if failure is None:
        return False

    if "BufferAssignment OOM Debugging" in text:
        failure.is_compiled = True
        failure.buffers.clear()  # a repeated text lists them again

        return True

    node = find("node", text)
    name = read_groups(node)["name"] if node else ""
    is_other = bool(name) and not _may_be_requested_by(failure, name)

    return is_other or add_buffer(failure, text) or _add_names(failure, text)


def _may_be_requested_by(failure: LoggedFailure, node: str) -> bool:
    """Return whether a node may be the op of the allocator's line, which may have a call prefix."""
    requester = failure.requested_by
    return not (requester and node) or f"/{requester}".endswith(f"/{node}")


def _add_names(failure: LoggedFailure, text: str) -> bool:
    """Add the op that a text names in brackets; the first one is the op that failed."""
    value = find("node_value", text)
    if value and failure.size is None and failure.shape is None:
        failure.shape = parse_shape(value["shape"])
        failure.dtype = value["dtype"]

    names = ("wrapped_op", "eager_op", "node")
    matches = [find(name, text) for name in names]

    for match in filter(None, matches):
        fields = read_groups(match)
        failure.op = failure.op or fields.get("name", "")

        if fields.get("name", failure.op) == failure.op:
            failure.source = fields.get("source", failure.source)
            failure.op_type = failure.op_type or fields.get("type", "")
            failure.dtype = failure.dtype or fields.get("dtype", "").lower()
            failure.device = failure.device or fields.get("device", "")

    return any(matches[1:])


def add_buffer(failure: LoggedFailure, text: str) -> bool:
    """Add a line of XLA's list of buffers; return False if it is none."""
    if match := find("xla_stat", text):
        size = parse_size(match["size"])
        if size is not None:
            failure.plan_sums.setdefault(match["name"], size.middle)

        return True

    if find("xla_buffer", text):
        failure.buffers.append(OomBuffer(0, "", "", ""))
        return True

    match = find("xla_field", text)
    if match is None or not failure.buffers:
        return False

    buffer = failure.buffers[-1]
    fields = read_groups(match)
    size = parse_size(fields.pop("size", None))
    buffer.size_bytes = size.middle if size else buffer.size_bytes

    for name, printed in fields.items():
        setattr(buffer, name, printed)

    return True


def take_other_cause(process: Process, line: LogLine) -> bool:
    """Read a failure of another component, or its figures; return False if the line has neither."""
    text = line.text
    if framework := find("framework", line.file + text):
        process.framework = NAMES["frameworks"].get(read_groups(framework)["name"], "")

    for name in OTHER_CAUSES:
        if name != "unknown" and take_report(process, line, name):
            return True

    failure = process.error
    if failure is None or not failure.other_cause:
        return False

    if line.number > failure.line + _NEAR:
        return False

    return _add_figures(failure, text)


def take_report(process: Process, line: LogLine, name: str) -> bool:
    """Add a failure of a cause, or a line that reports the last one again; False for others."""
    match = find(name, line.text)
    if match is None:
        return False

    row = OTHER_CAUSES[name]
    last = next(process.recent(), None)
    error = process.log.other_error

    if name == "kernel" and error and line.number - error.number <= _AFTER_ERROR:
        return True  # the error ended the kernel

    if last is not None and row.is_kill and row.is_unclear:
        if last.other_cause:
            _add_figures(last, line.text)

        return True  # the consequence of a known failure

    known = OTHER_CAUSES.get(last.other_cause) if last is not None else None
    is_again = known is not None and (
        (known.is_kill and row.is_kill)
        or (
            known.kind == row.kind
            and (known.is_unclear or row.component in ("", known.component))
        )
    )

    if last is None or not is_again:
        last = process.add_failure(line)
        known = None
        last.has_error_text = True

    if known is None or known.is_unclear:
        _name_cause(last, process, name, read_groups(match).get("library", ""))

    process.error = last
    _add_figures(last, line.text)

    return True


def _name_cause(
    failure: LoggedFailure,
    process: Process,
    name: str,
    library: str,
) -> None:
    """Note the component that failed."""
    row = OTHER_CAUSES[name]
    failure.other_cause = name
    failure.kind = FailedAllocator(row.kind)
    failure.source = failure.source or process.frame

    framework = process.framework
    is_foreign = failure.kind is FailedAllocator.OTHER
    owner = framework or ("another framework" if is_foreign else "the program")

    library = NAMES["libraries"].get(library.lower(), library) or "CUDA"
    failure.title = row.title.format(library=library, framework=owner)
    failure.component = row.component or library

    if is_foreign:
        failure.component = framework or row.component or owner


def _add_figures(failure: LoggedFailure, text: str) -> bool:
    """Add the figures of a line; return whether there are any."""
    figures: dict[str, Range] = {}

    for match in FACTS[failure.other_cause].finditer(text):
        for group, printed in match.groupdict().items():
            unit = "KiB" if group.startswith("kib_") else ""
            size = parse_size(f"{printed}{unit}")
            if size is not None and size.low < 1 << 50:  # more is damage
                figures.setdefault(_AFFIXES.sub("", group), size)

    failure.printed = figures | failure.printed
    failure.size = failure.printed.get("request")

    return bool(figures)
