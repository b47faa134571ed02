"""The graph as the executor holds it: numbered nodes, and edges in the order of their creation.

The order of edges decides the order of execution, so it is rebuilt as TensorFlow builds it. A
function body becomes a graph node by node. TensorFlow always takes the first node (arguments, body,
results) whose inputs exist, and adds its incoming edges in input order
(``GraphConstructor::Convert`` in ``graph_constructor.cc``).

Nodes with many out-edges list them in an order that differs between processes and stays the same for
all steps of one (``edge_order``). The most important such node is the source: it starts every root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Final

from analyzer.model.contract.graph_note import (
    ARGUMENT_TYPES,
    RESULT_TYPES,
    Op,
    TensorSpec,
    op_types,
    split_tensor,
)
from analyzer.model.errors import InputError
from analyzer.simulate.predict.graph.edge_order import (
    INLINE_EDGES,
    RewriteOrder,
    consumers_of,
    create_in_order,
    order_edges,
)

INEXPENSIVE: Final = op_types(
    """
    _Arg _Retval _DeviceArg _DeviceRetval _SOURCE Const ControlTrigger EmptyTensorList Enter
    Exit ExpandDims HostConst Identity IdentityN ImmutableConst LoopCond Merge NextIteration
    NoOp PreventGradient Rank RefEnter RefExit RefIdentity RefMerge RefNextIteration RefSelect
    RefSwitch Reshape Shape ShapeN Size Snapshot Squeeze StopGradient Switch VarHandleOp _SwitchN
    DebugIdentityV2 DebugNanCount
    """
)
"""Op types whose kernels override ``OpKernel::IsExpensive``; the executor runs them inline.

Every other CPU kernel counts as expensive until its running average falls below 8,000 cycles, which
takes about 90 runs from the initial 100 million.
"""

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

    ``rewrites`` are seeds of the order; None for listing order. ``is_cheap`` is whether every
    kernel counts as inexpensive, as on a GPU.
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
        edges = _edges_of(built, inputs, control)
        wirings.append(Wiring(ops, inputs, control, *edges, expensive))
    return wirings


def _resolve_inputs(ops: Sequence[Op]) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Return each node's data inputs as (node, output), and its control inputs.

    Each input must be an output of its source, and each loop entry must name its loop.
    """
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
    return [
        (0, int(op.attrs.get("index", 0)))
        if op.type in ARGUMENT_TYPES
        else (2, int(op.attrs.get("index", 0)))
        if op.type in RESULT_TYPES
        else (1, places.get(node, node))
        for node, op in enumerate(ops)
    ]


def _edges_of(
    built: Sequence[int],
    inputs: Sequence[Sequence[tuple[int, int]]],
    control: Sequence[Sequence[int]],
) -> tuple[list[list[tuple[int, int, int]]], list[list[int]], list[int]]:
    """Return the out-edges and the roots, which follow from the order of the nodes' creation."""
    data_out: list[list[tuple[int, int, int]]] = [[] for _ in built]
    control_out: list[list[int]] = [[] for _ in built]
    for node in built:
        for slot, (source, output) in enumerate(inputs[node]):
            data_out[source].append((node, output, slot))
        for source in control[node]:
            control_out[source].append(node)
    return data_out, control_out, [n for n in built if not inputs[n] and not control[n]]
