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
                f"{name}:{index}": name
                for name, op in self.ops.items()
                for index in range(len(op.outputs))
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
    gradients, nested = frozenset(gradients), frozenset(nested_gradients)
    by_name = {op.name: op for op in ops}
    consumers: dict[str, list[str]] = {}
    for op in ops:
        for tensor in op.inputs:
            consumers.setdefault(tensor, []).append(op.name)
    if not traced:
        traced = [TracedGraph("", tuple(TracedOp(op.name, op.inputs) for op in ops))]
    traced_phases = find_phases(traced, gradients, nested, table)
    present = _present_gradients(by_name, gradients, nested)
    phases = _phases_of_executed(by_name, consumers, traced_phases)
    layers = {name: table.layer_of(name) for name in by_name}
    _layers_of_updates(by_name, consumers, present, phases, layers)
    return GraphIndex(by_name, consumers, frozenset(present), phases, layers)


def find_inlined(name: str, table: Mapping[str, _Value]) -> _Value | None:
    """Return the entry of ``name``, or of its name before its function was inlined."""
    for _ in range(_DEEPEST):
        if name in table:
            return table[name]
        _, slash, name = name.partition("/")
        if not slash:
            break
    return None


def _present_gradients(
    ops: Mapping[str, Op], gradients: frozenset[str], nested: frozenset[str]
) -> set[str]:
    """Return the recorded gradients that are tensors of this graph, by their names in it."""
    inlined = dict.fromkeys(nested, True)
    return {
        tensor
        for name, op in ops.items()
        for tensor in (f"{name}:{index}" for index in range(max(len(op.outputs), 1)))
        if tensor in gradients or (inlined and find_inlined(tensor, inlined))
    }


def _phases_of_executed(
    ops: Mapping[str, Op], consumers: Mapping[str, list[str]], traced: Mapping[str, Phase]
) -> dict[str, Phase]:
    """Return the phase of each executed op; a new op gets that of its neighbours."""
    phases: dict[str, Phase] = {}
    unknown: list[str] = []
    for name in ops:
        phase = find_inlined(name, traced)
        if phase is None:
            unknown.append(name)
        else:
            phases[name] = phase
    for name in unknown:
        users = [
            phases[user]
            for index in range(max(len(ops[name].outputs), 1))
            for user in consumers.get(f"{name}:{index}", ())
            if user in phases
        ]
        producers = [
            phases[producer]
            for producer in (split_tensor(tensor)[0] for tensor in ops[name].inputs)
            if producer in phases
        ]
        order = list(Phase)
        # It runs before its first consumer and after its last producer.
        phases[name] = (
            min(users, key=order.index)
            if users
            else max(producers, key=order.index, default=Phase.FORWARD)
        )
    return phases


def _layers_of_updates(
    ops: Mapping[str, Op],
    consumers: Mapping[str, list[str]],
    gradients: set[str],
    phases: Mapping[str, Phase],
    layers: dict[str, str],
) -> None:
    """Give each update op the layer of its gradient, if it has only one."""
    owners: dict[str, set[str]] = {}
    queue: deque[tuple[str, str]] = deque()
    for tensor in gradients:
        layer = layers.get(split_tensor(tensor)[0], "")
        if layer:
            queue.extend((name, layer) for name in consumers.get(tensor, ()))
    while queue:
        name, layer = queue.popleft()
        known = owners.setdefault(name, set())
        # From two layers on, the op belongs to none.
        if phases.get(name) is not Phase.UPDATE or layer in known or len(known) > 1:
            continue
        known.add(layer)
        for index in range(max(len(ops[name].outputs), 1)):
            queue.extend((after, layer) for after in consumers.get(f"{name}:{index}", ()))
    for name, known in owners.items():
        if phases.get(name) is Phase.UPDATE and len(known) == 1 and not layers[name]:
            layers[name] = next(iter(known))
