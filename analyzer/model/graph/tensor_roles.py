"""Tensors with a special role: buffers of an all-reduce, and copies of the step's inputs.

``MirroredStrategy`` concatenates the gradients of a replica into a few long tensors, sums each over the
cards with NCCL and splits it again (``cross_device_utils.py``, ``CollectiveReplicaLauncher``). A copy of
an input has the same number of elements, each from one element of the input: a cast, a transposition or
a scaling.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.host_copies import COPY
from analyzer.model.graph.ops import op_types, split_tensor

PACKED_ROLE: Final = "gradients packed for the all-reduce"
REDUCED_ROLE: Final = "all-reduced gradients"

COLLECTIVES: Final = frozenset(
    {"CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3", "NcclAllReduce"}
)
_VIEWS: Final = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims"})
_PACKS: Final = frozenset({"Concat", "ConcatV2", "Pack", "AddN"})
_SPLITS: Final = frozenset({"Split", "SplitV", "Unpack"})


def find_all_reduce_roles(structure: GraphIndex) -> dict[str, str]:
    """Return the role of each tensor that is a buffer of an all-reduce."""
    roles: dict[str, str] = {}
    for op in structure.ops.values():
        if op.type not in COLLECTIVES:
            continue
        roles.update(dict.fromkeys(_outputs(structure, op.name), REDUCED_ROLE))
        packed = _follow_views(structure, op.inputs[0]) if op.inputs else ""
        source = structure.ops.get(split_tensor(packed)[0]) if packed else None
        if source is not None and source.type in _PACKS:
            roles[packed] = PACKED_ROLE
        for user in _users(structure, op.name):
            if structure.ops[user].type in _SPLITS:
                roles.update(dict.fromkeys(_outputs(structure, user), REDUCED_ROLE))
    return roles


def _outputs(structure: GraphIndex, name: str) -> list[str]:
    return [f"{name}:{index}" for index in range(len(structure.ops[name].outputs))]


def _follow_views(structure: GraphIndex, tensor: str) -> str:
    """Return the source of a tensor, following views."""
    seen: set[str] = set()
    while tensor not in seen:
        seen.add(tensor)
        op = structure.ops.get(split_tensor(tensor)[0])
        if op is None or op.type not in _VIEWS or not op.inputs:
            break
        tensor = op.inputs[0]
    return tensor


def _users(structure: GraphIndex, name: str) -> list[str]:
    """Return the ops that use an op's outputs, following views."""
    users, queue, seen = [], _outputs(structure, name), set()
    while queue:
        for user in structure.consumers.get(queue.pop(), ()):
            if user in seen or user not in structure.ops:
                continue
            seen.add(user)
            users.append(user)
            if structure.ops[user].type in _VIEWS:
                queue.extend(_outputs(structure, user))
    return users


ITERATOR: Final = "IteratorGetNext"
"""Op type that takes the next batch of a data set."""
INPUT_TYPES: Final = ARGUMENT_TYPES | {ITERATOR, "Placeholder"}
"""Op types whose outputs are inputs of the step."""

MOVES: Final = op_types(
    "Cast Transpose ConjugateTranspose Reverse ReverseV2 DeepCopy Copy CopyHost"
)
"""Op types that copy their first input."""

SCALES: Final = op_types("Add AddV2 Sub Mul Div RealDiv DivNoNan")
"""Op types of two inputs that copy one if the other is a scalar."""


def find_copies_of_inputs(structure: GraphIndex) -> dict[str, str]:
    """Return the copies of the step's inputs: tensor -> op type that made it."""
    queue = deque(
        f"{name}:{index}"
        for name, op in structure.ops.items()
        if op.type in INPUT_TYPES
        for index, spec in enumerate(op.outputs)
        if spec.dtype not in ("resource", "variant", "")
    )
    copies: dict[str, str] = {}
    seen = set(queue)
    while queue:
        tensor = queue.popleft()
        for name in structure.consumers.get(tensor, ()):
            op = structure.ops[name]
            made = f"{name}:0"
            if made in seen or not op.outputs or not _is_copy(op, tensor, structure):
                continue
            seen.add(made)
            queue.append(made)
            if op.type not in ALIAS_OPS and op.type != COPY:
                copies[made] = op.type
    return copies


def _is_copy(op: Op, tensor: str, structure: GraphIndex) -> bool:
    """Say whether the first output of ``op`` contains all of ``tensor``."""
    if op.type in ALIAS_OPS or op.type in MOVES or op.type == COPY:
        return op.inputs[0] == tensor
    if op.type not in SCALES:
        return False
    other = next((one for one in op.inputs if one != tensor), "")
    spec = structure.spec(other)
    return spec is not None and spec.shape == ()
