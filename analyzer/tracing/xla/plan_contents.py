"""The values inside the buffers of compiled functions: their labels, and their rows in the tables.

XLA keeps the name of the framework's op of each instruction; a fusion has that of its root. The traced
graph gives the op's phase, layer and source line.

The compiler may compute some values of the backward pass early, such as masks. The backward pass is
assumed to begin at the moment that minimises the bytes of values on the wrong side. A value that is made
before and still alive then is kept for it. Others are classified by the phase (``value_roles``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import split_tensor
from analyzer.model.errors import AccountingError, TraceError
from analyzer.model.graph.graph_index import GraphIndex, find_inlined
from analyzer.model.graph.phases import Phase, is_in_gradient_scope
from analyzer.model.graph.value_roles import (
    describe_value,
    find_gradient_ops,
    is_float,
    makes_activation,
)
from analyzer.model.recording.records import Step
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.xla.assignment import build_plan
from analyzer.tracing.xla.buffer_plan import ARGUMENTS, BufferPlan, Holder, PlanRegion
from analyzer.tracing.xla.plan_division import Divided, Division, divide
from analyzer.tracing.xla.trace_modules import find_jax_layer, is_workspace, runs_backward

_LEAST_BYTES: Final = 4096
"""Smaller buffers of a trace are not divided, because their size does not identify them."""

_PUSH: Final = "TensorListPushBack"
_NAMELESS: Final = ("", ARGUMENTS, "XLA_Retvals")
"""tf2xla's names for parameters and results, and no name."""


def build_plans(note: RunNote | None) -> Mapping[str, BufferPlan]:
    """Return the memory plans of a note, by the name of the op that calls the function.

    Raises:
        TraceError: A plan contradicts itself: its file is damaged.
    """
    plans: dict[str, BufferPlan] = {}
    for one in note.compiled if note is not None else ():
        if one.plan is None:
            continue
        try:
            plan = build_plan(one.plan, platform=one.platform).with_fixed(one.fixed)
        except AccountingError as error:
            raise TraceError(
                f"The plan of {one.function[:80]!r} is damaged: {error}.",
                hint="Repeat the capture.",
            ) from None
        plans |= dict.fromkeys(one.ops, plan)
    return plans


def find_step_tensors(allocations: pd.DataFrame) -> set[str]:
    """Return the tensors of the graph that lie in a buffer of a step, or in a part of one."""
    found = allocations.loc[allocations["step"].notna(), "tensor"]
    return {str(tensor) for tensor in found.unique() if tensor}


def divide_temporaries(
    allocations: pd.DataFrame,
    events: pd.DataFrame,
    steps: Sequence[Step],
    plans: Mapping[str, BufferPlan],
    structure: GraphIndex | None,
    *,
    allocator: str,
    infer: bool,
) -> Divided:
    """Divide the temporaries of compiled functions into their values.

    In a prediction the op that requested a buffer is known. In a trace the requests of a compiled
    step name no op: its temporaries are found by their size, among buffers that are freed in their
    step.

    ``plans`` are by the name of the op that calls the function, and ``structure`` has the ops of the
    functions. ``infer``: whether the step has no backward pass.
    """
    by_size: dict[int, list[tuple[str, PlanRegion]]] = {}
    for op, plan in plans.items():
        for region in plan.temporaries:
            if region.holders:
                by_size.setdefault(region.size_bytes, []).append((op, region))
    ends = {step.index: step.last for step in steps}
    labels: dict[tuple[str, int], list[dict[str, str]]] = {}
    divisions: list[Division] = []
    rows = allocations[
        allocations["requested_bytes"].isin(list(by_size))
        & (allocations["allocator"] == allocator)
        & (allocations["step"].notna() | allocations["op"].isin(list(plans)))
        & (allocations["variable"] == "")
        & (allocations["region"] != "output")
    ].sort_values("born", kind="stable")
    columns = (rows["op"].astype(object), rows["requested_bytes"], rows["step"], rows["dies"])
    for row, name, size, step, dies in zip(rows.index, *columns, strict=True):
        named = [(op, region) for op, region in by_size[int(size)] if op == name]
        if not named and (name or size < _LEAST_BYTES or dies > ends[int(step)]):
            continue
        op, region = (named or by_size[int(size)])[0]
        if (op, region.index) not in labels:
            forward = infer or (structure is None and not runs_backward(plans[op]))
            labels[op, region.index] = label_holders(region, structure, infer=forward)
        divisions.append(Division(row=int(row), region=region, labels=labels[op, region.index]))
    return divide(allocations, events, steps, divisions)


def label_holders(
    region: PlanRegion, structure: GraphIndex | None, *, infer: bool
) -> list[dict[str, str]]:
    """Return the attributing columns of ``ALLOCATIONS`` for each holder of a region."""
    tensors = () if structure is None else structure.gradients
    makers = {split_tensor(tensor)[0]: True for tensor in tensors}
    passing = {} if structure is None else dict.fromkeys(find_gradient_ops(structure), True)
    phases = _find_phases(region, structure)
    start = _find_backward_start(region, phases)
    labels = []
    for holder, phase in zip(region.holders, phases, strict=True):
        name = _find_graph_name(holder.op_name, structure)
        op = structure.ops.get(name) if structure is not None else None
        metadata_name = "" if holder.op_name in _NAMELESS else holder.op_name
        is_passed = structure is None or find_inlined(holder.op_name, passing) is not None
        category, role = _find_category(
            holder,
            phase,
            is_kept=holder.first < start < holder.until,
            of_variable=find_inlined(holder.op_name, makers) is not None,
            is_passed=is_passed,
            infer=infer,
        )
        labels.append(
            {
                "op": name or metadata_name or holder.instruction,
                "op_type": holder.op_type or holder.opcode,
                "layer": find_jax_layer(holder.op_name)
                if structure is None
                else structure.layers.get(name, ""),
                "source": op.source if op is not None else "",
                "tensor": next(
                    (
                        f"{name}:{index}"
                        for index, spec in enumerate(op.outputs if op is not None else ())
                        if (spec.dtype, spec.shape) == (holder.dtype, holder.shape)
                    ),
                    "",
                ),
                "category": category.value,
                "role": role,
            }
        )
    return labels


def _find_graph_name(name: str, structure: GraphIndex | None) -> str:
    """Return the graph's name of an op; XLA may add callers' names as prefix."""
    if structure is None:
        return ""
    while name and name not in structure.ops:
        name = name.partition("/")[2]
    return name


def _find_phases(region: PlanRegion, structure: GraphIndex | None) -> list[Phase]:
    """Return the phase of each holder; without a known op that of the value before it."""
    phases: list[Phase] = []
    last = Phase.FORWARD
    for holder in region.holders:
        known = None
        in_gradient = is_in_gradient_scope(holder.op_name)
        if structure is not None and holder.op_name not in _NAMELESS:
            known = find_inlined(holder.op_name, structure.phases)
        if holder.op_type == _PUSH and not in_gradient:
            known = Phase.FORWARD  # a loop saves values for its gradient; the tape inserted the op
        if known is None and holder.op_name:
            if in_gradient:
                known = Phase.BACKWARD
            elif structure is None and holder.argument is None:
                known = Phase.FORWARD
        last = known or last
        phases.append(last)
    return phases


def _find_backward_start(region: PlanRegion, phases: list[Phase]) -> int:
    """Return the moment that best separates values of forward ops from all others."""
    made: Counter[int] = Counter()
    for holder, phase in zip(region.holders, phases, strict=True):
        made[holder.first] += (-1 if phase is Phase.FORWARD else 1) * holder.size_bytes
    # Moving the border past a moment corrects its forward values and misplaces the others.
    wrong = least = 0
    start = min(made, default=0)
    for moment in sorted(made):
        wrong += made[moment]
        if wrong <= least:
            least, start = wrong, moment + 1
    return start


def _find_category(
    holder: Holder,
    phase: Phase,
    *,
    is_kept: bool,
    of_variable: bool,
    is_passed: bool,
    infer: bool,
) -> tuple[Category, str]:
    """Return category and role; ``is_passed`` is of an op whose results carry a gradient."""
    if holder.argument is not None:
        return Category.TEMPORARY, "copy of an argument in another layout"
    if is_workspace(holder):
        return Category.WORKSPACE, "workspace"
    is_value = bool(holder.op_name) and is_float(holder.dtype)
    return describe_value(
        Phase.FORWARD if infer or is_kept else phase,
        infers=infer,
        of_variable=of_variable,
        carries_gradient=is_value and is_passed,
        is_kept=is_kept,
        is_activation=is_value and makes_activation(holder.op_type),
    )
