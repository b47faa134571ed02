"""Constants that TensorFlow computes before the first step.

After grappler, the function runtime folds constants again: it runs a stateless node whose inputs are all
constants, and a constant replaces the node (``constant_folding.cc``). Its bytes are then resident. Only
a result that another node reads is replaced, and only up to 10 MiB. A chain that ends in more runs in
every step from its first node on, including small intermediate results. (Three of 21 steps have such
constants; without folding, the resident bytes of an autoencoder are 5.8 % too low.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from analyzer.model.contract.graph_note import Op, op_types, split_tensor
from analyzer.simulate.kernels.cpu.cpu_kernels import BINARY, REDUCTIONS, UNARY

_MOST_BYTES: Final = 10 << 20
"""Bytes of the largest folded result (``kMaxConstantSize``)."""
_CONSTANTS: Final = op_types("Const HostConst")
_SUFFIX: Final = "/__cf__"
_FOLDED: Final = (
    UNARY
    | BINARY
    | REDUCTIONS
    | op_types(
        """
        BroadcastTo Cast ConcatV2 EmptyTensorList ExpandDims Fill GatherV2 Identity OneHot Pack Pad
        Range Reshape Slice Squeeze StridedSlice TensorListReserve Tile Transpose _MklTranspose
        """
    )
)


def fold(ops: Sequence[Op]) -> list[Op]:
    """Return the graph with constants for nodes that can be computed beforehand.

    A constant replaces a node for its readers. The node disappears unless another node waits for
    it: then it still runs with its inputs, and nothing reads its result
    (``ReplaceTensorWithConstant`` moves data edges only; ``RemoveDeadNodes``). Not modelled: constants
    of equal value become one (``OptimizeCSE``).
    """
    folded, computed = _find_foldable(ops)
    if not computed:
        return list(ops)
    by_name = {op.name: op for op in ops}
    wanted = _find_read_nodes(ops, folded) & computed.keys()
    large = {name for name in wanted if (by_name[name].outputs[0].size_bytes or 0) > _MOST_BYTES}
    read = wanted - large
    remaining = _find_remaining(by_name, folded, computed, read, large)
    moved = {name: f"{name}{_SUFFIX}" if name in remaining else name for name in read}
    result = []
    for op in ops:
        if op.name in read:
            result.append(_make_constant(op, moved[op.name], computed[op.name], by_name))
        if op.name not in folded:
            result.append(_redirect(op, moved))
        elif op.name in remaining:
            result.append(op)
    return result


def _find_foldable(ops: Sequence[Op]) -> tuple[set[str], dict[str, tuple[str, ...]]]:
    """Return all constants and foldable nodes, and for foldable ones what their constant waits for."""
    folded = {op.name for op in ops if op.type in _CONSTANTS}
    computed: dict[str, tuple[str, ...]] = {}
    has_changed = True
    while has_changed:
        has_changed = False
        for op in ops:
            if op.name not in folded and _can_fold(op, folded):
                folded.add(op.name)
                parents = {split_tensor(tensor)[0] for tensor in op.inputs}
                waits = [*op.control_inputs, *(w for p in parents for w in computed.get(p, ()))]
                computed[op.name] = tuple(dict.fromkeys(waits))
                has_changed = True
    return folded, computed


def _find_read_nodes(ops: Sequence[Op], folded: Collection[str]) -> set[str]:
    """Return the nodes whose results ops outside ``folded`` read."""
    return {split_tensor(tensor)[0] for op in ops if op.name not in folded for tensor in op.inputs}


def _make_constant(op: Op, name: str, waits: Sequence[str], nodes: Collection[str]) -> Op:
    """Return a constant with a node's result; it waits for those ``waits`` that are nodes."""
    return Op(
        name,
        "Const",
        control_inputs=tuple(name for name in waits if name in nodes),
        outputs=op.outputs,
        device=op.device,
        source=op.source,
    )


def _find_remaining(
    by_name: Mapping[str, Op],
    folded: Collection[str],
    computed: Mapping[str, Sequence[str]],
    read: Collection[str],
    large: Collection[str],
) -> set[str]:
    """Return the foldable nodes that remain in the graph."""
    queue = list(large)
    queue += [
        name for op in by_name.values() if op.name not in folded for name in op.control_inputs
    ]
    queue += [name for op in read for name in computed[op]]
    queue += [
        name
        for op in by_name.values()
        if op.name not in folded
        for name in (split_tensor(tensor)[0] for tensor in op.inputs)
        if name not in computed
    ]
    remaining: set[str] = set()
    while queue:
        name = queue.pop()
        if name in remaining or name not in folded:
            continue
        remaining.add(name)
        op = by_name[name]
        queue += op.control_inputs
        queue += [split_tensor(tensor)[0] for tensor in op.inputs]
    return remaining


def _redirect(op: Op, moved: Mapping[str, str]) -> Op:
    """Return the op with inputs renamed to the constants."""
    if not any(split_tensor(tensor)[0] in moved for tensor in op.inputs):
        return op
    inputs = (split_tensor(tensor) for tensor in op.inputs)
    return replace(op, inputs=tuple(f"{moved.get(name, name)}:{k}" for name, k in inputs))


def _can_fold(op: Op, folded: set[str]) -> bool:
    if op.type not in _FOLDED or not op.inputs or len(op.outputs) != 1:
        return False
    return all(split_tensor(tensor)[0] in folded for tensor in op.inputs)
