"""Findings about a step that ran out of memory: the request, the shortage, and the owners.

The step is a traced one, or a later one of a program, whose live chunks have the note ``FailedStep``.
"""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import describe_largest, evidence_row, in_brackets
from analyzer.model.contract.fields import numpy_name, tensor_bytes
from analyzer.model.contract.report_file import UnservedRequest
from analyzer.model.contract.run_note import FailedStep, WatchNote
from analyzer.model.recording.records import Finding, Severity, alive_at
from analyzer.model.units import format_bytes, parse_bytes

# op_kernel.cc: "OOM when allocating tensor with shape[8,64] and type float on DEVICE by allocator X"
_REQUEST = re.compile(r"shape\s*\[([\d,\s]*)\] and type (\w+)")
# xla_ops.cc: "Out of memory while trying to allocate 1.50GiB", "... 6291456 bytes": one block
_BLOCK = re.compile(
    r"ut of memory (?:while trying to allocate|allocating) (\d+(?:\.\d+)?) ?(B(?!y)|[KMGT]iB|b(?=ytes))"
)

# half of the 10 s: other threads may continue at first
_LEAST_WAIT_PS = 5 * 10**12

# of the 1 s on a simulated card (``allocator_calls.c``)
_LEAST_SIMULATED_WAIT_PS = 9 * 10**11


def find_out_of_memory(analysis: Analysis) -> Iterator[Finding]:
    """Report the request that failed, if the step ran out of memory."""
    failure = failure_of(analysis)
    if failure is None:
        return

    wanted = failure.requested_bytes
    in_use = failure.in_use_bytes
    requested, _ = analysis.line.at(failure.instant)
    detail = (
        f"Just before, live tensors requested {format_bytes(requested)} and their "
        f"chunks took {format_bytes(in_use)}."
    )

    free = failure.free_bytes

    if free is not None:
        detail += f" Of the limit, {format_bytes(free)} were free."
        if wanted is not None and wanted <= free:
            detail += " No free chunk was large enough: the pool is fragmented."

    asked = "more" if wanted is None else format_bytes(wanted)

    yield Finding(
        id="out-of-memory",
        severity=Severity.HIGH,
        title=f"Out of memory: a request for {asked} failed",
        detail=detail,
        evidence=describe_largest(alive_at(analysis.rows, failure.instant)),
    )


def failure_of(analysis: Analysis) -> UnservedRequest | None:
    """Return the request that failed; None if the step did not run out of memory."""
    error = analysis.recording.error
    if error is None or error.type != "ResourceExhaustedError":
        return None

    instant = _instant_of_failure(analysis)
    _, in_use = analysis.line.at(instant)
    limit = analysis.recording.device.memory_limit_bytes

    return UnservedRequest(
        instant=instant,
        requested_bytes=requested_by(error.message),
        in_use_bytes=in_use,
        memory_limit_bytes=limit,
        free_bytes=None if limit is None else max(limit - in_use, 0),
    )


def requested_by(message: str) -> int | None:
    """Return the bytes of the failed request; None if the message does not contain them.

    For a compiled step the message may round them to two decimals.
    """
    if match := _REQUEST.search(message):
        axes = tuple(int(axis) for axis in match[1].split(",") if axis.strip())
        return tensor_bytes(numpy_name(match[2]), axes)

    block = _BLOCK.search(message)

    return None if block is None else parse_bytes(block[1] + block[2])


def _instant_of_failure(analysis: Analysis) -> int:
    """Return the instant of the last step at which the request failed.

    TensorFlow's allocator retries for ten seconds (allocator_retry.cc, ``kMaxMillisToWait`` in
    bfc_allocator.cc) while its other work ends, and for one second on a simulated card. The bytes in use
    at the end are those when the wait began. So the instant is the start of the first long wait after
    which no more bytes were in use; a later one may be at the end, when the step freed its tensors.
    Algorithms tried during compilation may have used more before. Without such a wait, it is the instant
    of the highest allocated bytes.
    """
    first = analysis.first if analysis.step is not None else 0
    events = analysis.recording.events

    window = analysis.line.allocated[first + 1 : len(events) + 1]
    is_own = events["allocator"] == analysis.recording.allocator
    own = np.flatnonzero(is_own & (np.arange(len(events)) >= first))

    is_simulated = analysis.recording.simulated_run is not None
    least_ps = _LEAST_SIMULATED_WAIT_PS if is_simulated else _LEAST_WAIT_PS
    waits = np.diff(events["time_ps"].to_numpy()[own]) >= least_ps

    for began in own[:-1][waits]:
        if window[began - first :].max() == window[began - first]:
            return int(began)

    return first + int(window.argmax())


_ROWS = 20

Owner = tuple[str, str, str, str]  # category, name of the holder, layer, line of code
_UNKNOWN: Owner = ("no known owner", "", "", "")


def find_failed_step(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report the owners of the live bytes at a failed allocation after the traced steps."""
    failed = watch.failed
    if failed is None:
        return

    owners = _name_live_bytes(analysis, failed)
    in_use = failed.in_use_bytes
    named_ratio = (owners.total() - owners[_UNKNOWN]) / max(in_use, 1)
    wanted = requested_by(failed.message)

    request = "A request" + (f" for {format_bytes(wanted)}" if wanted else "")
    (first, size_bytes), *_ = owners.most_common(1) or [(_UNKNOWN, 0)]
    category, holder, layer, where = first
    words = holder or category + (f" of {layer}" if layer else "")

    yield Finding(
        id="out-of-memory",
        severity=Severity.HIGH,
        title=f"Step {failed.step} ran out of memory: {format_bytes(size_bytes)} of "
        f"{format_bytes(in_use)} in use belong to {words}{in_brackets(where)}",
        detail=f"{request} failed. The owners of {named_ratio:.1%} of the bytes in use "
        "are known: variables and tensors that Python holds by address, other buffers "
        "of the step by the size of the same buffer at the traced peak.",
        evidence=tuple(
            evidence_row(what, name=name or layer, where=where, size=size)
            for (what, name, layer, where), size in owners.most_common(_ROWS)
        ),
    )


def _name_live_bytes(analysis: Analysis, failed: FailedStep) -> Counter[Owner]:
    """Return the live bytes at a failed allocation by owner."""
    by_address = {address: held for held in failed.held for address in held.addresses}
    by_variable: dict[str, Owner] = {}
    alive = analysis.alive

    by_size: dict[int, list[Owner]] = {}  # the buffers of the traced peak

    for row in alive.itertuples():
        name = f"the variable {row.variable}" if row.variable else ""
        owner = (str(row.category), name, str(row.layer), str(row.source))
        if name:
            by_variable[str(row.variable)] = owner
        else:
            by_size.setdefault(int(row.requested_bytes), []).append(owner)

    owners: Counter[Owner] = Counter()

    for chunk in failed.chunks:
        owner = _UNKNOWN
        alike = by_size.get(chunk.requested_bytes, [])
        held = by_address.get(chunk.address)
        if chunk.variable:
            unseen = ("parameter", f"the variable {chunk.variable}", "", "")
            owner = by_variable.get(chunk.variable, unseen)
        elif held is not None:
            owner = ("held by Python", held.holder, "", held.where)
        elif alike:
            owner = alike.pop()

        owners[owner] += chunk.size_bytes

    owners[_UNKNOWN] += failed.in_use_bytes - owners.total()

    return +owners
