"""The prediction of a noted step as a ``Recording``, like a measured one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, FRAME_TYPES
from analyzer.model.contract.report.peak_figures import UnmodelledType
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.networkx_graph import build_graph
from analyzer.model.graph.phases import Phase
from analyzer.model.recording.records import Device, Kind, Recording
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.kernels.kernel_device import KernelDevice
from analyzer.simulate.predict.executor.node_execution import Assumptions
from analyzer.simulate.predict.predicted_device import Target, describe_card, target_of
from analyzer.simulate.predict.prepared_step import STEPS, Owner, Prepared, Schedule
from analyzer.simulate.predict.process_table import Played, make_table, place
from analyzer.simulate.predict.sampling import Chosen, Prediction, choose, predict
from analyzer.simulate.predict.startup import find_rehomed, find_shared_slots
from analyzer.simulate.predict.uncertainty.decisions import (
    check_assumptions,
    describe_decision,
    describe_input_sizes,
    describe_run_sizes,
)
from analyzer.simulate.predict.uncertainty.gpu_uncertainty import add_gpu_uncertainty
from analyzer.simulate.predict.uncertainty.stated_range import SENTENCES, state_range
from analyzer.tracing.measure.attribution import label_eager, label_graph, match_outputs
from analyzer.tracing.measure.attribution_labels import Labels, label_variables
from analyzer.tracing.measure.measured_recording import Measured
from analyzer.tracing.measure.trace_attribution import find_first_births
from analyzer.tracing.measure.unowned_variables import find_roles_of_state
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.sources.graph_join import index_note_graph
from analyzer.tracing.xla.buffer_plan import BufferPlan
from analyzer.tracing.xla.plan_contents import build_plans, divide_temporaries, find_step_tensors
from analyzer.tracing.xla.recompilation import find_recompiled_functions

_TINY_RESULTS: Final = frozenset({"BroadcastGradientArgs"})
"""Op types whose results are a few axes; their unknown sizes do not matter."""

_MOST_DECISIONS: Final = 6  # most decisions to describe one by one


def predict_note(
    note: RunNote,
    *,
    threads: int | None = None,
    inter_op: int | None = None,
    plans: Mapping[str, BufferPlan] | None = None,
    allocator: BfcOptions | None = None,
    search: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> Measured:
    """Predict the allocations of a noted step, from the process's start to the end of the last step.

    ``threads`` and ``inter_op`` are those of the noted machine by default, ``plans`` (by calling op)
    those of the note. ``search``: whether to find the limits under which some and all schedules run.
    """
    structure = index_note_graph(note)
    if structure is None:
        raise TraceError("The note has no graph to predict from.", hint="Estimate again.")
    target = target_of(note)
    target = target if allocator is None else replace(target, options=allocator)
    owners = owners_by_number(note, target.device)
    compiled = build_plans(note) if plans is None else plans
    whole = is_whole(note, compiled)
    own = max(note.threads.inter_op, 1)
    # One thread is compared with the machine's number, because many users fix it for repeatable
    # runs, unless the user fixed another.
    numbers = (inter_op,) if inter_op else (own,) if note.threads.inter_op_fixed else (own, 1)
    prediction = predict(
        note.ops,
        list(owners.values()),
        threads=threads or max(note.threads.intra_op, 1),
        inter_op=(1,) if whole else numbers,
        device=target.device,
        compiled=compiled,
        steps=STEPS if note.steps_wanted is None else note.steps_wanted,
        assumed=Assumptions(trips=note.assumed, branches=note.assumed),  # names of either
        count=1 if whole else None,
        progress=lambda share: progress(share / 2),
    )
    check_assumptions(note, prediction.decisions)
    chosen = choose(
        note,
        prediction,
        owners,
        target.options,
        search=search,
        progress=lambda share: progress((1 + share) / 2),
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
    schedule = chosen.played.schedule
    table, sharing = _attribute(note, structure, prediction.prepared, chosen.played)
    unsized = len(_find_unsized(prediction, schedule))
    data_bytes = note.data_bytes if target.gpu is None else {}
    uncertainty = state_range(prediction, chosen, data_bytes, unsized)
    if target.gpu is not None and not is_whole(note, compiled):
        limit = target.options.memory_limit_bytes
        uncertainty = add_gpu_uncertainty(uncertainty, prediction, chosen.played, limit)
    names = [prediction.prepared.wiring.ops[node].name for node in schedule.nodes]
    table, events, options = place(table, chosen.played.instants, target.options)
    shown = divide_temporaries(
        table,
        events,
        chosen.played.steps,
        compiled,
        structure,
        allocator=target.device.allocator,
        infer=note.step.infers,
    )
    if compiled:
        sharing = Sharing(structure, find_step_tensors(shown.allocations))
    limit_of = options if target.gpu is None else target.options
    recording = Recording(
        kind=Kind.ESTIMATE,
        target=note.target or TargetNote(),
        device=Device(
            kind=target.device.kind,
            name=note.device.name or "host",
            memory_limit_bytes=limit_of.memory_limit_bytes,
        ),
        step_config=note.step,
        events=shown.events,
        allocations=shown.allocations,
        allocator=target.device.allocator,
        steps=shown.steps,
        make_graph=partial(build_graph, structure),
        make_tensor_links=structure.tensor_links,
        warnings=(
            *describe_run_sizes(note, set(names), prediction.least_bytes),
            *find_warnings(prediction, schedule),
        ),
        recompiled_functions=find_recompiled_functions(note, compiled),
        versions=dict(note.versions),
        notes=(*note.notes, *describe_input_sizes(note), *describe_card(note)),
        unmodelled=find_unmodelled(prediction.prepared),
        uncertainty=uncertainty,
    )
    order = np.arange(len(names), dtype=np.int64)  # times are ranks
    runs = pd.DataFrame({"op": names, "start_ps": order, "end_ps": order, "thread": 0})
    return Measured(recording, structure, sharing, runs, note)


def is_whole(note: RunNote, compiled: Mapping[str, BufferPlan]) -> bool:
    """Return whether the step is one compiled function: then there is only one schedule."""
    work = [op.name for op in note.ops if op.type not in FRAME_TYPES]
    return len(work) == 1 and work[0] in compiled


def owners_by_number(note: RunNote, device: KernelDevice) -> dict[int, Owner]:
    """Return the step's variables by their index in the note."""
    arguments = {int(op.attrs["index"]): op for op in note.ops if op.type in ARGUMENT_TYPES}
    shared = find_shared_slots(note.births)
    shared |= {first: first for first in shared.values()}
    rehomed = find_rehomed(note, device)
    owners = {}
    for number, row in enumerate(note.variables):
        # An argument is one variable: the first of two that name it.
        op = arguments.pop(-1 if row.argument is None else row.argument, None)
        if op is not None:
            begins_with = shared.get(number)
            owners[number] = Owner(
                op=op.name,
                path=row.path,
                size_bytes=(device.holds(row) and row.size_bytes) or 0,
                category=Category(row.category),
                is_counter=row.dtype in ("int32", "int64") and not row.shape,
                begins_with="" if begins_with is None or number in rehomed else str(begins_with),
            )
    return owners


def _attribute(
    note: RunNote, structure: GraphIndex, prepared: Prepared, played: Played
) -> tuple[pd.DataFrame, Sharing]:
    """Label the buffers by the rules for traces; here the variables are known."""
    table, holdings, known = make_table(prepared, played)
    labels = Labels(len(table))
    label_variables(labels, note, holdings, find_roles_of_state(note, structure))
    for row, (category, role) in known.items():
        if labels.is_open(row):
            labels.set(row, category, role=role)
    in_steps = table["step"].notna().to_numpy()
    ops = table["op"].astype(object).to_numpy()
    backward = np.array([structure.phases.get(op) is Phase.BACKWARD for op in ops], dtype=bool)
    starts = find_first_births(table, backward & in_steps)
    tensors = match_outputs(table, structure)
    sharing = Sharing(structure, {tensors[row] for row in np.flatnonzero(in_steps)})
    infer = note.step.infers
    label_graph(labels, table, structure, sharing, tensors, infer=infer, backward_starts=starts)
    phases = np.zeros(len(table), dtype=np.int8)
    none = np.zeros(len(table), dtype=bool)
    label_eager(labels, table, played.steps, phases, {}, none, infer=infer, jit=False)
    return labels.apply(table), sharing


def find_unmodelled(prepared: Prepared) -> tuple[UnmodelledType, ...]:
    """Return op types without a rule, with the bytes of their outputs."""
    ops = [prepared.wiring.ops[node] for node in prepared.kernels.unmodelled]
    counts = Counter(op.type for op in ops)
    sizes: Counter[str] = Counter()
    for op in ops:
        sizes[op.type] += sum(spec.size_bytes or 0 for spec in op.outputs)
    return tuple(
        UnmodelledType(op_type=kind, count=count, bytes=sizes[kind])
        for kind, count in sorted(counts.items())
    )


def find_warnings(prediction: Prediction, schedule: Schedule) -> Iterator[str]:
    """Yield sentences about decisions, and about ops whose memory is unknown."""
    kernels, ops = prediction.prepared.kernels, prediction.prepared.wiring.ops
    yield from map(describe_decision, prediction.decisions[:_MOST_DECISIONS])
    if stranded := [ops[node].name for node in prediction.middle.stranded]:
        yield SENTENCES["stranded"].format(len(stranded), ", ".join(stranded[:3]))
    if count := len(kernels.misfits):
        node, why = next(iter(kernels.misfits.items()))
        counted = f"{count} op{'s' * (count > 1)}"
        yield SENTENCES["misfits"].format(counted, ops[node].name, ops[node].type, why)
    kinds = {ops[node].type for node in kernels.unmodelled if node not in kernels.misfits}
    if kinds:
        yield SENTENCES["no_rule"].format(", ".join(sorted(kinds)[:5]))
    if changed := _find_changed_shapes(prediction.prepared):
        yield SENTENCES["loop_shapes"].format(", ".join(changed[:3]))
    if unsized := _find_unsized(prediction, schedule):
        yield SENTENCES["unsized"].format(len(unsized), ", ".join(unsized[:3]))
        if any(name.startswith("IteratorGetNext") for name in unsized):
            yield SENTENCES["iterator"]


def _find_changed_shapes(prepared: Prepared) -> list[str]:
    """Return the tensors that enter the second trip of a loop with another shape than the first."""
    ops, inputs = prepared.wiring.ops, prepared.wiring.inputs
    merges = (node for node, op in enumerate(ops) if op.type == "Merge")
    pairs = ((ops[node].outputs[0], ops[source]) for node in merges for source, _ in inputs[node])
    return [
        f"{back.name}:0"
        for spec, back in pairs
        if back.type == "NextIteration"
        and None not in (shapes := (spec.known_shape, back.outputs[0].known_shape))
        and shapes[0] != shapes[1]
    ]


def _find_unsized(prediction: Prediction, schedule: Schedule) -> list[str]:
    """Return the tensors of ops that ran whose size neither graph nor kernel rule defines."""
    plans, ops = prediction.prepared.kernels.plans, prediction.prepared.wiring.ops
    return [
        f"{ops[node].name}:{index}"
        for node in dict.fromkeys(schedule.nodes)
        for index, spec in enumerate(ops[node].outputs)
        if spec.size_bytes is None
        and ops[node].type not in _TINY_RESULTS
        and spec.dtype not in ("resource", "variant", "string", "")
        and not (index < len(plans[node].outputs) and plans[node].outputs[index].is_known)
    ]
