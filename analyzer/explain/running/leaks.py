"""Memory that grows from step to step, and the names that hold it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from analyzer.explain.analysis import LOW, PERSISTENT, Analysis
from analyzer.explain.buffer_words import (
    describe_ops,
    evidence_row,
    holder_row,
    in_brackets,
)
from analyzer.explain.running.slope import SMALL_SLOPE_BYTES
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.report_file import TrendFigures
from analyzer.model.contract.run_note import HeldTensors, WatchNote
from analyzer.model.recording.records import Finding, Severity, find_own_peak
from analyzer.model.units import format_bytes, times

# a holder leaks if it keeps tensors of more traced steps than this
_FEWEST_STEPS = 2

_HOST_BYTES = 64 << 20  # growth of the process over all steps to report

# growth of a container of NumPy arrays in one step to report
_HOST_STEP_BYTES = 64 << 10

# share of the growth that a container must hold to be its cause
_EXPLAINS_RATIO = 0.4

# Lower bound of a steady slope, as a share of the slope: a heap that settles slows down.
_STEADY_RATIO = 0.5

_ROWS = 10

_OF_PREDICT = "one_step_on_data_distributed"  # Keras' function of a step


def leaks_by_holder(
    analysis: Analysis, watch: WatchNote
) -> list[tuple[HeldTensors, int]]:
    """Return the holders that keep tensors of each step, with their median bytes a step."""
    rows = _outliving(analysis)
    traced = max(len(analysis.recording.steps), 1)
    leaks = []

    for held in watch.held:
        kept = rows[rows["address"].isin(held.addresses)]
        sums = kept.groupby("step", observed=True)["allocated_bytes"].sum()
        steps = len(sums)
        per_step = int(np.median(sums)) if steps else 0

        if not held.addresses:  # outside the allocator: memory shared with NumPy
            steps = held.count
            per_step = held.size_bytes // traced

        is_repeated = min(steps, held.count) > min(_FEWEST_STEPS, traced)
        if held.grows and per_step and is_repeated:
            leaks.append((held, per_step))

    return sorted(leaks, key=lambda leak: -leak[1])


def tensors_left(analysis: Analysis) -> pd.DataFrame:
    """Return the tensors of traced steps that are alive after the last one; no variables."""
    table = _outliving(analysis)
    return table[~table["category"].isin(PERSISTENT - {"input", "constant"})]


def _outliving(analysis: Analysis) -> pd.DataFrame:
    """Return the buffers born in a traced step and alive after the last one.

    A tensor read from a variable shares its buffer, and the next update takes another buffer
    (``PrepareToUpdateVariable`` copies a buffer with more than one reference). So a kept tensor may be
    a buffer that belonged to a variable.
    """
    table = analysis.recording.allocations
    end = len(analysis.recording.events)

    return table[
        table["step"].notna() & (table["dies"] >= end) & table["address"].notna()
    ]


def find_leaks(
    analysis: Analysis,
    watch: WatchNote,
    growth: TrendFigures,
) -> Iterator[Finding]:
    """Report containers that keep tensors of each step, if memory grows over the steps."""
    if watch.whole_run or growth.trend != "grows":
        return

    if _OF_PREDICT in watch.step:
        yield _report_results(analysis, watch, growth)
        return

    filling = find_filling(watch, growth)
    if filling is not None:
        room = f" for {filling.bound:,} entries" if filling.bound else ""

        yield Finding(
            id="fills",
            severity=Severity.LOW,
            title=f"Memory rises by {format_bytes(round(growth.per_step_bytes))} a step"
            f" while {filling.holder} fills{in_brackets(filling.where)}",
            detail=f"Memory grows until its room{room} is full. Without a bound, limit "
            "it: collections.deque(maxlen=…).",
            evidence=(holder_row("kept by", filling),),
        )

    traced = len(analysis.recording.steps)

    for held, per_step_bytes in leaks_by_holder(analysis, watch):
        if held.removes or per_step_bytes < LOW * growth.per_step_bytes:
            continue

        yield _report_growth(
            growth,
            _accumulate_in(held),
            f"In {traced} traced steps a tensor was added {times(held.count)} and none "
            f"was removed. {_advise(held)}",
            (holder_row("kept by", held),),
            per_step_bytes=per_step_bytes,
        )


def _report_results(
    analysis: Analysis,
    watch: WatchNote,
    growth: TrendFigures,
) -> Finding:
    finding = _report_growth(
        growth,
        f"predict keeps the results of all batches{in_brackets(watch.where)}",
        "At its end it joins them, so that each exists twice, and copies them to NumPy. "
        "Let the model return only the outputs that you use, or loop over batches with "
        "predict_on_batch.",
        (),
    )
    saves = 2 * round(growth.per_step_bytes * growth.last_step)
    own_bytes = find_own_peak(analysis.recording)

    if own_bytes and watch.first_call_bytes:
        saves = own_bytes - watch.first_call_bytes

    return replace(finding, id="results-kept", saves_bytes=saves)


def _accumulate_in(held: HeldTensors) -> str:
    return f"tensors accumulate in {held.holder}{in_brackets(held.where)}"


def _advise(held: HeldTensors) -> str:
    if held.by_traceback:
        return (
            "It holds exceptions, and the traceback of each one holds the local names "
            "of every function on its path. Store the text, str(error), or drop the "
            "traceback: error.with_traceback(None)."
        )

    return (
        "Store a number of each tensor, such as float(loss) or a mean, or limit the "
        "container: collections.deque(maxlen=…), clear()."
    )


def find_filling(watch: WatchNote, growth: TrendFigures) -> HeldTensors | None:
    """Return the bounded container whose filling explains the growth; None if there is none."""
    if growth.trend != "grows":
        return None

    bounded = [
        one for one in (*watch.held_later, *watch.held) if one.bound or one.removes
    ]
    largest = max(bounded, key=lambda one: one.size_bytes, default=None)
    least_bytes = _EXPLAINS_RATIO * growth.per_step_bytes

    return None if largest is None or largest.size_bytes < least_bytes else largest


def find_unexplained(
    analysis: Analysis,
    watch: WatchNote,
    growth: TrendFigures,
    host: TrendFigures,
) -> Iterator[Finding]:
    """Report memory that grows although no container of the traced steps explains it.

    ``growth`` is that of the allocator, ``host`` that of the rest of the process.
    """
    is_large = growth.per_step_bytes >= SMALL_SLOPE_BYTES

    # A larger model or batch needs more memory, and keeps nothing.
    if watch.step_objects < 2 and growth.trend == "grows" and is_large:
        cause = _find_rare_leak(analysis, watch, growth)
        cause = cause or _find_growing_tensor(analysis, watch, growth)
        cause = cause or _report_unknown_holder(analysis, watch, growth)
        if cause:
            yield cause
        return

    steps = max(len(analysis.recording.steps), 1)
    holder = next((one for one in watch.on_host if not one.removes), None)
    if (
        holder
        and holder.size_bytes >= _HOST_STEP_BYTES * steps
        and host.trend != "flat"
    ):
        yield Finding(
            id="grows-on-host",
            severity=Severity.MEDIUM,
            title=f"Host memory grows by {format_bytes(holder.size_bytes // steps)} a "
            "step: arrays or texts accumulate in "
            f"{holder.holder}{in_brackets(holder.where)}",
            detail="Store a summary (a mean, a file path), or limit the container: "
            "collections.deque(maxlen=…), clear().",
            evidence=tuple(holder_row("kept by", one) for one in watch.on_host[:_ROWS]),
        )
    elif slope := host_growth_words(watch, host):
        where = f", {watch.where}" if watch.where else ""
        yield Finding(
            id="host-growth",
            severity=Severity.MEDIUM,
            title=f"{slope} (a step is {watch.step}{where})",
            detail="It is outside TensorFlow's allocator, and no container that explains it "
            "is known.",
        )


def host_growth_words(watch: WatchNote, host: TrendFigures) -> str:
    """Return the growth of the process; empty unless it is large and steady.

    A heap that settles slows down, so the last third must keep half the slope.
    """
    if host.trend != "grows":
        return ""

    steps = host.last_step - host.first_step
    least = _STEADY_RATIO * host.per_step_bytes
    late = [one for one in watch.readings if one.step >= host.last_step - steps // 3]
    sizes = [one.host_bytes for one in late if one.host_bytes is not None] or [0]

    is_large = host.per_step_bytes * steps >= _HOST_BYTES
    is_steady = sizes[-1] - sizes[0] >= least * (steps // 3)
    if not is_large or not is_steady or host.low_bytes < least:
        return ""

    slope = format_bytes(round(host.per_step_bytes))

    return f"Host memory of the process grows by {slope} a step"


def _report_growth(
    growth: TrendFigures,
    cause: str,
    detail: str,
    evidence: tuple[EvidenceRow, ...],
    *,
    per_step_bytes: float | None = None,
) -> Finding:
    """Return a finding that saves the growth up to the last step; by default, that of the trend."""
    per_step = growth.per_step_bytes if per_step_bytes is None else per_step_bytes

    return Finding(
        id="kept-tensors",
        severity=Severity.HIGH,
        title=f"Memory grows by {format_bytes(round(per_step))} a step: {cause}",
        detail=detail,
        saves_bytes=round(per_step * max(growth.last_step, 1)),
        saves_kind="allocated",
        evidence=evidence,
    )


def _find_rare_leak(
    analysis: Analysis,
    watch: WatchNote,
    growth: TrendFigures,
) -> Finding | None:
    """Report the container that grew most; None if it does not explain the growth."""
    steps = watch.later_step - watch.warmup - len(analysis.recording.steps)
    growing = [one for one in watch.held_later if not (one.bound or one.removes)]
    largest = max(growing, key=lambda one: one.size_bytes, default=None)

    if (
        largest is None
        or largest.size_bytes < _EXPLAINS_RATIO * growth.per_step_bytes * steps
    ):
        return None

    return _report_growth(
        growth,
        _accumulate_in(largest),
        f"In {steps} steps a tensor was added {times(largest.count)}, "
        f"{format_bytes(largest.size_bytes)} in total. {_advise(largest)}",
        tuple(holder_row("kept by", one) for one in watch.held_later[:_ROWS]),
    )


def _find_growing_tensor(
    analysis: Analysis,
    watch: WatchNote,
    growth: TrendFigures,
) -> Finding | None:
    """Report a name that gets a larger tensor in each step; None if it does not explain the growth."""
    left = _outliving(analysis)
    rows = analysis.recording.allocations

    for held in watch.held:
        op = next(iter(left.loc[left["address"].isin(held.addresses), "op"]), "")
        if held.grows or not op:
            continue

        made = rows[rows["op"] == op]
        sizes = made["requested_bytes"].groupby(made["step"]).max()
        rises = sizes.diff().iloc[1:]
        is_rising = len(rises) >= _FEWEST_STEPS and rises.min() > 0
        if not is_rising or rises.median() < _EXPLAINS_RATIO * growth.per_step_bytes:
            continue

        first = format_bytes(int(sizes.iloc[0]))
        last = format_bytes(int(sizes.iloc[-1]))

        return _report_growth(
            growth,
            f"{held.holder}{in_brackets(held.where)} gets a larger tensor each time",
            f"{op} made {first} in the first traced step and {last} in the last. "
            "Each time, the old and the new tensor are alive together. Write into a "
            "tf.Variable or an array of the final size, or store numbers.",
            (holder_row("held by", held), evidence_row("made by", name=op)),
        )

    return None


def _report_unknown_holder(
    analysis: Analysis,
    watch: WatchNote,
    growth: TrendFigures,
) -> Finding | None:
    """Report growth that the traced steps confirm: each of them leaves bytes behind.

    Without tensors that are left, levels that change by chance look like a slope in some runs.
    """
    rows = tensors_left(analysis)
    before_last = range(len(analysis.recording.steps) - 1)
    rows = rows[rows["step"].isin(before_last)]

    by_step = rows.groupby("step", observed=True)["allocated_bytes"].sum()
    left_bytes = by_step.reindex(before_last, fill_value=0).median()
    if not left_bytes >= _EXPLAINS_RATIO * growth.per_step_bytes:
        return None  # also without a step before the last, where it is not a number

    sums = rows.groupby("op", observed=True)["allocated_bytes"].sum()
    step = f" (a step is {watch.step}, {watch.where})" if watch.where else ""
    finding = _report_growth(
        growth,
        f"the holder is unknown{step}",
        "No container of the program holds the bytes. Check the ops in the evidence: "
        "their buffers outlive their step.",
        describe_ops("outlives its step", sums, rows),
    )

    return replace(finding, id="grows")


def find_larger_call(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report a call besides the steps that needs more memory than all of them."""
    found = analysis.find_step_peaks().values()
    peaks = [peak.allocated_bytes for peak in found]
    steps_bytes = max(peaks, default=analysis.peak_ever.allocated_bytes)
    own_bytes = find_own_peak(analysis.recording) or 0
    saves = own_bytes - steps_bytes

    of_steps = analysis.rows[analysis.rows["step"].notna()]
    lines = {"", *of_steps["source"]} - {watch.where}  # fit validates on its line

    if watch.peak_call in lines or saves < LOW * own_bytes:
        return

    for one in watch.functions:
        is_step = watch.step.endswith(one.name) and one.calls == watch.steps
        if one.called_at != watch.peak_call or not is_step:
            continue

        first = max([retrace.step for retrace in one.retraces], default=0)
        if first > watch.warmup:
            yield Finding(
                id="later-steps",
                severity=analysis.rate(saves),
                title=f"Steps after the first {first} need {format_bytes(own_bytes)}, the "
                f"traced ones {format_bytes(steps_bytes)} ({watch.peak_call})",
                detail="This report is about the traced ones. "
                f"--warmup {first + watch.warmup} traces the others.",
            )

        return

    yield Finding(
        id="larger-call",
        severity=analysis.rate(saves),
        title=f"A call besides the steps needs {format_bytes(own_bytes)}, the steps "
        f"{format_bytes(steps_bytes)} ({watch.peak_call})",
        detail="If its batch is larger than that of the steps, give evaluate, predict or "
        "the validation of fit (validation_batch_size) a smaller one. A call also holds "
        "the arrays that it gets: call it for parts of the data, or give it a data set "
        "that loads them. The saving is that down to the steps.",
        saves_bytes=saves,
        saves_kind="allocated",
    )
