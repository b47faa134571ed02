"""A trace file and the note beside it to a ``Recording``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.contract.categories import Category
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.contract.report.subject import PhantomNotice, ReportTarget
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex, build_graph_index
from analyzer.model.graph.networkx_graph import build_graph
from analyzer.model.graph.phases import Phase, ScopeTable
from analyzer.model.recording.allocator_events import HOST_ALLOCATORS, choose_allocator
from analyzer.model.recording.records import Device, Kind, Recording, Step
from analyzer.model.units import GRANULE_BYTES, format_bytes
from analyzer.tracing.measure.algorithm_trials import mark_trials
from analyzer.tracing.measure.alive_before_trace import add_earlier_buffers
from analyzer.tracing.measure.attribution import (
    label_copied_inputs,
    label_eager,
    label_graph,
    label_inputs,
    label_variables,
    match_outputs,
)
from analyzer.tracing.measure.attribution_labels import Labels
from analyzer.tracing.measure.free_pairing import pair_frees, sort_simultaneous_events
from analyzer.tracing.measure.step_bounds import find_steps, find_steps_of_births
from analyzer.tracing.measure.trace_checks import check_trace
from analyzer.tracing.measure.unowned_variables import find_roles_of_state
from analyzer.tracing.measure.values_read import warn_about_values
from analyzer.tracing.measure.variable_buffers import AddressIndex, find_holdings, variable_bytes
from analyzer.tracing.parse.logdir import find_run_file, find_traces
from analyzer.tracing.parse.run_folder import RunNote, read_run
from analyzer.tracing.parse.xplane import MARKER_PREFIX, WATCHED_STEP, RawTrace, Span, read_trace
from analyzer.tracing.xla.plan_contents import build_plans, divide_temporaries, find_step_tensors
from analyzer.tracing.xla.recompilation import recompiled_functions

_NOTABLE: Final = 0.05
"""Share of the most in use from which what was there before the trace is worth a word."""

_PHASES: Final = {"backward": 1, "update": 2}


@dataclass(frozen=True)
class Measured:
    """A recording of a trace, and what the findings need besides.

    Attributes:
        recording: The recording.
        structure: The graph by name, None where there is none.
        sharing: Which tensors share a buffer, None where there is no graph.
        op_runs: When each op ran: ``op``, ``start_ps``, ``end_ps``, ``thread``.
        note: The capture's note, None for a trace of others.
    """

    recording: Recording
    structure: GraphIndex | None
    sharing: Sharing | None
    op_runs: pd.DataFrame
    note: RunNote | None


def open_measured(
    path: Path,
    *,
    host: str = "",
    allocator: str = "",
    progress: Callable[[float], None] | None = None,
) -> Measured:
    """Read the trace at ``path`` (a file, a run folder or a logdir).

    Args:
        path: What the user named.
        host: Start of the trace file's name, where a run has one file for each host.
        allocator: The allocator to look at; empty for the device's own.
        progress: Called with the share done, 0 to 1.

    Raises:
        TraceError: there is no readable trace, or no such host or allocator.
    """
    files = find_traces(path)
    chosen = [file for file in files if file.name.startswith(host)]
    if not chosen:
        names = ", ".join(file.name.split(".xplane")[0] for file in files)
        raise TraceError(f"The run has no host {host!r}.", hint=f"It has {names}.")
    warnings: list[str] = []
    if len(chosen) > 1:
        names = ", ".join(file.name.split(".xplane")[0] for file in chosen)
        warnings.append(f"The run has several hosts ({names}); this is {chosen[0].name}.")
    return measure_trace(
        chosen[0], named=path, allocator=allocator, warnings=warnings, progress=progress
    )


def measure_trace(
    file: Path,
    *,
    named: Path | None = None,
    allocator: str = "",
    warnings: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
) -> Measured:
    """Read one trace file, with the run note beside it where there is one.

    Args:
        file: The file.
        named: What the user named; None where that is the file.
        allocator: The allocator to look at; empty for the device's own.
        warnings: What was noticed while the file was chosen.
        progress: Called with the share done, 0 to 1.

    Raises:
        TraceError: it cannot be read, or has no such allocator.
    """
    raw = read_trace(file, progress=progress)
    note_path = find_run_file(file)
    note = read_run(note_path) if note_path is not None else None
    return measure(raw, note, file, named=named, allocator=allocator, warnings=warnings)


def measure(
    raw: RawTrace,
    note: RunNote | None,
    path: Path,
    *,
    named: Path | None = None,
    allocator: str = "",
    warnings: Sequence[str] = (),
) -> Measured:
    """Pair, cut into steps and attribute the events of one trace.

    Args:
        raw: The trace's events, marks and op runs.
        note: The run note; None for a trace of others.
        path: The trace file.
        named: What the user named; None where that is the file.
        allocator: The allocator to look at; empty for the device's own.
        warnings: What was noticed while the file was chosen.
    """
    events = sort_simultaneous_events(raw.events)
    raw, table = replace(raw, events=events, step_markers=_steps_of(raw, note)), pair_frees(events)
    steps = find_steps(events, raw.step_markers)
    table = add_earlier_buffers(events, table, *_unseen(table, raw, note))
    integrity = check_trace(raw, table, steps, note)
    table = table.assign(step=find_steps_of_births(table["born"].to_numpy(), steps))
    structure = index_note_graph(note)
    table, sharing = _attribute(table, raw, note, structure, steps)
    table = mark_trials(table)
    main = choose_allocator(events, allocator)
    plans = build_plans(note) if note is not None else {}
    infer = note is not None and note.is_inference
    shown = divide_temporaries(table, events, steps, plans, structure, allocator=main, infer=infer)
    if plans and structure is not None:
        sharing = Sharing(structure, find_step_tensors(shown.allocations))
    recording = Recording(
        kind=Kind.PHANTOM if note is not None and note.phantom is not None else Kind.TRACE,
        target=_target(note, named or path, path),
        device=_device(events, main, raw, note),
        step_config=convert_step_config(note),
        events=shown.events,
        allocations=shown.allocations,
        allocator=main,
        steps=shown.steps,
        make_graph=partial(build_graph, structure) if structure is not None else None,
        make_tensor_links=structure.tensor_links if structure is not None else None,
        warnings=(
            *warnings,
            *_doubts(events, table, steps, note, main),
            *(warn_about_values(structure) if note is not None and note.phantom else ()),
        ),
        versions=dict(note.versions) if note is not None else {},
        error=note.error if note is not None else None,
        recompiled_functions=recompiled_functions(note, plans) if note is not None else (),
        integrity=integrity,
        notes=note.notes if note is not None else (),
        phantom=_phantom(note),
        phantom_run=note.phantom if note is not None else None,
        watch=note.watch if note is not None else None,
    )
    return Measured(recording, structure, sharing, raw.op_runs, note)


def _steps_of(raw: RawTrace, note: RunNote | None) -> tuple[Span, ...]:
    """Return the marks of steps: of a program under watch, ours and not what it marks itself."""
    own = tuple(mark for mark in raw.step_markers if mark.name == WATCHED_STEP)
    return own if note is not None and note.watch is not None and own else raw.step_markers


def index_note_graph(note: RunNote | None) -> GraphIndex | None:
    """Return the indexed graph of a note, None where it has none."""
    if note is None or not note.ops:
        return None
    names = {op.name for op in note.ops}
    return build_graph_index(
        [*note.ops, *(op for op in note.inside if op.name not in names)],
        traced=note.traced,
        gradients=note.gradients,
        nested_gradients=note.nested_gradients,
        scopes=ScopeTable(note.scopes),
    )


def _unseen(
    table: pd.DataFrame, raw: RawTrace, note: RunNote | None
) -> tuple[dict[int, int], dict[int, int]]:
    """Return address and bytes of what is there at the first note but in no event.

    Returns:
        The variables; and the step's inputs, which the user may have made before the trace began.
    """
    moments = _named(raw.markers, "snapshot")
    if note is None or not moments or not note.snapshots:
        return {}, {}
    index = AddressIndex(table)
    instant = _instant(raw.events["time_ps"].to_numpy(), moments[0])
    variables = {
        address: size
        for address, variable in zip(note.snapshots[0], note.variables, strict=False)
        if address is not None
        and (size := variable_bytes(variable))
        and index.at(address, instant) is None
    }
    # An input may live on in NumPy's memory, which starts anywhere; chunks start at every 256 bytes.
    places = set((raw.events["address"] % GRANULE_BYTES).tolist())
    inputs = {
        given.address: size
        for given in note.inputs
        if given.address is not None
        and (size := TensorSpec(given.dtype, given.shape).size_bytes)
        and given.address % GRANULE_BYTES in places
        and given.address not in variables
        and index.at(given.address, instant) is None
    }
    return variables, inputs


def _attribute(
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote | None,
    structure: GraphIndex | None,
    steps: Sequence[Step],
) -> tuple[pd.DataFrame, Sharing | None]:
    labels = Labels(len(table))
    for row in np.flatnonzero(table["address"].isna()):
        labels.set(int(row), Category.UNATTRIBUTED, role="allocated before the trace began")
    times = raw.events["time_ps"].to_numpy()
    jit = note is not None and bool(note.step.jit)
    infer = note is not None and note.is_inference
    if note is not None:
        moments = [_instant(times, span) for span in _named(raw.markers, "snapshot")]
        roles = find_roles_of_state(note, structure) if structure is not None else {}
        label_variables(labels, note, find_holdings(table, note, moments, structure), roles)
        index = AddressIndex(table)
        start = moments[0] if moments else -1
        label_inputs(
            labels,
            note,
            [None if row.address is None else index.at(row.address, start) for row in note.inputs],
        )
        if jit and note.device.kind == "gpu":
            label_copied_inputs(labels, note, table)
    sharing = None
    if structure is not None:
        in_steps = table["step"].notna().to_numpy()
        ops = table["op"].astype(object).to_numpy()
        tensors = match_outputs(table, structure)
        sharing = Sharing(structure, {tensors[row] for row in np.flatnonzero(in_steps)})
        starts = find_first_births(
            table, np.array([structure.phases.get(op) is Phase.BACKWARD for op in ops]) & in_steps
        )
        label_graph(labels, table, structure, sharing, tensors, infer=infer, backward_starts=starts)
    phases, starts = _eager_phases(table, raw)
    gradient_rows = _eager_gradient_rows(table, raw, note, times)
    python = _born_on_marked_threads(table, raw)
    label_eager(labels, table, steps, phases, starts, gradient_rows, python, infer=infer, jit=jit)
    _eager_layers(labels, table, raw)
    return labels.apply(table), sharing


def _born_on_marked_threads(table: pd.DataFrame, raw: RawTrace) -> np.ndarray:
    """Return which buffers were asked for on a thread that marked steps, bool, shape ``(n,)``."""
    born = table["born"].to_numpy()
    marked = np.isin(raw.events["thread"].to_numpy(), [mark.thread for mark in raw.step_markers])
    found: np.ndarray = (born >= 0) & np.append(marked, False)[born]
    return found


def _named(markers: Sequence[Span], name: str) -> list[Span]:
    return [span for span in markers if span.name == f"{MARKER_PREFIX}{name}"]


def _instant(times: np.ndarray, span: Span) -> int:
    """Return the last instant before the span begins."""
    return int(np.searchsorted(times, span.start_ps, side="left")) - 1


def find_first_births(table: pd.DataFrame, chosen: np.ndarray) -> dict[int, int]:
    """Return step -> instant of the first birth among the chosen rows, bool, shape ``(n,)``."""
    first = table[chosen].groupby("step")["born"].min()
    return {int(step): int(instant) for step, instant in first.items()}


def _eager_phases(table: pd.DataFrame, raw: RawTrace) -> tuple[np.ndarray, dict[int, int]]:
    """Return the phase at each birth, and the first instant of each step's backward pass."""
    born_ps = table["born_ps"].fillna(-1).to_numpy(dtype=np.int64)
    phases = np.zeros(len(table), dtype=np.int8)
    for span in _named(raw.markers, "phase"):
        number = _PHASES.get(str(span.stats.get("phase")), 0)
        phases[(born_ps >= span.start_ps) & (born_ps <= span.end_ps)] = number
    return phases, find_first_births(table, (phases == 1) & table["step"].notna().to_numpy())


def _eager_gradient_rows(
    table: pd.DataFrame, raw: RawTrace, note: RunNote | None, times: np.ndarray
) -> set[int]:
    if note is None or not note.eager_gradients:
        return set()
    index = AddressIndex(table)
    rows = set()
    for span in _named(raw.markers, "gradients"):
        for address in note.eager_gradients.get(int(span.stats.get("index", -1)), ()):
            row = index.at(address, _instant(times, span))
            if row is not None:
                rows.add(row)
    return rows


def _eager_layers(labels: Labels, table: pd.DataFrame, raw: RawTrace) -> None:
    """Give buffers born inside a layer's call that layer; the innermost span wins."""
    born_ps = table["born_ps"].fillna(-1).to_numpy(dtype=np.int64)
    spans = _named(raw.markers, "layer")
    for span in sorted(spans, key=lambda span: span.start_ps - span.end_ps):
        inside = np.flatnonzero((born_ps >= span.start_ps) & (born_ps <= span.end_ps))
        for row in inside.tolist():
            if not labels.variable[row]:
                labels.layer[row] = str(span.stats.get("path", ""))


def _phantom(note: RunNote | None) -> PhantomNotice | None:
    """Return what is said of cards that were not there; None for a run on what there was."""
    if note is None or note.phantom is None:
        return None
    cards = note.phantom.cards
    named = cards[0] if len(cards) == 1 else ", ".join(cards)
    return PhantomNotice(
        says=f"TensorFlow's own GPU runtime on a phantom {named}: no kernel ran",
        cards=cards,
        assumed=(
            "no workspace for cuFFT, cuSOLVER and cuSPARSE",
            "the first algorithm that is tried is as fast as any",
            "what is read back from the card is 0, but for counts, shapes and finite gradients",
        ),
    )


def _target(note: RunNote | None, named: Path, trace: Path) -> ReportTarget:
    if note is not None and note.target is not None:
        return ReportTarget(**asdict(note.target), trace=str(trace))
    name = trace.name.split(".xplane")[0]
    return ReportTarget(text=str(named), kind="trace", name=name, trace=str(trace))


def _device(events: pd.DataFrame, allocator: str, raw: RawTrace, note: RunNote | None) -> Device:
    rows = events[events["allocator"] == allocator]
    last = rows.iloc[-1]
    limit = int(last["in_use_bytes"]) + int(last["available_bytes"])
    is_host = allocator in HOST_ALLOCATORS
    noted = note.device.name if note is not None else ""
    name = noted or ("host" if is_host else allocator)
    return Device(
        kind="cpu" if is_host else "gpu",
        name=name,
        # Allocators that keep no statistics write no available bytes.
        memory_limit_bytes=limit if int(last["available_bytes"]) else None,
    )


def convert_step_config(note: RunNote | None) -> StepConfig:
    """Return how the noted step is run."""
    if note is None:
        return StepConfig()
    step = note.step
    return StepConfig(
        mode=step.mode,
        jit=step.jit,
        batch_size=step.batch_size,
        optimizer=step.optimizer,
        dtype_policy=step.dtype_policy,
    )


def _doubts(
    events: pd.DataFrame,
    table: pd.DataFrame,
    steps: Sequence[Step],
    note: RunNote | None,
    main: str,
) -> list[str]:
    """Return what the reader should know before trusting a figure.

    Args:
        events: The trace's events.
        table: Its allocations.
        steps: Its steps.
        note: The run note; None for a trace of others.
        main: The allocator that is looked at.
    """
    doubts = []
    if not steps:
        doubts.append(
            "The trace has no step markers: the peak is that of the whole trace. Mark steps with "
            "tf.profiler.experimental.Trace('train', step_num=i, _r=1)."
        )
    unseen = table.loc[table["address"].isna() & (table["allocator"] == main), "allocated_bytes"]
    before, most = int(unseen.sum()), int(events["in_use_bytes"][events["allocator"] == main].max())
    if before > _NOTABLE * most:
        doubts.append(
            f"{before / most:.0%} of the most in use ({format_bytes(before)}) was allocated before the "
            "trace began: it is counted and has no name, and its requested bytes are taken to be the "
            "allocated ones."
        )
    if note is None:
        doubts.append(
            "There is no graph beside the trace: categories and layers are told from op names "
            "alone."
        )
    return doubts
