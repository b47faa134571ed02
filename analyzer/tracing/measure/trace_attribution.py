"""The attribution of a trace's allocations, from its marks, its note and its graph.

The capture recorded the address of each variable before the first step and after each step. Between two
such snapshots a variable may move (an assignment replaces its buffer, a write copies it while another op
reads it): the old buffer is the variable's until it is freed, then the new one. A failed step has no
snapshot after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.contract.fields import Category, tensor_bytes
from analyzer.model.contract.run_note import (
    ACCUMULATOR_ROLE,
    CONVOLUTIONS,
    TensorSpec,
    op_types,
)
from analyzer.model.graph.buffer_sharing import ITERATOR, NO_SHARING, Sharing
from analyzer.model.graph.graph_index import (
    ALIVE_ROLE,
    FORWARD_ROLE,
    GRADIENT_ROLE,
    LEFT_ROLE,
    GraphIndex,
)
from analyzer.model.recording.attribution import (
    AFTER_ROLE,
    FOLDED,
    HANDLE,
    RECEIVED,
    label_eager,
    label_graph,
    match_outputs,
)
from analyzer.model.recording.labels import (
    BATCH_ROLE,
    COPIED_BATCH,
    ELEMENT_ROLE,
    Holding,
    Labels,
    Mask,
    find_roles_of_state,
    label_variables,
)
from analyzer.model.recording.records import (
    AUTOTUNING,
    HOST_ALLOCATORS,
    STACK_ROLE,
    TRIAL,
    TRIAL_ROLE,
    WORKSPACE,
    XLA_TRIAL_ROLE,
    Step,
    find_last_runs,
    is_tpu,
)
from analyzer.tracing.derive.op_names import GUARDS_BYTES, find_gradient_kernel
from analyzer.tracing.derive.state_buffers import find_state
from analyzer.tracing.parse.event_columns import FUNCTION_SPAN, MARKER_PREFIX, STACK
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace, Span, find_inside

_PHASES = {"backward": 1, "update": 2}

# Ops that begin or extend a sum of gradients in a program's own loop.
_SUMS = op_types("AddV2 Add AddN ZerosLike Zeros Fill")


def attribute(
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote,
    structure: GraphIndex,
    steps: Sequence[Step],
) -> tuple[pd.DataFrame, Sharing]:
    """Return the table with all labels, and the tensors of the graph that share a buffer."""
    labels = Labels(len(table))
    is_handle = (table["op"] == HANDLE).to_numpy()
    _label_by_events(labels, table, is_handle)
    freers = np.append(_find_running(raw), "")[table["dies"].to_numpy()]
    infer = note.step.infers

    in_steps = table["step"].notna().to_numpy()
    held = _find_held(table, raw, note)
    _label_noted(labels, table, raw, note, structure, held)

    # A session of TensorFlow 1 holds its variables itself, at unknown addresses.
    if structure.evidence and not any(map(any, note.snapshots)):
        for row, kind in find_state(table, structure, steps).items():
            labels.set(row, kind[0], role=kind[1])

    # Buffers that were requested on a thread that marked steps.
    marking = [mark.thread for mark in raw.step_markers]
    marked = np.append(raw.events["thread"].isin(marking), False)
    python = marked[table["born"].to_numpy()]
    sharing = NO_SHARING
    _label_elements(labels, table, raw)

    if structure.ops:
        tensors = match_outputs(table, structure, freers)
        sharing = Sharing(structure, {tensors[row] for row in np.flatnonzero(in_steps)})
        _label_by_graph(labels, table, structure, sharing, tensors, infer=infer)
        _label_batches(labels, table, structure)

    _label_pipeline(labels, table, raw, structure)

    if not note.is_captured:
        _label_left(labels, table, len(raw.events))

    phases = _label_marked(labels, table, raw)
    labels.layer[is_handle] = ""  # a layer has its variable's bytes, not the handle's

    _label_gradients(labels, table, raw, note)
    _label_held(labels, held, note)

    if note.watch is not None and note.watch.whole_run and note.watch.ended:
        _label_early(labels, table)

    label_eager(
        labels,
        table,
        steps,
        phases,
        np.sort(table["born"].to_numpy()[(phases == 1) & in_steps]),
        python,
        infer=infer,
        jit=bool(note.step.jit),
        is_captured=note.is_captured,
    )
    _label_lines(labels, table, note, phases == 0)

    return labels.apply(table), sharing


def _find_running(raw: RawTrace) -> np.ndarray:
    """Return the op of each event, else the op that runs on its thread then; empty for none."""
    last = find_last_runs(raw.events, raw.op_runs)
    named = last["op_x"].astype(object)
    running = last["op_y"].astype(object).where(last["end_ps"] >= last["time_ps"], "")

    return np.asarray(named.mask(named == "", running))


def _label_by_events(labels: Labels, table: pd.DataFrame, is_handle: Mask) -> None:
    """Label the buffers whose category their own events show."""
    earlier = table["address"].isna().to_numpy()
    labels.fill(earlier, Category.UNATTRIBUTED, "allocated before the trace began")
    is_stack = table["allocator"].astype(str).map(is_tpu) & (table["op"] == STACK)
    labels.fill(is_stack.to_numpy(bool), Category.TEMPORARY, STACK_ROLE)
    labels.fill(is_handle, Category.CONSTANT, "handle of a variable")
    is_trial = (table["op"] == AUTOTUNING).to_numpy()
    labels.fill(is_trial, Category.WORKSPACE, XLA_TRIAL_ROLE)


def _label_elements(labels: Labels, table: pd.DataFrame, raw: RawTrace) -> None:
    """Label the results of a data set's functions, which wait in its buffers."""
    is_called = table["run_id"].isin(raw.pipeline_ids) & (table["region"] == "output")
    labels.fill(is_called.to_numpy(), Category.INPUT, ELEMENT_ROLE)


def _label_left(labels: Labels, table: pd.DataFrame, end: int) -> None:
    """Label the results that are alive at the end of the trace, after which they may be read."""
    is_left = (table["dies"] == end).to_numpy()
    is_forward = np.isin(labels.role, [FORWARD_ROLE, Category.ACTIVATION.value])
    labels.role[is_left & is_forward] = LEFT_ROLE


def _label_by_graph(
    labels: Labels,
    table: pd.DataFrame,
    structure: GraphIndex,
    sharing: Sharing,
    tensors: Sequence[str],
    *,
    infer: bool,
) -> None:
    """Label the buffers of the graph's ops."""
    # Shapes and constants of the tape run early, its kernels do not.
    ops = structure.ops.values()
    kernels = [op.name for op in ops if find_gradient_kernel(op.type)]
    of_kernels = (table["op"].isin(kernels) & table["step"].notna()).to_numpy()
    starts = table[of_kernels].groupby("step")["born"].min().to_dict()

    # In a step without a backward pass, which may have failed, its last birth stands for the start.
    ends = table.groupby("step")["born"].max()
    cut = ends.drop([*starts]).to_dict()

    label_graph(
        labels,
        table,
        structure,
        sharing,
        tensors,
        infer=infer,
        backward_starts={**starts, **(cut if structure.evidence else {})},
    )

    cut_ends = table["step"].map(cut).fillna(-1).to_numpy(np.int64)
    is_cut = (cut_ends >= 0) & (table["dies"].to_numpy() > cut_ends)
    is_forward = np.isin(labels.role, [ALIVE_ROLE, Category.ACTIVATION.value])

    if not infer:
        labels.role[is_cut & is_forward] = LEFT_ROLE


def _label_marked(
    labels: Labels,
    table: pd.DataFrame,
    raw: RawTrace,
) -> npt.NDArray[np.int8]:
    """Label the layers that the capture marked; return the phase of each buffer's birth."""
    born_ps = table["born_ps"].fillna(-1).to_numpy(np.int64)
    phases = np.zeros(len(table), np.int8)

    for span in find_marks(raw.markers, "phase"):
        number = _PHASES.get(str(span.stats.get("phase")), 0)
        phases[(born_ps >= span.start_ps) & (born_ps <= span.end_ps)] = number

    # The innermost call of a layer decides.
    calls = find_marks(raw.markers, "layer")
    for span in sorted(calls, key=lambda one: one.start_ps - one.end_ps):
        inside = (born_ps >= span.start_ps) & (born_ps <= span.end_ps)
        path = str(span.stats.get("path", ""))
        labels.layer[inside & (labels.variable == "")] = path

    return phases


def _label_noted(
    labels: Labels,
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote,
    structure: GraphIndex,
    held: Mapping[str, Sequence[int]],
) -> None:
    """Label the variables and the inputs of a note."""
    moments = find_instants(raw, "snapshot")

    roles = find_roles_of_state(note, structure)
    label_variables(labels, note, find_holdings(table, note, moments), roles)
    index = AddressIndex(table)
    start = moments[0] if moments else -1

    is_run = note.watch is not None and note.watch.whole_run

    for given in note.inputs:
        row = None if given.address is None else index.at(given.address, start)
        if row is not None and labels.is_open(row):
            is_kept = given.name in held and not is_run
            category = Category.ACTIVATION if is_kept else Category.INPUT

            role = f"held by {given.name}" if is_kept else "step input"
            labels.set(row, category, role=role)
            labels.tensor[row] = given.name
            labels.specs[row] = TensorSpec(given.dtype, given.shape)


def find_marks(markers: Sequence[Span], name: str) -> list[Span]:
    """Return the capture's marks with a name."""
    return [span for span in markers if span.name == f"{MARKER_PREFIX}{name}"]


def find_instants(raw: RawTrace, name: str) -> list[int]:
    """Return the last instant before each of the capture's marks with a name."""
    starts = [span.start_ps for span in find_marks(raw.markers, name)]
    found: list[int] = (
        np.searchsorted(raw.events["time_ps"].to_numpy(), starts) - 1
    ).tolist()

    return found


def _label_gradients(
    labels: Labels,
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote,
) -> None:
    """Label the gradients of an eager step, and their sums over micro-batches.

    A variable is such a sum if an optimizer got it as a gradient. A tensor is one if it is an addition
    or zeros, has the size of a gradient, and survives a backward pass.
    """
    spans = find_marks(raw.markers, "gradients")
    if not spans:
        return

    index = AddressIndex(table)
    marks = find_instants(raw, "gradients")

    found = set()

    for span, instant in zip(spans, marks, strict=True):
        number = int(span.stats.get("index", -1))
        addresses = note.eager_gradients.get(number, ())
        found |= {index.at(address, instant) for address in addresses}

    gradients = sorted(row for row in found if row is not None)
    marks.sort()

    if note.watch is not None and note.watch.micro_batches > 1:
        for name in {labels.variable[row] for row in gradients} - {""}:
            labels.fill(labels.variable == name, Category.GRADIENT, ACCUMULATOR_ROLE)

        born = table["born"].to_numpy()
        dies = table["dies"].to_numpy()
        ends = np.append(marks, np.iinfo(np.int64).max)
        survives = ends[np.searchsorted(marks, born, side="right")] < dies

        sizes = table["requested_bytes"].iloc[gradients].unique()
        is_sum = table["op"].isin(_SUMS) & table["requested_bytes"].isin(sizes)
        rows = labels.open_rows() & is_sum.to_numpy() & survives
        labels.fill(rows, Category.GRADIENT, ACCUMULATOR_ROLE)

    for row in filter(labels.is_open, gradients):
        labels.set(row, Category.GRADIENT, role=GRADIENT_ROLE)


def _label_lines(
    labels: Labels, table: pd.DataFrame, note: RunNote, is_forward: Mask
) -> None:
    """Label the lines of ops that a tape recorded in an eager step."""
    is_taped = is_forward & table["step"].notna().to_numpy()
    is_taped &= (labels.source == "") & (labels.role != AFTER_ROLE)

    lines = note.source_lines
    pairs = table.loc[is_taped, ["op", "requested_bytes"]].itertuples(index=False)
    labels.source[is_taped] = [
        lines.get(f"{op} {size}", lines.get(op, "")) for op, size in pairs
    ]


_FEW_STEPS = 2  # whose tensors a container without a leak may hold


def _label_held(
    labels: Labels,
    held: Mapping[str, Sequence[int]],
    note: RunNote,
) -> None:
    """Label the tensors that containers of a program collect, and at its end those of its names."""
    watch = note.watch

    for holder, rows in held.items():
        for row in filter(labels.is_open, rows):
            is_result = bool(labels.layer[row]) or not (watch and watch.whole_run)
            category = Category.ACTIVATION if is_result else Category.CONSTANT
            labels.set(row, category, role=f"held by {holder}")


def _find_held(
    table: pd.DataFrame, raw: RawTrace, note: RunNote
) -> dict[str, list[int]]:
    """Return the rows that names hold at the end of a whole run, or collect over several steps."""
    watch = note.watch
    moments = find_instants(raw, "snapshot")
    if watch is None or not moments:
        return {}

    index = AddressIndex(table)
    instant = moments[-1] if watch.whole_run else len(raw.events) - 1
    held = {}

    for one in watch.held:
        found = (index.at(address, instant) for address in one.addresses)
        rows = [row for row in found if row is not None]
        is_collecting = one.grows and not one.removes
        is_collecting &= table["step"].iloc[rows].nunique() > _FEW_STEPS
        if watch.whole_run or is_collecting:
            held[one.holder] = rows

    return held


def _label_early(labels: Labels, table: pd.DataFrame) -> None:
    """Label results from before a model's first call, in a program that failed before its steps.

    The initial value of a variable is made before the variable's buffer, with the same bytes. Unlike the
    results of a layer, it does not live to the failure.
    """
    born = table["born"]
    dies = table["dies"]
    sizes = table["requested_bytes"]
    of_variables = born[labels.variable != ""]
    is_late = born >= of_variables.min()  # False for all without a variable
    is_left = dies == dies.max()
    is_value = born < sizes.map(of_variables.groupby(sizes).max())
    is_early = ~is_late | (is_value & ~is_left)
    rows = labels.open_rows() & (is_early & (table["op"] != "")).to_numpy()
    labels.fill(rows, Category.TEMPORARY, "building the model")
    of_layers = labels.open_rows() & (labels.layer != "")
    labels.fill(of_layers & is_left, Category.ACTIVATION, LEFT_ROLE)


def _label_batches(
    labels: Labels,
    allocations: pd.DataFrame,
    structure: GraphIndex,
) -> None:
    """Label the batches and examples of a data set, which is not in the step's graph.

    Their buffers have type and shape of an output of the graph's iterator, or of one row of it.
    """
    batches: dict[tuple[str, str], str] = {}

    for tensor, spec in _find_batches(structure):
        if spec.shape:
            batches[spec.dtype, spec.shape_text] = tensor
        if spec.shape and len(spec.shape) > 2:  # not a vector, like many variables
            example = TensorSpec(spec.dtype, spec.shape[1:])
            batches.setdefault((spec.dtype, example.shape_text), "")

    columns = (allocations[name].astype(object) for name in ("op", "dtype", "shape"))

    for row, (name, dtype, shape) in enumerate(zip(*columns, strict=True)):
        open_shape = f"[-1{shape[shape.find(',') :]}"
        known = batches.get((dtype, shape), batches.get((dtype, open_shape)))
        is_outside = name and name not in structure.ops and FOLDED not in name

        if known is not None and is_outside and labels.is_open(row):
            role = BATCH_ROLE if ITERATOR in known or not known else "step input"
            role = COPIED_BATCH if name == RECEIVED else role
            labels.set(row, Category.INPUT, role=role)

            # The pipeline's ops handle single examples too.
            if (dtype, shape) in batches or not shape.startswith("[1,"):
                labels.tensor[row] = known


def _find_batches(structure: GraphIndex) -> Iterator[tuple[str, TensorSpec]]:
    """Yield the tensors that the iterators of the graph return, and arguments with two or more axes."""
    for op in structure.ops.values():
        for index, spec in enumerate(op.outputs):
            is_argument = op.type == "_Arg" and len(spec.shape or ()) > 1
            if op.type == ITERATOR or is_argument:
                yield f"{op.name}:{index}", spec


def _label_pipeline(
    labels: Labels,
    table: pd.DataFrame,
    raw: RawTrace,
    structure: GraphIndex,
) -> None:
    """Label requests without an op's name that a data set makes.

    They are made in a call of an iterator, except by the functions that it calls, or on a thread that
    runs no op of the step: a call that maps and batches returns before its threads request the batch.
    """
    calls = raw.pipeline_runs
    is_function = calls["op"] == FUNCTION_SPAN
    is_made = find_inside(raw.events, calls[~is_function])
    is_made &= ~find_inside(raw.events, calls[is_function])

    specs = []
    if structure.ops:
        specs = [one for one in _find_batches(structure) if len(one[1].shape or ()) > 1]
        pipeline = set(raw.op_runs["thread"]) - {one.thread for one in raw.step_markers}

        # Only requests have the function's prefix.
        for used in (raw.op_runs, raw.events):
            pipeline -= set(used.loc[used["op"].isin(structure.ops), "thread"])

        is_made |= raw.events["thread"].isin(pipeline).to_numpy()

    sizes = table["requested_bytes"]
    born = table["born"].to_numpy()
    is_unnamed = (table["op"].astype(str) == "").to_numpy() & (born >= 0)
    is_unnamed &= table["allocator"].isin(HOST_ALLOCATORS).to_numpy(bool)
    rows = labels.open_rows() & is_unnamed & is_made[born]
    labels.fill(rows, Category.INPUT, BATCH_ROLE)

    # A tensor with several unknown axes may have any size.
    if any((spec.shape or ()).count(-1) > 1 for _, spec in specs):
        return

    for size in sizes[rows].unique().tolist():
        fitting = {full: one for one, spec in specs if (full := spec.of_size(size))}

        if len(fitting) == 1:
            full, tensor = fitting.popitem()
            for row in np.flatnonzero(rows & (sizes == size)).tolist():
                labels.specs[row], labels.tensor[row] = full, tensor


class AddressIndex:
    """Index of buffers by address."""

    def __init__(self, allocations: pd.DataFrame) -> None:
        """Index ``allocations`` by address."""
        self._born = allocations["born"].to_numpy()
        self._dies = allocations["dies"].to_numpy()
        self._rows = allocations.groupby("address").indices

    def at(self, address: int, instant: int) -> int | None:
        """Return the row that is alive at ``instant`` at ``address``, or None."""
        for row in self._rows.get(address, ()):
            if self._born[row] <= instant < self._dies[row]:
                return int(row)

        return None


def find_holdings(
    allocations: pd.DataFrame,
    note: RunNote,
    moments: Sequence[int],
) -> list[Holding]:
    """Return the buffers that hold variables, in order of time for each variable."""
    index = AddressIndex(allocations)
    born = allocations["born"].to_numpy()
    dies = allocations["dies"].to_numpy()
    found: dict[int, tuple[int, Holding]] = {}  # by buffer, with its last snapshot

    for number in range(len(note.variables)):
        previous = None
        since = None

        snapshots = zip(moments, note.snapshots, strict=False)

        for turn, (moment, snapshot) in enumerate(snapshots):
            address = snapshot[number] if number < len(snapshot) else None
            row = None if address is None else index.at(address, moment)
            if row is None:
                continue

            if row != previous:
                is_move = previous is not None and born[row] < dies[previous] <= moment
                since = int(dies[previous]) if is_move else None
                previous = row

            # Two variables may share a buffer until one of them is written.
            if row not in found or found[row][0] < turn:
                found[row] = turn, (row, number, since)

    holdings = {row: holding for row, (_, holding) in found.items()}
    _add_unread(allocations, note, holdings, moments)

    return sorted(holdings.values(), key=lambda one: (one[1], born[one[0]]))


def _add_unread(
    table: pd.DataFrame,
    note: RunNote,
    holdings: dict[int, Holding],
    moments: Sequence[int],
) -> None:
    """Add the buffers of variables whose reads are copies, after a sparse update or a lookup.

    At each snapshot they are the only ones left. Such a variable is assigned before the steps and keeps
    its buffer (``EnsureSparseVariableAccess``), but for a dense update, which makes another one.
    """
    is_assigned = table["op"].str.contains("VariableOp", regex=False)
    is_older = (table["born"] < min(moments, default=0)) & table["step"].isna()
    may_hold = (is_older | is_assigned) & ~table.index.isin(holdings)
    on_card = may_hold & ~table["allocator"].isin(HOST_ALLOCATORS)
    may_hold = on_card if on_card.any() else may_hold

    held = {number for _, number, _ in holdings.values()}
    wanted: dict[int | None, list[int]] = {}

    for number, variable in enumerate(note.variables):
        if number not in held:
            size_bytes = tensor_bytes(variable.dtype, variable.shape)
            wanted.setdefault(size_bytes, []).append(number)

    for (size_bytes, numbers), moment in product(wanted.items(), moments):
        lives = may_hold & (table["born"] <= moment) & (moment < table["dies"])
        is_fitting = lives & (table["requested_bytes"] == size_bytes)
        rows = table.index[is_fitting]
        if len(rows) > len(numbers):  # constants of the graph live as long
            rows = table.index[is_fitting & is_assigned]

        if len(rows) == len(numbers):
            for row, number in zip(rows, numbers, strict=True):
                holdings[row] = (row, number, None)


def label_workspaces(table: pd.DataFrame) -> pd.DataFrame:
    """Return the attributed allocations with category and role of the trials of algorithms.

    At its first call a convolution tries cuDNN's algorithms (``AutotuneUnfusedConv`` and
    ``AutotuneFusedConv`` in ``conv_ops_gpu.cc``): on a guarded copy of its result, which is left out
    without memory for it (``WrapRedzoneBestEffort``), and with guards around each algorithm's workspace
    (16 MiB without one). These requests bypass the op's context, so that they have no region in a trace.
    """
    table = mark_trials(table)
    on_card = ~table["allocator"].isin(HOST_ALLOCATORS)
    own = table["op_type"].isin(CONVOLUTIONS) & on_card & (table["born"] >= 0)

    is_trial = own & table["region"].astype(str).isin(["", TRIAL])
    category = table["category"].astype(object).mask(is_trial, Category.WORKSPACE.value)
    role = table["role"].astype(object).mask(is_trial, TRIAL_ROLE)

    return table.assign(
        category=category.astype("category"),
        role=role.astype("category"),
    )


def mark_trials(table: pd.DataFrame) -> pd.DataFrame:
    """Return the allocations with the regions of optional buffers set.

    TensorFlow skips copies and algorithms that do not fit, and can do without the chosen workspace.
    """
    of_convolution = table["op_type"].isin(CONVOLUTIONS)
    raw = of_convolution & (table["region"].astype(str) == "")
    requests = table[raw & (table["requested_bytes"] >= GUARDS_BYTES)].sort_values(
        "born"
    )
    copies = []

    for _, rows in requests.groupby(requests["op"].astype(str), sort=False):
        dies = rows["dies"].to_numpy()

        # The op's next request of this kind is a workspace, which is freed before the copy.
        inside = np.append(dies[1:] < dies[:-1], False)
        sizes = rows["requested_bytes"].to_numpy()

        # Of the workspaces only the smallest is needed.
        larger = sizes > sizes[~inside].min()
        copies += rows.index[inside | larger].tolist()

    workspaces = of_convolution & (table["dtype"].astype(str) == "uint8")
    region = table["region"].astype(object)
    region[copies] = TRIAL
    region[workspaces] = WORKSPACE

    return table.assign(region=region.astype("category"))
