"""Attribution of the values inside a compiled step, from the graph that it was compiled from.

XLA keeps the name of the framework's op of each instruction; a fusion has that of its root. The traced
graph gives the op's phase, layer and source line.

The compiler may compute some values of the backward pass early, such as masks. The backward pass is
assumed to begin at the moment that minimises the bytes of values on the wrong side. A value that is made
before and still alive then is an activation. The output of a gradient's op is a gradient. All others are
temporaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import split_tensor
from analyzer.model.graph.graph_index import GraphIndex, find_inlined
from analyzer.model.graph.phases import Phase, is_in_gradient_scope
from analyzer.tracing.xla.buffer_plan import ARGUMENTS, Holder, PlanRegion
from analyzer.tracing.xla.plan_division import Label
from analyzer.tracing.xla.trace_modules import find_jax_layer

_PUSH: Final = "TensorListPushBack"
_RESULTS: Final = "XLA_Retvals"
"""tf2xla's name of the op that collects the results."""


def label_holders(
    region: PlanRegion,
    structure: GraphIndex | None,
    *,
    infer: bool,
) -> list[Label]:
    """Return a label for each holder of a region.

    Args:
        region: The temporaries of a compiled function.
        structure: The graph; None without one.
        infer: Whether the step has no backward pass.
    """
    gradients = _gradient_makers(structure)
    phases = _phases(region, structure)
    start = _backward_start(region, phases)
    labels = []
    for holder, phase in zip(region.holders, phases, strict=True):
        category, role = _category(holder, phase, start, gradients, infer)
        name = _find_graph_name(holder.op_name, structure)
        op = structure.ops.get(name) if structure is not None else None
        labels.append(
            Label(
                op=name or _find_metadata_name(holder) or holder.instruction,
                op_type=holder.op_type or holder.opcode,
                layer=find_jax_layer(holder.op_name)
                if structure is None
                else structure.layers.get(name, ""),
                source=op.source if op is not None else "",
                tensor=_tensor(holder, name, structure),
                category=category,
                role=role,
            )
        )
    return labels


def _find_metadata_name(holder: Holder) -> str:
    """Return the framework's op in XLA's metadata; empty for parameters and results."""
    return "" if holder.op_name in (ARGUMENTS, _RESULTS) else holder.op_name


def _find_graph_name(name: str, structure: GraphIndex | None) -> str:
    """Return the graph's name of an op; XLA may add callers' names as prefix."""
    if structure is None or not name:
        return ""
    while name not in structure.ops:
        _, slash, name = name.partition("/")
        if not slash:
            return ""
    return name


def _phases(region: PlanRegion, structure: GraphIndex | None) -> list[Phase]:
    """Return the phase of each holder; without a known op that of the value before it."""
    phases: list[Phase] = []
    last = Phase.FORWARD
    for holder in region.holders:
        known = None
        if structure is not None and holder.op_name not in (ARGUMENTS, _RESULTS):
            known = find_inlined(holder.op_name, structure.phases) if holder.op_name else None
        if holder.op_type == _PUSH and not is_in_gradient_scope(holder.op_name):
            known = Phase.FORWARD  # a loop saves values for its gradient; the tape inserted the op
        if known is None and holder.op_name:
            if is_in_gradient_scope(holder.op_name):
                known = Phase.BACKWARD
            elif structure is None and holder.argument is None:
                known = Phase.FORWARD
        if known is not None:
            last = known
        phases.append(last)
    return phases


def _backward_start(region: PlanRegion, phases: list[Phase]) -> int:
    """Return the moment that best separates values of forward ops from all others."""
    made: dict[int, int] = {}
    for holder, phase in zip(region.holders, phases, strict=True):
        sign = -1 if phase is Phase.FORWARD else 1
        made[holder.first] = made.get(holder.first, 0) + sign * holder.size_bytes
    # Moving the border past a moment corrects its forward values and misplaces the others.
    wrong = least = 0
    start = min(made, default=0)
    for moment in sorted(made):
        wrong += made[moment]
        if wrong <= least:
            least, start = wrong, moment + 1
    return start


def _category(
    holder: Holder, phase: Phase, start: int, gradients: Mapping[str, bool], infer: bool
) -> tuple[Category, str]:
    if holder.argument is not None:
        return Category.TEMPORARY, "copy of an argument in another layout"
    if infer:
        return Category.ACTIVATION, "activation"
    if holder.first < start < holder.until:
        return Category.ACTIVATION, "kept for the backward pass"
    if phase is not Phase.FORWARD:
        if holder.op_name and find_inlined(holder.op_name, gradients) is not None:
            return Category.GRADIENT, "gradient"
        kind = "backward" if phase is Phase.BACKWARD else "optimizer"
        return Category.TEMPORARY, f"{kind} temporary"
    return Category.TEMPORARY, "forward temporary"


def _gradient_makers(structure: GraphIndex | None) -> dict[str, bool]:
    if structure is None:
        return {}
    return dict.fromkeys((split_tensor(tensor)[0] for tensor in structure.gradients), True)


def _tensor(holder: Holder, name: str, structure: GraphIndex | None) -> str:
    """Return the graph's tensor of a value: the op's output of its dtype and shape."""
    op = structure.ops.get(name) if structure is not None else None
    for index, spec in enumerate(op.outputs if op is not None else ()):
        if spec.dtype == holder.dtype and spec.shape == holder.shape:
            return f"{name}:{index}"
    return ""
