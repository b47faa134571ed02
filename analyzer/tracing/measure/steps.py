"""The steps of a trace: its marks, or else runs of a function, a compiled module or eager updates.

Repeats of a step at the end of a trace show how its peaks vary from run to run.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analyzer.model.graph.graph_index import is_in_gradient_scope
from analyzer.model.recording.records import Step
from analyzer.tracing.derive.op_names import GUARDS_BYTES, is_apply
from analyzer.tracing.parse.xplane import RawTrace, Span, Spans

# Share of the largest run's bytes below which a function is part of the input pipeline or a metric.
_SHARE_OF_LARGEST = 1 / 8

# Share of all requested bytes that the steps have to request together.
_SHARE_OF_ALL = 1 / 2

# Type in the name of a compiled module's run (``gpu_executable.cc``).
MODULE_TYPES = frozenset({"XLA GPU module", "XLA CPU module"})


def find_steps(events: pd.DataFrame, markers: Sequence[Span]) -> tuple[Step, ...]:
    """Return the steps of the marks, in order of time.

    Of nested marks (``fit`` inside a user's) the outermost counts; one that ends too early is ignored.
    """
    times = events["time_ps"].to_numpy()
    steps: list[Step] = []
    end_ps = -1

    for marker in sorted(markers, key=lambda span: (span.start_ps, -span.end_ps)):
        if marker.start_ps < end_ps or marker.end_ps < marker.start_ps:
            continue

        end_ps = marker.end_ps
        number = marker.stats.get("step_num")

        steps.append(
            Step(
                index=len(steps),
                number=int(number) if isinstance(number, int | float) else None,
                first=int(np.searchsorted(times, marker.start_ps, side="left")),
                last=int(np.searchsorted(times, marker.end_ps, side="right")) - 1,
                start_ps=marker.start_ps,
                end_ps=marker.end_ps,
            )
        )

    return tuple(steps)


def find_run_spans(raw: RawTrace, allocator: str) -> Spans:
    """Return the spans of the steps; empty if there is no evidence."""
    events = raw.events[raw.events["allocator"] == allocator]
    is_trial = (events["region"] == "") & (events["requested_bytes"] >= GUARDS_BYTES)
    births = events[(events["kind"] > 0) & ~is_trial]

    return (
        _find_functions(raw, births)
        or _find_calls(raw.calls)
        or _find_modules(raw, events)
        or _find_updates(raw, births)
    )


def _find_functions(raw: RawTrace, births: pd.DataFrame) -> Spans:
    """Return the runs of the function that requests the most; training before other runs."""
    in_run = births[births["run_id"] != 0]
    sizes = in_run.groupby("run_id")["requested_bytes"].sum()
    if len(sizes):
        sizes = sizes[sizes >= _SHARE_OF_LARGEST * sizes.max()]

    least = _SHARE_OF_ALL * births["requested_bytes"].sum()
    if sizes.sum() < least or not sizes.sum():
        return ()

    in_run = in_run[in_run["run_id"].isin(sizes.index)]
    training = in_run["op"].map(is_in_gradient_scope).astype(bool)

    if training.any():
        chosen = in_run["run_id"][training].unique()
        in_run = in_run[in_run["run_id"].isin(chosen)]

    bounds = in_run.groupby("run_id")["time_ps"].agg(["min", "max"])
    is_chosen = raw.function_runs["run_id"].isin(bounds.index)
    bounds = bounds.join(raw.function_runs[is_chosen].set_index("run_id"))

    starts = bounds[["min", "start_ps"]].min(axis=1)
    ends = bounds[["max", "end_ps"]].max(axis=1)

    return _spans(zip(starts, ends, strict=True))


def _find_calls(calls: Iterable[Span]) -> Spans:
    """Return the calls of the JAX function that takes the most time."""
    times: Counter[str] = Counter()
    for call in calls:
        times[call.name] += call.end_ps - call.start_ps

    longest = max(times, key=lambda name: times[name], default="")

    return _spans(
        (call.start_ps, call.end_ps) for call in calls if call.name == longest
    )


def _find_modules(raw: RawTrace, events: pd.DataFrame) -> Spans:
    """Return the runs of compiled modules on the thread that requests memory."""
    modules = [op for op, kind in raw.op_types.items() if kind in MODULE_TYPES]
    runs = raw.op_runs[raw.op_runs["op"].isin(modules)]
    runs = runs[runs["thread"].isin(events["thread"].unique())]

    if runs.empty:
        return ()

    runs = runs[runs["thread"] == runs["thread"].iloc[0]]

    return _spans(zip(runs["start_ps"], runs["end_ps"], strict=True))


def _find_updates(raw: RawTrace, births: pd.DataFrame) -> Spans:
    """Return the spans between the updates of the variables in an eager program."""
    ops = raw.op_runs["op"]
    applied = raw.op_runs[ops.map(lambda op: is_apply(raw.op_types.get(op, op)))]
    if applied.empty or births.empty:
        return ()

    starts = applied["start_ps"].to_numpy()
    ends = applied["end_ps"].to_numpy()
    times = births["time_ps"].to_numpy()
    is_backward = births["op"].map(lambda op: op.endswith("Grad"))
    backward = times[is_backward.to_numpy(bool)]

    # Gradients between two updates belong to another step.
    before_start = np.searchsorted(backward, starts[1:])
    before_end = np.searchsorted(backward, ends[:-1])
    last = np.append(np.flatnonzero(before_start > before_end), len(ends) - 1)

    begin = int(times[0])
    spans = []

    for at in last.tolist():
        spans.append((begin, int(ends[at])))
        later = times[times > ends[at]]
        begin = int(later[0]) if len(later) else int(ends[at])

    return _spans(spans)


def _spans(bounds: Iterable[tuple[int, int]]) -> Spans:
    """Return spans without names or threads, in order of time."""
    ordered = sorted((int(start), int(end)) for start, end in bounds)
    return tuple(Span("", start, end, 0, {}) for start, end in ordered)
