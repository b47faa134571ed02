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
    OTHER_CAUSES,
    find,
    parse_shape,
    parse_size,
    read_groups,
)

# Names of other frameworks by package, folder or error.
_FRAMEWORKS = {
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
_NEAR = 200  # lines after a failure that may have its figures
_AFFIXES = re.compile(r"^kib_|_\d$")
_LIBRARIES = {"dnn": "cuDNN", "cudnn": "cuDNN", "cublas": "cuBLAS"}


def take_error_text(process: Process, line: LogLine) -> bool:
    """Read a line of an error text, or one around it; return False if it is none."""
    if _take_autotuning(process, line.text):
        return True

    failure = _find_failure(process, line)
    if failure is None:
        return _take_context(process, line.text)

    _complete(failure, process, line)
    process.error = failure

    return True


def _find_failure(process: Process, line: LogLine) -> LoggedFailure | None:
    """Return the failure that an error text reports; None if the line is no such text."""
    text = line.text
    log = process.log

    if match := find("tensor_error", text):
        return _find_tensor(process, line, match)

    if match := find("module_error", text):
        size = parse_size(match["bytes"] or match["size"] or match["constant_size"])
        warned = next(reversed(log.tolerated), "")

        if "CUDNN" in text:
            failure = _find_workspace(process, line, size, warned)
        else:
            failure = _find_known(process, text, size) or process.add_failure(line)
            failure.size = size if size and size.is_exact else failure.size or size
            failure.is_compiled = True

        failure.allocator = failure.allocator or warned
        failure.has_allocator_line |= bool(warned)

        return failure

    if find("error_without_size", text) or find("copy_error", text):
        known = _find_known(process, text)
        return known or process.add_failure(line, FailedAllocator.UNKNOWN)

    if find("bare_error", text) and not find("other_resource", text):
        log.bare_error = log.bare_error or (process, line)

    return None


def _find_workspace(
    process: Process,
    line: LogLine,
    size: Range | None,
    allocator: str,
) -> LoggedFailure:
    """Return the failure of a convolution for which no algorithm had room: one for all its algorithms.

    The least of their workspaces was the last that could have helped. TensorFlow warns of each
    request, and calls it no failure.
    """
    failure = _find_known(process, line.text, size, allocator)
    last = process.error

    if failure is None and last is not None and last.is_workspace:
        failure = last if last.allocator == allocator else None

    failure = failure or process.add_failure(line)
    failure.is_workspace = True

    sizes = [one for one in (failure.size, size) if one is not None]
    failure.size = min(sizes, key=lambda one: one.middle, default=None)

    return failure


def _find_tensor(
    process: Process,
    line: LogLine,
    match: re.Match[str],
) -> LoggedFailure:
    """Return the failure of a request for a tensor, a new one if no known failure may be it."""
    shape = parse_shape(match["shape"])
    dtype = match["dtype"] or ""
    device = match["device"] or ""

    allocator = match["allocator"] or ""
    size_bytes = tensor_bytes(numpy_name(dtype), shape)
    size = None if size_bytes is None else Range.exactly(size_bytes)
    failure = _find_known(process, line.text, size, allocator, device, shape)
    failure = failure or process.add_failure(line)
    failure.shape = failure.shape or shape
    failure.dtype = failure.dtype or dtype
    failure.device = failure.device or device
    failure.allocator = failure.allocator or allocator

    return failure


def _find_known(
    process: Process,
    text: str,
    size: Range | None = None,
    allocator: str = "",
    device: str = "",
    shape: tuple[int, ...] | None = None,
) -> LoggedFailure | None:
    """Return the latest failure without a text that may have made a request, else a repeated one."""
    repeated = None

    for failure in process.recent():
        is_same = failure.shape == shape or failure.words == text.strip()
        has_names = allocator in ("", failure.allocator) or not failure.allocator
        has_device = device in ("", failure.device) or not failure.device
        has_size = True

        if size and failure.size:
            has_size = failure.size.intersection(size) is not None

        if failure.other_cause or not (has_names and has_device and has_size):
            continue

        if not failure.has_error_text:
            return failure
        if is_same:
            repeated = repeated or failure

    return repeated


def _take_autotuning(process: Process, text: str) -> bool:
    """Read XLA's line that it could try no algorithm for an op; ignore it if no request failed."""
    match = find("autotuning_failed", text)
    if match is None:
        return False

    for failure in process.recent():
        if not (failure.has_error_text or failure.requested_by):
            failure.op = match["op"]
            failure.has_error_text = failure.is_compiled = True

    return True


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

    names = ("copy_error", "wrapped_op", "eager_op", "node")
    matches = [find(name, text) for name in names]

    for match in filter(None, matches):
        fields = read_groups(match)
        failure.op = failure.op or fields.get("name", "")

        if fields.get("name", failure.op) == failure.op:
            failure.source = fields.get("source", failure.source)
            failure.op_type = failure.op_type or fields.get("type", "")
            failure.device = failure.device or fields.get("device", "")

    return any(matches[2:])


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
        process.framework = _FRAMEWORKS.get(read_groups(framework)["name"], "")

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

    if last is not None and row.is_kill and row.is_unclear:
        return True  # the consequence of a known failure

    known = OTHER_CAUSES.get(last.other_cause) if last is not None else None
    is_again = known is not None and (
        (known.is_kill and row.is_kill)
        or (known.kind == row.kind and row.component in ("", known.component))
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
    owner = framework or ("another framework" if is_foreign else "TensorFlow")

    library = _LIBRARIES.get(library.lower(), library) or "A CUDA library"
    failure.title = row.title.format(library=library, framework=owner)
    failure.component = row.component or library

    if is_foreign:
        failure.component = framework or row.component or owner
    elif failure.kind is FailedAllocator.LIBRARY and framework:
        failure.component += f" ({framework})"


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
