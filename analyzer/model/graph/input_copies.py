"""Which tensors of a step hold what it was given once more: cast, turned round, scaled.

A copy holds as many elements as the input, and each comes from one of them: what a layer computes of its
input is none. Found from the graph alone, from the step's arguments and what its iterator gives on.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import Structure
from analyzer.model.graph.host_copies import COPY
from analyzer.model.graph.ops import op_types

_GIVEN: Final = ARGUMENT_TYPES | {"IteratorGetNext", "Placeholder"}

MOVES: Final = op_types(
    "Cast Transpose ConjugateTranspose Reverse ReverseV2 DeepCopy Copy CopyHost"
)
"""Ops whose one data input is copied, whatever else they take."""

SCALES: Final = op_types("Add AddV2 Sub Mul Div RealDiv DivNoNan")
"""Ops of two inputs that copy one of them where the other is a single number."""


def input_copies(structure: Structure) -> dict[str, str]:
    """Return copies of the step's inputs: tensor -> op type that made it.

    Args:
        structure: The graph.
    """
    carried = deque(
        f"{name}:{index}"
        for name, op in structure.ops.items()
        if op.type in _GIVEN
        for index, spec in enumerate(op.outputs)
        if spec.dtype not in ("resource", "variant", "")
    )
    copies: dict[str, str] = {}
    seen = set(carried)
    while carried:
        tensor = carried.popleft()
        for name in structure.consumers.get(tensor, ()):
            op = structure.ops[name]
            made = f"{name}:0"
            if made in seen or not op.outputs or not _is_carried(op, tensor, structure):
                continue
            seen.add(made)
            carried.append(made)
            if op.type not in ALIAS_OPS and op.type != COPY:
                copies[made] = op.type
    return copies


def _is_carried(op: Op, tensor: str, structure: Structure) -> bool:
    """Say whether all that ``tensor`` holds is in the first output of ``op`` too."""
    if op.type in ALIAS_OPS or op.type in MOVES or op.type == COPY:
        return op.inputs[0] == tensor
    if op.type not in SCALES:
        return False
    other = next((one for one in op.inputs if one != tensor), "")
    spec = structure.spec(other)
    return spec is not None and spec.shape == ()
