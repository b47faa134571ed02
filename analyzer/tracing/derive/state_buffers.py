"""Parameters and optimizer state of a trace without a capture note.

The gradient of a parameter has its size. A buffer that exists before the first step, outlives it and
has this size is a parameter; further ones, created later, are its optimizer slots. In an update, Keras'
optimizers write new values of slots with ``assign`` and ``assign_add``, and of parameters
with ``assign_sub`` (SGD with momentum: ``assign_add``); see ``keras/src/optimizers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.contract.categories import Category
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.ops import split_tensor
from analyzer.model.recording.records import Step
from analyzer.tracing.derive.trace_graph import find_optimizer, is_in_optimizer

_INITIALIZER: Final = "/Initializer/"
"""Part of the name of an op that makes the first value of an optimizer's slot."""
_SUM_SETS_PARAMETER: Final = "sgd"
PARAMETER_ROLE: Final = "size of its gradient"
SLOT_ROLE: Final = "slot: size of its parameter's gradient"
NEW_SLOT_ROLE: Final = "new value of a slot"
NEW_PARAMETER_ROLE: Final = "new value of a parameter"


def find_gradients(structure: GraphIndex) -> dict[tuple[str, int], str]:
    """Return the parameters' gradients: layer and bytes -> tensor; sums count once."""
    found: dict[tuple[str, int], str] = {}
    for tensor in sorted(structure.gradients):
        spec = structure.spec(tensor)
        size_bytes = spec.size_bytes if spec is not None else None
        if size_bytes:
            name = split_tensor(tensor)[0]
            found.setdefault((structure.layers.get(name, "") or name, size_bytes), tensor)
    return found


def find_state(
    table: pd.DataFrame, structure: GraphIndex, steps: Sequence[Step]
) -> dict[int, tuple[Category, str]]:
    """Return category and role of the rows that hold parameters and optimizer state.

    Args:
        table: The allocations, with the ops of copies.
        structure: The graph.
        steps: The steps.
    """
    if not steps:
        return {}
    first = steps[0]
    counts: dict[int, int] = {}
    for _, size_bytes in find_gradients(structure):
        counts[size_bytes] = counts.get(size_bytes, 0) + 1
    born, dies = table["born"].to_numpy(), table["dies"].to_numpy()
    known = table["address"].notna().to_numpy()
    is_held = known & (born < first.first) & (dies > first.first)
    ops, sizes = table["op"].astype(str).tolist(), table["requested_bytes"].tolist()
    seen: dict[int, int] = {}
    found: dict[int, tuple[Category, str]] = {}
    for row in np.flatnonzero(is_held)[np.argsort(born[is_held], kind="stable")].tolist():
        if _INITIALIZER in ops[row] and is_in_optimizer(ops[row]):
            found[row] = Category.OPTIMIZER_STATE, SLOT_ROLE
        elif sizes[row] in counts and dies[row] > first.last:
            seen[sizes[row]] = seen.get(sizes[row], 0) + 1
            is_slot = seen[sizes[row]] > counts[sizes[row]]
            found[row] = (
                (Category.OPTIMIZER_STATE, SLOT_ROLE)
                if is_slot
                else (Category.PARAMETER, PARAMETER_ROLE)
            )
    ends = np.array([step.last for step in steps])
    number = table["step"].fillna(-1).to_numpy(dtype=np.int64)
    outlives = (number >= 0) & (dies > ends[number])
    for row in np.flatnonzero(outlives).tolist():
        root = find_optimizer(ops[row])
        if root and sizes[row] in counts:
            found[row] = _new_value(ops[row], root)
    return found


def _new_value(op: str, root: str) -> tuple[Category, str]:
    """Return category and role of a value that an optimizer's op leaves after the step."""
    name = op.rpartition("/")[2]
    is_sum = name.startswith("AssignAddVariableOp")
    if name.startswith("AssignSubVariableOp") or (is_sum and root.startswith(_SUM_SETS_PARAMETER)):
        return Category.PARAMETER, NEW_PARAMETER_ROLE
    return Category.OPTIMIZER_STATE, NEW_SLOT_ROLE
