"""The prediction of a noted step as a ``Recording``, like a measured one."""

import numpy as np
import pandas as pd

from analyzer.cards import find_gpu, memory_limit
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex, Phase
from analyzer.model.recording.attribution import (
    find_first_births,
    label_eager,
    label_graph,
    match_outputs,
)
from analyzer.model.recording.labels import (
    Holding,
    Labels,
    find_roles_of_state,
    label_variables,
)
from analyzer.model.recording.records import (
    ALLOCATIONS,
    EVENTS,
    WORKSPACE,
    Device,
    Kind,
    Recording,
    conform,
)
from analyzer.model.recording.timeline import find_steps_of_births
from analyzer.model.units import round_up
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import (
    Replay,
    from_allocations,
    replay_whole,
)
from analyzer.simulate.kernels.cpu_kernels import CPU
from analyzer.simulate.kernels.gpu_kernels import gpu_device
from analyzer.simulate.predict.ledger import Buffer
from analyzer.simulate.predict.prediction import (
    Prediction,
    check_assumptions,
    describe_sizes,
    predict,
)
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.simulate.predict.stated_range import (
    describe_notes,
    state_range,
)
from analyzer.tracing.parse.run_folder import RunNote, index_note_graph

_AMD = (
    "AMD card: kernels follow TensorFlow's CUDA code. MIOpen's workspaces count 0 bytes. "
    "No run on an AMD card was compared."
)
_MOST_DECISIONS = 6  # most decisions to describe one by one


def predict_note(
    note: RunNote,
    *,
    limit_bytes: int | None = None,
    growth: bool = False,
    search: bool = False,
) -> Recording:
    """Predict the allocations of a noted step, from the process's start to the end of the last step.

    ``search``: whether to find the limits under which some and all schedules run. ``limit_bytes`` and
    ``growth`` are of a card's pool; its default limit if None.
    """
    structure = index_note_graph(note)
    if structure is None:
        raise TraceError(
            "The note has no graph to predict from.",
            hint="Estimate again.",
        )

    device = CPU
    options = BfcOptions.cpu()

    if note.device.kind == "gpu":
        gpu = find_gpu(note.device.id or note.device.name)
        device = gpu_device(gpu)
        limit_bytes = limit_bytes or memory_limit(gpu).bytes
        options = BfcOptions.gpu(limit_bytes, growth=growth)

    prediction = predict(note, device, options, search=search)

    check_assumptions(note, prediction.decisions)

    return _make_recording(note, structure, prediction, options)


def _make_recording(
    note: RunNote,
    structure: GraphIndex,
    prediction: Prediction,
    options: BfcOptions,
) -> Recording:
    schedule = prediction.middle
    prepared = prediction.prepared
    device = prepared.device
    table, sharing = _attribute(note, structure, prediction)
    allocations, events, placed = place(table, schedule.instants, options)

    is_amd = note.device.name.startswith("AMD ")
    names = [prepared.ops[node].name for node in schedule.nodes]
    card_limit_bytes = options.memory_limit_bytes if options.on_card else None

    order = np.arange(len(names), dtype=np.int64)  # times are ranks
    runs = pd.DataFrame({"op": names, "start_ps": order, "end_ps": order, "thread": 0})

    return Recording(
        kind=Kind.ESTIMATE,
        target=note.target or TargetNote(),
        device=Device(
            kind=device.kind,
            name=note.device.name or "host",
            memory_limit_bytes=card_limit_bytes or placed.memory_limit_bytes,
        ),
        step_config=note.step,
        events=events,
        allocations=allocations,
        allocator=device.allocator,
        steps=schedule.steps,
        structure=structure,
        warnings=(
            *filter(None, (note.caution,)),
            *describe_sizes(note, set(names)),
            *list(prediction.decisions.values())[:_MOST_DECISIONS],
            *describe_notes(prediction),
        ),
        versions=dict(note.versions),
        notes=(*note.notes, _AMD) if is_amd else note.notes,
        uncertainty=state_range(prediction, card_limit_bytes),
        sharing=sharing,
        op_runs=runs,
    )


def make_table(prediction: Prediction) -> pd.DataFrame:
    """Return the buffers of the shown schedule with the columns of ``ALLOCATIONS``.

    ``allocated_bytes`` is the request rounded up, until a replay replaces it. Labels are missing.
    """
    schedule = prediction.middle
    prepared = prediction.prepared

    rows = []

    for buffer in schedule.buffers:
        row = {
            "allocator": prepared.device.allocator,
            "run_id": 0,
            "requested_bytes": buffer.size_bytes,
            "allocated_bytes": round_up(buffer.size_bytes),
            "born": buffer.born,
            "dies": schedule.instants if buffer.dies is None else buffer.dies,
            "region": buffer.region,
            "turns_at": buffer.value_since if buffer.value_since >= 0 else pd.NA,
        }

        rows.append(row | _describe(prepared, buffer))

    table = conform(pd.DataFrame(rows), ALLOCATIONS)

    return table.assign(
        step=find_steps_of_births(table["born"].to_numpy(), schedule.steps)
    )


def _describe(prepared: Prepared, buffer: Buffer) -> dict[str, object]:
    """Return what the graph tells about a buffer."""
    described: dict[str, object] = {}

    if buffer.node >= 0:
        op = prepared.ops[buffer.node]
        described["op"] = op.name

        if 0 <= buffer.output < len(op.outputs):
            spec = op.outputs[buffer.output]
            described |= {"dtype": spec.dtype, "shape": spec.shape_text}

            # as in a trace, a list's handle is no tensor of the graph
            if spec.dtype != "variant":
                described["tensor"] = f"{op.name}:{buffer.output}"

    if buffer.region == WORKSPACE:
        described["dtype"] = "uint8"

    return described


def find_holdings(prediction: Prediction) -> list[Holding]:
    """Return which row holds which variable, in the order in which they became its value."""
    rows = [row for row in enumerate(prediction.middle.buffers) if row[1].variable >= 0]
    rows.sort(key=lambda row: row[1].value_since)
    holdings: list[Holding] = []
    last: dict[int, Buffer] = {}

    for row, buffer in rows:
        since = None
        previous = last.get(buffer.variable)

        # As in a trace, the old value stays the variable's until its end. If it never ends, the new
        # one is the variable's from its birth on.
        if previous is not None and previous.dies is not None:
            since = max(buffer.value_since, previous.dies)

        last[buffer.variable] = buffer
        holdings.append((row, buffer.variable, since))

    return holdings


def _attribute(
    note: RunNote,
    structure: GraphIndex,
    prediction: Prediction,
) -> tuple[pd.DataFrame, Sharing]:
    """Label the buffers by the rules for traces; here the variables are known."""
    table = make_table(prediction)
    schedule = prediction.middle
    labels = Labels(len(table))

    label_variables(
        labels,
        note,
        find_holdings(prediction),
        find_roles_of_state(note, structure),
    )

    _label_held(labels, prediction)
    in_steps = table["step"].notna().to_numpy()
    ops = table["op"].astype(object).to_numpy()

    backward = np.array(
        [structure.phases.get(op) is Phase.BACKWARD for op in ops],
        dtype=bool,
    )

    tensors = match_outputs(table, structure)
    sharing = Sharing(structure, {tensors[row] for row in np.flatnonzero(in_steps)})
    infer = note.step.infers

    label_graph(
        labels,
        table,
        structure,
        sharing,
        tensors,
        infer=infer,
        backward_starts=find_first_births(table, backward & in_steps),
    )

    label_eager(
        labels,
        table,
        schedule.steps,
        np.zeros(len(table), dtype=np.int8),
        np.array([], np.int64),
        np.zeros(len(table), dtype=bool),
        infer=infer,
        jit=False,
    )

    return labels.apply(table), sharing


def _label_held(labels: Labels, prediction: Prediction) -> None:
    """Label the buffers that live outside the step."""
    for row, buffer in enumerate(prediction.middle.buffers):
        label = buffer.label
        if label is not None and labels.is_open(row):
            labels.set(row, label[0], role=label[1])


def place(
    table: pd.DataFrame,
    instants: int,
    options: BfcOptions,
) -> tuple[pd.DataFrame, pd.DataFrame, BfcOptions]:
    """Replay a table in the device's allocator, without a limit if it exceeds its own."""
    sequence = from_allocations(table, n_events=instants)
    result = replay_whole(sequence, options)

    addresses, chunks = np.zeros((2, len(table)), dtype=np.int64)
    rows = sequence.row[sequence.slot]
    addresses[rows] = result.address
    chunks[rows] = result.chunk_bytes

    placed = table.assign(
        address=pd.array(addresses, dtype="Int64"),
        allocated_bytes=chunks,
    )

    return conform(placed, ALLOCATIONS), _make_events(placed, result), result.options


def _make_events(table: pd.DataFrame, result: Replay) -> pd.DataFrame:
    sequence = result.sequence
    chosen = table.iloc[sequence.row[sequence.slot]]
    names = ("allocator", "requested_bytes", "op", "region", "dtype", "shape")
    columns = {name: chosen[name].astype(object).to_numpy() for name in names}

    columns |= {
        "time_ps": np.arange(len(sequence), dtype=np.int64),
        "kind": np.where(sequence.request > 0, 1, -1),
        "address": result.address,
        "allocated_bytes": result.chunk_bytes,
        "in_use_bytes": result.in_use_bytes,
        "available_bytes": result.options.memory_limit_bytes - result.in_use_bytes,
        "peak_in_use_bytes": np.maximum.accumulate(result.in_use_bytes),
        "fragmentation": result.fragmentation(),
    }

    return conform(pd.DataFrame(columns | {"run_id": 0, "thread": 0}), EVENTS)
