"""Parameters and optimizer state of a trace without a capture note.

The gradient of a parameter has its size. A buffer that exists before the first step, outlives it and
has this size is a parameter; further ones, created later, are its optimizer slots. In an update, Keras'
optimizers write new values of slots with ``assign`` and ``assign_add``, and of parameters
with ``assign_sub`` (SGD with momentum: ``assign_add``); see ``keras/src/optimizers``.

Memory from before the trace is divided the same way: a parameter for each gradient, and its slots by the
op that applies it. The remainder stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import TensorSpec, split_tensor
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, conform
from analyzer.model.units import round_up
from analyzer.tracing.derive.op_names import find_optimizer, is_apply, is_in_optimizer

_APPLY: Final = re.compile("Resource(Sparse)?Apply")
_INITIALIZER: Final = "/Initializer/"
"""Part of the name of an op that makes the first value of an optimizer's slot."""
_LEAST_BYTES: Final = 1024  # size below which other buffers are often as large as a gradient
_SUM_SETS_PARAMETER: Final = "sgd"
PARAMETER_ROLE: Final = "size of its gradient"
SLOT_ROLE: Final = "slot: size of its parameter's gradient"
NEW_SLOT_ROLE: Final = "new value of a slot"
NEW_PARAMETER_ROLE: Final = "new value of a parameter"


_SLOTS: Final = {
    **dict.fromkeys(("GradientDescent", "ProximalGradientDescent"), 0),
    **dict.fromkeys(("Momentum", "KerasMomentum", "Adagrad", "AdagradV2"), 1),
    **dict.fromkeys(("ProximalAdagrad", "AddSign", "PowerSign"), 1),
    **dict.fromkeys(("Adam", "AdaMax", "Adadelta", "RMSProp", "Ftrl", "FtrlV2"), 2),
    **dict.fromkeys(("AdamWithAmsgrad", "CenteredRMSProp"), 3),
}
"""Optimizer in the name of an op ``ResourceApply...`` -> its slots with the parameter's shape
(``training_ops.cc``)."""


def divide_earlier_memory(
    table: pd.DataFrame, structure: GraphIndex | None, allocator: str
) -> pd.DataFrame:
    """Return the table with the memory from before the trace divided into parameters and slots.

    The parts are added as a whole or not at all: without the slots if those exceed the sum.
    """
    sums = (table["allocator"] == allocator) & table["address"].isna() & (table["born"] < 0)
    if structure is None or sums.sum() != 1:
        return table
    whole = table[sums].iloc[0]
    parts = _parts(structure)
    for chosen in (parts, [part for part in parts if part[0] is Category.PARAMETER]):
        left = int(whole["allocated_bytes"]) - sum(
            round_up(spec.size_bytes or 0) for *_, spec in chosen
        )
        if chosen and left >= 0:
            break
    else:
        return table
    more = pd.DataFrame([whole.to_dict()] * len(chosen)).assign(
        category=[category.value for category, *_ in chosen],
        variable=[name for _, name, _, _ in chosen],
        layer=[layer for _, _, layer, _ in chosen],
        role=[PARAMETER_ROLE if one[0] is Category.PARAMETER else SLOT_ROLE for one in chosen],
        dtype=[spec.dtype for *_, spec in chosen],
        shape=[spec.shape_text for *_, spec in chosen],
        requested_bytes=[spec.size_bytes for *_, spec in chosen],
        allocated_bytes=[round_up(spec.size_bytes or 0) for *_, spec in chosen],
    )
    rest = (
        table[~sums]
        if not left
        else table.assign(
            requested_bytes=table["requested_bytes"].mask(sums, left),
            allocated_bytes=table["allocated_bytes"].mask(sums, left),
        )
    )
    plain = rest.astype({name: object for name in rest if str(rest[name].dtype) == "category"})
    return conform(pd.concat([plain, more], ignore_index=True), ALLOCATIONS)


def _parts(structure: GraphIndex) -> list[tuple[Category, str, str, TensorSpec]]:
    """Return category, name, layer and size of the variables that the updates imply."""
    types = {op.name: op.type for op in structure.ops.values() if is_apply(op.type)}
    common = set(types.values())
    parts = []
    for tensor in find_gradients(structure).values():
        spec = structure.spec(tensor)
        layer = structure.layers.get(split_tensor(tensor)[0], "")
        readers = {types[name] for name in structure.consumers.get(tensor, ()) if name in types}
        applied = readers or common
        if spec is None or len(applied) != 1:
            continue
        name = f"{layer or tensor} {spec.shape_text}"
        parts.append((Category.PARAMETER, name, layer, spec))
        slots = _SLOTS.get(_APPLY.sub("", next(iter(applied))), 0)
        for number in range(1, slots + 1):
            parts.append((Category.OPTIMIZER_STATE, f"{name} slot {number}", layer, spec))
    return parts


def find_gradients(structure: GraphIndex) -> dict[tuple[str, int, int], str]:
    """Return one gradient for each parameter, by op, output and bytes.

    The op is the one that applies the gradient, else the layer: terms of a sum count once.
    """
    found: dict[tuple[str, int, int], str] = {}
    for tensor in sorted(structure.gradients):
        spec = structure.spec(tensor)
        size_bytes = spec.size_bytes if spec is not None else None
        if size_bytes:
            name, index = split_tensor(tensor)
            users = structure.consumers.get(tensor, ())
            applied = next((user for user in users if is_apply(structure.ops[user].type)), "")
            owner = applied or structure.layers.get(name, "") or name
            found.setdefault((owner, 0 if applied else index, size_bytes), tensor)
    return found


def find_state(
    table: pd.DataFrame, structure: GraphIndex, steps: Sequence[Step]
) -> dict[int, tuple[Category, str]]:
    """Return category and role of the rows that hold parameters and optimizer state.

    Args:
        table: The allocations, with the ops of copies.
    """
    if not steps:
        return {}
    first = steps[0]
    counts: dict[int, int] = {}
    for _, _, size_bytes in find_gradients(structure):
        if size_bytes >= _LEAST_BYTES:
            counts[size_bytes] = counts.get(size_bytes, 0) + 1
    born, dies = table["born"].to_numpy(), table["dies"].to_numpy()
    is_held = (born >= 0) & (born < first.first) & (dies > first.first)
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
        # Keras 2 assigns new values of both, in a scope inside the optimizer's.
        if root and sizes[row] in counts and ops[row].lower().count(f"{root}/") == 1:
            found[row] = _new_value(ops[row], root)
    return found


def _new_value(op: str, root: str) -> tuple[Category, str]:
    """Return category and role of a value that an optimizer's op leaves after the step."""
    name = op.rpartition("/")[2]
    is_sum = name.startswith("AssignAddVariableOp")
    if name.startswith("AssignSubVariableOp") or (is_sum and root.startswith(_SUM_SETS_PARAMETER)):
        return Category.PARAMETER, NEW_PARAMETER_ROLE
    return Category.OPTIMIZER_STATE, NEW_SLOT_ROLE
