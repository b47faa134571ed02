"""Findings about a step that ran out of memory: the request, the bytes in use, the shortage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import describe_largest
from analyzer.model.contract.fields import numpy_name, tensor_bytes
from analyzer.model.contract.report.limit_figures import UnservedRequest
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.recording.timeline import alive_at
from analyzer.model.units import format_bytes, parse_bytes
from analyzer.simulate.allocator import BfcOptions, from_recording, replay
from analyzer.simulate.allocator.sequence import NOWHERE

# op_kernel.cc: "OOM when allocating tensor with shape[8,64] and type float on DEVICE by allocator X"
_REQUEST: Final = re.compile(r"shape\s*\[([\d,\s]*)\] and type (\w+)")
# xla_ops.cc: "Out of memory while trying to allocate 1.50GiB", "... 6291456 bytes": one block
_BLOCK: Final = re.compile(
    r"ut of memory (?:while trying to allocate|allocating) (\d+(?:\.\d+)?) ?(B(?!y)|[KMGT]iB|b(?=ytes))"
)
_LEAST_WAIT_PS: Final = 5 * 10**12  # half of the 10 s: other threads may continue at first


def find_out_of_memory(analysis: Analysis) -> Iterator[Finding]:
    """Report the request that failed, if the step ran out of memory."""
    failure = failure_of(analysis)
    if failure is None:
        return
    wanted, in_use = failure.requested_bytes, failure.in_use_bytes
    requested, _ = analysis.line.at(failure.instant)
    limit = failure.memory_limit_bytes
    asked = format_bytes(wanted) if wanted is not None else "more"
    detail = (
        f"Just before, live tensors requested {format_bytes(requested)} and their chunks took "
        f"{format_bytes(in_use)}."
    )
    if limit is not None:
        free = limit - in_use
        detail += f" The limit is {format_bytes(limit)}, so {format_bytes(free)} were free"
        if wanted is not None and wanted <= free:
            detail += ", but no free chunk is large enough: the pool is fragmented."
        elif wanted is not None:
            error = analysis.recording.error
            kind = "tensor" if error is not None and _REQUEST.search(error.message) else "block"
            detail += f": the {kind} needs {format_bytes(wanted - free)} more."
        else:
            detail += "."
    yield Finding(
        id="out-of-memory",
        severity=Severity.HIGH,
        title=f"The step ran out of memory: a request for {asked} failed",
        detail=detail,
        evidence=describe_largest(alive_at(analysis.rows, failure.instant)),
    )


def failure_of(analysis: Analysis) -> UnservedRequest | None:
    """Return the request that failed; None if the step did not run out of memory."""
    error = analysis.recording.error
    if error is None or error.type != "ResourceExhaustedError":
        return None
    instant = _instant_of_failure(analysis, len(analysis.recording.events) - 1)
    _, in_use = analysis.line.at(instant)
    limit = analysis.recording.device.memory_limit_bytes
    return UnservedRequest(
        instant=instant,
        requested_bytes=requested_by(error.message),
        in_use_bytes=in_use,
        memory_limit_bytes=limit,
        free_bytes=None if limit is None else max(limit - in_use, 0),
    )


def would_have_fitted(analysis: Analysis, options: BfcOptions) -> bool:
    """Return whether the failed request would succeed after the trace's events.

    If so, the trace lacks its last events. The trace has to begin with its process.
    """
    failure = failure_of(analysis)
    if failure is None or not failure.requested_bytes:
        return False
    sequence, wanted = from_recording(analysis.recording), failure.requested_bytes
    done = int(np.searchsorted(sequence.instant, failure.instant, side="right"))
    more = replace(
        sequence,
        slot=np.append(sequence.slot[:done], sequence.n_buffers),
        request=np.append(sequence.request[:done], wanted),
        instant=np.append(sequence.instant[:done], failure.instant),
        requested_bytes=np.append(sequence.requested_bytes, wanted),
        address=np.append(sequence.address, NOWHERE),
        row=np.append(sequence.row, NOWHERE),
    )
    return replay(more, options).failure is None


def requested_by(message: str) -> int | None:
    """Return the bytes of the failed request; None if the message does not contain them.

    For a compiled step the message may round them to two decimals.
    """
    if match := _REQUEST.search(message):
        axes = tuple(int(axis) for axis in match[1].split(",") if axis.strip())
        return tensor_bytes(numpy_name(match[2]), axes)
    block = _BLOCK.search(message)
    return None if block is None else parse_bytes(block[1] + block[2])


def _instant_of_failure(analysis: Analysis, last: int) -> int:
    """Return the instant of the last step at which the request failed.

    TensorFlow's allocator retries for ten seconds (allocator_retry.cc, ``kMaxMillisToWait`` in
    bfc_allocator.cc) while its other work ends; the bytes in use at the end are those when the wait
    began. So the instant is the start of the last long wait after which no more bytes were in use.
    Algorithms tried during compilation may have used more before. Without such a wait, it is the
    instant of the highest allocated bytes.
    """
    first = analysis.first if analysis.step is not None else 0
    events, window = analysis.recording.events, analysis.line.allocated[first + 1 : last + 2]
    is_own = (events["allocator"] == analysis.recording.allocator).to_numpy()[first : last + 1]
    own = first + np.flatnonzero(is_own)
    waits = np.diff(events["time_ps"].to_numpy()[own]) >= _LEAST_WAIT_PS
    if waits.any():
        began = int(own[np.flatnonzero(waits)[-1]])
        if window[began - first :].max() == window[began - first]:
            return began
    return first + int(window.argmax())
