"""Objects that hold memory: tapes, models, names, retraced functions."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analyzer.explain.analysis import PERSISTENT, Analysis, sum_requested
from analyzer.explain.buffer_words import (
    evidence_row,
    holder_row,
    is_passing,
)
from analyzer.explain.running.leaks import leaks_by_holder, tensors_left
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.run_note import TracedFunction, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

# tapes of one line that are alive together from which on they seem to be stored
_TAPES = 3

# Tensors of the step before are reported above both: bytes, and a share of the peak.
_LEAST_NAMED_BYTES = 1 << 20
_LEAST_NAMED_RATIO = 0.1

_OF_TENSOR = ["op", "requested_bytes"]  # columns
_LOADERS = ("", "IteratorGetNext")  # ops that load the data of a loop

_ROWS = 8


def find_tapes(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report stored gradient tapes, and persistent or unused tapes that are alive after the step."""
    size_bytes = _bytes_of_tapes(analysis, watch)
    size = format_bytes(size_bytes)

    for one in sorted(watch.tapes, key=lambda tape: -tape.alive):
        is_large = size_bytes >= analysis.least_bytes
        is_idle = (one.persistent or one.unused) and is_large

        # an error's traceback may hold the tape
        is_failed = watch.whole_run and watch.ended
        if one.alive >= _TAPES:
            id_ = "tapes-kept"
            holder = f" in {one.holder}" if one.holder else ""
            title = f"{one.alive} gradient tapes accumulate{holder} and hold {size}"
        elif is_idle and not is_failed:
            id_ = "tape-outlives-use"
            kind = "A persistent" if one.persistent else "An unused"
            title = f"{kind} tape still holds {size} after its step"
        else:
            continue

        yield Finding(
            id=id_,
            severity=Severity.HIGH,
            title=f"{title} ({one.where})",
            detail="A tape holds all intermediate results that it recorded, until it "
            "is freed: del tape after its last use, and store no reference to it. One "
            "call for all gradients needs no persistent=True.",
            # a name that is bound again frees its tape before the next peak
            saves_bytes=size_bytes if one.alive >= _TAPES else None,
            saves_kind="allocated",
        )


def _bytes_of_tapes(analysis: Analysis, watch: WatchNote) -> int:
    """Return the bytes that outlive their step and that no tensor in Python holds."""
    rows = tensors_left(analysis)
    named = {address for held in watch.held for address in held.addresses}

    is_result = rows["category"].isin(
        ("activation", "temporary", "input", "unattributed")
    )
    is_own = rows["allocator"] == analysis.recording.allocator
    is_kept = (is_result | is_passing(rows)) & is_own & ~rows["address"].isin(named)

    return int(rows.loc[is_kept, "allocated_bytes"].sum())


def find_models(watch: WatchNote, host_slope: str = "") -> Iterator[Finding]:
    """Report several models that one line created; ``host_slope`` is the growth that they cause."""
    for one in watch.models:
        if one.alive < 2 and not host_slope:
            continue

        holder = f", held by {one.holder}" if one.holder else ""
        made = max(one.made, one.alive)
        severity = Severity.MEDIUM
        saves_bytes: int | None = one.size_bytes * (one.alive - 1) // max(one.alive, 1)
        size = format_bytes(one.size_bytes)
        title = (
            f"{made} models were built by one line and {one.alive} of them are alive, "
            f"with {size} of variables of their own ({one.where}{holder})"
        )
        if host_slope:
            severity = Severity.HIGH
            saves_bytes = None  # mostly graphs, whose size is unknown
            title = f"{host_slope}: {title}"

        yield Finding(
            id="models-kept",
            severity=severity,
            title=title,
            detail="Each model holds its weights, its optimizer state and the graphs of "
            "its functions. Models with the same layers: build one and restore its first "
            "weights, model.set_weights(first). Others: drop every reference to a model "
            "before the next, then keras.utils.clear_session().",
            saves_bytes=saves_bytes,
            saves_kind="allocated",
        )


def find_held_over(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report tensors of the step before that a name holds and that are still alive at the peak."""
    if analysis.step is None:
        return

    alive = analysis.alive
    peak = analysis.peak.requested_bytes
    growing = [held for held, _ in leaks_by_holder(analysis, watch)]
    collected = {one for held in growing for one in held.addresses}

    steps = alive["step"]
    is_older = steps.notna() & (steps.fillna(-1) < analysis.step.index)
    is_older &= ~alive["address"].isin(collected)
    older = alive[is_older & ~alive["category"].isin(PERSISTENT)]
    tensors = pd.MultiIndex.from_frame(older[_OF_TENSOR])

    # A name is matched by op and size. Loaded batches are skipped: their name is reassigned before the
    # step begins.
    left = tensors_left(analysis)
    left = left[~left["op"].isin(_LOADERS)]
    names = []
    is_known = np.zeros(len(older), bool)

    for held in watch.held:
        own = left.loc[left["address"].isin(held.addresses), _OF_TENSOR]
        is_held = tensors.isin(list(own.itertuples(index=False, name=None)))
        is_bounded = held.bound or held.removes
        if is_held.any() and not is_bounded and held not in growing:
            names.append(held)
            is_known |= is_held

    size_bytes = sum_requested(older[is_known])
    if not names or size_bytes < max(_LEAST_NAMED_BYTES, _LEAST_NAMED_RATIO * peak):
        return

    yield Finding(
        id="held-over",
        severity=analysis.rate(size_bytes),
        title=f"{format_bytes(size_bytes)} of the previous step are alive at the peak: "
        f"{names[0].holder} holds them ({names[0].where})",
        detail="In a loop, a name holds its tensors until it is reassigned, one step "
        "later. `del` it at the end of the step, or move the step into a function.",
        saves_bytes=size_bytes,
        evidence=tuple(holder_row("held by", held) for held in names[:_ROWS]),
    )


# Repeated traces of one function that are normal: a last, smaller batch; training and inference.
_FEW_TRACES = 4

_CALLS_RATIO = 0.1  # share of the calls above which traces are too many

# tf.functions of one definition from which on a loop seems to create them
_COPIES = 5

_CALL_ROWS = 20

_RETRACE_ADVICE = {
    "object": "Pass the same objects in each call, and values that change as tensors.",
    "shape": "Use tf.function(reduce_retracing=True), or pad to a few lengths.",
    "value": "Pass numbers as tensors (tf.constant(rate)) or store them in a tf.Variable.",
}


def find_retracing(watch: WatchNote, host_slope: str = "") -> Iterator[Finding]:
    """Report functions that are traced in many of their calls, or created many times."""
    start = f"{host_slope}: " if host_slope else ""

    for one in watch.functions:
        if one.is_keras and watch.models:
            continue  # reported with the models: each model has its own functions

        repeats = one.traces - one.objects
        if one.objects >= _COPIES:
            if one.traces >= _CALLS_RATIO * one.calls:
                yield _report_created(one, start)
        elif repeats > _FEW_TRACES and repeats >= _CALLS_RATIO * one.calls:
            yield _report_retraced(one, start)


def _report_created(one: TracedFunction, start: str) -> Finding:
    holder = f", held by {one.holder}" if one.holder else ""
    is_kept = one.alive >= _COPIES

    kept = f"; {one.alive} are still alive{holder}" if is_kept else ""

    return Finding(
        id="functions-made-anew",
        severity=Severity.HIGH if is_kept or start else Severity.MEDIUM,
        title=f"{start}{one.objects} tf.functions were created from `{one.name}` "
        f"({_place_of(one)}){kept}",
        detail="Each one is traced and has its own graph and executor. "
        "Create the tf.function once, outside the loop, and pass the values that change "
        "as tensors.",
        evidence=_calls_of(one),
    )


def _report_retraced(one: TracedFunction, start: str) -> Finding:
    last = one.retraces[-1] if one.retraces else None
    cause = "object" if last is None else last.cause
    reason = f" Last reason: {last.changed}." if last and last.changed else ""

    return Finding(
        id="retraced",
        severity=Severity.HIGH,
        title=f"{start}TensorFlow traced `{one.name}` {one.traces} times in {one.calls} calls "
        f"({_place_of(one)})",
        detail="Each trace runs the Python code and stores another graph."
        f"{reason} {_RETRACE_ADVICE[cause]}",
        evidence=_calls_of(one),
    )


def _place_of(one: TracedFunction) -> str:
    call = f"called at {one.called_at}" if one.called_at else ""
    where = "" if one.is_keras else one.where
    return ", ".join(filter(None, (where, call)))


def _calls_of(one: TracedFunction) -> tuple[EvidenceRow, ...]:
    return tuple(
        evidence_row(f"call {retrace.call}", name=retrace.changed, where=one.called_at)
        for retrace in one.retraces[-_CALL_ROWS:]
    )
