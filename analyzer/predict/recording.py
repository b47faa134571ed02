"""A noted step to a :class:`analyzer.model.Recording`, as if it had been measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Final

import numpy as np
import pandas as pd

from analyzer.contract.run import ThreadsNote
from analyzer.errors import TraceError
from analyzer.graph.build import build_graph
from analyzer.graph.phases import Phase
from analyzer.graph.sharing import Sharing
from analyzer.graph.structure import Structure
from analyzer.kernels.device import CPU, KernelDevice
from analyzer.measure.attribution import (
    label_eager,
    label_graph,
    label_variables,
    match_outputs,
)
from analyzer.measure.build import (
    Measured,
    first_births,
    step_config_of,
    structure_of,
)
from analyzer.measure.labels import Labels
from analyzer.measure.state import roles_of_state
from analyzer.measure.variables import size_of
from analyzer.model import Category, Device, Kind, Recording
from analyzer.parse.run import RunNote
from analyzer.predict.assumed import (
    assumptions_of,
    check_assumptions,
    sizes_from_inputs,
    told_decision,
    told_sizes,
)
from analyzer.predict.central import choose
from analyzer.predict.events import place
from analyzer.predict.gpu_doubts import with_gpu_doubts
from analyzer.predict.history import rehomed, shared_slots
from analyzer.predict.joining import ARGUMENTS, History, history_of
from analyzer.predict.prediction import Prediction, predict
from analyzer.predict.step import STEPS, Draw, Owner
from analyzer.predict.target import target_of
from analyzer.predict.uncertainty import uncertainty_of
from analyzer.xla.anew import compiled_anew
from analyzer.xla.inside import plans_of, show_inside, tensors_in_steps
from analyzer.xla.plan import Plan as XlaPlan

_AXES: Final = frozenset({"BroadcastGradientArgs"})
"""Types whose results are a few axes, however many: they are never of note."""

_TOLD: Final = 6
"""Branches and loops that the data decide which are told one by one."""

_FRAME: Final = frozenset({"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "Identity", "NoOp"})
"""Types of the ops around a step that is one compiled function."""


def predict_note(
    note: RunNote,
    *,
    threads: int | None = None,
    inter_op: int | None = None,
    plans: Mapping[str, XlaPlan] | None = None,
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
        search: Search the memory limit that suffices for the orders that need most, on a CPU: a second
            or so.
        progress: Called with the share done, 0 to 1.

    Raises:
        TraceError: the note holds no graph.
    """
    structure = structure_of(note)
    if structure is None:
        raise TraceError("The note holds no graph to predict from.", hint="Estimate again.")
    report = progress or (lambda share: None)
    target = target_of(note)
    owners = _owners(note, target.device)
    compiled = plans_of(note) if plans is None else plans
    whole = _is_whole(note, compiled)
    prediction = predict(
        note.ops,
        list(owners.values()),
        threads=threads or max(note.threads.intra_op, 1),
        inter_op=(1,) if whole else (inter_op,) if inter_op else _inter_op(note.threads),
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
        search=search and target.gpu is None,
        progress=lambda share: report((1 + share) / 2),
    )
    history, draw = history_of(prediction, chosen.played), chosen.played.draw
    table, sharing = _attribute(note, structure, history)
    doubts = uncertainty_of(prediction, chosen)
    doubts["unsized"] = len(_unsized(prediction, draw))
    if target.gpu is not None and not whole:
        doubts = with_gpu_doubts(doubts, prediction, draw)
    table, events, options = place(table, history.instants, target.options)
    shown = show_inside(
        table,
        events,
        history.steps,
        compiled,
        structure,
        allocator=prediction.prepared.device.allocator,
        infer=note.is_inference,
    )
    if compiled:
        sharing = Sharing(structure, tensors_in_steps(shown.allocations))
    recording = Recording(
        kind=Kind.ESTIMATE,
        target={} if note.target is None else asdict(note.target),
        device=Device(
            kind=target.device.kind,
            name=note.device.name or "host",
            memory_limit_bytes=target.options.memory_limit_bytes
            if target.gpu is not None
            else options.memory_limit_bytes,
        ),
        step_config=step_config_of(note),
        events=shown.events,
        allocations=shown.allocations,
        allocator=prediction.prepared.device.allocator,
        steps=shown.steps,
        make_graph=partial(build_graph, structure),
        warnings=_doubts(note, prediction, draw),
        compiled_anew=compiled_anew(note, compiled),
        versions=dict(note.versions),
        extra={
            "notes": [*note.notes, *sizes_from_inputs(note)],
            "from_process_start": True,
            "graph_kind": note.graph_kind,
            "devices": [],
            "unmodelled": prediction.unmodelled.to_dict("records"),
            "uncertainty": doubts,
        },
    )
    return Measured(recording, structure, sharing, _op_runs(prediction, draw), note)


def _inter_op(noted: ThreadsNote) -> tuple[int, ...]:
    """Return the numbers of inter-op threads to draw schedules for, the one to show first.

    One thread is drawn beside the machine's number, as many fix it for repeatable runs, unless the user
    fixed another.
    """
    number = max(noted.inter_op, 1)
    return (number,) if noted.inter_op_fixed else (number, 1)


def _is_whole(note: RunNote, compiled: Mapping[str, XlaPlan]) -> bool:
    """Say whether the step is one compiled function, so that no order of ops is left open."""
    work = [op.name for op in note.ops if op.type not in _FRAME]
    return len(work) == 1 and work[0] in compiled


def owners_of(note: RunNote) -> list[Owner]:
    """Return the variables that a noted step uses on the CPU."""
    return list(_owners(note, CPU).values())


def _owners(note: RunNote, device: KernelDevice) -> dict[int, Owner]:
    """Return the step's variables by their index in the note."""
    arguments = {int(op.attrs["index"]): op for op in note.ops if op.type in ARGUMENTS}
    shared = shared_slots(note.births)
    shared |= {first: first for first in shared.values()}
    parted = rehomed(note, device)
    owners = {}
    for number, row in enumerate(note.variables):
        op = arguments.get(-1 if row.argument is None else row.argument)
        if op is not None:
            begins_with = shared.get(number)
            owners[number] = Owner(
                op=op.name,
                path=row.path,
                size_bytes=0 if row.dtype in device.host_dtypes else size_of(row) or 0,
                category=Category(row.category),
                is_counter=row.dtype in ("int32", "int64") and not row.shape,
                begins_with="" if begins_with is None or number in parted else str(begins_with),
            )
    return owners


def _attribute(
    note: RunNote, structure: Structure, history: History
) -> tuple[pd.DataFrame, Sharing]:
    """Label the buffers by the rules that a trace is labelled by; variables are known here."""
    table = history.table
    labels = Labels(len(table))
    label_variables(labels, note, history.holdings, roles_of_state(note, structure))
    for row, (category, role) in history.labels.items():
        if labels.is_open(row):
            labels.set(row, category, role=role)
    in_steps = table["step"].notna().to_numpy()
    ops = table["op"].astype(object).to_numpy()
    backward = np.array([structure.phases.get(op) is Phase.BACKWARD for op in ops], dtype=bool)
    starts = first_births(table, backward & in_steps)
    tensors = match_outputs(table, structure)
    sharing = Sharing(structure, {tensors[row] for row in np.flatnonzero(in_steps)})
    infer = note.is_inference
    label_graph(labels, table, structure, sharing, tensors, infer=infer, backward_starts=starts)
    phases = np.zeros(len(table), dtype=np.int8)
    label_eager(labels, table, history.steps, phases, {}, set(), infer=infer, jit=False)
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
    doubts = told_sizes(note, prediction, draw)
    doubts += [told_decision(decision) for decision in prediction.decisions[:_TOLD]]
    if prediction.stranded:
        names = ", ".join(prediction.stranded[:3])
        doubts.append(
            f"{len(prediction.stranded)} ops never run when the graph is played ({names}): what they "
            "would hold is left out. Measure such a step with `analyze trace`."
        )
    if len(prediction.unmodelled):
        kinds = ", ".join(prediction.unmodelled["op_type"].head(5))
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
        and not (index < len(plans[node].outputs) and plans[node].outputs[index].is_told)
    ]
