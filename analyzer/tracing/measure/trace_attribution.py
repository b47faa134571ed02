"""The attribution of a trace's allocations, from its marks, its note and its graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GRADIENT_ROLE, GraphIndex
from analyzer.model.graph.phases import Phase
from analyzer.model.recording.records import Step
from analyzer.tracing.derive.op_names import FOLDED
from analyzer.tracing.derive.state_buffers import find_state
from analyzer.tracing.measure.attribution import (
    CONSTANTS,
    label_eager,
    label_graph,
    match_outputs,
)
from analyzer.tracing.measure.attribution_labels import (
    Labels,
    label_batches,
    label_inputs,
    label_variables,
)
from analyzer.tracing.measure.unowned_variables import find_roles_of_state
from analyzer.tracing.measure.variable_buffers import AddressIndex, find_holdings
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import MARKER_PREFIX, RawTrace, Span

_PHASES: Final = {"backward": 1, "update": 2}
_SUMS: Final = frozenset({"AddV2", "Add", "AddN", "ZerosLike", "Zeros", "Fill"})
"""Ops that begin or extend a sum of gradients in a program's own loop."""
_ACCUMULATOR: Final = "gradient accumulator"


def attribute(
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote | None,
    structure: GraphIndex | None,
    steps: Sequence[Step],
) -> tuple[pd.DataFrame, Sharing | None]:
    """Return the table with all labels, and the tensors that share a buffer (None without a graph)."""
    labels = Labels(len(table))
    for row in np.flatnonzero(table["address"].isna()):
        labels.set(int(row), Category.UNATTRIBUTED, role="allocated before the trace began")
    times = raw.events["time_ps"].to_numpy()
    jit = note is not None and bool(note.step.jit)
    infer = note is not None and note.is_inference
    if note is not None:
        moments = [find_instant(times, span) for span in find_marks(raw.markers, "snapshot")]
        roles = find_roles_of_state(note, structure) if structure is not None else {}
        label_variables(labels, note, find_holdings(table, note, moments, structure), roles)
        index = AddressIndex(table)
        start = moments[0] if moments else -1
        label_inputs(
            labels,
            note,
            [None if row.address is None else index.at(row.address, start) for row in note.inputs],
        )
    sharing = None
    if structure is not None and (note is None or not note.snapshots):
        for held, (category, role) in find_state(table, structure, steps).items():
            labels.set(held, category, role=role)
    python = _born_on_marked_threads(table, raw)
    if structure is not None:
        in_steps = table["step"].notna().to_numpy()
        ops = table["op"].astype(object).to_numpy()
        tensors = match_outputs(table, structure, find_scratch(table, raw))
        sharing = Sharing(structure, {tensors[row] for row in np.flatnonzero(in_steps)})
        starts = find_first_births(
            table, np.array([_begins_backward(op, structure) for op in ops]) & in_steps
        )
        label_graph(labels, table, structure, sharing, tensors, infer=infer, backward_starts=starts)
        label_batches(labels, table, structure, python)
    phases, starts = _eager_phases(table, raw)
    gradient_rows = _eager_gradient_rows(table, raw, note, times)
    if note is not None and note.watch is not None and note.watch.micro_batches > 1:
        marks = [find_instant(times, span) for span in find_marks(raw.markers, "gradients")]
        _label_accumulators(labels, table, sorted(gradient_rows), np.sort(marks))
    for at in gradient_rows:
        if labels.is_open(at):
            labels.set(at, Category.GRADIENT, role=GRADIENT_ROLE)
    _eager_layers(labels, table, raw)
    if note is not None and note.watch is not None and note.watch.whole_run:
        _label_held(labels, AddressIndex(table), note.watch, moments)
    options = {"infer": infer, "jit": jit, "is_captured": note is not None}
    label_eager(labels, table, steps, phases, starts, python, **options)
    return labels.apply(table), sharing


def find_scratch(table: pd.DataFrame, raw: RawTrace) -> np.ndarray:
    """Return which buffers the op that requested them also frees, shape ``(n,)``.

    A convolution on a card that computes into scratch memory frees its output and returns that memory
    (``conv_grad_input_ops.cc``).
    """
    dies = table["dies"].to_numpy()
    ops = raw.events["op"].astype(object).to_numpy()
    at = np.minimum(dies, len(ops) - 1)
    own = table["op"].astype(object).to_numpy() == ops[at]
    found: np.ndarray = own & (dies < len(ops)) & (ops[at] != "")
    return found


def _begins_backward(op: str, structure: GraphIndex) -> bool:
    """Say whether an op is of the backward pass and no constant, which is made beforehand."""
    if structure.phases.get(op) is not Phase.BACKWARD:
        return False
    return FOLDED not in op and structure.ops[op].type not in CONSTANTS


def _born_on_marked_threads(table: pd.DataFrame, raw: RawTrace) -> np.ndarray:
    """Return which buffers were requested on a thread that marked steps, shape ``(n,)``."""
    born = table["born"].to_numpy()
    marked = np.isin(raw.events["thread"].to_numpy(), [mark.thread for mark in raw.step_markers])
    found: np.ndarray = (born >= 0) & np.append(marked, False)[born]
    return found


def find_marks(markers: Sequence[Span], name: str) -> list[Span]:
    """Return the capture's marks with a name."""
    return [span for span in markers if span.name == f"{MARKER_PREFIX}{name}"]


def find_instant(times: np.ndarray, span: Span) -> int:
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
    for span in find_marks(raw.markers, "phase"):
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
    for span in find_marks(raw.markers, "gradients"):
        for address in note.eager_gradients.get(int(span.stats.get("index", -1)), ()):
            row = index.at(address, find_instant(times, span))
            if row is not None:
                rows.add(row)
    return rows


def _label_accumulators(
    labels: Labels, table: pd.DataFrame, gradients: Sequence[int], marks: np.ndarray
) -> None:
    """Label the sums of gradients over micro-batches.

    A variable is such a sum if an optimizer got it as a gradient. A tensor is one if it is an addition
    or zeros, has the size of a gradient, and survives a backward pass.

    Args:
        gradients: Rows of the gradients that a tape returned or an optimizer got.
        marks: The instants of both, in order.
    """
    for name in {labels.variable[row] for row in gradients} - {""}:
        labels.fill(labels.variable.equal(name), Category.GRADIENT, _ACCUMULATOR)
    if not len(marks):
        return
    born, dies = table["born"].to_numpy(), table["dies"].to_numpy()
    after = np.searchsorted(marks, born, side="right")
    survives = (after < len(marks)) & (marks[np.minimum(after, len(marks) - 1)] < dies)
    sizes = table["requested_bytes"].iloc[list(gradients)].unique()
    is_sum = table["op"].isin(_SUMS) & table["requested_bytes"].isin(sizes)
    labels.fill(labels.open_rows() & is_sum.to_numpy() & survives, Category.GRADIENT, _ACCUMULATOR)


def _label_held(
    labels: Labels, index: AddressIndex, watch: WatchNote, moments: Sequence[int]
) -> None:
    """Label the tensors that names of a program hold at the end of its run."""
    for held in watch.held if moments else ():
        for address in held.addresses:
            row = index.at(address, moments[-1])
            if row is not None and labels.is_open(row):
                category = Category.ACTIVATION if labels.layer[row] else Category.CONSTANT
                labels.set(row, category, role=f"held by {held.holder}")


def _eager_layers(labels: Labels, table: pd.DataFrame, raw: RawTrace) -> None:
    """Set the layer of buffers from inside a layer's call; the innermost call decides."""
    born_ps = table["born_ps"].fillna(-1).to_numpy(dtype=np.int64)
    spans = find_marks(raw.markers, "layer")
    for span in sorted(spans, key=lambda span: span.start_ps - span.end_ps):
        inside = np.flatnonzero((born_ps >= span.start_ps) & (born_ps <= span.end_ps))
        for row in inside.tolist():
            if not labels.variable[row]:
                labels.layer[row] = str(span.stats.get("path", ""))
