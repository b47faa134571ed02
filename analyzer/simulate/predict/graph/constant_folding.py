"""Constants that TensorFlow computes before the first step.

After grappler, the function runtime folds constants again: a constant replaces each output up to
10 MiB of a stateless node whose inputs are all constants (``constant_folding.cc``). Its bytes are then
resident. A chain that ends in more runs in every step from its first node on. (Without folding, the
resident bytes of an autoencoder are 5.8 % too low.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from analyzer.model.contract.graph_note import Op, op_types, split_tensor
from analyzer.simulate.kernels.cpu.cpu_kernels import KNOWN_TYPES

_MOST_BYTES: Final = 10 << 20  # bytes of the largest folded result (``kMaxConstantSize``)
_CONSTANTS: Final = op_types("Const HostConst")
_SUFFIX: Final = "/__cf__"
_STATEFUL: Final = tuple(
    op_types(
        """
        Assert Assign CheckNumerics Collective Debug Destroy EagerPyFunc Empty Iterator Lookup
        Multinomial Print PyFunc Random ReadVariable Resource Rng Stateful StatelessRandomGetAlg
        Temporary Truncated Var _Parallel
        """
    )
)
"""Beginnings of op types that the registry of TensorFlow 2.21 calls stateful (``is_stateful``)."""
_FOLDED: Final = {kind for kind in KNOWN_TYPES if not kind.startswith(_STATEFUL)} - op_types(
    """
    Switch RefSwitch _SwitchN Merge RefMerge Enter RefEnter Exit RefExit NextIteration RefNextIteration
    _Arg _DeviceArg _Retval _DeviceRetval _Send _HostSend _Recv _HostRecv
    """
) | op_types("EmptyTensorList")
"""Stateless op types with a CPU kernel, without control flow (``IsConstantFoldable``)."""
_LISTS: Final = op_types("EmptyTensorList TensorListReserve")


def fold(ops: Sequence[Op]) -> list[Op]:
    """Return the graph with constants for outputs that can be computed beforehand.

    A constant replaces an output for its readers. The node disappears unless another node waits for
    it: then it still runs, and nothing reads its result (``ReplaceTensorWithConstant`` moves data
    edges only; ``RemoveDeadNodes``). Not modelled: constants of equal value become one
    (``OptimizeCSE``).
    """
    by_name = {op.name: op for op in ops}
    computed = _find_foldable(ops, by_name)
    if not computed:
        return list(ops)
    folded = {op.name for op in ops if op.type in _CONSTANTS} | computed.keys()
    running = [op for op in ops if op.name not in folded]
    needed = [name for op in running for name in op.control_inputs]
    read: dict[str, set[int]] = {}
    for name, output in {split_tensor(tensor) for op in running for tensor in op.inputs}:
        outputs = by_name[name].outputs if name in computed else ()
        if output < len(outputs) and (outputs[output].size_bytes or 0) <= _MOST_BYTES:
            read.setdefault(name, set()).add(output)
        else:
            needed.append(name)
    needed += [name for constant in read for name in computed[constant]]
    remaining = _find_remaining(by_name, folded, needed)
    moved: dict[tuple[str, int], str] = {}
    result = []
    for op in ops:
        for output in sorted(read.get(op.name, ())):
            is_gone = len(op.outputs) == 1 and op.name not in remaining
            name = op.name if is_gone else f"{op.name}{_SUFFIX}{output or ''}"
            moved[op.name, output] = name
            control = tuple(name for name in computed[op.name] if name in by_name)
            constant = Op(name, "Const", control_inputs=control, outputs=(op.outputs[output],))
            result.append(replace(constant, device=op.device, source=op.source))
        if op.name not in folded or op.name in remaining:
            result.append(op)
    return [_redirect(op, moved) if op.name not in folded else op for op in result]


def _find_foldable(ops: Sequence[Op], by_name: Mapping[str, Op]) -> dict[str, tuple[str, ...]]:
    """Return the foldable nodes, and what the constants of each wait for."""
    folded = {op.name for op in ops if op.type in _CONSTANTS}
    candidates = [op for op in ops if op.type in _FOLDED and op.inputs and _has_plain_outputs(op)]
    computed: dict[str, tuple[str, ...]] = {}
    count = -1
    while count != len(computed):
        count = len(computed)
        for op in candidates:
            parents = _parents_of(op)
            if op.name not in folded and parents <= folded:
                folded.add(op.name)
                own = (computed.get(p, by_name[p].control_inputs) for p in parents)
                computed[op.name] = tuple(dict.fromkeys(chain(op.control_inputs, *own)))
    return computed


def _has_plain_outputs(op: Op) -> bool:
    """Return whether all outputs are tensors of numbers; empty lists are constants also."""
    kinds = {spec.dtype for spec in op.outputs}
    return bool(kinds) and (op.type in _LISTS or not kinds & {"variant", "resource", "string"})


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


def _redirect(op: Op, moved: Mapping[tuple[str, int], str]) -> Op:
    """Return the op with inputs renamed to the constants."""
    inputs = [split_tensor(tensor) for tensor in op.inputs]
    if not any(tensor in moved for tensor in inputs):
        return op
    renamed = ((moved[t], 0) if t in moved else t for t in inputs)
    return replace(op, inputs=tuple(f"{name}:{k}" for name, k in renamed))
