"""Which blocks of a model to recompute: runs of layers between tensors that all else goes through.

A layer after which a single tensor goes on is the end of a *unit*. A block is a run of units:
recomputed, it keeps the tensor that enters it and no other, and all that lies inside it lives once more
while its gradient is computed. So the forward pass leaves what is kept, and the backward pass needs the
largest block beside it. The partition is the best one of this model: for each bound on the largest block
(the search over budgets of Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory
cost", 2016) the least that is kept is a shortest path over the units, found by dynamic programming; of
those within 1 % of the least, the one that recomputes fewest operations. Their square-root rule stands
beside it. What either saves is not taken from here: the step is captured and estimated with it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.ops import split_tensor
from analyzer.model.graph.phases import Phase
from analyzer.tracing.measure.measured_recording import index_note_graph
from analyzer.tracing.parse.run_folder import RunNote

_LEAST_BYTES: Final = 1024
"""Tensors below are not counted: shapes, axes, statistics of a batch."""

_ALIASES: Final = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient"})
"""Ops whose output lies in their input's buffer."""

_CONSTANTS: Final = frozenset({"Const", "HostConst"})

_NAME: Final = re.compile(r"[\w.-]+")
_BOUNDS: Final = 64
"""Bounds on the largest block that are tried."""

_NEAR: Final = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainUnit:
    """Layers between two tensors that all later work goes through.

    Attributes:
        layers: Their names, in order.
        kept_bytes: What the backward pass needs of them, but for the tensor that leaves.
        leaves_bytes: The tensor that leaves.
        operations: Ops of their forward pass.
        is_random: Whether they draw random numbers, which would be others the second time.
    """

    layers: tuple[str, ...]
    kept_bytes: int
    leaves_bytes: int
    operations: int
    is_random: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationPlan:
    """Blocks to recompute.

    Attributes:
        blocks: First and last layer of each.
        operations: Ops that run a second time.
    """

    blocks: tuple[tuple[str, str], ...]
    operations: int


def best_plan(units: Sequence[ChainUnit]) -> RecomputationPlan | None:
    """Return the partition with the least peak of the model above; None where none lowers it."""
    everything = sum(unit.kept_bytes + unit.leaves_bytes for unit in units)
    found: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
    for bound in _bounds(units):
        kept, operations, blocks = _least_kept(units, bound)
        largest = max((_inside(units, *block) for block in blocks), default=0)
        found.append((kept + largest, operations, blocks))
    if not found:
        return None
    least = min(peak for peak, _, _ in found)
    if least >= everything:
        return None
    near = [one for one in found if one[0] <= _NEAR * least]
    return _plan(units, min(near, key=lambda one: (one[1], one[0]))[2])


def square_root_plan(units: Sequence[ChainUnit]) -> RecomputationPlan | None:
    """Return blocks of the square root of the number of units each; None where none can be."""
    stride = max(math.isqrt(len(units)), 1)
    blocks = []
    for start in range(0, len(units), stride):
        stop = min(start + stride, len(units))
        if not any(unit.is_random for unit in units[start:stop]):
            blocks.append((start, stop))
    return _plan(units, tuple(blocks)) if blocks else None


def _plan(units: Sequence[ChainUnit], blocks: Sequence[tuple[int, int]]) -> RecomputationPlan:
    return RecomputationPlan(
        blocks=tuple((units[i].layers[0], units[j - 1].layers[-1]) for i, j in blocks),
        operations=sum(unit.operations for i, j in blocks for unit in units[i:j]),
    )


def _inside(units: Sequence[ChainUnit], start: int, stop: int) -> int:
    """Return what a block holds while its gradient is computed, but for the tensor that leaves."""
    return (
        sum(unit.kept_bytes + unit.leaves_bytes for unit in units[start:stop])
        - units[stop - 1].leaves_bytes
    )


def _bounds(units: Sequence[ChainUnit]) -> list[int]:
    inside = sorted(
        {
            _inside(units, start, stop)
            for start in range(len(units))
            for stop in range(start + 1, len(units) + 1)
        }
    )
    return inside[:: max(len(inside) // _BOUNDS, 1)]


def _least_kept(
    units: Sequence[ChainUnit], bound: int
) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Return the least that is kept with blocks up to a bound, the ops recomputed, and the blocks.

    Args:
        units: The chain.
        bound: Bytes that a block may hold.
    """
    best: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [(0, 0, ())]
    for stop in range(1, len(units) + 1):
        last = units[stop - 1]
        kept, operations, blocks = best[stop - 1]
        options = [(kept + last.kept_bytes + last.leaves_bytes, operations, blocks)]
        work = inside = 0
        for start in reversed(range(stop)):
            if units[start].is_random:
                break
            inside = _inside(units, start, stop)
            if inside > bound:
                break
            work += units[start].operations
            kept, operations, blocks = best[start]
            options.append((kept + last.leaves_bytes, operations + work, (*blocks, (start, stop))))
        best.append(min(options, key=lambda one: (one[0], one[1])))
    return best[-1]


def chain_of(note: RunNote) -> tuple[ChainUnit, ...]:
    """Return the units of a noted training step, in order; none where its layers are no chain.

    Args:
        note: The step's note, op by op.
    """
    structure = index_note_graph(note)
    if structure is None or note.compiled:
        return ()
    layers = _without_constants(structure, _layers_of_forward(structure))
    order = _in_order(structure, layers)
    if len(order) < 2 or not all(_NAME.fullmatch(layer) for layer in order):
        return ()
    return tuple(_units(structure, layers, order))


def _layers_of_forward(structure: GraphIndex) -> dict[str, str]:
    """Return the name of the model's own layer for each op of the forward pass that is in one.

    The path of a layer with weights begins with the model's name, that of another may not.
    """
    paths = {
        name: path.split("/")
        for name, path in structure.layers.items()
        if path and structure.phases.get(name) is Phase.FORWARD
    }
    heads = Counter(path[0] for path in paths.values() if len(path) > 1)
    model = heads.most_common(1)[0][0] if heads else ""
    return {
        name: path[1] if len(path) > 1 and path[0] == model else path[0]
        for name, path in paths.items()
    }


def _without_constants(structure: GraphIndex, layers: Mapping[str, str]) -> dict[str, str]:
    """Return the ops of layers that a step's data or weights come into.

    Grappler makes equal constants one, and what is computed from them (``DedupComputations``), so that
    layers which have nothing to do with each other take one's.
    """
    constant: set[str] = set()
    queue = [name for name, op in structure.ops.items() if op.type in _CONSTANTS]
    while queue:
        name = queue.pop()
        if name in constant:
            continue
        constant.add(name)
        for index in range(len(structure.ops[name].outputs)):
            for user in structure.consumers.get(f"{name}:{index}", ()):
                makers = {split_tensor(tensor)[0] for tensor in structure.ops[user].inputs}
                if makers <= constant:
                    queue.append(user)
    return {name: layer for name, layer in layers.items() if name not in constant}


def _in_order(structure: GraphIndex, layers: Mapping[str, str]) -> list[str]:
    """Return the layers so that each comes after those whose tensors it takes; none for a cycle."""
    before: dict[str, set[str]] = {}
    for name, layer in layers.items():
        makers = before.setdefault(layer, set())
        for tensor in structure.ops[name].inputs:
            maker = layers.get(split_tensor(tensor)[0], layer)
            if maker != layer:
                makers.add(maker)
    order: list[str] = []
    while len(order) < len(before):
        ready = [one for one in before if one not in order and before[one] <= set(order)]
        if not ready:
            return []
        order.append(ready[0])
    return order


def _units(
    structure: GraphIndex, layers: Mapping[str, str], order: Sequence[str]
) -> Iterator[ChainUnit]:
    place = {layer: number for number, layer in enumerate(order)}
    reaches: dict[int, dict[str, int]] = {}  # end of each layer -> tensors that go on, their bytes
    kept = [0] * len(order)
    work = [0] * len(order)
    random = [False] * len(order)
    for name, layer in layers.items():
        op, at = structure.ops[name], place[layer]
        work[at] += op.type not in _ALIASES
        random[at] |= "Random" in op.type
        for index, spec in enumerate(op.outputs):
            size_bytes = spec.size_bytes or 0
            if size_bytes < _LEAST_BYTES or op.type == "ReadVariableOp":
                continue
            tensor = f"{name}:{index}"
            users = structure.consumers.get(tensor, ())
            if op.type not in _ALIASES and any(
                structure.phases.get(user) is Phase.BACKWARD for user in users
            ):
                kept[at] += size_bytes
            last = max((place[layers[user]] for user in users if user in layers), default=at)
            for end in range(at, last):
                reaches.setdefault(end, {})[tensor] = size_bytes
    begins = 0
    for end in range(len(order) - 1):
        crossing = reaches.get(end, {})
        if len(crossing) != 1:
            continue
        leaves_bytes = next(iter(crossing.values()))
        members = slice(begins, end + 1)
        yield ChainUnit(
            layers=tuple(order[members]),
            kept_bytes=max(sum(kept[members]) - leaves_bytes, 0),
            leaves_bytes=leaves_bytes,
            operations=sum(work[members]),
            is_random=any(random[members]),
        )
        begins = end + 1
