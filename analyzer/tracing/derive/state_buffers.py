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
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import split_tensor
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
_PARAMETER: Final = (Category.PARAMETER, "size of its gradient")
_SLOT: Final = (Category.OPTIMIZER_STATE, "slot: size of its parameter's gradient")
_NEW_PARAMETER: Final = (Category.PARAMETER, "new value of a parameter")
_NEW_AVERAGE: Final = (Category.PARAMETER, "new value of a moving average")
_NORMS: Final = frozenset({"FusedBatchNormV2", "FusedBatchNormV3", "_FusedBatchNormEx"})
"""Op types whose outputs 1 and 2 in training are the new moving averages of mean and variance, which
``AssignVariableOp`` then holds (``exponential_avg_factor`` in ``nn_ops.cc``)."""
_NEW_SLOT: Final = (Category.OPTIMIZER_STATE, "new value of a slot")

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
    parts = _find_parts(structure)
    for chosen in (parts, parts[parts["category"] == Category.PARAMETER.value]):
        left = int(whole["allocated_bytes"] - chosen["allocated_bytes"].sum())
        if len(chosen) and left >= 0:
            break
    else:
        return table
    more = pd.DataFrame([whole.to_dict()] * len(chosen), chosen.index).assign(**chosen)
    table = table.assign(
        requested_bytes=table["requested_bytes"].mask(sums, left),
        allocated_bytes=table["allocated_bytes"].mask(sums, left),
    )
    rest = table if left else table[~sums]
    plain = rest.astype({name: object for name in rest if str(rest[name].dtype) == "category"})
    return conform(pd.concat([plain, more], ignore_index=True), ALLOCATIONS)


def _find_parts(structure: GraphIndex) -> pd.DataFrame:
    """Return the variables that the updates imply, with columns of ``ALLOCATIONS``."""
    types = {op.name: op.type for op in structure.ops.values() if is_apply(op.type)}
    common = set(types.values())
    columns = "category role variable layer dtype shape requested_bytes allocated_bytes"
    parts = []
    for tensor in find_gradients(structure).values():
        spec = structure.spec(tensor)
        readers = {types[name] for name in structure.consumers.get(tensor, ()) if name in types}
        applied = readers or common
        if spec is None or len(applied) != 1:
            continue
        layer = structure.layers.get(split_tensor(tensor)[0], "")
        size = spec.size_bytes or 0
        name = f"{layer or tensor} {spec.shape_text}"
        facts = (layer, spec.dtype, spec.shape_text, size, round_up(size))
        parts.append((_PARAMETER[0].value, _PARAMETER[1], name, *facts))
        for number in range(1, 1 + _SLOTS.get(_APPLY.sub("", next(iter(applied))), 0)):
            parts.append((_SLOT[0].value, _SLOT[1], f"{name} slot {number}", *facts))
    return pd.DataFrame(parts, columns=columns.split())


def find_gradients(structure: GraphIndex) -> dict[tuple[str, int, int], str]:
    """Return one gradient for each parameter, by op, output and bytes.

    The op is the one that applies the gradient, else the layer: terms of a sum count once.
    """
    found: dict[tuple[str, int, int], str] = {}
    for tensor in sorted(structure.gradients):
        spec = structure.spec(tensor)
        if spec is not None and spec.size_bytes:
            name, index = split_tensor(tensor)
            users = structure.consumers.get(tensor, ())
            applied = next((user for user in users if is_apply(structure.ops[user].type)), "")
            owner = applied or structure.layers.get(name, "") or name
            found.setdefault((owner, 0 if applied else index, spec.size_bytes), tensor)
    return found


def find_state(
    table: pd.DataFrame, structure: GraphIndex, steps: Sequence[Step]
) -> dict[int, tuple[Category, str]]:
    """Return category and role of the rows that hold parameters and optimizer state."""
    if not steps:
        return {}
    first = steps[0]
    counts = Counter(size for _, _, size in find_gradients(structure) if size >= _LEAST_BYTES)
    born, dies = table["born"].to_numpy(), table["dies"].to_numpy()
    is_held = (born >= 0) & (born < first.first) & (dies > first.first)
    ops, sizes = table["op"].astype(str).tolist(), table["requested_bytes"].tolist()
    tensors = table["tensor"].astype(str).tolist()
    seen: Counter[int] = Counter()
    found: dict[int, tuple[Category, str]] = {}
    for row in np.flatnonzero(is_held)[np.argsort(born[is_held], kind="stable")].tolist():
        if _INITIALIZER in ops[row] and is_in_optimizer(ops[row]):
            found[row] = _SLOT
        elif sizes[row] in counts and dies[row] > first.last:
            seen[sizes[row]] += 1
            found[row] = _SLOT if seen[sizes[row]] > counts[sizes[row]] else _PARAMETER
    ends = np.array([step.last for step in steps])
    number = table["step"].fillna(-1).to_numpy(dtype=np.int64)
    outlives = (number >= 0) & (dies > ends[number])
    for row in np.flatnonzero(outlives).tolist():
        op = structure.ops.get(ops[row])
        if op is not None and op.type in _NORMS and tensors[row][-2:] in (":1", ":2"):
            found[row] = _NEW_AVERAGE
        root = find_optimizer(ops[row])
        # Keras 2 assigns new values of both, in a scope inside the optimizer's.
        name = ops[row].rpartition("/")[2]
        # An op that adds to a variable requests memory only for a copy of it.
        is_value = sizes[row] in counts or name.startswith(("AssignAddV", "AssignSubV"))
        if root and is_value and ops[row].lower().count(f"{root}/") == 1:
            sets_parameter = name.startswith("AssignSubVariableOp") or (
                name.startswith("AssignAddVariableOp") and root.startswith(_SUM_SETS_PARAMETER)
            )
            found[row] = _NEW_PARAMETER if sets_parameter else _NEW_SLOT
    return found
