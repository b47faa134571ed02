"""Search for buffers of compiled functions in the allocations table, to show their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pandas as pd

from analyzer.model.errors import AccountingError, TraceError
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.recording.records import Step
from analyzer.tracing.parse.hlo_module import Hlo
from analyzer.tracing.parse.run_folder import CompiledNote, RunNote
from analyzer.tracing.xla.assignment import build_plan
from analyzer.tracing.xla.buffer_plan import BufferPlan, PlanRegion
from analyzer.tracing.xla.plan_division import Divided, Division, Label, divide
from analyzer.tracing.xla.plan_labels import label_holders
from analyzer.tracing.xla.trace_modules import runs_backward

_LEAST_BYTES: Final = 4096
"""Smaller buffers of a trace are not divided, because their size does not identify them."""


def build_plans(note: RunNote | None) -> Mapping[str, BufferPlan]:
    """Return the memory plans of a note, by the name of the op that calls the function.

    Raises:
        TraceError: A plan contradicts itself: its file is damaged.
    """
    plans: dict[str, BufferPlan] = {}
    for one in note.compiled if note is not None else ():
        if one.plan is not None:
            plans.update(dict.fromkeys(one.ops, _plan(one, one.plan)))
    return plans


def _plan(one: CompiledNote, hlo: Hlo) -> BufferPlan:
    try:
        return set_fixed_inputs(build_plan(hlo, platform=one.platform), one)
    except AccountingError as error:
        raise TraceError(
            f"The plan of {one.function[:80]!r} is damaged: {error}.", hint="Repeat the capture."
        ) from None


def set_fixed_inputs(plan: BufferPlan, one: CompiledNote) -> BufferPlan:
    """Return a function's plan with the inputs whose values are compiled in."""
    return replace(plan, fixed=frozenset(index for index, _ in one.fixed))


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

    Args:
        allocations: Columns of ``ALLOCATIONS``, index 0, 1, 2 and so on.
        events: Columns of ``EVENTS``.
        steps: The steps.
        plans: Memory plans by the name of the op that calls the function.
        structure: The graph with the ops of the functions; None without one.
        allocator: The allocator of the functions' buffers.
        infer: Whether the step has no backward pass.

    Raises:
        AccountingError: The parts of a buffer do not add up to it.
    """
    by_size: dict[int, list[tuple[str, PlanRegion]]] = {}
    for op, plan in plans.items():
        for region in plan.temporaries:
            if region.holders:
                by_size.setdefault(region.size_bytes, []).append((op, region))
    ends = {step.index: step.last for step in steps}
    labels: dict[tuple[str, int], list[Label]] = {}
    divisions: list[Division] = []
    rows = allocations[
        allocations["requested_bytes"].isin(list(by_size))
        & (allocations["allocator"] == allocator)
        & (allocations["step"].notna() | allocations["op"].isin(list(plans)))
        & (allocations["variable"] == "")
        & (allocations["region"] != "output")
    ].sort_values("born", kind="stable")
    for row, name, size, step, dies in zip(
        rows.index,
        rows["op"].astype(object),
        rows["requested_bytes"],
        rows["step"],
        rows["dies"],
        strict=True,
    ):
        named = [(op, region) for op, region in by_size[int(size)] if op == name]
        if not named and (name or size < _LEAST_BYTES or dies > ends[int(step)]):
            continue
        op, region = (named or by_size[int(size)])[0]
        if (op, region.index) not in labels:
            forward = infer or (structure is None and not runs_backward(plans[op]))
            labels[op, region.index] = label_holders(region, structure, infer=forward)
        divisions.append(Division(row=int(row), region=region, labels=labels[op, region.index]))
    return divide(allocations, events, steps, divisions)
