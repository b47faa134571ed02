"""The graph as the executor holds it: nodes by number, edges in the order it made them.

The order of edges decides the order of execution, so it is rebuilt as TensorFlow builds it: a
function's body is turned into a graph node by node, always taking the first node (in the order
arguments, body, results) whose inputs exist, and each node adds its incoming edges in input order
(``GraphConstructor::Convert``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, Op, TensorSpec
from analyzer.model.errors import InputError
from analyzer.model.graph.ops import op_types, split_tensor
from analyzer.simulate.predict.graph.edge_addresses import EdgeSets, edge_sets_of
from analyzer.simulate.predict.graph.onednn_rewrite_order import (
    Rewriting,
    consumers_of,
    creation_order,
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
"""Types whose kernel says it is cheap (``OpKernel::IsExpensive`` overridden), and which the executor
therefore runs at once on the same thread. Every other CPU kernel counts as expensive until its
running average falls below 8,000 cycles, which takes about 90 runs from the initial 100 million."""


SWITCHES: Final = op_types("Switch RefSwitch _SwitchN")
"""Types that hand their first input to one of their outputs, chosen by the second."""


_CONTROL_FLOW: Final = SWITCHES | {"Merge", "Enter", "Exit"}
"""Types by which a graph has branches or loops (lowered: ``If`` and ``While`` are gone by then)."""


@dataclass(frozen=True)
class Wiring:
    """Nodes by number with their edges.

    Attributes:
        ops: The nodes.
        inputs: For each node, the (node, output) that feeds each data input.
        control: For each node, the nodes it waits for.
        data_out: For each node, the (node, output, input) of its data edges, in order of creation.
        control_out: For each node, the nodes that wait for it, in order of creation.
        edge_ids: For each node, the numbers of its data edges and of its control edges.
        roots: Nodes without inputs, in order of creation.
        root_edges: Numbers of the source's edges to the roots; they are made last, in turn with
            those to the sink (``FixupSourceAndSinkEdges``).
        pending: For each node, how many inputs it waits for.
        expensive: Whether each node is dispatched rather than run at once.
        has_control_flow: Whether there are branches or loops.
        has_branches: Whether a branch is taken or not by something else than a loop's condition.
    """

    ops: Sequence[Op]
    inputs: list[list[tuple[int, int]]]
    control: list[list[int]]
    data_out: list[list[tuple[int, int, int]]]
    control_out: list[list[int]]
    edge_ids: list[tuple[list[int], list[int]]]
    roots: list[int]
    root_edges: list[int]
    pending: list[int]
    expensive: list[bool]
    has_control_flow: bool
    has_branches: bool

    @cached_property
    def edge_sets(self) -> EdgeSets:
        """Where the edges lie whose addresses decide their order: the same for every draw."""
        return edge_sets_of(self.edge_ids, self.root_edges)

    def specs(self, node: int) -> list[TensorSpec | None]:
        """Return what a node's data inputs are; None for one that its source does not describe."""
        found = []
        for source, output in self.inputs[node]:
            outputs = self.ops[source].outputs
            found.append(outputs[output] if output < len(outputs) else None)
        return found


def wire(ops: Sequence[Op], rewrite: int | None = None, *, is_cheap: bool = False) -> Wiring:
    """Number the nodes and rebuild their edges.

    Args:
        ops: The graph that the executor runs.
        rewrite: Which of the orders in which the oneDNN pass may have rewritten its nodes
            (``onednn_rewrite_order``); None for the order of ``ops``.
        is_cheap: Whether every kernel counts as cheap, as on a GPU.

    Raises:
        InputError: an input names an op that is not there, or the graph has a cycle outside loops.
    """
    return wire_all(ops, [rewrite], is_cheap=is_cheap)[0]


def wire_all(
    ops: Sequence[Op],
    rewrites: Sequence[int | None],
    *,
    is_cheap: bool = False,
    unfolded: Sequence[Op] | None = None,
) -> list[Wiring]:
    """Do so for several orders of rewriting; nodes keep their numbers.

    Args:
        ops: The graph that the executor runs.
        rewrites: As for ``wire``.
        is_cheap: As for ``wire``.
        unfolded: The graph that oneDNN's pass rewrote, before constants were computed; None for ``ops``.

    Raises:
        InputError: an input names an op that is not there, or the graph has a cycle outside loops.
    """
    number = {op.name: index for index, op in enumerate(ops)}
    inputs, control = _inputs_of(ops, number)
    sources = [
        [*(source for source, _ in data), *waits]
        for data, waits in zip(inputs, control, strict=True)
    ]
    walks = None if rewrites == [None] else _rewriting_of(ops if unfolded is None else unfolded)
    consumers = consumers_of(ops, sources)
    incoming = [
        [(source, (node, output, slot)) for slot, (source, output) in enumerate(data)]
        for node, data in enumerate(inputs)
    ]
    wirings: list[Wiring] = []
    first: Wiring | None = None
    for rewrite in rewrites:
        moved: list[int] = []
        if walks is not None and rewrite is not None:
            moved = [number[name] for name in walks.order(rewrite) if name in number]
        positions = _positions(ops, moved)
        built = creation_order(consumers, positions)
        if len(built) != len(ops):
            raise InputError("The graph has a cycle outside of its loops.")
        edges = _edges_of(built, incoming, control)
        if first is not None:
            wirings.append(replace(first, **edges))
            continue
        first = Wiring(
            ops=ops,
            inputs=inputs,
            control=control,
            pending=[len(feeds) for feeds in sources],
            expensive=[not is_cheap and op.type not in INEXPENSIVE for op in ops],
            has_control_flow=any(op.type in _CONTROL_FLOW for op in ops),
            has_branches=any(
                op.type in SWITCHES and ops[inputs[node][1][0]].type != "LoopCond"
                for node, op in enumerate(ops)
            ),
            **edges,
        )
        wirings.append(first)
    return wirings


def _inputs_of(
    ops: Sequence[Op], number: dict[str, int]
) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Return each node's data inputs, as (node, output), and its control inputs.

    Raises:
        InputError: an input names an op that is not there.
    """
    try:
        inputs = [[_resolve(number, tensor) for tensor in op.inputs] for op in ops]
        control = [[number[name] for name in op.control_inputs] for op in ops]
    except KeyError as error:
        raise InputError(
            f"The graph names an op that it does not hold: {str(error)[:80]}."
        ) from None
    _check_edges(ops, inputs)
    return inputs, control


def _positions(ops: Sequence[Op], moved: list[int]) -> list[Any]:
    """Return each node's place in the order of creation.

    Args:
        ops: The graph.
        moved: Nodes that oneDNN's pass made anew, in the order in which it did: they take one another's
            places in that order.
    """
    places = list(range(len(ops)))
    for node, place in zip(moved, sorted(moved), strict=True):
        places[node] = place
    return [_position(op, place) for op, place in zip(ops, places, strict=True)]


def _check_edges(ops: Sequence[Op], inputs: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Check that each input is an output of its source, and that each loop's entry names its loop.

    Raises:
        InputError: it is not so.
    """
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


def _rewriting_of(ops: Sequence[Op]) -> Rewriting:
    number = {op.name: index for index, op in enumerate(ops)}
    return Rewriting(
        ops,
        [
            [
                *(_resolve(number, tensor)[0] for tensor in op.inputs),
                *(number[name] for name in op.control_inputs),
            ]
            for op in ops
        ],
    )


def _edges_of(
    built: Sequence[int],
    incoming: Sequence[Sequence[tuple[int, tuple[int, int, int]]]],
    control: list[list[int]],
) -> dict[str, Any]:
    """Return the fields of a wiring that follow from the order in which the nodes are made.

    Args:
        built: Nodes in that order.
        incoming: For each node, each data input's source and the edge as its source lists it.
        control: For each node, the nodes it waits for.
    """
    data_out: list[list[tuple[int, int, int]]] = [[] for _ in built]
    control_out: list[list[int]] = [[] for _ in built]
    edge_ids: list[tuple[list[int], list[int]]] = [([], []) for _ in built]
    edges = 0
    for node in built:
        for source, edge in incoming[node]:
            data_out[source].append(edge)
            edge_ids[source][0].append(edges)
            edges += 1
        for source in control[node]:
            control_out[source].append(node)
            edge_ids[source][1].append(edges)
            edges += 1
    roots: list[int] = []
    root_edges: list[int] = []
    for node in built:
        if not incoming[node] and not control[node]:
            roots.append(node)
            root_edges.append(edges)
            edges += 1
        if not data_out[node] and not control_out[node]:
            edges += 1  # to the graph's sink
    return {
        "data_out": data_out,
        "control_out": control_out,
        "edge_ids": edge_ids,
        "roots": roots,
        "root_edges": root_edges,
    }


def _resolve(number: dict[str, int], tensor: str) -> tuple[int, int]:
    name, output = split_tensor(tensor)
    return number[name], output


def _position(op: Op, node: int) -> tuple[int, int]:
    index = op.attrs.get("index", 0)
    if op.type in ARGUMENT_TYPES:
        return 0, int(index)
    if op.type in RESULT_TYPES:
        return 2, int(index)
    return 1, node
