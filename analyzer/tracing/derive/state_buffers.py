"""Parameters and optimizer state of a trace without a capture note.

The gradient of a parameter has its size. A buffer that exists before the first step, outlives it and
has this size is a parameter; further ones, created later, are its optimizer slots. In an update, Keras'
optimizers write new values of slots with ``assign`` and ``assign_add``, and of parameters
with ``assign_sub`` (SGD with momentum: ``assign_add``); see ``keras/src/optimizers``. Memory from before
the trace is divided the same way. A frozen layer has no gradients: its variables have the sizes of the
weights that its forward ops read.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import CONVOLUTIONS, split_tensor
from analyzer.model.graph.graph_index import HALVES, GraphIndex, Label, Phase
from analyzer.model.recording.records import ALLOCATIONS, Step, conform
from analyzer.model.units import round_up
from analyzer.tracing.derive.op_names import find_optimizer, is_apply

_APPLY = re.compile("Resource(Sparse)?Apply")
_TEXTS = ("category", "role", "variable", "layer", "dtype", "shape")
PART_COLUMNS = [*_TEXTS, "requested_bytes", "allocated_bytes"]
_SCATTERS = re.compile("Scatter|Sparse")

# Part of the name of an op that makes the first value of an optimizer's slot.
_INITIALIZER = "/Initializer/"

# End of the name of the op with which TensorFlow 1 writes it into the slot.
_ASSIGN = "/Assign"

# Size below which other buffers are often as large as a gradient.
_LEAST_BYTES = 1024

# Optimizers that add to a parameter.
_SUM_SETS_PARAMETER = ("sgd", "ada_delta", "adadelta")
_PARAMETER = (Category.PARAMETER, "size of its gradient")
_SLOT = (Category.OPTIMIZER_STATE, "slot: size of its parameter's gradient")
_FROZEN = (Category.PARAMETER, "size of a layer's weights, without a gradient")
_NEW_PARAMETER = (Category.PARAMETER, "new value of a parameter")
_NEW_SLOT = (Category.OPTIMIZER_STATE, "new value of a slot")

_PRODUCTS = frozenset({"MatMul", "_FusedMatMul", "BatchMatMulV2"})
_NORMS = frozenset({"FusedBatchNormV3", "_FusedBatchNormEx", "BiasAdd"})
_WIDEST_KERNEL = 11  # width and height of a convolution's kernel

LabelByRow = dict[int, Label]

# Optimizer in ``ResourceApply...`` -> its slots with the parameter's shape (``training_ops.cc``).
_SLOTS = {
    **dict.fromkeys(("Momentum", "KerasMomentum", "Adagrad", "AdagradV2"), 1),
    **dict.fromkeys(("ProximalAdagrad", "AddSign", "PowerSign"), 1),
    **dict.fromkeys(("Adam", "AdaMax", "Adadelta", "RMSProp", "Ftrl", "FtrlV2"), 2),
    **dict.fromkeys(("AdamWithAmsgrad", "CenteredRMSProp"), 3),
}

# Scope of Keras' optimizer without ``_`` and number -> the slots that ``assign_add`` changes in place
# (``update_step`` in ``keras/src/optimizers``). Others, such as momentum, get new buffers in each
# step.
_IN_PLACE = {
    **dict.fromkeys(("adam", "adamw", "nadam", "lamb"), 2),
    **dict.fromkeys(("adagrad", "adamax", "ftrl"), 1),
}


def take_parts(
    table: pd.DataFrame,
    parts: pd.DataFrame,
    allocator: str,
) -> pd.DataFrame:
    """Return the table with ``parts`` taken from the sum of the memory from before the trace.

    They are taken whole or not at all: without the slots if those exceed the sum (``PART_COLUMNS``).
    """
    is_earlier = table["address"].isna() & (table["born"] < 0)
    sums = (table["allocator"] == allocator) & is_earlier
    if sums.sum() != 1:
        return table

    whole = table[sums].iloc[0]
    parameters = parts[parts["category"] == Category.PARAMETER]

    for chosen in (parts, parameters):
        left = int(whole["allocated_bytes"] - chosen["allocated_bytes"].sum())
        if len(chosen) and left >= 0:
            break
    else:
        return table

    copies = [whole.to_dict()] * len(chosen)
    more = pd.DataFrame(copies, chosen.index).assign(**chosen)

    table = table.assign(
        requested_bytes=table["requested_bytes"].mask(sums, left),
        allocated_bytes=table["allocated_bytes"].mask(sums, left),
    )

    rest = table if left else table[~sums]
    texts = [name for name in rest if str(rest[name].dtype) == "category"]
    plain = rest.astype(dict.fromkeys(texts, object))

    return conform(pd.concat([plain, more], ignore_index=True), ALLOCATIONS)


def find_parts(table: pd.DataFrame, structure: GraphIndex) -> pd.DataFrame:
    """Return the variables that the updates imply and no other row holds, with columns of ``table``.

    A variable that an op replaces by a new buffer has rows of its own.
    """
    new = table[table["role"].isin([_NEW_PARAMETER[1], _NEW_SLOT[1]])]
    held = Counter(zip(new["role"], new["requested_bytes"], strict=True))
    slots = _count_slots(structure)
    parts = []

    for name, size, *facts in _find_updated(new, structure):
        kinds = [(_PARAMETER, _NEW_PARAMETER, name)]

        for number in range(1, 1 + slots):
            kinds.append((_SLOT, _NEW_SLOT, f"{name} slot {number}"))

        for (category, role), (_, new_role), variable in kinds:
            if held[new_role, size] > 0:
                held[new_role, size] -= 1
            else:
                sizes = size, round_up(size)
                parts.append((category.value, role, variable, *facts, *sizes))

    return pd.DataFrame(parts, columns=PART_COLUMNS)


def _find_updated(
    new: pd.DataFrame,
    structure: GraphIndex,
) -> list[tuple[str, int, str, str, str]]:
    """Return name, bytes, layer, dtype and shape of the parameters that the steps update.

    A parameter has the size of its gradient. If an optimizer writes ``new`` values of another size, a
    parameter has this size, such as an embedding, whose gradient has only some of its rows.
    """
    found = []

    for tensor in find_gradients(structure).values():
        spec = structure.spec(tensor)
        if spec and spec.size_bytes:
            layer = structure.layers.get(split_tensor(tensor)[0], "")
            name = f"{layer or tensor} {spec.shape_text}"
            found.append((name, spec.size_bytes, layer, spec.dtype, spec.shape_text))

    others = new[new["requested_bytes"] >= _LEAST_BYTES]
    sizes = [size for _, size, *_ in found]
    others = others[~others["requested_bytes"].isin(sizes)]

    for row in others.drop_duplicates("requested_bytes").to_dict("records"):
        name = f"variable {row['shape']}"
        size = int(row["requested_bytes"])
        found.append((name, size, "", row["dtype"], row["shape"]))

    return found


def _count_slots(structure: GraphIndex) -> int:
    """Return the slots of a parameter that an update leaves in place; 0 if unknown.

    They follow from the type of its ops, without these from the optimizer's scope.
    """
    types = set()
    scopes = set()

    for name, op in structure.ops.items():
        scopes.add(re.sub(r"_|\d", "", find_optimizer(name)))

        if is_apply(op.type):
            types.add(_APPLY.sub("", op.type))

    names, slots = (types, _SLOTS) if types else (scopes - {""}, _IN_PLACE)

    return slots.get(names.pop(), 0) if len(names) == 1 else 0


def find_gradients(structure: GraphIndex) -> dict[tuple[str, int, int], str]:
    """Return one gradient for each parameter, by op, output and bytes.

    The op applies the gradient; else the layer counts: terms of a sum count once, scattered rows not.
    With mixed precision the tape casts a gradient to the type of its variable: the wider one counts.
    """
    found: dict[tuple[str, int, int], str] = {}
    wide = set()

    for tensor in structure.gradients:
        spec = structure.spec(tensor)
        if spec and spec.dtype == "float32":
            wide.add((structure.layers.get(split_tensor(tensor)[0]), spec.shape))

    for tensor in sorted(structure.gradients):
        spec = structure.spec(tensor)
        if spec is None or not spec.size_bytes:
            continue

        name, index = split_tensor(tensor)
        layer = structure.layers.get(name)

        if spec.dtype in HALVES and (layer, spec.shape) in wide:
            continue

        users = structure.consumers.get(tensor, ())
        if any(_SCATTERS.search(structure.ops[user].type) for user in users):
            continue

        appliers = [user for user in users if is_apply(structure.ops[user].type)]
        key = (layer or name, index, spec.size_bytes)

        if appliers:
            key = (appliers[0], 0, spec.size_bytes)

        found.setdefault(key, tensor)

    return found


def find_state(
    table: pd.DataFrame,
    structure: GraphIndex,
    steps: Sequence[Step],
) -> LabelByRow:
    """Return category and role of the rows that hold parameters and optimizer state."""
    if not steps:
        return {}

    new = _find_new_values(table, steps)
    sizes = set(table["requested_bytes"].iloc[list(new)].tolist())
    held = _find_held(table, structure, steps[0], sizes)

    return _find_frozen(table, structure, steps) | held | new


def _find_frozen(
    table: pd.DataFrame,
    structure: GraphIndex,
    steps: Sequence[Step],
) -> LabelByRow:
    """Return the buffers before all steps and after them that have a size of a layer's weights."""
    sizes = _sizes_of_weights(structure)
    is_before = (table["born"] >= 0) & (table["born"] < steps[0].first)

    is_after = table["dies"] > steps[-1].last
    rows = np.flatnonzero(is_before & is_after & table["requested_bytes"].isin(sizes))

    return dict.fromkeys(rows.tolist(), _FROZEN)


def _sizes_of_weights(structure: GraphIndex) -> set[int]:
    """Return the bytes that the weights of forward products, convolutions and norms may have.

    The channels of a convolution are the second axis or the last one (``tensor_format.h``).
    """
    sizes: set[int] = set()

    for op in structure.ops.values():
        is_convolution = op.type in CONVOLUTIONS
        is_reader = is_convolution or op.type in _PRODUCTS | _NORMS
        if not is_reader or structure.phases.get(op.name) is not Phase.FORWARD:
            continue

        outputs, item_bytes = _channels_of(structure, f"{op.name}:0")
        sizes.update(item_bytes * channels for channels in outputs)
        areas = {1}

        if is_convolution:
            sides = range(1, _WIDEST_KERNEL + 1)
            areas = {height * width for height, width in product(sides, sides)}

        if op.type in _NORMS:
            continue

        for tensor in op.inputs:
            inputs, _ = _channels_of(structure, tensor)

            for before, after, area in product(inputs, outputs, areas):
                sizes.add(item_bytes * before * after * area)

    return {size for size in sizes if size >= _LEAST_BYTES}


def _channels_of(structure: GraphIndex, tensor: str) -> tuple[set[int], int]:
    """Return the axes of a tensor that may be its channels, and the bytes of an element."""
    spec = structure.spec(tensor)
    shape = spec.full_shape if spec is not None else None
    if spec is None or not shape or not spec.size_bytes:
        return set(), 0

    return {shape[-1], *shape[1:2]}, spec.size_bytes // math.prod(shape)


def _find_held(
    table: pd.DataFrame,
    structure: GraphIndex,
    first: Step,
    sizes: set[int],
) -> LabelByRow:
    """Return the variables that exist before the first step, by gradients and new values.

    ``sizes`` are those of new values. The initial values of slots follow the parameters. If none is
    named, the parameters of a size are the first buffers, and the others are slots if each gradient
    has the same number of them.
    """
    gradients = find_gradients(structure)
    counts = Counter(size for _, _, size in gradients if size >= _LEAST_BYTES)
    born = table["born"].to_numpy()

    dies = table["dies"].to_numpy()
    is_held = (born >= 0) & (born < first.first) & (dies > first.first)
    order = np.argsort(born[is_held], kind="stable")
    rows = np.flatnonzero(is_held)[order].tolist()

    ops = table["op"].astype(str).tolist()
    all_sizes = table["requested_bytes"].tolist()
    slots = [row for row in rows if find_optimizer(ops[row])]
    initial = [row for row in slots if _INITIALIZER in ops[row]]
    written = [row for row in slots if ops[row].endswith(_ASSIGN)]

    # A session writes slots, and keeps their initial values as constants. The first update of a resource
    # variable copies a value that a constant shares (``PrepareToUpdateVariable``).
    if written or any(_APPLY.search(ops[row]) for row in slots):
        rows = [row for row in rows if row not in initial]
        initial = []

    found = dict.fromkeys(written or initial, _SLOT)
    begin = min((born[row] for row in found if row in initial), default=None)
    known_sizes = sizes | counts.keys()
    alike: dict[int, list[int]] = {}

    for row in rows:
        is_known = all_sizes[row] in known_sizes
        if is_known and dies[row] > first.last and row not in found:
            alike.setdefault(all_sizes[row], []).append(row)

    for size, group in alike.items():
        count = counts[size]
        if begin is not None:
            count = sum(born[row] < begin for row in group)

        found.update(dict.fromkeys(group[:count], _PARAMETER))

        if begin is None and count and len(group) % count == 0:
            found.update(dict.fromkeys(group[count:], _SLOT))

    return found


def _find_new_values(
    table: pd.DataFrame,
    steps: Sequence[Step],
) -> LabelByRow:
    """Return the rows that a step's update leaves behind."""
    ops = table["op"].astype(str).tolist()
    sizes = table["requested_bytes"].tolist()

    ends = np.array([step.last for step in steps])
    number = table["step"].fillna(-1).to_numpy(np.int64)
    outlives = table["dies"].to_numpy() > ends[number]
    found = {}

    for row in np.flatnonzero((number >= 0) & outlives).tolist():
        root = find_optimizer(ops[row])

        # An op that adds to a variable requests memory only for a copy of it.
        is_value = sizes[row] >= _LEAST_BYTES or _is_sum(ops[row])

        # Keras 2 assigns new values of both, in a scope inside the optimizer's.
        is_outer = ops[row].lower().count(f"{root}/") == 1
        if root and is_value and is_outer:
            last = ops[row].rpartition("/")[2]
            adds = _is_sum(ops[row]) and root.startswith(_SUM_SETS_PARAMETER)
            is_parameter = adds or last.startswith("AssignSubVariableOp")
            found[row] = _NEW_PARAMETER if is_parameter else _NEW_SLOT

    return found


def _is_sum(name: str) -> bool:
    """Say whether an op is named after the types that add to a variable."""
    return name.rpartition("/")[2].startswith(("AssignAddV", "AssignSubV"))
