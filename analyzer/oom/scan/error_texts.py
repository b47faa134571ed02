"""Error texts, matched to the allocator's line about the same request.

A log reports one failed request many times: the allocator, the op's kernel, the rendezvous, each of
"N root error(s)", Python's exception and the exceptions that it caused. The bytes that a shape and a
type need identify the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from analyzer.model.ranges import Range
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedFailure,
    LogRecords,
    RequestedTensor,
    XlaBuffers,
    parse_shape,
    parse_size,
    round_up_request,
    shape_bytes,
)
from analyzer.oom.scan.dump_lines import LogProcess, add_buffer
from analyzer.oom.scan.lines import LogMessage
from analyzer.oom.scan.patterns import find, find_any, read_groups

if TYPE_CHECKING:
    from analyzer.oom.scan.log_reader import LogReader


_RECENT: Final = 64  # failures that a later line may belong to
_MOST_ROWS: Final = 2_000  # tensors by node
_HOST_ALLOCATORS: Final = frozenset({"cpu", "Cpu", "mklcpu", "mkl_cpu", "CPU"})
_NO_ALGORITHM_LINES: Final = 6
"""A failed request this many lines after "No algorithm worked!" belongs to that convolution."""


def take_error_text(reader: LogReader, process: LogProcess, message: LogMessage) -> bool:
    """Read a line of an error text, or one around it; return False if it is none."""
    text = message.text
    process.no_algorithm_lines = max(process.no_algorithm_lines - 1, 0)
    if find("no_algorithm", text):
        process.no_algorithm_lines = _NO_ALGORITHM_LINES
        kernel = find("kernel", text)
        process.has_kernel_line = kernel is not None
        process.kernel = kernel["source"] if kernel else ""
    if _take_autotuning(reader.records, process, text):
        return True
    failure = _find_failure(reader, process, message)
    if failure is None:
        return _take_context(reader.records, process, text)
    _complete(failure, process, message)
    failure.framework = failure.framework or process.framework
    process.error = failure
    return True


def _find_failure(
    reader: LogReader, process: LogProcess, message: LogMessage
) -> LoggedFailure | None:
    text = message.text
    if match := find("tensor_error", text):
        return _find_tensor(reader, process, message, match)
    if match := find("module_error", text):
        size = parse_size(match["bytes"] or match["size"] or match["constant_size"])
        return _find_module(reader, process, message, size)
    if "xhausted" in text or "EXHAUSTED" in text:
        if find("other_resource", text):
            reader.records.other_resources += 1
            return None
        if not find("error_without_size", text):
            return None
    elif not find_any(("bare_error", "copy_error"), text):
        return None
    return _find_without_size(reader, process, message)


def _find_tensor(
    reader: LogReader, process: LogProcess, message: LogMessage, match: re.Match[str]
) -> LoggedFailure:
    shape, dtype = parse_shape(match["shape"]), match["dtype"] or ""
    device, allocator = match["device"] or "", (match["allocator"] or "").rstrip(".,;")
    known = same = None
    for failure in _recent(reader.records, process):
        if allocator and failure.allocator not in ("", allocator):
            continue
        tensor = failure.tensor
        if tensor.shape is None and shape is not None and _may_request(failure, shape, dtype):
            known = failure  # the latest one that lacks this shape
            break
        is_same = tensor.shape == shape and tensor.dtype in ("", dtype)
        if same is None and is_same and failure.device in ("", device):
            same = failure
    known = known or same
    if known is None:
        kind = FailedAllocator.HOST if allocator in _HOST_ALLOCATORS else FailedAllocator.POOL
        known = reader.add_failure(process, message, kind, message.text, reports=0)
    if known.tensor.shape is None:
        known.tensor.shape, known.tensor.dtype = shape, dtype
    known.tensor.dtype = known.tensor.dtype or dtype
    known.device = known.device or device.rstrip(".,;")
    known.allocator = known.allocator or allocator
    return known


def _may_request(failure: LoggedFailure, shape: tuple[int, ...], dtype: str) -> bool:
    """Return whether a failure without an error text may have requested this shape."""
    is_other = failure.kind is FailedAllocator.LIBRARY or failure.is_compiled
    if is_other or failure.has_error_text:
        return False
    size, rounded = failure.tensor.size, failure.tensor.rounded_bytes
    size_bytes = shape_bytes(shape, dtype)
    if rounded is None and size is None:
        return failure.kind in (FailedAllocator.POOL, FailedAllocator.UNKNOWN)
    if size_bytes is None:
        return False
    if rounded is not None:
        return rounded == round_up_request(size_bytes)
    return size is not None and size_bytes in size


def _find_module(
    reader: LogReader, process: LogProcess, message: LogMessage, size: Range | None
) -> LoggedFailure:
    """Return the failure of a module that XLA compiled, or of a convolution's workspace."""
    found = None
    for failure in _recent(reader.records, process):
        tensor = failure.tensor
        if tensor.size is None or size is None or tensor.shape is not None:
            continue
        is_rounded = tensor.rounded_bytes == round_up_request(size.middle)
        is_same = is_rounded or tensor.size.intersection(size) is not None
        if is_same and not (failure.has_error_text and process.has_kernel_line):
            tensor.size = size if size.is_exact else tensor.size
            found = failure
            break
    if found is None:
        found = reader.add_failure(process, message, text=message.text, reports=0)
        found.kernel, found.tensor = process.kernel, RequestedTensor(size=size)
        if process.no_algorithm_lines and size is not None:
            tolerated = reversed(reader.records.tolerated)
            larger = (one.allocator for one in tolerated if one.largest.high >= size.low)
            found.allocator = next(larger, "")
    found.is_compiled = not process.no_algorithm_lines
    process.has_kernel_line = False
    return found


def _find_without_size(
    reader: LogReader, process: LogProcess, message: LogMessage
) -> LoggedFailure:
    others = (FailedAllocator.HOST, FailedAllocator.LIBRARY)
    recent = (one for one in _recent(reader.records, process) if one.kind not in others)
    last = next(recent, None)
    if last is not None and (
        not last.has_error_text or last.tensor.shape is None or last.text == message.text
    ):
        return last
    kind = FailedAllocator.UNKNOWN
    return reader.add_failure(process, message, kind, message.text, reports=0)


def _take_autotuning(records: LogRecords, process: LogProcess, text: str) -> bool:
    """Read XLA's line that it could try no algorithm for an op; ignore it if no request failed."""
    match = find("autotuning_failed", text)
    if match is None:
        return False
    op_type = find("autotuned_type", text)
    for failure in _recent(records, process):
        is_named = failure.op == match["op"]
        if not is_named and (failure.has_error_text or failure.requested_by):
            continue
        failure.reports += is_named
        failure.op, failure.op_type = match["op"], op_type["type"] if op_type else ""
        failure.has_error_text = failure.is_compiled = True
    return True


def _recent(records: LogRecords, process: LogProcess) -> Iterator[LoggedFailure]:
    """Yield the last failures of the process, the latest first; lines without a tag match any."""
    for failure in reversed(records.failures[-_RECENT:]):
        if not process.tag or failure.tag == process.tag:
            yield failure


def _complete(failure: LoggedFailure, process: LogProcess, message: LogMessage) -> None:
    text = message.text
    failure.has_error_text = True
    failure.reports += 1
    if kernel := find("kernel", text):
        failure.kernel = failure.kernel or kernel["source"]
    if copied := find("copy_error", text):
        failure.is_copy = True
        failure.device = failure.device or copied["device"] or ""
    if wrapped := find("wrapped_op", text):
        failure.op_type = failure.op_type or wrapped["type"].strip("_")
        failure.device = failure.device or wrapped["device"]
    _add_names(failure, text)
    if process.node and not failure.op and _is_requested_by(failure, process.node):
        failure.op = process.node
    if not message.file:
        failure.source = failure.source or process.frame
    process.node = ""


# Complex: a flat list of the kinds of lines, in order of precedence.
def _take_context(records: LogRecords, process: LogProcess, text: str) -> bool:
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
        process.is_in_buffers = failure.xla is None
        failure.xla = failure.xla or XlaBuffers()
        failure.is_compiled = True
        return True
    if process.is_in_buffers and failure.xla is not None and add_buffer(failure.xla, text):
        return True
    if find("usage_head", text):
        process.is_in_usage = not failure.usage
        return True
    row = find("usage_row", text) if process.is_in_usage else None
    size = parse_size(row["size"]) if row and len(failure.usage) < _MOST_ROWS else None
    if row and size is not None:
        failure.usage.append((row["node"], size))
        return True
    node = find("node", text)
    name = read_groups(node)["name"] if node else ""
    if node and not _is_requested_by(failure, name):
        for other in _recent(records, process):  # another failed request for the same shape
            is_same = other.tensor.shape == failure.tensor.shape and other.requested_by
            if is_same and _is_requested_by(other, name):
                failure.reports, other.reports = failure.reports - 1, other.reports + 1
                process.error = other
                return _add_names(other, text)
        return True
    return _add_names(failure, text)


def _is_requested_by(failure: LoggedFailure, node: str) -> bool:
    """Return whether a node may be the op of the allocator's line, which may have a call prefix."""
    requester = failure.requested_by
    return not requester or requester == node or requester.endswith(f"/{node}")


def _add_names(failure: LoggedFailure, text: str) -> bool:
    """Add the op that a text names in brackets; the first one is the op that failed."""
    node, eager = find("node", text), find("eager_op", text)
    if node:
        fields = read_groups(node)
        failure.op = failure.op or fields["name"]
        if failure.op == fields["name"]:
            failure.source = fields.get("source", failure.source)
    if eager and not eager["type"].startswith("__") and not failure.op_type:
        failure.op_type = eager["type"]
    return bool(node or eager)


_MOST_LINES: Final = 4  # that complete one text


def join_texts(messages: Iterable[LogMessage]) -> Iterator[LogMessage]:
    """Yield the messages; an incomplete text and the lines that complete it become one."""
    held: list[LogMessage] = []
    for message in messages:
        is_next = 0 < len(held) <= _MOST_LINES and not message.file and message.tag == held[0].tag
        if is_next and message.text.strip() and not find("other_text", message.text):
            held.append(message)
            whole = _join(held)
            if find("whole_text", whole.text):
                yield whole
                held = []
            continue
        yield from _release(held)
        held = []
        if find("text_start", message.text) and not find("whole_text", message.text):
            held = [message]
        else:
            yield message
    yield from _release(held)


def _release(held: list[LogMessage]) -> Iterator[LogMessage]:
    """Yield an incomplete text: the lines up to a complete shape as one, else each line alone."""
    joined = (_join(held[:count]) for count in range(1, len(held) + 1))
    shaped = (place for place, one in enumerate(joined, 1) if find("text_with_shape", one.text))
    count = next(shaped, 1)
    if held:
        yield _join(held[:count])
        yield from held[count:]


def _join(held: list[LogMessage]) -> LogMessage:
    text = " ".join([held[0].text, *(each.text.strip() for each in held[1:])])
    return replace(held[0], text=text)
