"""Which part of a training step each op belongs to: forward, backward or update.

Told from the graph as it was traced, before TensorFlow optimised it: there the gradient tape's ops
stand under the name scopes ``gradient_tape`` and ``gradients``, while the optimiser may later let a
forward and a backward op be one, under either name.

A *backward* op is made by the tape, or consumes what a backward op made and leads to a gradient of a
parameter (the body of a custom gradient). An *update* op is in an optimizer's name scope, or
consumes gradients and leads to none. All else is *forward*. The ops of a function that the graph
calls (a loop's body, a branch) are told the same way, and else belong where their caller does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from analyzer.model.choice import Choice
from analyzer.model.contract.graph_note import TracedGraph, TracedOp
from analyzer.model.graph.layers import ScopeTable
from analyzer.model.graph.ops import split_tensor

_GRADIENT_SCOPES = frozenset({"gradient_tape", "gradients"})
_ACCUMULATOR = "accumulator"
"""``while_v2.py``, ``_build_accumulator_name``."""


class Phase(Choice):
    """The part of a training step that an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def tell_phases(
    graphs: Sequence[TracedGraph],
    gradients: Iterable[str],
    nested_gradients: Iterable[str],
    scopes: ScopeTable,
) -> dict[str, Phase]:
    """Return the phase of every op, by name.

    Args:
        graphs: The step's graph first, then the functions in it, callers before the called.
        gradients: Tensors of the step's graph that are gradients of parameters.
        nested_gradients: The same in the functions.
        scopes: Who opened which name scope.
    """
    phases: dict[str, Phase] = {}
    inherited: dict[str, Phase] = {}
    for number, graph in enumerate(graphs):
        found = set(gradients if number == 0 else nested_gradients)
        fallback = inherited.get(graph.function, Phase.FORWARD)
        told = _tell(graph, found, scopes)
        for op in graph.ops:
            phase = told[op.name]
            if phase is Phase.FORWARD:
                phase = fallback
            phases.setdefault(op.name, phase)
            for function in op.calls:
                inherited.setdefault(function, phase)
    return phases


def in_gradient_scope(name: str) -> bool:
    """Say whether the tape made the op for the backward pass, by its name scope.

    For a loop it also makes the empty lists (``accumulator``) that the forward loop pushes onto what
    its gradient will need: they stand before that loop.
    """
    parts = name.split("/")
    return not _GRADIENT_SCOPES.isdisjoint(parts[:-1]) and _ACCUMULATOR not in parts


def _tell(graph: TracedGraph, gradients: set[str], scopes: ScopeTable) -> dict[str, Phase]:
    ops = {op.name: op for op in graph.ops}
    makers = {name for name in (split_tensor(tensor)[0] for tensor in gradients) if name in ops}
    named = {name for name in ops if in_gradient_scope(name)}
    after = _reach_down(ops, named | makers)
    leads = _reach_up(ops, makers)
    phases = {}
    for name in ops:
        if name in named or name in makers or (name in after and name in leads):
            phases[name] = Phase.BACKWARD
        elif scopes.is_optimizer(name):
            phases[name] = Phase.UPDATE
        elif name in after:
            phases[name] = Phase.UPDATE if makers else Phase.BACKWARD
        else:
            phases[name] = Phase.FORWARD
    return phases


def _reach_down(ops: Mapping[str, TracedOp], start: set[str]) -> set[str]:
    """Return ``start`` and all that consumes, directly or not, what it makes."""
    consumers: dict[str, list[str]] = {}
    for op in ops.values():
        for tensor in op.inputs:
            consumers.setdefault(split_tensor(tensor)[0], []).append(op.name)
    seen = set(start)
    queue = deque(start)
    while queue:
        for name in consumers.get(queue.popleft(), ()):
            if name not in seen:
                seen.add(name)
                queue.append(name)
    return seen


def _reach_up(ops: Mapping[str, TracedOp], start: set[str]) -> set[str]:
    """Return ``start`` and all whose output it consumes, directly or not."""
    seen = set(start)
    queue = deque(start)
    while queue:
        op = ops.get(queue.popleft())
        for tensor in op.inputs if op is not None else ():
            name = split_tensor(tensor)[0]
            if name not in seen:
                seen.add(name)
                queue.append(name)
    return seen
