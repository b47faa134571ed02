"""The prediction of a noted step as a ``Recording``, like a measured one."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analyzer.cards.catalogue import find_gpu, memory_limit
from analyzer.model.contract.reading import read_table
from analyzer.model.contract.report_file import StatedRange
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex, Phase
from analyzer.model.recording.attribution import (
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
    find_steps_of_births,
)
from analyzer.model.units import Range, round_up
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import (
    FLOOR_BYTES,
    LIMIT_MARGIN,
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
    if not note.ops:
        raise TraceError(
            "The note has no graph to predict from.",
            "Estimate again.",
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
        layer_lines=note.source_lines,
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

    rows = [_describe(prepared, buffer) for buffer in schedule.buffers]
    table = schedule.table.join(pd.DataFrame(rows))

    described = table.assign(
        allocator=prepared.device.allocator,
        run_id=0,
        allocated_bytes=round_up(table["requested_bytes"].to_numpy()),
        step=find_steps_of_births(table["born"].to_numpy(), schedule.steps),
    )

    return conform(described, ALLOCATIONS)


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
    if buffer.value_since >= 0:
        described["turns_at"] = buffer.value_since

    return described


def find_holdings(prediction: Prediction) -> list[Holding]:
    """Return which row holds which variable, in the order in which they became its value."""
    rows = [row for row in enumerate(prediction.middle.buffers) if row[1].variable >= 0]
    rows.sort(key=lambda row: row[1].value_since)
    holdings = []
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
        backward_starts=table[backward & in_steps]
        .groupby("step")["born"]
        .min()
        .to_dict(),
    )

    label_eager(
        labels,
        table,
        schedule.steps,
        np.zeros(len(table), np.int8),
        np.array([], np.int64),
        np.zeros(len(table), bool),
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


SENTENCES = read_table("simulate/predict/range_sentences.toml", dict[str, str])

# Share of the peak added on both sides for bytes that no schedule shows: constants that the runtime
# folds or shares, small buffers in Python, kernel scratch of a few kilobytes.
MARGIN = 0.002

# Share of the peak added on both sides on a CPU, whose orders of ops are more than those played.
ORDER_MARGIN = 0.02

# Share of the peak added for ops that overlap on several threads of a CPU; one queue plays them one
# by one (benchmarks/results/ablation.md).
THREADS_MARGIN = 0.05

# Share of the allocated peak added on both sides: initial values, whose temporaries decide the first
# chunks, are not played (benchmarks/results/ablation.md).
CHUNKS_MARGIN = 0.06


# Guards around the workspace on which cuDNN's algorithms are tried in the first step, to detect
# writes outside of it (twice ``kDefaultRedzoneSize`` in ``redzone_allocator.h``).
TRIAL_BYTES = 16 << 20


# Share of the peak that other tensors of a process may add: 0.1 to 1.3 % in four public programs
# before their steps (benchmarks/results/real-cards.md).
HELD_SHARE = 0.015


def state_range(prediction: Prediction, card_limit_bytes: int | None) -> StatedRange:
    """Return the range of the peak; ``card_limit_bytes`` is None for a CPU."""
    requested = prediction.requested
    below, above = _find_margins(prediction)
    limits = None

    if prediction.limits is not None:
        margin = int(LIMIT_MARGIN * prediction.limits.high)
        has_trials = any(any(one.workspaces_bytes) for one in prediction.prepared.plans)
        margin += above + TRIAL_BYTES * has_trials
        limits = prediction.limits.widened(below, margin)

    # Other outcomes of decisions are not replayed: their distance to the schedules is added.
    played = Range.spanning(one.peak_bytes for one in prediction.schedules)
    chunks = Range.spanning(prediction.allocated_bytes)
    chunk_margin = int(CHUNKS_MARGIN * chunks.high)

    low_margin = played.low - requested.low + below + chunk_margin
    high_margin = requested.high - played.high + above + chunk_margin
    chunks = chunks.widened(low_margin, high_margin)

    requested = requested.widened(below, above)
    workspace_bytes = None

    if card_limit_bytes is not None:
        less_bytes, more_bytes = _find_workspace_spread(prediction)
        held_bytes = int(HELD_SHARE * prediction.middle.peak_bytes)
        workspace_bytes = more_bytes + held_bytes
        requested = requested.widened(less_bytes, workspace_bytes)
        chunks = chunks.widened(less_bytes, workspace_bytes)

    return StatedRange(
        limit_low_bytes=None if limits is None else limits.low,
        limit_high_bytes=None if limits is None else limits.high,
        low_bytes=requested.low,
        high_bytes=requested.high,
        allocated_low_bytes=chunks.low,
        allocated_high_bytes=chunks.high,
        because=(),
        unsized=len(find_unsized(prediction)),
        workspace_bytes=workspace_bytes,
    )


def _find_margins(prediction: Prediction) -> tuple[int, int]:
    """Return bytes below and above the peaks that no schedule shows."""
    prepared = prediction.prepared
    is_ordered = prepared.device.is_cheap
    share = MARGIN if is_ordered else ORDER_MARGIN
    margin = max(int(share * prediction.middle.peak_bytes), FLOOR_BYTES)
    above = margin

    if prepared.threads > 1 and not is_ordered:
        above += int(THREADS_MARGIN * prediction.requested.high)

    return margin, above


def describe_notes(prediction: Prediction) -> Iterator[str]:
    """Yield sentences about ops whose memory is unknown."""
    pairs = zip(prediction.prepared.ops, prediction.prepared.plans, strict=True)
    kinds = {op.type for op, plan in pairs if not plan.modelled}
    if kinds:
        yield SENTENCES["no_rule"].format(", ".join(sorted(kinds)[:5]))

    unsized = find_unsized(prediction)
    if unsized:
        yield SENTENCES["unsized"].format(len(unsized), ", ".join(unsized[:3]))
        if any(name.startswith("IteratorGetNext") for name in unsized):
            yield SENTENCES["iterator"]


# Op types whose results are a few axes; their unknown sizes do not matter.
_TINY_RESULTS = frozenset({"BroadcastGradientArgs"})


def find_unsized(prediction: Prediction) -> list[str]:
    """Return the tensors of ops that ran whose size neither graph nor kernel rule defines."""
    plans = prediction.prepared.plans
    ops = prediction.prepared.ops
    unsized = []

    for node in dict.fromkeys(prediction.middle.nodes):
        op = ops[node]
        outputs = plans[node].outputs

        if op.type in _TINY_RESULTS:
            continue

        for index, spec in enumerate(op.outputs):
            is_number = spec.dtype not in ("resource", "variant", "string", "")
            is_known = index < len(outputs) and outputs[index].is_known
            if spec.size_bytes is None and is_number and not is_known:
                unsized.append(f"{op.name}:{index}")

    return unsized


def _find_workspace_spread(prediction: Prediction) -> tuple[int, int]:
    """Return by how many bytes other likely algorithms of cuDNN lower and raise the peak at most."""
    schedule = prediction.middle
    first = schedule.steps[-1].first
    peak = schedule.peak_instant
    less_bytes = more_bytes = 0

    for buffer in schedule.buffers:
        if buffer.node < 0 or buffer.born < first:
            continue

        plan = prediction.prepared.plans[buffer.node]
        expected_bytes, least_bytes, most_bytes = plan.workspaces_bytes
        live_bytes = int(schedule.live_bytes[buffer.born + 1])

        if buffer.region == WORKSPACE:
            live_bytes -= expected_bytes
            if buffer.born <= peak and (buffer.dies is None or buffer.dies > peak):
                less_bytes = expected_bytes - least_bytes

        if most_bytes:
            higher_bytes = live_bytes + most_bytes - schedule.peak_bytes
            more_bytes = max(more_bytes, higher_bytes)

    return less_bytes, more_bytes
