"""Constants that TensorFlow computes before the first step.

After grappler, the function's own runtime folds once more: a node without state whose inputs are all
constants is run at once, and a constant takes its place (``constant_folding.cc``; results up to 10
MiB). Its bytes are then resident, and the node no longer runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from analyzer.graph.ops import Op, split_tensor
from analyzer.kernels.cpu import BINARY, REDUCTIONS, UNARY
from analyzer.kernels.plan import op_types

_MOST_BYTES: Final = 10 << 20
_CONSTANTS: Final = op_types("Const HostConst")
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
    """Return the graph with what can be computed beforehand turned into constants."""
    by_name = {op.name: op for op in ops}
    folded = {op.name for op in ops if op.type in _CONSTANTS}
    computed: dict[str, tuple[str, ...]] = {}
    changed = True
    while changed:
        changed = False
        for op in ops:
            if op.name not in folded and _can_fold(op, folded):
                folded.add(op.name)
                parents = {split_tensor(tensor)[0] for tensor in op.inputs}
                waits = [*op.control_inputs, *(w for p in parents for w in computed.get(p, ()))]
                computed[op.name] = tuple(dict.fromkeys(waits))
                changed = True
    if not computed:
        return list(ops)
    used = {
        split_tensor(tensor)[0] for op in ops if op.name not in folded for tensor in op.inputs
    } | {name for op in ops for name in op.control_inputs}
    result = []
    for op in ops:
        if op.name in folded and op.name not in used:
            continue
        if op.name in computed:
            held = tuple(name for name in computed[op.name] if name in by_name)
            result.append(replace(op, type="Const", inputs=(), control_inputs=held, attrs={}))
        else:
            result.append(op)
    return result


def _can_fold(op: Op, folded: set[str]) -> bool:
    if op.type not in _FOLDED or not op.inputs or len(op.outputs) != 1:
        return False
    if (op.outputs[0].size_bytes or 0) > _MOST_BYTES:
        return False
    return all(split_tensor(tensor)[0] in folded for tensor in op.inputs)
