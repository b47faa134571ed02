"""Constants that TensorFlow computes before the first step.

After grappler, the function's own runtime folds once more: a node without state whose inputs are all
constants is run at once, and a constant takes its place (``constant_folding.cc``). Its bytes are then
resident, and the node no longer runs. Only what something else than a constant reads is replaced, and
only up to 10 MiB: a chain that ends in more runs in each step from its first node on, small results in
between included.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.ops import PLACE, op_types, split_tensor
from analyzer.simulate.kernels.cpu.cpu_kernels import BINARY, REDUCTIONS, UNARY

_MOST_BYTES: Final = 10 << 20
"""Bytes of the largest result that is kept (``kMaxConstantSize``)."""
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
    """Return the graph with what can be computed beforehand turned into constants.

    A constant takes a node's place for those that read it. The node itself goes, unless another waits
    for it: then it runs all the same, with what it needs, and no one reads the result
    (``ReplaceTensorWithConstant`` moves the data edges only; ``RemoveDeadNodes``). Constants of equal
    value become one (``OptimizeCSE``).
    """
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
    wanted = {
        split_tensor(tensor)[0] for op in ops if op.name not in folded for tensor in op.inputs
    } & computed.keys()
    large = {name for name in wanted if (by_name[name].outputs[0].size_bytes or 0) > _MOST_BYTES}
    read = wanted - large
    kept = _kept(by_name, folded, computed, read, large)
    same = _equal(by_name, computed, [op.name for op in ops if op.name in read])
    moved = {name: f"{first}{_SUFFIX}" if first in kept else first for name, first in same.items()}
    result = []
    for op in ops:
        if same.get(op.name) == op.name:
            held = tuple(name for name in computed[op.name] if name in by_name)
            result.append(
                Op(
                    moved[op.name],
                    "Const",
                    control_inputs=held,
                    outputs=op.outputs,
                    device=op.device,
                    source=op.source,
                )
            )
        if op.name not in folded:
            result.append(_redirected(op, moved))
        elif op.name in kept:
            result.append(op)
    return result


def _kept(
    by_name: Mapping[str, Op],
    folded: Collection[str],
    computed: Mapping[str, Sequence[str]],
    read: Collection[str],
    large: Collection[str],
) -> set[str]:
    """Return the nodes, of those that could be constants, that stay as they are.

    Args:
        by_name: The graph.
        folded: Constants, and what can be computed from them.
        computed: Of these what is no constant yet, and what its constant waits for.
        read: Those whose constant is read by what is not constant.
        large: Those that it reads as they are, as their result is too large for a constant.
    """
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
    kept: set[str] = set()
    while queue:
        name = queue.pop()
        if name in kept or name not in folded:
            continue
        kept.add(name)
        op = by_name[name]
        queue += op.control_inputs
        queue += [split_tensor(tensor)[0] for tensor in op.inputs]
    return kept


def _equal(
    by_name: Mapping[str, Op], computed: Mapping[str, Sequence[str]], names: Sequence[str]
) -> dict[str, str]:
    """Return, for each of these computed nodes, the first of them that is computed alike."""
    keys: dict[str, Hashable] = {}

    def key(name: str) -> Hashable:
        if name in keys:
            return keys[name]
        op = by_name[name]
        attrs = {k: v for k, v in op.attrs.items() if k != PLACE}
        value = attrs.get("value")
        if op.type in _CONSTANTS and not (isinstance(value, dict) and "values" in value):
            keys[name] = name  # too large for its values to be known
        else:
            inputs = tuple((key(n), k) for n, k in (split_tensor(t) for t in op.inputs))
            keys[name] = (op.type, repr(sorted(attrs.items())), inputs)
        return keys[name]

    first: dict[Hashable, str] = {}
    return {name: first.setdefault((key(name), computed[name]), name) for name in names}


def _redirected(op: Op, moved: Mapping[str, str]) -> Op:
    """Return the op reading constants under the names that they have."""
    if not any(split_tensor(tensor)[0] in moved for tensor in op.inputs):
        return op
    found = (split_tensor(tensor) for tensor in op.inputs)
    return replace(op, inputs=tuple(f"{moved.get(name, name)}:{k}" for name, k in found))


def _can_fold(op: Op, folded: set[str]) -> bool:
    if op.type not in _FOLDED or not op.inputs or len(op.outputs) != 1:
        return False
    return all(split_tensor(tensor)[0] in folded for tensor in op.inputs)
