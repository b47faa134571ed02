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
    computed = _find_foldable(ops)
    if not computed:
        return list(ops)
    by_name = {op.name: op for op in ops}
    folded = {op.name for op in ops if op.type in _CONSTANTS or op.name in computed}
    running = [op for op in ops if op.name not in folded]
    feeds = {parent for op in running for parent in _parents_of(op)}
    wanted = feeds & computed.keys()
    large = {name for name in wanted if (by_name[name].outputs[0].size_bytes or 0) > _MOST_BYTES}
    read = wanted - large
    waits = [name for op in running for name in op.control_inputs]
    waits += [name for constant in read for name in computed[constant]]
    remaining = _find_remaining(by_name, folded, [*large, *waits, *(feeds - computed.keys())])
    moved = {name: f"{name}{_SUFFIX}" if name in remaining else name for name in read}
    result = []
    for op in ops:
        if op.name in read:
            control = tuple(name for name in computed[op.name] if name in by_name)
            constant = Op(moved[op.name], "Const", control_inputs=control, outputs=op.outputs)
            result.append(replace(constant, device=op.device, source=op.source))
        if op.name not in folded:
            result.append(_redirect(op, moved))
        elif op.name in remaining:
            result.append(op)
    return result


def _find_foldable(ops: Sequence[Op]) -> dict[str, tuple[str, ...]]:
    """Return the foldable nodes, and what the constant of each waits for."""
    folded = {op.name for op in ops if op.type in _CONSTANTS}
    candidates = [op for op in ops if op.type in _FOLDED and op.inputs and len(op.outputs) == 1]
    computed: dict[str, tuple[str, ...]] = {}
    count = -1
    while count != len(computed):
        count = len(computed)
        for op in candidates:
            parents = _parents_of(op)
            if op.name not in folded and parents <= folded:
                folded.add(op.name)
                waits = [*op.control_inputs, *(w for p in parents for w in computed.get(p, ()))]
                computed[op.name] = tuple(dict.fromkeys(waits))
    return computed


def _parents_of(op: Op) -> set[str]:
    return {split_tensor(tensor)[0] for tensor in op.inputs}


def _find_remaining(
    by_name: Mapping[str, Op], folded: Collection[str], queue: list[str]
) -> set[str]:
    """Return the foldable nodes that the nodes in ``queue`` need."""
    remaining: set[str] = set()
    while queue:
        name = queue.pop()
        if name not in remaining and name in folded:
            remaining.add(name)
            queue += [*by_name[name].control_inputs, *_parents_of(by_name[name])]
    return remaining


def _redirect(op: Op, moved: Mapping[str, str]) -> Op:
    """Return the op with inputs renamed to the constants."""
    inputs = [split_tensor(tensor) for tensor in op.inputs]
    if not any(name in moved for name, _ in inputs):
        return op
    return replace(op, inputs=tuple(f"{moved.get(name, name)}:{k}" for name, k in inputs))
