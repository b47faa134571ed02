"""The graph as the executor holds it: nodes by number, edges in the order it made them.

The order of edges decides the order of execution, so it is rebuilt as TensorFlow builds it: a
function's body is turned into a graph node by node, always taking the first node (in the order
arguments, body, results) whose inputs exist, and each node adds its incoming edges in input order
(``GraphConstructor::Convert``).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.errors import InputError
from analyzer.graph.ops import Op, split_tensor
from analyzer.kernels.plan import op_types

INEXPENSIVE: Final = op_types(
    """
    _Arg _Retval _DeviceArg _DeviceRetval _SOURCE Const ControlTrigger EmptyTensorList Enter
    Exit ExpandDims HostConst Identity IdentityN ImmutableConst LoopCond Merge NextIteration
    NoOp PreventGradient Rank RefEnter RefExit RefIdentity RefMerge RefNextIteration RefSelect
    RefSwitch Reshape Shape ShapeN Size Snapshot Squeeze StopGradient Switch VarHandleOp
    DebugIdentityV2 DebugNanCount
    """
)
"""Types whose kernel says it is cheap (``OpKernel::IsExpensive`` overridden), and which the executor
therefore runs at once on the same thread. Every other CPU kernel counts as expensive until its
running average falls below 8,000 cycles, which takes about 90 runs from the initial 100 million."""


@dataclass(frozen=True, slots=True)
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
        edge_count: Number of edges.
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
    edge_count: int
    expensive: list[bool]
    has_control_flow: bool
    has_branches: bool


def wire(ops: Sequence[Op], rewrite: int = 0, *, is_cheap: bool = False) -> Wiring:
    """Number the nodes and rebuild their edges.

    Args:
        ops: The graph that the executor runs.
        rewrite: Which of the orders in which the oneDNN pass may have rewritten its nodes; 0 is the
            order of ``ops``. The pass walks the graph depth first from the source, whose edges lie
            in a hash set, and adds each rewritten node at the end: two gradients of one product
            change places from process to process.
        is_cheap: Whether every kernel counts as cheap, as on a GPU.

    Raises:
        InputError: an input names an op that is not there, or the graph has a cycle outside loops.
    """
    number = {op.name: index for index, op in enumerate(ops)}
    try:
        inputs = [[_resolve(number, tensor) for tensor in op.inputs] for op in ops]
        control = [[number[name] for name in op.control_inputs] for op in ops]
    except KeyError as error:
        raise InputError(f"The graph names an op that it does not hold: {error}.") from None
    built = _creation_order(ops, inputs, control, rewrite)
    data_out: list[list[tuple[int, int, int]]] = [[] for _ in ops]
    control_out: list[list[int]] = [[] for _ in ops]
    edge_ids: list[tuple[list[int], list[int]]] = [([], []) for _ in ops]
    edges = 0
    for node in built:
        for slot, (source, output) in enumerate(inputs[node]):
            data_out[source].append((node, output, slot))
            edge_ids[source][0].append(edges)
            edges += 1
        for source in control[node]:
            control_out[source].append(node)
            edge_ids[source][1].append(edges)
            edges += 1
    return Wiring(
        ops=ops,
        inputs=inputs,
        control=control,
        data_out=data_out,
        control_out=control_out,
        edge_ids=edge_ids,
        roots=[node for node in built if not inputs[node] and not control[node]],
        edge_count=edges,
        expensive=[not is_cheap and op.type not in INEXPENSIVE for op in ops],
        has_control_flow=any(op.type in ("Switch", "Merge", "Enter", "Exit") for op in ops),
        has_branches=any(
            op.type == "Switch" and ops[inputs[node][1][0]].type != "LoopCond"
            for node, op in enumerate(ops)
        ),
    )


def _resolve(number: dict[str, int], tensor: str) -> tuple[int, int]:
    name, output = split_tensor(tensor)
    return number[name], output


def _creation_order(
    ops: Sequence[Op],
    inputs: list[list[tuple[int, int]]],
    control: list[list[int]],
    rewrite: int,
) -> list[int]:
    places = list(range(len(ops)))
    for moved, new_place in _rewritten(ops, inputs, control, rewrite).items():
        places[moved] = new_place
    rank = sorted(range(len(ops)), key=lambda node: _position(ops[node], places[node]))
    place = {node: position for position, node in enumerate(rank)}
    pending = [0] * len(ops)
    consumers: list[list[int]] = [[] for _ in ops]
    for node in range(len(ops)):
        for source in [*(source for source, _ in inputs[node]), *control[node]]:
            if ops[source].type in ("NextIteration", "RefNextIteration"):
                continue  # the one edge that closes a loop; added when the loop is complete
            pending[node] += 1
            consumers[source].append(node)
    ready = [place[node] for node in range(len(ops)) if not pending[node]]
    heapq.heapify(ready)
    built: list[int] = []
    while ready:
        node = rank[heapq.heappop(ready)]
        built.append(node)
        for consumer in consumers[node]:
            pending[consumer] -= 1
            if not pending[consumer]:
                heapq.heappush(ready, place[consumer])
    if len(built) != len(ops):
        raise InputError("The graph has a cycle outside of its loops.")
    return built


def _rewritten(
    ops: Sequence[Op],
    inputs: list[list[tuple[int, int]]],
    control: list[list[int]],
    rewrite: int,
) -> dict[int, int]:
    """Return new places for the nodes that oneDNN's pass made, in the order of a walk."""
    made = [node for node, op in enumerate(ops) if op.type.startswith("_Mkl")]
    if not rewrite or not made:
        return {}
    consumers: list[list[int]] = [[] for _ in ops]
    for node in range(len(ops)):
        for source in [*(source for source, _ in inputs[node]), *control[node]]:
            consumers[source].append(node)
    roots = [node for node in range(len(ops)) if not inputs[node] and not control[node]]
    random.Random(rewrite).shuffle(roots)
    seen = [False] * len(ops)
    left: list[int] = []
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                left.append(node)
            elif not seen[node]:
                seen[node] = True
                stack.append((node, True))
                stack.extend((consumer, False) for consumer in consumers[node])
    walk = {node: place for place, node in enumerate(reversed(left))}
    ordered = sorted(made, key=lambda node: walk.get(node, node))
    return dict(zip(ordered, made, strict=True))


def _position(op: Op, node: int) -> tuple[int, int]:
    index = op.attrs.get("index", 0)
    if op.type in ("_Arg", "_DeviceArg"):
        return 0, int(index)
    if op.type in ("_Retval", "_DeviceRetval"):
        return 2, int(index)
    return 1, node
