"""The phase of each op (forward, backward or update) and its layer.

Phases are found in the traced graph, before TensorFlow optimises it. A *backward* op is in a name
scope of the gradient tape, or consumes the output of a backward op and leads to a gradient of a
parameter (a custom gradient). An *update* op is in an optimizer's name scope, or consumes gradients
and leads to none. All others are *forward*; in a called function they get the caller's phase. Each layer
records the scope that it opens: ``resnet50_1/conv1_conv_1`` belongs to the layer ``conv1_conv``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from analyzer.model.choice import Choice
from analyzer.model.contract.graph_note import TracedGraph, split_tensor
from analyzer.model.graph.reachability import reach

_GRADIENT_SCOPES: Final = frozenset({"gradient_tape", "gradients"})
_ACCUMULATOR: Final = "accumulator"
"""Name of the lists of a loop's gradient (``while_v2.py``, ``_build_accumulator_name``)."""
_DEEPEST: Final = 256  # limit of the depth of scopes; Keras' have about ten levels

Owner = tuple[str, str]  # kind and path of the object that opened a scope


class Phase(Choice):
    """The phase of an op in a training step."""

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

    ``graphs`` are the step's graph, then its functions, callers before the called. ``gradients`` are
    the gradients of parameters in the step's graph, ``nested_gradients`` in the functions.
    """
    phases: dict[str, Phase] = {}
    inherited: dict[str, Phase] = {}

    for number, graph in enumerate(graphs):
        tensors = gradients if number == 0 else nested_gradients
        phase_of = _classify(
            graph, {split_tensor(tensor)[0] for tensor in tensors}, scopes
        )

        for op in graph.ops:
            phase = phase_of.get(op.name) or inherited.get(
                graph.function, Phase.FORWARD
            )
            phases.setdefault(op.name, phase)
            for function in op.calls:
                inherited.setdefault(function, phase)

    return phases


def is_in_gradient_scope(name: str) -> bool:
    """Say whether the op is of the backward pass, by the scope of the tape or JAX's ``transpose``.

    The tape's empty lists of a loop (``accumulator``), to which the forward loop appends, are not.
    """
    parts = name.split("/")
    is_gradient = not _GRADIENT_SCOPES.isdisjoint(parts[:-1]) or "/transpose(" in name
    return is_gradient and _ACCUMULATOR not in parts


def _classify(
    graph: TracedGraph, gradient_ops: set[str], scopes: ScopeTable
) -> dict[str, Phase]:
    """Return the phases of the ops of a graph that are not forward."""
    producers = {
        op.name: [split_tensor(tensor)[0] for tensor in op.inputs] for op in graph.ops
    }
    consumers = defaultdict(list)

    for consumer, names in producers.items():
        for name in names:
            consumers[name].append(consumer)

    makers = gradient_ops & producers.keys()
    named = set(filter(is_in_gradient_scope, producers))
    after = reach(named | makers, consumers.__getitem__)
    before = reach(makers, lambda name: producers.get(name, []))
    backward = named | makers | (after & before)
    phases = dict.fromkeys(after, Phase.UPDATE if makers else Phase.BACKWARD)
    phases |= dict.fromkeys(filter(scopes.is_optimizer, producers), Phase.UPDATE)

    return phases | dict.fromkeys(backward, Phase.BACKWARD)


class ScopeTable:
    """Name scopes and their owners."""

    def __init__(self, owners: Mapping[str, Owner] | None = None) -> None:
        """Take the layer, optimizer, metric or loss of each scope."""
        self.owners = owners or {}
        parts = (scope.count("/") + 1 for scope in self.owners)
        self._deepest = min(max(parts, default=0), _DEEPEST)
        self._first_parts = {scope.partition("/")[0] for scope in self.owners}
        self._owners_by_scope: dict[str, Owner | None] = {}

    def owner_of(self, op_name: str) -> Owner | None:
        """Return the owner of the first and longest known scope in the op's name, if any."""
        scope = op_name.rpartition("/")[0]
        if scope not in self._owners_by_scope:
            parts = [part for part in scope.split("/") if part not in _GRADIENT_SCOPES]
            starts = (at for at, part in enumerate(parts) if part in self._first_parts)
            known = (
                owner
                for start in starts
                for end in range(min(start + self._deepest, len(parts)), start, -1)
                if (owner := self.owners.get("/".join(parts[start:end])))
            )
            self._owners_by_scope[scope] = next(known, None)

        return self._owners_by_scope[scope]

    def layer_of(self, op_name: str) -> str:
        """Return the op's layer, empty for none; without recorded scopes, Keras' name scope."""
        if self.owners:
            kind, path = self.owner_of(op_name) or ("", "")
            return path if kind == "layer" else ""

        return "/".join(
            part for part in op_name.split("/")[:-1] if part not in _GRADIENT_SCOPES
        )

    def is_optimizer(self, op_name: str) -> bool:
        """Say whether the innermost known scope around the op is an optimizer's."""
        return (self.owner_of(op_name) or ("",))[0] == "optimizer"
