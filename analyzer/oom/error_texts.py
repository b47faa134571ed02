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
from analyzer.oom.failures import FailedAllocator, Log, LoggedFailure, Process
from analyzer.oom.figures import may_be_size
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import (
    find,
    find_any,
    parse_shape,
    parse_size,
    read_groups,
    round_up_request,
)

_NO_ALGORITHM_LINES: Final = 6
"""A failed request this many lines after "No algorithm worked!" belongs to that convolution."""
_HOST_ALLOCATORS: Final = ("cpu", "mklcpu", "mkl_cpu")


def take_error_text(log: Log, process: Process, line: LogLine) -> bool:
    """Read a line of an error text, or one around it; return False if it is none."""
    text = line.text
    process.no_algorithm_lines -= 1

    if find("no_algorithm", text):
        process.no_algorithm_lines = _NO_ALGORITHM_LINES
        kernel = find("kernel", text)
        process.is_new_workspace = kernel is not None
        process.kernel = kernel["source"] if kernel else ""

    if _take_autotuning(log, process, text):
        return True

    failure = _find_failure(log, process, line)
    if failure is None:
        return _take_context(process, text)

    _complete(failure, process, line)
    process.error = failure
    return True


def _find_failure(log: Log, process: Process, line: LogLine) -> LoggedFailure | None:
    """Return the failure that an error text reports; None if the line is no such text."""
    text = line.text
    if match := find("tensor_error", text):
        return _find_tensor(log, process, line, match)

    if match := find("module_error", text):
        size = parse_size(match["bytes"] or match["size"] or match["constant_size"])
        return _find_module(log, process, line, size)

    if "xhausted" in text or "EXHAUSTED" in text:
        if find("other_resource", text):
            log.other_resources += 1
        elif find("error_without_size", text):
            return _find_without_size(log, process, line)

        return None

    if find_any(("bare_error", "copy_error", "receive_error"), text):
        return _find_without_size(log, process, line)
    return None


def _find_tensor(
    log: Log, process: Process, line: LogLine, match: re.Match[str]
) -> LoggedFailure:
    """Return the failure of a request for a tensor, a new one if no known failure may be it."""
    shape, dtype = parse_shape(match["shape"]), match["dtype"] or ""
    device = (match["device"] or "").rstrip(".,;")
    allocator = (match["allocator"] or "").rstrip(".,;")
    size_bytes = tensor_bytes(numpy_name(dtype), shape)
    known = None

    for failure in log.recent(process):
        is_other = failure.is_compiled or failure.kind is FailedAllocator.LIBRARY
        has_names = allocator in ("", failure.allocator) or not failure.allocator
        if is_other or not has_names or device not in ("", failure.device or device):
            continue

        if failure.shape is None and _may_need(failure, size_bytes):
            known = failure  # the latest one that lacks this shape
            break

        if failure.shape == shape and known is None:
            known = failure

    if known is None:
        is_host = allocator.lower() in _HOST_ALLOCATORS
        kind = FailedAllocator.HOST if is_host else FailedAllocator.POOL
        known = log.add_failure(process, line, kind)

    known.shape = known.shape or shape
    known.dtype = known.dtype or dtype
    known.device = known.device or device
    known.allocator = known.allocator or allocator
    return known


def _may_need(failure: LoggedFailure, size_bytes: int | None) -> bool:
    """Return whether a failure without an error text may have requested these bytes."""
    if failure.has_error_text:
        return False
    if failure.size is None and failure.rounded_bytes is None:
        return failure.kind in (FailedAllocator.POOL, FailedAllocator.UNKNOWN)
    return size_bytes is not None and may_be_size(failure, size_bytes)


def _find_module(
    log: Log, process: Process, line: LogLine, size: Range | None
) -> LoggedFailure:
    """Return the failure of a module that XLA compiled, or of a convolution's workspace."""
    for failure in log.recent(process):
        if failure.size is None or size is None or failure.shape is not None:
            continue
        if failure.has_error_text and process.is_new_workspace:
            continue

        is_same = failure.size.intersection(size) is not None
        if is_same or failure.rounded_bytes == round_up_request(size.middle):
            break
    else:
        failure = log.add_failure(process, line)
        failure.size = size
        failure.kernel = process.kernel

        if process.no_algorithm_lines > 0 and size is not None:
            failure.allocator = _find_refuser(log, size)

    if size is not None and size.is_exact:
        failure.size = size

    process.is_new_workspace = False
    failure.is_compiled = process.no_algorithm_lines < 0
    return failure


def _find_refuser(log: Log, size: Range) -> str:
    """Return the allocator that warned last of a request as large as this one."""
    for allocator, (_, largest) in reversed(log.tolerated.items()):
        if largest.high >= size.low:
            return allocator

    return ""


def _find_without_size(log: Log, process: Process, line: LogLine) -> LoggedFailure:
    """Return the last failure of an allocator, or a new one if its text is complete."""
    for last in log.recent(process):
        if last.kind in (FailedAllocator.HOST, FailedAllocator.LIBRARY):
            continue

        is_open = not last.has_error_text or last.shape is None
        if is_open or last.text == line.text.strip():
            return last

        break

    return log.add_failure(process, line, FailedAllocator.UNKNOWN)


def _take_autotuning(log: Log, process: Process, text: str) -> bool:
    """Read XLA's line that it could try no algorithm for an op; ignore it if no request failed."""
    match = find("autotuning_failed", text)
    if match is None:
        return False

    op_type = find("autotuned_type", text)

    for failure in log.recent(process):
        is_named = failure.op == match["op"]
        if is_named or not (failure.has_error_text or failure.requested_by):
            failure.reports += is_named
            failure.op = match["op"]
            failure.op_type = op_type["type"] if op_type else ""
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
        failure.is_copy = True
        failure.device = failure.device or copied["device"] or ""

    if find("receive_error", text):
        failure.is_copy = True

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
    if detected := find_any(("node_detected", "node_line"), text):
        process.node = detected["name"]
        return True

    if process.note_frame(text):
        return True

    if find("traceback", text):
        process.frame = ""
        return True

    failure = process.error
    if failure is None:
        return False

    if find("xla_head", text):
        process.is_in_buffers = not failure.has_plan
        failure.has_plan = failure.is_compiled = True
        return True

    if process.is_in_buffers and add_buffer(failure, text):
        return True

    node = find("node", text)
    name = read_groups(node)["name"] if node else ""
    if _may_be_requested_by(failure, name):
        return _add_names(failure, text)
    return True  # the node of another request


def _may_be_requested_by(failure: LoggedFailure, node: str) -> bool:
    """Return whether a node may be the op of the allocator's line, which may have a call prefix."""
    requester = failure.requested_by
    if not requester or not node:
        return True
    return requester == node or requester.endswith(f"/{node}")


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
