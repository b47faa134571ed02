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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from analyzer.model.choice import Choice
from analyzer.model.contract.graph_note import TracedGraph, TracedOp
from analyzer.model.graph.ops import split_tensor

_GRADIENT_SCOPES = frozenset({"gradient_tape", "gradients"})
_ACCUMULATOR = "accumulator"
"""``while_v2.py``, ``_build_accumulator_name``."""


class Phase(Choice):
    """The part of a training step that an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def find_phases(
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


def is_in_gradient_scope(name: str) -> bool:
    """Say whether the tape made the op for the backward pass, by its name scope.

    For a loop it also makes the empty lists (``accumulator``) that the forward loop pushes onto what
    its gradient will need: they stand before that loop.
    """
    parts = name.split("/")
    return not _GRADIENT_SCOPES.isdisjoint(parts[:-1]) and _ACCUMULATOR not in parts


def _tell(graph: TracedGraph, gradients: set[str], scopes: ScopeTable) -> dict[str, Phase]:
    ops = {op.name: op for op in graph.ops}
    makers = {name for name in (split_tensor(tensor)[0] for tensor in gradients) if name in ops}
    named = {name for name in ops if is_in_gradient_scope(name)}
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


_WRAPPERS = frozenset({"gradient_tape", "gradients"})

_DEEPEST: Final = 256
"""Parts of the longest scope that is looked for; Keras' own are of some ten."""

Owner = tuple[str, str]
"""Kind and path of who opened a scope."""


@dataclass
class _Node:
    """A scope in the tree of scopes: who opened it, None where it is only on the way to others."""

    owner: Owner | None = None
    inner: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class ScopeTable:
    """Name scopes and who opened them.

    Attributes:
        owners: Scope -> (kind, path); kind is layer, optimizer, metric or loss.
    """

    owners: Mapping[str, Owner] = field(default_factory=dict)

    @cached_property
    def _root(self) -> _Node:
        root = _Node()
        for scope, owner in self.owners.items():
            node = root
            for part in scope.split("/", _DEEPEST)[:_DEEPEST]:
                node = node.inner.setdefault(part, _Node())
            node.owner = owner
        return root

    @cached_property
    def _found(self) -> dict[str, Owner | None]:
        return {}

    def owner_of(self, op_name: str) -> Owner | None:
        """Return who opened the innermost known scope around the op; None where no one did.

        A prefix that is no known scope is stepped over: backward ops stand under
        ``gradient_tape/``, and the ops of an inlined function under its caller's name.
        """
        scope = op_name.rpartition("/")[0]
        if scope not in self._found:
            self._found[scope] = self._search(scope)
        return self._found[scope]

    def _search(self, scope: str) -> Owner | None:
        """Return who opened the longest known scope at the first place where one begins."""
        parts = [part for part in scope.split("/") if part not in _WRAPPERS]
        for start in range(len(parts)):
            node: _Node | None = self._root
            owner = None
            for part in parts[start : start + _DEEPEST]:
                node = node.inner.get(part) if node is not None else None
                if node is None:
                    break
                owner = node.owner or owner
            if owner is not None:
                return owner
        return None

    def layer_of(self, op_name: str) -> str:
        """Return the path of the op's layer, empty where it is in none.

        Without notes (a trace of others) the name scope itself is taken: it is what Keras and
        ``tf.Module`` derive from the layers' names.
        """
        owner = self.owner_of(op_name)
        if owner is not None:
            return owner[1] if owner[0] == "layer" else ""
        if self.owners:
            return ""
        return "/".join(part for part in op_name.split("/")[:-1] if part not in _WRAPPERS)

    def is_optimizer(self, op_name: str) -> bool:
        """Say whether an optimizer opened the innermost known scope around the op."""
        owner = self.owner_of(op_name)
        return owner is not None and owner[0] == "optimizer"
