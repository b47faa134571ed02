"""The chain of a model's layers, and the blocks of it to recompute so that the peak is lowest.

The chain is cut where a single tensor connects the layers before with the layers after; the layers
between two cuts are a *unit*, and a block is a run of units. A recomputed block keeps only the tensor
that enters it. So the peak is about the sum of the kept tensors plus the tensors of the largest block.
For each number of parts, the chain is cut greedily into the longest blocks of at most one part of the
bytes (Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from analyzer.model.contract.run_note import CONSTANTS, op_types, split_tensor
from analyzer.model.graph.graph_index import GraphIndex, Phase
from analyzer.tracing.parse.run_folder import RunNote, index_note_graph

# smaller tensors are ignored: shapes, axes, batch statistics
_LEAST_BYTES = 1024

# Ops whose output shares their input's buffer.
_ALIASES = op_types("Identity Reshape Squeeze ExpandDims StopGradient")

_NAME = re.compile(r"[\w.-]+")

# Index of the first unit, and of the first unit after the block.
Block = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ChainUnit:
    """Layers between two tensors that all later layers depend on."""

    layers: tuple[str, ...]
    kept_bytes: int  # tensors that the backward pass needs, without the output
    leaves_bytes: int  # the output
    is_random: bool  # whether it draws random numbers, which would differ when repeated


def choose_blocks(units: Sequence[ChainUnit]) -> list[Block]:
    """Return the blocks with the lowest peak; none if no partition lowers it."""
    total = _bytes_inside(units, (0, len(units)))
    partitions = [_cut(units, total // count) for count in range(2, len(units))]

    # No blocks at all win if no partition lowers the peak.
    return min([[], *partitions], key=lambda blocks: find_peak(units, blocks))


def find_peak(units: Sequence[ChainUnit], blocks: Sequence[Block]) -> int:
    """Return the kept bytes of a partition beside its largest block."""
    kept = sum(unit.kept_bytes + unit.leaves_bytes for unit in units)
    inside = [_bytes_inside(units, block) for block in blocks]

    return kept - sum(inside) + max(inside, default=0)


def _bytes_inside(units: Sequence[ChainUnit], block: Block) -> int:
    """Return the bytes of a block while its gradient is computed, without its output."""
    start, stop = block
    total = sum(unit.kept_bytes + unit.leaves_bytes for unit in units[start:stop])

    return total - units[stop - 1].leaves_bytes


def _cut(units: Sequence[ChainUnit], bound: int) -> list[Block]:
    """Return the longest blocks, from the first unit on, that hold at most ``bound`` bytes."""
    blocks = []
    start = 0

    for stop in range(1, len(units) + 1):
        is_random = units[stop - 1].is_random
        if not is_random and _bytes_inside(units, (start, stop)) <= bound:
            continue

        if stop - 1 > start:
            blocks.append((start, stop - 1))

        is_alone = is_random or _bytes_inside(units, (stop - 1, stop)) > bound
        start = stop if is_alone else stop - 1

    if start < len(units):
        blocks.append((start, len(units)))

    return blocks


def chain_of(note: RunNote) -> tuple[ChainUnit, ...]:
    """Return the units of a captured training step, in order; none if its layers are not a chain."""
    graph = index_note_graph(note)
    if note.xla:
        return ()

    layers = _skip_constants(graph, _map_forward_layers(graph))

    order = _sort_layers(graph, layers)
    if len(order) < 2 or not all(_NAME.fullmatch(layer) for layer in order):
        return ()

    return tuple(_find_units(graph, layers, order))


def _map_forward_layers(graph: GraphIndex) -> dict[str, str]:
    """Map the ops of the forward pass to the model's own layers.

    The path of a layer with weights starts with the model's name, other paths may not.
    """
    paths = {}
    for name, path in graph.layers.items():
        if path and graph.phases.get(name) is Phase.FORWARD:
            paths[name] = path.split("/")

    heads = Counter(path[0] for path in paths.values() if len(path) > 1)
    model = heads.most_common(1)[0][0] if heads else ""
    layers = {}

    for name, parts in paths.items():
        is_below_model = len(parts) > 1 and parts[0] == model
        layers[name] = parts[1] if is_below_model else parts[0]

    return layers


def _skip_constants(graph: GraphIndex, layers: Mapping[str, str]) -> dict[str, str]:
    """Return the ops of layers that depend on data or weights.

    Grappler merges equal constants and ops on them (``DedupComputations``), so that layers without any
    connection share them.
    """
    constant = set()
    queue = [name for name, op in graph.ops.items() if op.type in CONSTANTS]

    while queue:
        name = queue.pop()
        if name in constant:
            continue

        constant.add(name)

        for user in graph.users_of(name):
            makers = {split_tensor(tensor)[0] for tensor in graph.ops[user].inputs}

            if makers <= constant:
                queue.append(user)

    return {name: layer for name, layer in layers.items() if name not in constant}


def _sort_layers(graph: GraphIndex, layers: Mapping[str, str]) -> list[str]:
    """Return the layers, each after those whose tensors it reads; none if there is a cycle."""
    before: dict[str, set[str]] = {layer: set() for layer in layers.values()}

    for name, layer in layers.items():
        inputs = graph.ops[name].inputs
        makers = {layers.get(split_tensor(one)[0], layer) for one in inputs}
        before[layer] |= makers - {layer}

    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return []


def _find_units(
    graph: GraphIndex,
    layers: Mapping[str, str],
    order: Sequence[str],
) -> Iterator[ChainUnit]:
    place = {layer: number for number, layer in enumerate(order)}

    # Tensors in use after each layer
    crossing: list[dict[str, int]] = [{} for _ in order]
    kept = [0] * len(order)
    is_random = [False] * len(order)

    for name, layer in layers.items():
        op = graph.ops[name]
        at = place[layer]
        is_random[at] |= "Random" in op.type

        for index, spec in enumerate(op.outputs):
            size_bytes = spec.size_bytes or 0
            if size_bytes < _LEAST_BYTES or op.type == "ReadVariableOp":
                continue

            tensor = f"{name}:{index}"
            users = graph.consumers.get(tensor, ())
            is_for_backward = any(
                graph.phases.get(user) is Phase.BACKWARD for user in users
            )

            if op.type not in _ALIASES and is_for_backward:
                kept[at] += size_bytes

            readers = [place[layers[user]] for user in users if user in layers]

            # It is in use until the layer before its last reader.
            for end in range(at, max(readers, default=at)):
                crossing[end][tensor] = size_bytes

    first = 0

    # A unit ends where a single tensor is in use.
    for end in range(len(order) - 1):
        if len(crossing[end]) != 1:
            continue

        (leaves_bytes,) = crossing[end].values()
        members = slice(first, end + 1)

        yield ChainUnit(
            layers=tuple(order[members]),
            kept_bytes=max(sum(kept[members]) - leaves_bytes, 0),
            leaves_bytes=leaves_bytes,
            is_random=any(is_random[members]),
        )

        first = end + 1
