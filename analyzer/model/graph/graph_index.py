"""The indexed graph: producer, consumers, phase and layer of each op and tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from analyzer.model.contract.graph_note import Op, TensorSpec, TracedGraph, TracedOp, split_tensor
from analyzer.model.graph.phases import Phase, ScopeTable, find_phases
from analyzer.model.recording.records import TensorLinks

_Value = TypeVar("_Value")

_DEEPEST: Final = 256  # limit of the prefixes of inlined callers in a name


@dataclass(frozen=True)
class GraphIndex:
    """The indexed graph."""

    ops: Mapping[str, Op]
    consumers: Mapping[str, list[str]]  # tensor (``node:output``) -> ops
    gradients: frozenset[str]  # gradients of parameters
    phases: Mapping[str, Phase]
    layers: Mapping[str, str]  # empty for none
    # input and op of an edge -> how it is known, if derived from a trace
    evidence: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def spec(self, tensor: str) -> TensorSpec | None:
        """Return dtype and shape of a tensor, None if unknown."""
        name, index = split_tensor(tensor)
        op = self.ops.get(name)
        return op.outputs[index] if op is not None and index < len(op.outputs) else None

    def tensor_links(self) -> TensorLinks:
        """Return the producer and the consumers of each tensor."""
        return TensorLinks(
            makers={
                tensor: op.name for op in self.ops.values() if op.outputs for tensor in _outputs(op)
            },
            readers={tensor: list(dict.fromkeys(ops)) for tensor, ops in self.consumers.items()},
            facts={name: (op.type, self.layers[name], op.source) for name, op in self.ops.items()},
        )


def build_graph_index(
    ops: Sequence[Op],
    *,
    traced: Sequence[TracedGraph] = (),
    gradients: Iterable[str] = (),
    nested_gradients: Iterable[str] = (),
    scopes: ScopeTable | None = None,
) -> GraphIndex:
    """Index ``ops`` and find their phases and layers.

    Args:
        ops: The ops of the executed graph.
        traced: The traced graphs; empty if unknown, then ``ops`` is used instead.
        gradients: Tensors that were recorded as gradients while the step was traced.
        nested_gradients: The same inside functions, before inlining added a prefix.
        scopes: Name scopes of layers and optimizers.
    """
    table = scopes or ScopeTable()
    gradients, nested = frozenset(gradients), dict.fromkeys(nested_gradients, True)
    by_name = {op.name: op for op in ops}
    consumers: dict[str, list[str]] = {}
    for op in ops:
        for tensor in op.inputs:
            consumers.setdefault(tensor, []).append(op.name)
    if not traced:
        traced = [TracedGraph("", tuple(TracedOp(op.name, op.inputs) for op in ops))]
    present = frozenset(
        tensor
        for op in ops
        for tensor in _outputs(op)
        if tensor in gradients or (nested and find_inlined(tensor, nested))
    )
    traced_phases = find_phases(traced, gradients, nested, table)
    phases = _find_executed_phases(by_name, consumers, traced_phases)
    layers = {name: table.layer_of(name) for name in by_name}
    layers |= _find_update_layers(by_name, consumers, present, phases, layers)
    return GraphIndex(by_name, consumers, present, phases, layers)


def find_inlined(name: str, table: Mapping[str, _Value]) -> _Value | None:
    """Return the entry of ``name``, or of its name before its function was inlined."""
    for _ in range(_DEEPEST):
        if name in table:
            return table[name]
        _, slash, name = name.partition("/")
        if not slash:
            break
    return None


def _outputs(op: Op) -> list[str]:
    return [f"{op.name}:{index}" for index in range(max(len(op.outputs), 1))]


def _find_executed_phases(
    ops: Mapping[str, Op], consumers: Mapping[str, list[str]], traced: Mapping[str, Phase]
) -> dict[str, Phase]:
    """Return the phase of each executed op; a new op gets that of its neighbours.

    It runs before its first consumer and after its last producer.
    """
    order = list(Phase)
    found = {name: find_inlined(name, traced) for name in ops}
    phases = {name: phase for name, phase in found.items() if phase is not None}
    for name in [name for name, phase in found.items() if phase is None]:
        users = [user for tensor in _outputs(ops[name]) for user in consumers.get(tensor, ())]
        producers = [split_tensor(tensor)[0] for tensor in ops[name].inputs]
        later, earlier = (
            [phases[one] for one in ones if one in phases] for ones in (users, producers)
        )
        latest = max(earlier, key=order.index, default=Phase.FORWARD)
        phases[name] = min(later, key=order.index, default=latest)
    return phases


def _find_update_layers(
    ops: Mapping[str, Op],
    consumers: Mapping[str, list[str]],
    gradients: Iterable[str],
    phases: Mapping[str, Phase],
    layers: Mapping[str, str],
) -> dict[str, str]:
    """Return the layer of each update op without one: that of its gradient, if it has only one."""
    owners: dict[str, set[str]] = {}
    queue = deque(
        (name, layer)
        for tensor in gradients
        if (layer := layers.get(split_tensor(tensor)[0], ""))
        for name in consumers.get(tensor, ())
    )
    while queue:
        name, layer = queue.popleft()
        known = owners.setdefault(name, set())
        # From two layers on, the op belongs to none.
        if phases.get(name) is not Phase.UPDATE or layer in known or len(known) > 1:
            continue
        known.add(layer)
        queue.extend(
            (after, layer) for tensor in _outputs(ops[name]) for after in consumers.get(tensor, ())
        )
    alone = {name: min(known) for name, known in owners.items() if len(known) == 1}
    return {name: layer for name, layer in alone.items() if not layers[name]}
