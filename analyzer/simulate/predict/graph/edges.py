"""The graph as the executor holds it: numbered nodes, and edges in the order of their creation.

The order of edges decides the order of execution, so it is rebuilt as TensorFlow builds it: a function
body becomes a graph node by node, always the first whose inputs exist, with its incoming edges in input
order (``GraphConstructor::Convert`` in ``graph_constructor.cc``). A node keeps up to eight out-edges in
order of creation (``edgeset.h``). More, such as those of the source, which starts every root, lie in a
hash set of pointers, whose order differs between processes. Edges that are created together lie side by
side in blocks of the graph's arena (``arena.cc``), at random places. (A plain random order widens ranges
by 8 to 24 % on the accuracy list.)
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, Final, TypeVar

from analyzer.model.contract.graph_note import (
    ARGUMENT_TYPES,
    MERGED_PLACE,
    PLACE,
    RESULT_TYPES,
    Op,
    TensorSpec,
    op_types,
    read_op_types,
    split_tensor,
)
from analyzer.model.errors import InputError

_GRADIENT: Final = 2  # input of a filter's gradient that is the output's gradient
_MERGED: Final = -1  # stands for the merged node while its edge is added
INLINE_EDGES: Final = 8  # out-edges that a node keeps in order (``EdgeSet::kInline``)
_EDGE_BYTES: Final = 32  # ``sizeof(Edge)``: two pointers and three numbers
_BLOCK_BYTES: Final = 8192  # bytes of a block of the graph's arena
_FOLLOWS: Final = 0.75  # share of blocks that follow the one before: 22 of 29 in four graphs
_ADDRESS_BITS: Final = 31  # random bits of a block's address
_SLOTS_PER_BUCKET: Final = 8  # slots of a bucket of a ``FlatSet`` (``kWidth`` in ``flatrep.h``)
_FULL_RATIO: Final = 0.8  # share of its slots above which a ``FlatSet`` doubles (``flatrep.h``)

_Item = TypeVar("_Item")


def order_edges(edges: Sequence[_Item], chances: Random, *, grows: bool = True) -> list[_Item]:
    """Return edges in an order of an ``EdgeSet``, which has room for all or ``grows`` from small."""
    if len(edges) <= INLINE_EDGES:
        return list(edges)
    table: list[tuple[int, int] | None] = [None] * _slots_for(1 if grows else len(edges))
    address = chances.getrandbits(_ADDRESS_BITS) & -_EDGE_BYTES
    addresses = []
    for _ in edges:
        addresses.append(address)
        address += _EDGE_BYTES
        if not address % _BLOCK_BYTES and chances.random() >= _FOLLOWS:
            address = chances.getrandbits(_ADDRESS_BITS) & -_BLOCK_BYTES
    for position, address in enumerate(addresses):
        if position >= int(len(table) * _FULL_RATIO):
            old = [entry for entry in table if entry is not None]
            table = [None] * _slots_for(position + 1)
            for entry in old:
                _insert(table, *entry)
        _insert(table, address, position)
    return [edges[entry[1]] for entry in table if entry is not None]


def _slots_for(count: int) -> int:
    slots = _SLOTS_PER_BUCKET
    while count >= _FULL_RATIO * slots:
        slots *= 2
    return slots


def _insert(table: list[tuple[int, int] | None], address: int, position: int) -> None:
    """Insert an edge: open addressing with quadratic probes, as in ``FlatSet<const Edge*>``."""
    mask = len(table) - 1
    index = ((address + (address >> 6)) >> 8) & mask
    probes = 1
    while table[index] is not None:
        index = (index + probes) & mask
        probes += 1
    table[index] = (address, position)


class RewriteOrder:
    """The graph before the oneDNN pass; ``sources`` are the nodes that each node waits for.

    The pass walks the graph depth first from its source and appends rewritten nodes in reverse
    postorder (``GetReversePostOrder`` in ``mkl_layout_pass.cc``). The source's edges lie in a hash
    set, so the two gradients of a product may change places from process to process. (Without it,
    11 of 84 peaks on one thread leave their ranges.)
    """

    def __init__(self, ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> None:
        self._rewritten = [node for node, op in enumerate(ops) if op.type.startswith("_Mkl")]
        self._out: list[list[int]] = [[] for _ in ops]
        self._roots: list[int] = []
        if self._rewritten:
            self._add_edges(ops, sources)

    def sample(self, seed: int) -> list[int]:
        """Return the rewritten nodes in one possible order of rewriting."""
        if not self._rewritten:
            return []
        rank = self._walk(Random(seed))
        last = len(self._out)
        return sorted(self._rewritten, key=lambda node: rank.get(node, last + node))

    def _add_edges(self, ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> None:
        """Store each node's out-edges in order of creation.

        This is the graph before the pass merged the gradients of filters with those of their
        biases; the gradients of biases are nodes after all others.
        """
        count, kinds = len(ops), [op.type for op in ops]
        filters = [
            n for n in range(count) if "Backprop" in kinds[n] and kinds[n][-8:] == "WithBias"
        ]
        bias_of = {f"{ops[node].name}:1": bias for bias, node in enumerate(filters, count)}
        before: list[Sequence[int]] = []
        for op, feeds in zip(ops, sources, strict=True):
            data = [bias_of.get(t, feed) for t, feed in zip(op.inputs, feeds, strict=False)]
            before.append([*data, *feeds[len(data) :]])
        before += [[sources[node][_GRADIENT]] for node in filters]
        places: list[Any] = [op.attrs.get(PLACE, node) for node, op in enumerate(ops)]
        # By default a bias' gradient comes right after the filter's.
        places += [ops[node].attrs.get(MERGED_PLACE, places[node] + 0.5) for node in filters]
        biases = [Op(f"{ops[node].name}/bias", "BiasAddGrad") for node in filters]
        built = create_in_order(consumers_of([*ops, *biases], before), places)
        back = _back_edge_nodes(ops)
        for is_back in (False, True):  # back edges are added last
            for node in built:
                for source in before[node]:
                    if (source in back) is is_back:
                        merged = source if source < count else filters[source - count]
                        self._out[merged].append(node)
        self._roots = [node for node in built if not before[node]]
        bias_nodes = dict(zip(filters, range(count, len(before)), strict=True))
        for node in built:
            if node in bias_nodes:
                self._merge(node, bias_nodes[node], sources[node][_GRADIENT])

    def _merge(self, node: int, bias: int, gradient: int) -> None:
        """Reorder the out-edges of the gradient that a filter's and a bias' gradient read.

        The pass adds the merged node's edge, then erases those of the two, the bias' first. The
        last edge fills each gap (``EdgeSet::erase``, ``MergeConv2DBackpropFilterWithBiasAddGrad``).
        The other inputs lose one edge, and the new edge fills its gap.
        """
        edges = self._out[gradient]
        if len(edges) + 1 > INLINE_EDGES:
            self._out[gradient] = [reader for reader in edges if reader != bias]
            return
        slots = [*edges, _MERGED]
        for erased in (bias, node):
            gap = slots.index(erased)
            last = slots.pop()
            if gap < len(slots):
                slots[gap] = last
        self._out[gradient] = [node if reader == _MERGED else reader for reader in slots]

    def _walk(self, chances: Random) -> dict[int, int]:
        postorder: list[int] = []
        is_seen = [False] * len(self._out)
        stack = order_edges(self._roots, chances)
        while stack:
            node = stack.pop()
            if node < 0:
                postorder.append(~node)
            elif not is_seen[node]:
                is_seen[node] = True
                stack.append(~node)
                stack.extend(order_edges(self._out[node], chances))
        return {node: rank for rank, node in enumerate(reversed(postorder))}


def consumers_of(ops: Sequence[Op], sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the nodes that cannot be created before each node, once for each edge."""
    consumers: list[list[int]] = [[] for _ in ops]
    back = _back_edge_nodes(ops)
    for node, feeds in enumerate(sources):
        for source in feeds:
            if source not in back:
                consumers[source].append(node)
    return consumers


def create_in_order(consumers: Sequence[Sequence[int]], places: Sequence[Any]) -> list[int]:
    """Return the nodes in the order in which a graph is built from its listing.

    It takes the first node by ``places`` whose inputs exist, and no node of a cycle outside a loop.
    """
    count = len(consumers)
    by_rank = sorted(range(count), key=places.__getitem__)
    rank = {node: position for position, node in enumerate(by_rank)}
    pending = Counter(node for waiting in consumers for node in waiting)
    ready = [rank[node] for node in range(count) if not pending[node]]
    heapq.heapify(ready)
    built: list[int] = []
    while ready:
        node = by_rank[heapq.heappop(ready)]
        built.append(node)
        for consumer in consumers[node]:
            pending[consumer] -= 1
            if not pending[consumer]:
                heapq.heappush(ready, rank[consumer])
    return built


def _back_edge_nodes(ops: Sequence[Op]) -> set[int]:
    """Return the nodes whose edges close loops; TensorFlow adds them last (``AddBackEdges``)."""
    return {node for node, op in enumerate(ops) if op.type in ("NextIteration", "RefNextIteration")}


TYPES: Final = read_op_types("simulate/predict/executor_op_types.toml")["types"]
INEXPENSIVE: Final = TYPES["inexpensive"]

SWITCHES: Final = op_types("Switch RefSwitch _SwitchN")
"""Op types that pass their first input to the output that the second input selects."""

_CONTROL_FLOW: Final = SWITCHES | {"Merge", "Enter", "Exit"}


@dataclass(frozen=True)
class Wiring:
    """Numbered nodes with their edges."""

    ops: Sequence[Op]
    inputs: list[list[tuple[int, int]]]  # for each node, the (node, output) behind each data input
    control: list[list[int]]
    # for each node, its data edges as (node, output, input), in order of creation
    data_out: list[list[tuple[int, int, int]]]
    control_out: list[list[int]]  # for each node, the nodes that wait for it, in order of creation
    roots: list[int]
    # for each node, whether the executor dispatches it instead of running it inline
    expensive: list[bool]

    @cached_property
    def pending(self) -> list[int]:
        """For each node, the number of inputs that it waits for."""
        return [
            len(data) + len(waits) for data, waits in zip(self.inputs, self.control, strict=True)
        ]

    @cached_property
    def has_control_flow(self) -> bool:
        """Whether the graph has branches or loops."""
        return any(op.type in _CONTROL_FLOW for op in self.ops)

    @property
    def has_branches(self) -> bool:
        """Whether a switch depends on anything but a loop condition."""
        return any(
            op.type in SWITCHES and self.ops[feeds[1][0]].type != "LoopCond"
            for op, feeds in zip(self.ops, self.inputs, strict=True)
        )

    @cached_property
    def crowded(self) -> list[int]:
        """Nodes with more out-edges than a node keeps in order."""
        pairs = enumerate(zip(self.data_out, self.control_out, strict=True))
        return [node for node, (data, waits) in pairs if len(data) + len(waits) > INLINE_EDGES]

    def specs(self, node: int) -> list[TensorSpec | None]:
        """Return dtype and shape of each data input; None if its source does not describe it."""
        sources = ((self.ops[source].outputs, output) for source, output in self.inputs[node])
        return [outputs[k] if k < len(outputs) else None for outputs, k in sources]


def put_filters_last(wiring: Wiring) -> Wiring:
    """Return the graph with the gradient of a convolution's input before that of its filter.

    TensorFlow 2.3 and 2.4 execute them so in public traces of P100, V100, T4 and GTX 1060. The order of
    the edges depends on the optimiser; in 2.21 it differs from layer to layer.
    """
    is_filter = ["BackpropFilter" in op.type for op in wiring.ops]
    data_out = [sorted(edges, key=lambda edge: is_filter[edge[0]]) for edges in wiring.data_out]
    return replace(wiring, data_out=data_out)


class EdgeOrder:
    """One possible order of every node's out-edges, and of the roots, which the source starts."""

    def __init__(self, wiring: Wiring, seed: int) -> None:
        chances = Random(seed)
        self.data = list(wiring.data_out)
        self.control = list(wiring.control_out)
        self.roots = order_edges(wiring.roots, chances)
        for node in wiring.crowded:
            data, control = wiring.data_out[node], wiring.control_out[node]
            order = order_edges(range(len(data) + len(control)), chances, grows=False)
            self.data[node] = [data[k] for k in order if k < len(data)]
            self.control[node] = [control[k - len(data)] for k in order if k >= len(data)]


def wire_all(
    ops: Sequence[Op], rewrites: Sequence[int | None], *, is_cheap: bool = False
) -> list[Wiring]:
    """Number the nodes and rebuild their edges, for several orders of oneDNN rewrites.

    ``rewrites`` are seeds, None for listing order. ``is_cheap``: all kernels are inexpensive (GPU).
    """
    inputs, control = _resolve_inputs(ops)
    # The nodes that each node waits for: of its data inputs, then of its control inputs.
    sources = [
        [*(source for source, _ in data), *waits]
        for data, waits in zip(inputs, control, strict=True)
    ]
    rewrite_order = RewriteOrder(ops, sources)
    consumers = consumers_of(ops, sources)
    expensive = [not is_cheap and op.type not in INEXPENSIVE for op in ops]
    wirings: list[Wiring] = []
    for rewrite in rewrites:
        rewritten = [] if rewrite is None else rewrite_order.sample(rewrite)
        built = create_in_order(consumers, _places_of(ops, rewritten))
        if len(built) != len(ops):
            raise InputError("The graph has a cycle outside its loops.")
        data_out: list[list[tuple[int, int, int]]] = [[] for _ in built]
        control_out: list[list[int]] = [[] for _ in built]
        for node in built:
            for slot, (source, output) in enumerate(inputs[node]):
                data_out[source].append((node, output, slot))
            for source in control[node]:
                control_out[source].append(node)
        roots = [node for node in built if not sources[node]]
        wirings.append(Wiring(ops, inputs, control, data_out, control_out, roots, expensive))
    return wirings


def _resolve_inputs(ops: Sequence[Op]) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Return each node's data inputs (node, output) and control inputs; refuse impossible ones."""
    number = {op.name: index for index, op in enumerate(ops)}
    try:
        split = [[split_tensor(tensor) for tensor in op.inputs] for op in ops]
        inputs = [[(number[name], output) for name, output in pairs] for pairs in split]
        control = [[number[name] for name in op.control_inputs] for op in ops]
    except KeyError as error:
        raise InputError(
            f"The graph is damaged: an input names the missing op {str(error)[:80]}."
        ) from None
    for op, feeds in zip(ops, inputs, strict=True):
        for source, output in feeds:
            if output >= len(ops[source].outputs):
                raise InputError(
                    f"The graph is damaged: {op.name[:80]!r} reads output {output} of "
                    f"{ops[source].name[:80]!r}, which has {len(ops[source].outputs)}."
                )
        if op.type in ("Enter", "RefEnter") and "frame_name" not in op.attrs:
            raise InputError(
                f"The graph is damaged: {op.name[:80]!r} enters a loop without a name."
            )
    return inputs, control


def _places_of(ops: Sequence[Op], rewritten: list[int]) -> list[tuple[int, int]]:
    """Return each node's rank in the order of creation: arguments, body, results.

    The nodes that the oneDNN pass rewrote share their places in the order of rewriting.
    """
    places = dict(zip(rewritten, sorted(rewritten), strict=True))
    kinds = dict.fromkeys(ARGUMENT_TYPES, 0) | dict.fromkeys(RESULT_TYPES, 2)
    return [
        (kinds[op.type], int(op.attrs.get("index", 0)))
        if op.type in kinds
        else (1, places.get(node, node))
        for node, op in enumerate(ops)
    ]
