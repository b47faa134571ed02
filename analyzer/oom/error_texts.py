"""Error texts, matched to the allocator's line about the same request.

A log reports one failed request many times: the allocator, the op's kernel, the rendezvous, each of
"N root error(s)", Python's exception and the exceptions that it caused. The bytes that a shape and a
type need identify the request.
"""

import re
from typing import Final

from analyzer.model.contract.fields import numpy_name, tensor_bytes
from analyzer.model.ranges import Range
from analyzer.oom.dump_lines import add_buffer
from analyzer.oom.failures import FailedAllocator, LoggedFailure, Process
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import (
    find,
    parse_shape,
    parse_size,
    read_groups,
    round_up_request,
)

_HOST_ALLOCATORS: Final = ("cpu", "mklcpu", "mkl_cpu")


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
    text, log = line.text, process.log
    if match := find("tensor_error", text):
        return _find_tensor(process, line, match)

    if match := find("module_error", text):
        size = parse_size(match["bytes"] or match["size"] or match["constant_size"])
        return _find_module(process, line, size)

    if find("error_without_size", text) or find("copy_error", text):
        return _find_without_size(process, line)

    if find("other_resource", text):
        log.other_resources += 1
    elif find("bare_error", text):
        log.bare_error = log.bare_error or (process, line)
    return None


def _find_tensor(
    process: Process, line: LogLine, match: re.Match[str]
) -> LoggedFailure:
    """Return the failure of a request for a tensor, a new one if no known failure may be it."""
    shape, dtype = parse_shape(match["shape"]), match["dtype"] or ""
    device = (match["device"] or "").rstrip(".,;")
    allocator = (match["allocator"] or "").rstrip(".,;")
    size_bytes = tensor_bytes(numpy_name(dtype), shape)
    size = None if size_bytes is None else Range.exactly(size_bytes)
    known = None

    for failure in process.recent():
        is_other = failure.is_compiled or failure.kind is FailedAllocator.LIBRARY
        has_names = allocator in ("", failure.allocator) or not failure.allocator
        if is_other or not has_names or device not in ("", failure.device or device):
            continue

        is_open = failure.shape is None and not failure.has_error_text
        if is_open and _may_have_size(failure, size):
            known = failure  # the latest one that lacks this shape
            break

        if failure.shape == shape and known is None:
            known = failure

    if known is None:
        is_host = allocator.lower() in _HOST_ALLOCATORS
        is_host = is_host or (not allocator and "CPU:" in device)
        kind = FailedAllocator.HOST if is_host else FailedAllocator.POOL
        known = process.add_failure(line, kind)

    known.shape = known.shape or shape
    known.dtype = known.dtype or dtype
    known.device = known.device or device
    known.allocator = known.allocator or allocator
    return known


def _find_module(process: Process, line: LogLine, size: Range | None) -> LoggedFailure:
    """Return the failure of a module that XLA compiled, or of a convolution's workspace."""
    is_workspace = "CUDNN" in line.text
    allocator = process.log.last_tolerated if is_workspace else ""

    for failure in process.recent():
        is_open = failure.size is not None or not failure.has_error_text
        is_same = not allocator or failure.allocator == allocator
        if is_open and is_same and not failure.shape and _may_have_size(failure, size):
            break
    else:
        failure = process.add_failure(line)
        failure.size = size
        failure.allocator = allocator

    if size is not None and size.is_exact:
        failure.size = size

    failure.is_compiled = not is_workspace
    return failure


def _may_have_size(failure: LoggedFailure, size: Range | None) -> bool:
    """Return whether a known failure may have requested so many bytes; None if unknown."""
    rounded_bytes = failure.rounded_bytes
    if failure.size is None and rounded_bytes is None:
        return failure.kind in (FailedAllocator.POOL, FailedAllocator.UNKNOWN)
    if size is None:
        return True
    if rounded_bytes is not None:
        low, high = round_up_request(size.low), round_up_request(size.high)
        return low <= rounded_bytes <= high
    return failure.size is not None and failure.size.intersection(size) is not None


def _find_without_size(process: Process, line: LogLine) -> LoggedFailure:
    """Return the last failure of an allocator, or a new one if its text is complete."""
    for last in process.recent():
        if last.kind in (FailedAllocator.HOST, FailedAllocator.LIBRARY):
            continue

        is_open = not last.has_error_text or last.shape is None
        if is_open or last.text == line.text.strip():
            return last

        break

    return process.add_failure(line, FailedAllocator.UNKNOWN)


def _take_autotuning(process: Process, text: str) -> bool:
    """Read XLA's line that it could try no algorithm for an op; ignore it if no request failed."""
    match = find("autotuning_failed", text)
    if match is None:
        return False

    for failure in process.recent():
        is_named = failure.op == match["op"]
        if is_named or not (failure.has_error_text or failure.requested_by):
            failure.reports += is_named
            failure.op = match["op"]
            failure.has_error_text = failure.is_compiled = True

    return True


def _complete(failure: LoggedFailure, process: Process, line: LogLine) -> None:
    """Add the names in an error text, and those on the lines before it."""
    text = line.text
    failure.has_error_text = True
    failure.reports += 1
    failure.framework = failure.framework or process.framework

    if kernel := find("kernel", text):
        failure.kernel = failure.kernel or kernel["source"]

    if copied := find("copy_error", text):
        groups = read_groups(copied)
        failure.is_copy = True
        failure.device = failure.device or groups.get("device", "")
        failure.op_type = failure.op_type or groups.get("op", "")

    if wrapped := find("wrapped_op", text):
        failure.op_type = failure.op_type or wrapped["type"].strip("_")
        failure.device = failure.device or wrapped["device"]

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

    if process.note_frame(text):
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
    node, eager = find("node", text), find("eager_op", text)
    if node:
        fields = read_groups(node)
        failure.op = failure.op or fields["name"]
        if failure.op == fields["name"]:
            failure.source = fields.get("source", failure.source)

    if eager and not eager["type"].startswith("__"):
        failure.op_type = failure.op_type or eager["type"]
    return bool(node or eager)
