"""Objects that hold memory (tapes, models, names, retraced functions), and varying shapes."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import PERSISTENT, Analysis
from analyzer.explain.buffer_words import TEXTS, evidence_row, holder_row, in_brackets, is_passing
from analyzer.explain.running.leaks import growth_words, leaks_by_holder, tensors_left
from analyzer.model.contract.report.subject import TrendFigures
from analyzer.model.contract.watch_note import TracedFunction, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.recording.schema import TRIAL_ROLE
from analyzer.model.units import format_bytes

_TAPES: Final = 3  # tapes of one line that are alive together from which on they seem to be stored
_LEAST_TAPE_BYTES: Final = 64 << 10  # of a single tape

_LEAST_BYTES: Final = 8 << 20
_LEAST_RATIO: Final = 0.2
_LEAST_NAMED_BYTES: Final = 1 << 20
_LEAST_NAMED_RATIO: Final = 0.1
"""Tensors of the step before are reported above bytes and a share of the peak; above less of both if a
known name holds them."""

_LOADERS: Final = ("", "IteratorGetNext")  # ops that load the data of a loop

_ROWS: Final = 8


def find_tapes(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report stored gradient tapes, and persistent or unused tapes that are alive after the step."""
    size_bytes = _bytes_of_tapes(analysis, watch) if watch.tapes else 0
    size = format_bytes(size_bytes)
    for one in sorted(watch.tapes, key=lambda tape: -tape.alive):
        is_idle = (one.persistent or one.unused) and size_bytes >= _LEAST_TAPE_BYTES
        is_failed = watch.whole_run and watch.ended  # an error's traceback may hold the tape
        if one.alive < _TAPES and (is_failed or not is_idle):
            continue
        id_, hint = "tape-outlives-use", "tape-persistent" if one.persistent else "tape-unused"
        kind = "A persistent" if one.persistent else "An unused"
        title = f"{kind} tape still holds {size} after its step"
        if one.alive >= _TAPES:
            id_, holder = "tapes-kept", f" in {one.holder}" if one.holder else ""
            title = f"{one.alive} gradient tapes accumulate{holder} and hold {size}"
            hint = id_
        yield Finding(
            id=id_,
            severity=Severity.HIGH,
            title=f"{title} ({one.where})",
            detail=f"{TEXTS['tapes']} {TEXTS[hint]}",
            saves_bytes=size_bytes,
            saves_kind="allocated",
            evidence=(evidence_row("made", where=one.where, count=one.alive, size=size_bytes),),
        )


def _bytes_of_tapes(analysis: Analysis, watch: WatchNote) -> int:
    """Return the bytes that outlive their step and that no tensor in Python holds."""
    rows = tensors_left(analysis)
    named = {address for held in watch.held for address in held.addresses}
    is_kept = rows["category"].isin(("activation", "temporary", "input", "unattributed"))
    is_kept = (is_kept | is_passing(rows)) & ~rows["address"].isin(named)
    is_kept &= rows["allocator"] == analysis.recording.allocator
    return int(rows.loc[is_kept, "allocated_bytes"].sum())


def find_models(watch: WatchNote) -> Iterator[Finding]:
    """Report several models that one line created."""
    for one in watch.models:
        holder = f", held by {one.holder}" if one.holder else ""
        made, is_kept = max(one.made, one.alive), one.alive > 1
        id_ = "models-kept" if is_kept else "models-made-anew"
        yield Finding(
            id=id_,
            severity=Severity.MEDIUM if is_kept else Severity.LOW,
            title=f"{made} models were built by one line and {one.alive} of them are alive, with "
            f"{format_bytes(one.size_bytes)} of variables ({one.where}{holder})",
            detail=TEXTS["models"] + TEXTS[id_],
            saves_bytes=one.size_bytes * (one.alive - 1) // one.alive if is_kept else None,
            saves_kind="allocated",
            evidence=(evidence_row("made", where=one.where, count=made, size=one.size_bytes),),
        )


def find_held_over(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report tensors of the step before that are still alive at the peak."""
    if analysis.step is None:
        return
    alive, peak = analysis.alive, analysis.peak.requested_bytes
    bounded = [one for held in watch.held if held.bound or held.removes for one in held.addresses]
    old = alive[
        alive["step"].notna()
        & (alive["step"].fillna(-1) < analysis.step.index)
        & ~alive["category"].isin(PERSISTENT)
        & ~alive["address"].isin(bounded)
    ]
    growing = [leak.held for leak in leaks_by_holder(analysis, watch)]
    bound = [held for held in watch.held if held not in growing and not held.bound]
    # A name is matched by op and size. Loaded batches are skipped: their name is reassigned before the
    # step begins.
    left = tensors_left(analysis)
    left = left[~left["op"].isin(_LOADERS)]
    made = dict(zip(left["address"], _ops_and_sizes(left), strict=True))
    of_old = _ops_and_sizes(old)
    names = [held for held in bound if any(made.get(one) in of_old for one in held.addresses)]
    known = {made[one] for held in names for one in held.addresses if one in made}
    size_bytes = int(old["requested_bytes"].sum())
    if size_bytes < max(_LEAST_BYTES, _LEAST_RATIO * peak):
        size_bytes = sum(size for op, size in of_old if (op, size) in known)
        if size_bytes < max(_LEAST_NAMED_BYTES, _LEAST_NAMED_RATIO * peak):
            return
    names = (names or bound)[:_ROWS]
    holder = f": {names[0].holder} holds them ({names[0].where})" if names else ""
    shown = ", ".join(f"{held.holder} ({held.where})" for held in names[:3])
    after = f"After a step these names hold tensors: {shown}. " if shown else ""
    yield Finding(
        id="held-over",
        severity=Severity.LOW,
        title=f"{format_bytes(size_bytes)} of the previous step are alive at the peak{holder}",
        detail=TEXTS["held-over"].format(after=after),
        saves_bytes=size_bytes,
        evidence=tuple(holder_row("held by", held) for held in names),
    )


def _ops_and_sizes(rows: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(rows["op"].astype(str), rows["requested_bytes"].astype(int), strict=True))


_FEW_TRACES: Final = 4
"""Repeated traces of one function that are normal: a last, smaller batch; training and inference."""

_CALLS_RATIO: Final = 0.1  # share of the calls above which traces are too many

_COPIES: Final = 5  # tf.functions of one definition from which on a loop seems to create them

_CALL_ROWS: Final = 20


def find_retracing(watch: WatchNote, growth: TrendFigures) -> Iterator[Finding]:
    """Report functions that are traced in many of their calls, or created many times."""
    for one in watch.functions:
        if one.is_keras and watch.models:
            continue  # reported with the models: each model has its own functions
        is_created = one.objects >= _COPIES
        is_repeated = one.traces - one.objects > _FEW_TRACES
        repeats = one.traces - (0 if is_created else one.objects)
        if (is_created or is_repeated) and repeats >= _CALLS_RATIO * one.calls:
            yield _report(one, growth_words(growth), is_created=is_created)


def _report(one: TracedFunction, slope: str, *, is_created: bool) -> Finding:
    size = format_bytes(one.graph_bytes)
    if one.constant_bytes:
        size += f", {format_bytes(one.constant_bytes)} of it constants"
    call = f"called at {one.called_at}" if one.called_at else ""
    place = ", ".join(filter(None, ("" if one.is_keras else one.where, call)))
    last = one.retraces[-1] if one.retraces else None
    if is_created:
        holder = f", held by {one.holder}" if one.holder else ""
        kept = f"; {one.alive} are still alive{holder}" if one.alive >= _COPIES else ""
        title = f"{one.objects} tf.functions were created from `{one.name}` ({place}){kept}"
        graph = TEXTS["functions-graph"].format(nodes=one.nodes, size=size)
        detail = f"{graph} {slope} {TEXTS['functions-made-anew']}"
    else:
        title = f"TensorFlow traced `{one.name}` {one.traces} times in {one.calls} calls ({place})"
        reason = f" Last reason: {last.changed}." if last is not None and last.changed else ""
        graph = TEXTS["retraced-graph"].format(nodes=one.nodes, size=size)
        cause = "object" if last is None else last.cause
        detail = f"{graph}{reason} {slope} {TEXTS[f'retraced-{cause}']}"
    calls = (
        evidence_row(f"call {retrace.call}", name=retrace.changed, where=one.called_at)
        for retrace in one.retraces[-_CALL_ROWS:]
    )
    defined = evidence_row(
        "defined", name=one.name, where=one.where, count=one.traces, size=one.graph_bytes
    )
    return Finding(
        id="functions-made-anew" if is_created else "retraced",
        severity=Severity.MEDIUM if is_created and one.alive < _COPIES else Severity.HIGH,
        title=title,
        detail=detail,
        evidence=(defined, *calls),
    )


_SIZES: Final = 3
"""Different sizes of one op's output from which on its shape varies: a last, smaller batch makes two."""

_SPREAD_RATIO: Final = 0.1  # difference between the steps' peaks, as a share of the largest peak


def find_varying_shapes(analysis: Analysis) -> Iterator[Finding]:
    """Report steps without trials whose tensor sizes differ, with the range of their peaks."""
    rows, watch = analysis.rows, analysis.recording.watch
    tried = set(rows.loc[rows["role"] == TRIAL_ROLE, "step"].dropna())
    steps = [step for step in analysis.full_steps if step.index not in tried]
    is_made = rows["step"].isin([step.index for step in steps]) & (rows["op"] != "")
    made = rows.loc[is_made, ["op", "step", "requested_bytes"]]
    if len(steps) < _SIZES or made.empty:
        return
    sizes = made.groupby(["op", "step"], observed=True)["requested_bytes"].max().unstack("step")
    is_growing = (sizes.diff(axis=1).iloc[:, 1:] > 0).all(axis=1)  # a tensor made of a growing list
    varied = sizes[(sizes.nunique(axis=1) >= _SIZES) & ~is_growing]
    peaks = [int(analysis.line.allocated[step.first + 1 : step.last + 2].max()) for step in steps]
    if varied.empty or max(peaks) - min(peaks) < _SPREAD_RATIO * max(peaks):
        return
    ends = pd.DataFrame({"low": varied.min(axis=1), "high": varied.max(axis=1)}).astype(int)
    widths = (ends["high"] - ends["low"]).nlargest(_ROWS)
    sources = dict(zip(rows["op"].astype(str), rows["source"].astype(str), strict=True))
    where, step = ("", "") if watch is None else (watch.where, f"A step is {watch.step}. ")
    yield Finding(
        id="varying-shapes",
        severity=Severity.MEDIUM,
        title=f"Shapes vary from step to step in {len(varied)} op{'s' * (len(varied) != 1)}: the steps "
        f"peak at {format_bytes(min(peaks))} to {format_bytes(max(peaks))}{in_brackets(where)}",
        detail=f"{step}{_fragmentation_words(analysis)}{TEXTS['varying-shapes']}",
        evidence=tuple(
            evidence_row(
                f"asks for {format_bytes(ends.low[op])} to {format_bytes(ends.high[op])}",
                name=str(op),
                where=sources[str(op)],
                size=int(size),
            )
            for op, size in widths.items()
        ),
    )


def _fragmentation_words(analysis: Analysis) -> str:
    """Return a sentence on the fragmentation of free memory at the end and at its worst."""
    events = analysis.recording.events
    ratios = events.loc[events["allocator"] == analysis.recording.allocator, "fragmentation"]
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return ""
    return TEXTS["fragmentation"].format(ratios.iloc[-1], ratios.max())
