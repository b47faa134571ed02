"""Bytes that stay from step to step, and who keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import PERSISTENT, Analysis
from analyzer.explain.running.evidence_rows import evidence_row
from analyzer.explain.running.slope import StepGrowth, growth_of
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.watch_note import HeldTensors, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes, format_slope, signed_bytes, times

_FEWEST_STEPS: Final = 2
"""Traced steps of which something has to be left before it is taken to stay: one is the last one's."""

_MUCH: Final = 0.1
_SOME: Final = 0.01
"""Shares of the peak that 1,000 steps add, from which a growth is grave, or worth a look."""

_THOUSAND: Final = 1000

_HOST_BYTES: Final = 64 << 20
"""Growth of the process over all steps from which on it is told."""

_HOST_STEP_BYTES: Final = 64 << 10
"""What a container of NumPy arrays gets in a step from which on it is told."""

_LEAST_BYTES: Final = 1 << 20
"""What 1,000 steps add below which growth that nothing is found to keep is no matter."""

_EXPLAINS: Final = 0.4
"""Share of the growth that a container holds from which on it is what grows."""

_STEADY: Final = 0.5
"""Share of the slope that its lower bound has to have: a heap that settles slows down."""
_ROWS: Final = 10

_OF_TENSORS: Final = (
    "Keep numbers instead of tensors: float(loss), value.numpy(); or let the container forget: "
    "collections.deque(maxlen=…), clear()."
)
_OF_TRACEBACKS: Final = (
    "Exceptions are kept there, and the traceback of each holds every local name of the functions that "
    "it went through: keep its text, str(error), or the exception alone, error.with_traceback(None)."
)


@dataclass(frozen=True, kw_only=True)
class Staying:
    """What one holder keeps of each step.

    Attributes:
        held: The holder.
        per_step_bytes: Allocated bytes of a step that it keeps, the median of the traced steps.
        steps: Traced steps of which it keeps something.
        ops: What made it.
    """

    held: HeldTensors
    per_step_bytes: int
    steps: int
    ops: tuple[str, ...]


def staying(analysis: Analysis, watch: WatchNote) -> list[Staying]:
    """Return the holders that keep something of several traced steps, those that keep most first."""
    rows = _outliving(analysis)
    by_address = dict(zip(rows["address"].astype("int64"), rows.index, strict=True))
    wanted = max(min(_FEWEST_STEPS, len(analysis.recording.steps)), 1)
    found = []
    for held in watch.held:
        if not held.grows:
            continue
        mine = rows.loc[[by_address[one] for one in held.addresses if one in by_address]]
        sums = mine.groupby("step", observed=True)["allocated_bytes"].sum()
        steps = len(sums)
        per_step = int(np.median(sums)) if steps else 0
        if not held.addresses:  # their bytes lie outside the allocator: NumPy's, shared
            steps = held.count
            per_step = held.size_bytes // max(len(analysis.recording.steps), 1)
        if per_step and steps > wanted and held.count > wanted:
            ops = tuple(dict.fromkeys(str(op) for op in mine["op"] if op))
            found.append(Staying(held=held, per_step_bytes=per_step, steps=steps, ops=ops))
    return sorted(found, key=lambda one: -one.per_step_bytes)


def left_over(analysis: Analysis) -> pd.DataFrame:
    """Return what was born in a traced step and is alive after the last, and is no variable's."""
    table = _outliving(analysis)
    return table[~table["category"].isin(PERSISTENT - {"input", "constant"})]


def _outliving(analysis: Analysis) -> pd.DataFrame:
    """Return what was born in a traced step and is alive after the last.

    A tensor that was read of a variable shares its buffer, and the next update takes another one
    (``PrepareToUpdateVariable`` copies a buffer that has more than one reference): who keeps the tensor
    keeps a buffer that was the variable's.
    """
    table = analysis.recording.allocations
    end = len(analysis.recording.events)
    return table[table["step"].notna() & (table["dies"] >= end) & table["address"].notna()]


def find_kept(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report containers that keep something of each step."""
    growth = growth_of(watch.readings, watch.warmup)
    return [
        _kept(analysis, one, growth)
        for one in staying(analysis, watch)
        if growth.trend != "flat" or growth.high_bytes >= one.per_step_bytes / 2
    ]


def find_unexplained(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report that bytes stay, where nothing was found to keep them."""
    growth = growth_of(watch.readings, watch.warmup)
    if growth.trend == "grows" and growth.per_step_bytes * _THOUSAND >= _LEAST_BYTES:
        found = _kept_now_and_then(analysis, watch, growth) or _grown_larger(
            analysis, watch, growth
        )
        return [found or _unexplained(analysis, watch, growth)]
    steps = max(len(analysis.recording.steps), 1)
    if watch.on_host and watch.on_host[0].size_bytes >= _HOST_STEP_BYTES * steps:
        return [_kept_on_host(watch, steps)]
    host = growth_of(watch.readings, watch.warmup, lambda reading: reading.host_bytes)
    steady = host.low_bytes >= _STEADY * host.per_step_bytes
    enough = host.per_step_bytes * (host.last_step - host.first_step) >= _HOST_BYTES
    return [_on_host(watch, host)] if host.trend == "grows" and steady and enough else []


def _kept_on_host(watch: WatchNote, steps: int) -> Finding:
    first = watch.on_host[0]
    growth = growth_of(watch.readings, watch.warmup, lambda reading: reading.host_bytes)
    return Finding(
        id="grows-on-host",
        severity=Severity.MEDIUM,
        title=f"{format_bytes(first.size_bytes // steps)} of each step stay in the host's memory, "
        f"kept by {first.holder}{_line(first.where)}",
        detail=f"{times(first.count)} in {steps} traced steps NumPy arrays, bytes or texts were put "
        f"there. {host_words(growth)} Keep what is needed of them (a mean, a path to a file), or let "
        "the container forget: collections.deque(maxlen=…), clear().",
        saves_bytes=None,
        evidence=tuple(
            evidence_row(
                "kept by", name=one.holder, where=one.where, count=one.count, size=one.size_bytes
            )
            for one in watch.on_host[:_ROWS]
        ),
    )


def host_words(growth: StepGrowth) -> str:
    """Say what the process' resident memory does over all steps."""
    if growth.trend == "cannot tell":
        return "Whether the process grows cannot be told from its resident memory."
    grows = "grows" if growth.trend == "grows" else "does not grow"
    return (
        f"The process' resident memory {grows} from step {growth.first_step} to "
        f"{growth.last_step}: {signed_bytes(growth.per_step_bytes)} a step."
    )


def _on_host(watch: WatchNote, growth: StepGrowth) -> Finding:
    at = f", {watch.where}" if watch.where else ""
    per_step = format_bytes(round(growth.per_step_bytes))
    return Finding(
        id="grows-on-host",
        severity=Severity.MEDIUM,
        title=f"The process grows by {per_step} with each step (a step is {watch.step}{at})",
        detail=f"Resident memory grows from step {growth.first_step} to {growth.last_step}, and "
        "what TensorFlow's allocator holds does not: Python's objects, NumPy's arrays or what "
        "TensorFlow keeps outside of it. A memory profiler of Python's names the lines: memray, "
        "tracemalloc.",
        saves_bytes=None,
        evidence=(evidence_row("a step", name=watch.step, where=watch.where, count=watch.steps),),
    )


def _severity(analysis: Analysis, per_step_bytes: float) -> Severity:
    share = _THOUSAND * per_step_bytes / max(analysis.peak.allocated_bytes, 1)
    return Severity.HIGH if share >= _MUCH else Severity.MEDIUM if share >= _SOME else Severity.LOW


def _line(where: str) -> str:
    return f" ({where})" if where else ""


def _growing(
    analysis: Analysis,
    growth: StepGrowth,
    kind: str,
    *,
    title: str,
    detail: str,
    evidence: tuple[EvidenceRow, ...],
) -> Finding:
    """Return the finding of which all that came to stay until the last step would be saved."""
    return Finding(
        id=kind,
        severity=_severity(analysis, growth.per_step_bytes),
        title=f"{format_bytes(round(growth.per_step_bytes))} {title}",
        detail=detail,
        saves_bytes=round(growth.per_step_bytes * growth.last_step),
        saves_kind="allocated",
        evidence=evidence,
    )


def _kept(analysis: Analysis, one: Staying, growth: StepGrowth) -> Finding:
    held = one.held
    steps = len(analysis.recording.steps)
    hint = _OF_TRACEBACKS if held.by_traceback else _OF_TENSORS
    detail = (
        f"{times(held.count)} in {steps} traced steps a tensor came to be held there and none went. "
        f"{growth_words(growth)} {hint}"
    )
    shapes = ", ".join(str(list(shape)) for shape in held.shapes[:3])
    return Finding(
        id="kept-tensors",
        severity=_severity(analysis, one.per_step_bytes),
        title=f"{format_bytes(one.per_step_bytes)} stay of each step, kept by {held.holder}"
        f"{_line(held.where)}",
        detail=detail,
        saves_bytes=one.per_step_bytes * _last_step(growth, one.steps),
        saves_kind="allocated",
        evidence=(
            evidence_row(
                f"kept by, shape {shapes}" if shapes else "kept by",
                name=held.holder,
                where=held.where,
                count=held.count,
                size=held.size_bytes,
            ),
            *(evidence_row("made by", name=op) for op in one.ops[:_ROWS]),
        ),
    )


def _kept_now_and_then(analysis: Analysis, watch: WatchNote, growth: StepGrowth) -> Finding | None:
    """Report the container that got most since the traced steps; None where none explains the growth."""
    steps = watch.later_step - watch.warmup - len(analysis.recording.steps)
    largest = max(watch.held_later, key=lambda one: one.size_bytes, default=None)
    if largest is None or largest.size_bytes < _EXPLAINS * growth.per_step_bytes * steps:
        return None
    hint = _OF_TRACEBACKS if largest.by_traceback else _OF_TENSORS
    return _growing(
        analysis,
        growth,
        "kept-tensors",
        title=f"a step come to stay, kept by {largest.holder}{_line(largest.where)}",
        detail=f"{times(largest.count)} in {steps} steps a tensor came to be held there, "
        f"{format_bytes(largest.size_bytes)} together. {growth_words(growth)} {hint}",
        evidence=tuple(
            evidence_row(
                "kept by", name=one.holder, where=one.where, count=one.count, size=one.size_bytes
            )
            for one in watch.held_later[:_ROWS]
        ),
    )


def _grown_larger(analysis: Analysis, watch: WatchNote, growth: StepGrowth) -> Finding | None:
    """Report a name that gets a larger tensor in each step; None where none explains the growth."""
    rows = _outliving(analysis)
    ops = dict(zip(rows["address"].astype("int64"), rows["op"].astype(str), strict=True))
    for held in watch.held:
        op = next((ops[one] for one in held.addresses if one in ops), "")
        sizes = _sizes_of(analysis, op) if op and not held.grows else []
        rises = [after - before for before, after in zip(sizes, sizes[1:], strict=False)]
        if len(rises) < _FEWEST_STEPS or min(rises) <= 0:
            continue
        if float(np.median(rises)) >= _EXPLAINS * growth.per_step_bytes:
            return _growing(
                analysis,
                growth,
                "kept-tensors",
                title=f"stay of each step: {held.holder}{_line(held.where)} gets a larger tensor "
                "each time",
                detail=f"{op} made {format_bytes(sizes[0])} in the first traced step and "
                f"{format_bytes(sizes[-1])} in the last. {growth_words(growth)} While it is made both "
                "the old and the new one are held. Write into a tf.Variable or an array of the size "
                "that is needed in the end, or keep numbers.",
                evidence=(
                    evidence_row(
                        "held by", name=held.holder, where=held.where, count=1, size=sizes[-1]
                    ),
                    evidence_row("made by", name=op),
                ),
            )
    return None


def _sizes_of(analysis: Analysis, op: str) -> list[int]:
    """Return what an op asked for in each traced step, at most."""
    rows = analysis.recording.allocations
    mine = rows[(rows["op"] == op) & rows["step"].notna()]
    return [int(one) for one in mine.groupby("step", observed=True)["requested_bytes"].max()]


def _last_step(growth: StepGrowth, steps: int) -> int:
    return max(growth.last_step, steps, 1)


def growth_words(growth: StepGrowth) -> str:
    """Say what the bytes in use do over all steps, with the error."""
    if growth.trend == "cannot tell" and not growth.level_bytes:
        return "There were too few steps to tell a slope from all of them."
    span = f"steps {growth.first_step} to {growth.last_step}"
    words = {"grows": "grow", "flat": "do not grow", "cannot tell": "cannot be told to grow or not"}
    slope = format_slope(growth.per_step_bytes, growth.low_bytes, growth.high_bytes)
    return f"Over {span} the bytes in use {words[growth.trend]}: {slope}."


def _unexplained(analysis: Analysis, watch: WatchNote, growth: StepGrowth) -> Finding:
    rows = left_over(analysis)
    full = rows[rows["step"] < len(analysis.recording.steps) - 1]
    by_op = (
        full.groupby("op", observed=True)["allocated_bytes"]
        .sum()
        .sort_values(ascending=False)
        .head(_ROWS)
    )
    sources = dict(zip(full["op"].astype(str), full["source"].astype(str), strict=True))
    at = f" (a step is {watch.step}, {watch.where})" if watch.where else ""
    return _growing(
        analysis,
        growth,
        "grows",
        title=f"stay of each step{at}",
        detail=growth_words(growth) + " No container of the program's was found to hold them; the "
        "evidence names what made the buffers that outlived their step.",
        evidence=tuple(
            evidence_row(
                "outlives its step",
                name=str(op) or "without a name",
                where=sources.get(str(op), ""),
                size=int(size),
            )
            for op, size in by_op.items()
        ),
    )
