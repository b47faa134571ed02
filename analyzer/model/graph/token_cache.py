"""The cache of keys and values of a step that generates tokens (the KV cache).

A loop carries the cache. Each token writes one place of it (``ops.slice_update`` in keras-hub's
``CachedMultiHeadAttention``), and TensorFlow makes a new tensor for that: the parts of a layer, their
updated copies, and the sum of all layers count as cache.
"""

from typing import Final

from analyzer.model.contract.graph_note import Op, op_types, split_tensor
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import GraphIndex, is_float
from analyzer.model.graph.reachability import reach

CACHE_ROLE: Final = "keys and values of earlier tokens"
_UPDATES: Final = op_types("TensorScatterUpdate XlaDynamicUpdateSlice")
_PARTS: Final = ALIAS_OPS | op_types("Concat ConcatV2 Pack Slice StridedSlice Unpack")
"""Types of ops whose outputs are parts of the cache or consist of them."""
_LOOPS: Final = op_types("While StatelessWhile")
_CARRIES: Final = op_types("NextIteration RefNextIteration") | _LOOPS


def find_cache(structure: GraphIndex) -> frozenset[str]:
    """Return the tensors of the cache; empty if no loop carries a tensor that an op updates in part."""
    found: set[str] = set()
    for op in structure.ops.values():
        seed = f"{op.name}:0"
        if op.type in _UPDATES and seed not in found and _is_value(structure, seed):
            related = _find_related(structure, seed)
            makers = {split_tensor(one)[0] for one in related}
            found |= (
                related
                if any(_is_carried(structure, maker) for maker in makers)
                else set()
            )

    return frozenset(found)


def _is_carried(structure: GraphIndex, name: str) -> bool:
    """Say whether an op passes a value to the next iteration, or is an argument of a loop's body."""
    kind, loop = structure.ops[name].type, structure.ops.get(name.rpartition("/")[0])
    return kind in _CARRIES or (
        kind == "Placeholder" and loop is not None and loop.type in _LOOPS
    )


def _find_related(structure: GraphIndex, seed: str) -> set[str]:
    """Return the tensors that hold the values of ``seed``, at any place or time."""

    def find_near(tensor: str) -> list[str]:
        name, index = split_tensor(tensor)
        near = _pass_on(structure.ops[name], index)

        for user in structure.consumers.get(tensor, ()):
            op = structure.ops[user]
            near += [
                f"{user}:{output}"
                for output in range(len(op.outputs))
                if tensor in _pass_on(op, output)
            ]

        return [one for one in near if _is_value(structure, one)]

    return reach([seed], find_near)


def _pass_on(op: Op, output: int) -> list[str]:
    """Return the inputs whose values an output holds."""
    if op.type in _LOOPS:
        return list(op.inputs[output : output + 1])
    if op.type in _UPDATES:
        return list(op.inputs[:1])
    return list(op.inputs) if op.type in _PARTS else []


def _is_value(structure: GraphIndex, tensor: str) -> bool:
    spec = structure.spec(tensor)
    return spec is not None and is_float(spec.dtype) and len(spec.shape or ()) > 1
