"""A noted step to a ``Recording``, as if it had been measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.contract.categories import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, FRAME_TYPES
from analyzer.model.contract.report.peak_figures import UnmodelledType
from analyzer.model.contract.report.subject import ReportTarget
from analyzer.model.contract.run_note import ThreadsNote
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.networkx_graph import build_graph
from analyzer.model.graph.phases import Phase
from analyzer.model.recording.records import Device, Kind, Recording
from analyzer.simulate.allocator import BfcOptions
from analyzer.simulate.kernels.kernel_device import KernelDevice
from analyzer.simulate.predict.buffers.predicted_events import place
from analyzer.simulate.predict.played_step import STEPS, Draw, Owner
from analyzer.simulate.predict.predicted_device import Target, target_of
from analyzer.simulate.predict.process_table import History, history_of
from analyzer.simulate.predict.representative import Chosen, choose
from analyzer.simulate.predict.schedules import Prediction, predict
from analyzer.simulate.predict.startup import rehomed, shared_slots
from analyzer.simulate.predict.uncertainty.assumptions import (
    assumptions_of,
    check_assumptions,
    sizes_from_inputs,
    told_decision,
    told_sizes,
)
from analyzer.simulate.predict.uncertainty.gpu_uncertainty import with_gpu_doubts
from analyzer.simulate.predict.uncertainty.stated_range import uncertainty_of
from analyzer.tracing.measure.attribution import (
    label_eager,
    label_graph,
    label_variables,
    match_outputs,
)
from analyzer.tracing.measure.attribution_labels import Labels
from analyzer.tracing.measure.measured_recording import (
    Measured,
    convert_step_config,
    index_note_graph,
)
from analyzer.tracing.measure.trace_attribution import find_first_births
from analyzer.tracing.measure.unowned_variables import find_roles_of_state
from analyzer.tracing.measure.variable_buffers import variable_bytes
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.xla.buffer_plan import BufferPlan
from analyzer.tracing.xla.plan_contents import build_plans, divide_temporaries, find_step_tensors
from analyzer.tracing.xla.recompilation import find_recompiled_functions

_AXES: Final = frozenset({"BroadcastGradientArgs"})
"""Types whose results are a few axes, however many: they are never of note."""

_TOLD: Final = 6
"""Branches and loops that the data decide which are told one by one."""


def predict_note(
    note: RunNote,
    *,
    threads: int | None = None,
    inter_op: int | None = None,
    plans: Mapping[str, BufferPlan] | None = None,
    allocator: BfcOptions | None = None,
    search: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Measured:
    """Predict the allocations of a noted step, from the build-up to the end of the last step.

    Args:
        note: What the capture noted; nothing of it ran.
        threads: Threads that a kernel may use; None for those of the machine that took the note.
        inter_op: Threads that run ops side by side; None for those of the machine that took the note,
            and one thread beside them as a second kind of schedule.
        plans: Memory plans of the XLA-compiled functions, by the name of the op that calls one; None
            for those in the note.
        allocator: How the allocator is set up; None for how it is on the device by default.
        search: Search the memory limits under which some of the orders run, and all: a second or so.
        progress: Called with the share done, 0 to 1.

    Raises:
        TraceError: the note holds no graph.
    """
    structure = index_note_graph(note)
    if structure is None:
        raise TraceError("The note holds no graph to predict from.", hint="Estimate again.")
    report = progress or (lambda share: None)
    target = target_of(note)
    target = target if allocator is None else replace(target, options=allocator)
    owners = owners_by_number(note, target.device)
    compiled = build_plans(note) if plans is None else plans
    whole = is_whole(note, compiled)
    prediction = predict(
        note.ops,
        list(owners.values()),
        threads=threads or max(note.threads.intra_op, 1),
        inter_op=(1,) if whole else (inter_op,) if inter_op else inter_op_drawn(note.threads),
        device=target.device,
        compiled=compiled,
        steps=STEPS if note.steps_wanted is None else note.steps_wanted,
        told=assumptions_of(note),
        draws=1 if whole else None,
        progress=lambda share: report(share / 2),
    )
    check_assumptions(note, prediction)
    chosen = choose(
        note,
        prediction,
        owners,
        target.options,
        search=search,
        progress=lambda share: report((1 + share) / 2),
    )
    return _measured(note, structure, compiled, prediction, chosen, target)


def _measured(
    note: RunNote,
    structure: GraphIndex,
    compiled: Mapping[str, BufferPlan],
    prediction: Prediction,
    chosen: Chosen,
    target: Target,
) -> Measured:
    """Return the chosen draw as a recording, as if it had been measured.

    Args:
        note: What the capture noted.
        structure: Its graph.
        compiled: Memory plans of the XLA-compiled functions, by the name of the op that calls one.
        prediction: All draws.
        chosen: The one to show.
        target: The device.
    """
    history, draw = history_of(prediction, chosen.played), chosen.played.draw
    table, sharing = _attribute(note, structure, history)
    doubts = uncertainty_of(prediction, chosen, unsized=len(_unsized(prediction, draw)))
    if target.gpu is not None and not is_whole(note, compiled):
        limit = target.options.memory_limit_bytes
        doubts = with_gpu_doubts(doubts, prediction, draw, limit)
    table, events, options = place(table, history.instants, target.options)
    shown = divide_temporaries(
        table,
        events,
        history.steps,
        compiled,
        structure,
        allocator=target.device.allocator,
        infer=note.is_inference,
    )
    if compiled:
        sharing = Sharing(structure, find_step_tensors(shown.allocations))
    limit_of = options if target.gpu is None else target.options
    recording = Recording(
        kind=Kind.ESTIMATE,
        target=ReportTarget() if note.target is None else ReportTarget(**asdict(note.target)),
        device=Device(
            kind=target.device.kind,
            name=note.device.name or "host",
            memory_limit_bytes=limit_of.memory_limit_bytes,
        ),
        step_config=convert_step_config(note),
        events=shown.events,
        allocations=shown.allocations,
        allocator=target.device.allocator,
        steps=shown.steps,
        make_graph=partial(build_graph, structure),
        make_tensor_links=structure.tensor_links,
        warnings=_doubts(note, prediction, draw),
        recompiled_functions=find_recompiled_functions(note, compiled),
        versions=dict(note.versions),
        notes=(*note.notes, *sizes_from_inputs(note)),
        unmodelled=tuple(UnmodelledType(**row) for row in prediction.unmodelled.to_dict("records")),
        uncertainty=doubts,
    )
    return Measured(recording, structure, sharing, _op_runs(prediction, draw), note)


def inter_op_drawn(noted: ThreadsNote) -> tuple[int, ...]:
    """Return the numbers of inter-op threads to draw schedules for, the one to show first.

    One thread is drawn beside the machine's number, as many fix it for repeatable runs, unless the user
    fixed another.
    """
    number = max(noted.inter_op, 1)
    return (number,) if noted.inter_op_fixed else (number, 1)


def is_whole(note: RunNote, compiled: Mapping[str, BufferPlan]) -> bool:
    """Say whether the step is one compiled function, so that no order of ops is left open."""
    work = [op.name for op in note.ops if op.type not in FRAME_TYPES]
    return len(work) == 1 and work[0] in compiled


def owners_by_number(note: RunNote, device: KernelDevice) -> dict[int, Owner]:
    """Return the step's variables by their index in the note."""
    arguments = {int(op.attrs["index"]): op for op in note.ops if op.type in ARGUMENT_TYPES}
    shared = shared_slots(note.births)
    shared |= {first: first for first in shared.values()}
    parted = rehomed(note, device)
    owners = {}
    for number, row in enumerate(note.variables):
        # An argument is one variable: of two that name it the first is believed.
        op = arguments.pop(-1 if row.argument is None else row.argument, None)
        if op is not None:
            begins_with = shared.get(number)
            owners[number] = Owner(
                op=op.name,
                path=row.path,
                size_bytes=0 if row.dtype in device.host_dtypes else variable_bytes(row) or 0,
                category=Category(row.category),
                is_counter=row.dtype in ("int32", "int64") and not row.shape,
                begins_with="" if begins_with is None or number in parted else str(begins_with),
            )
    return owners


def _attribute(
    note: RunNote, structure: GraphIndex, history: History
) -> tuple[pd.DataFrame, Sharing]:
    """Label the buffers by the rules that a trace is labelled by; variables are known here."""
    table = history.table
    labels = Labels(len(table))
    label_variables(labels, note, history.holdings, find_roles_of_state(note, structure))
    for row, (category, role) in history.labels.items():
        if labels.is_open(row):
            labels.set(row, category, role=role)
    in_steps = table["step"].notna().to_numpy()
    ops = table["op"].astype(object).to_numpy()
    backward = np.array([structure.phases.get(op) is Phase.BACKWARD for op in ops], dtype=bool)
    starts = find_first_births(table, backward & in_steps)
    tensors = match_outputs(table, structure)
    sharing = Sharing(structure, {tensors[row] for row in np.flatnonzero(in_steps)})
    infer = note.is_inference
    label_graph(labels, table, structure, sharing, tensors, infer=infer, backward_starts=starts)
    phases = np.zeros(len(table), dtype=np.int8)
    none = np.zeros(len(table), dtype=bool)
    label_eager(labels, table, history.steps, phases, {}, set(), none, infer=infer, jit=False)
    return labels.apply(table), sharing


def _op_runs(prediction: Prediction, draw: Draw) -> pd.DataFrame:
    """Return the order in which the ops run; the times only order them."""
    ops = prediction.prepared.wiring.ops
    order = np.arange(len(draw.order), dtype=np.int64)
    return pd.DataFrame(
        {
            "op": [ops[node].name for node in draw.order],
            "start_ps": order,
            "end_ps": order,
            "thread": 0,
        }
    )


def _doubts(note: RunNote, prediction: Prediction, draw: Draw) -> tuple[str, ...]:
    return (*told_sizes(note, prediction, draw), *left_out(prediction, draw))


def left_out(prediction: Prediction, draw: Draw) -> tuple[str, ...]:
    """Return sentences about ops of which it is not known what they take, or whether they run.

    Args:
        prediction: The draws.
        draw: The one whose ops are looked at.
    """
    doubts = [told_decision(decision) for decision in prediction.decisions[:_TOLD]]
    if prediction.stranded:
        names = ", ".join(prediction.stranded[:3])
        doubts.append(
            f"{len(prediction.stranded)} ops never run when the graph is played ({names}): what they "
            "would hold is left out. Measure such a step with `analyze trace`."
        )
    doubts += _told_misfits(prediction)
    misfits = prediction.prepared.kernels.misfits
    ops = prediction.prepared.wiring.ops
    nodes = [node for node in prediction.prepared.kernels.unmodelled if node not in misfits]
    if nodes:
        kinds = ", ".join(sorted({ops[node].type for node in nodes})[:5])
        doubts.append(
            f"No rule is known for ops of the types {kinds}: each output is taken to be allocated."
        )
    if unsized := _unsized(prediction, draw):
        names = ", ".join(unsized[:3])
        doubts.append(
            f"{len(unsized)} tensors have a shape that depends on data ({names}): they count as "
            "nothing here. Measure such a step with `analyze trace`."
        )
    return tuple(doubts)


def _told_misfits(prediction: Prediction) -> list[str]:
    """Return what is said of ops that the rule of their type does not fit; nothing without any."""
    misfits = prediction.prepared.kernels.misfits
    if not misfits:
        return []
    node, why = next(iter(misfits.items()))
    op = prediction.prepared.wiring.ops[node]
    count = "1 op" if len(misfits) == 1 else f"{len(misfits)} ops"
    return [
        f"The rule of its type does not fit {count} (the first: {op.name}, a {op.type}; "
        f"{why}): each output is taken to be allocated. Please report this."
    ]


def _unsized(prediction: Prediction, draw: Draw) -> list[str]:
    """Return the tensors of ops that ran whose bytes neither the graph nor the kernel's rule tells."""
    plans, ops = prediction.prepared.kernels.plans, prediction.prepared.wiring.ops
    return [
        f"{ops[node].name}:{index}"
        for node in dict.fromkeys(draw.order)
        for index, spec in enumerate(ops[node].outputs)
        if spec.size_bytes is None
        and ops[node].type not in _AXES
        and spec.dtype not in ("resource", "variant", "string", "")
        and not (index < len(plans[node].outputs) and plans[node].outputs[index].is_known)
    ]
