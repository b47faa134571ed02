"""Give every buffer a category, a layer and a tensor, by following the variables and the graph.

In order, each rule only for what those before it left:

1. a buffer that holds a variable is a parameter, optimizer state, a gradient accumulator or other
   state, by whose variable it is;
2. a buffer that the step is fed is an input;
3. a buffer born in an op of the graph is told by the op's phase and by who uses it: a forward op's
   output that a backward op uses is an activation, a gradient of a parameter is a gradient, all
   else is a temporary; what a constant made is a constant;
4. a buffer born in an op outside the graph is told by the phase of the step (eager steps), or is
   a constant or a temporary by whether it outlives the step;
5. a buffer without an op is unattributed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.contract.categories import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op, TensorSpec
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.ops import split_tensor
from analyzer.model.graph.phases import Phase
from analyzer.model.graph.tensor_roles import find_all_reduce_roles
from analyzer.model.recording.records import Step
from analyzer.tracing.measure.attribution_labels import Labels, Mask
from analyzer.tracing.measure.variable_buffers import Holding
from analyzer.tracing.parse.run_folder import RunNote

_CONSTANTS: Final = frozenset({"Const", "HostConst"})
XLA_ROLE: Final = "XLA's buffer: activations, gradients and temporaries in one block"
_FOLDED: Final = "__cf__"
"""In the name of a constant that the runtime computed before the first step
(``constant_folding.cc``, ``GenerateUniqueName``)."""
_RING_CHUNK: Final = "CollectiveAdapterImpl::TempChunk"
"""What an all-reduce between CPU devices writes in place of its op (``base_collective_executor.cc``)."""
POOL_THREAD_ROLE: Final = "kernel scratch, asked for on a pool thread"
"""The op's name is noted for the thread that runs the kernel; Eigen's pool threads, which pack blocks
of a product's operands into scratch of their own, have none."""
HOST_COPY_ROLE: Final = "copy of a NumPy array or Python value"
"""Asked for outside any op on the thread of the program itself, where values become tensors
(``NdarrayToTensor``, ``pywrap_tensor.cc``)."""
_HOST_CONSTANT: Final = "_EagerConst"
"""The op that brings such a value to a card (``ConvertToEagerTensor``, ``pywrap_tensor.cc``)."""
_REPLICA: Final = re.compile(r"/replica_\d+$")
"""What a capture adds to the path of a variable that a strategy keeps on another device too."""
_ADDS: Final = frozenset({"AddN", "AddV2", "Add", "AccumulateNV2"})


def label_variables(
    labels: Labels, note: RunNote, holdings: Sequence[Holding], roles: dict[int, tuple[str, str]]
) -> None:
    """Label the buffers that hold variables.

    Args:
        labels: The labels to fill.
        note: The capture's note.
        holdings: Which buffer holds which variable.
        roles: Variable -> category and role, where the graph told more than the note.
    """
    layers = _layers_by_slot(note)
    for holding in holdings:
        variable = note.variables[holding.variable]
        category, role = roles.get(holding.variable, (variable.category, variable.role))
        labels.set(holding.row, category, role=role, turns_at=holding.since)
        labels.variable[holding.row] = variable.path
        if variable.shape is not None:
            labels.specs[holding.row] = TensorSpec(variable.dtype, variable.shape)
        labels.layer[holding.row] = _layer_of_variable(variable.path, variable.category, layers)


def _layers_by_slot(note: RunNote) -> dict[str, str]:
    """Return a parameter's layer by the name that its slot variables are given."""
    return {
        _REPLICA.sub("", variable.path).replace("/", "_"): _layer_of(variable.path)
        for variable in note.variables
        if variable.category == Category.PARAMETER.value
    }


def _layer_of(path: str) -> str:
    return _REPLICA.sub("", path).rpartition("/")[0]


def _layer_of_variable(path: str, category: str, layers: dict[str, str]) -> str:
    if category == Category.PARAMETER.value:
        return _layer_of(path)
    name = _REPLICA.sub("", path).rpartition("/")[2]
    while name:  # adam/conv1_kernel_momentum: the longest head that names a parameter
        if name in layers:
            return layers[name]
        name = name.rpartition("_")[0]
    return ""


def label_inputs(labels: Labels, note: RunNote, rows: Sequence[int | None]) -> None:
    """Label the buffers that the step is fed; ``rows`` is in the order of the note's inputs.

    Args:
        labels: The labels of all buffers; changed.
        note: The run note.
        rows: Row of the allocations table of each input of the note, in its order; None where it
            was not found.
    """
    for given, row in zip(note.inputs, rows, strict=True):
        if row is not None and labels.is_open(row):
            labels.set(row, Category.INPUT, role="step input")
            labels.tensor[row] = given.name


def label_copied_inputs(labels: Labels, note: RunNote, allocations: pd.DataFrame) -> None:
    """Label the copies on a card of a compiled step's ``int32`` inputs, which lie on the host.

    What XLA compiles takes its arguments on the card. Where the step is that one function, the first
    call begins by copying them, and a copy lives as long as its input (``execute.cc``:
    ``ValidateInputTypeAndPlacement``); where it is called from another, each step begins so.

    Args:
        labels: The labels to fill.
        note: The run note.
        allocations: Table with the columns of ``ALLOCATIONS``.
    """
    specs = [TensorSpec(given.dtype, given.shape) for given in note.inputs]
    copied = [
        (given.name, spec.size_bytes)
        for given, spec in zip(note.inputs, specs, strict=True)
        if spec.dtype == "int32" and spec.size_bytes
    ]
    copied.sort(key=lambda one: one[1])
    in_order = allocations.assign(row=np.arange(len(allocations))).sort_values(
        "born", kind="stable"
    )
    for _, born in in_order.groupby("step"):
        first = born.head(len(copied)).sort_values("requested_bytes", kind="stable")
        if first["requested_bytes"].tolist() != [size for _, size in copied]:
            continue
        for row, (name, _) in zip(first["row"].tolist(), copied, strict=True):
            if labels.is_open(row):
                labels.set(row, Category.INPUT, role="step input, copied to the device")
                labels.tensor[row] = name


def label_graph(
    labels: Labels,
    allocations: pd.DataFrame,
    structure: GraphIndex,
    sharing: Sharing,
    tensors: Sequence[str],
    *,
    infer: bool,
    backward_starts: dict[int, int],
) -> None:
    """Label the buffers born in ops of the graph.

    Args:
        labels: The labels to fill.
        allocations: Table with the columns of ``ALLOCATIONS``.
        structure: The graph.
        sharing: Which of its tensors share a buffer.
        tensors: The tensor that each buffer was asked for (``match_outputs``).
        infer: The step has no backward pass.
        backward_starts: Step -> instant of the first birth in a backward op.
    """
    gradients = _with_partial_sums(structure)
    reduced = find_all_reduce_roles(structure)
    ops = allocations["op"].astype(object).to_numpy()
    regions = allocations["region"].astype(object).to_numpy()
    dies = allocations["dies"].to_numpy()
    steps = allocations["step"].fillna(-1).to_numpy(dtype=np.int64)
    for row, name in enumerate(ops):
        op = structure.ops.get(name)
        if op is None:
            continue
        labels.op_type[row] = op.type
        labels.source[row] = op.source
        if not labels.layer[row]:
            labels.layer[row] = structure.layers.get(name, "")
        tensor = tensors[row]
        if tensor and not labels.tensor[row]:
            labels.tensor[row] = tensor
        if not labels.is_open(row):
            continue
        if op.type in _CONSTANTS:
            labels.set(row, Category.CONSTANT, role="constant")
        elif op.type == "_Recv" and _brings_in_an_input(op, structure):
            labels.set(row, Category.INPUT, role="step input, copied to the device")
        elif tensor in reduced:
            labels.set(row, Category.GRADIENT, role=reduced[tensor])
        elif not tensor or (regions[row] == "temp" and tensor not in structure.consumers):
            labels.set(row, Category.TEMPORARY, role=f"{structure.phases[name]} scratch")
        else:
            waits = dies[row] > backward_starts.get(int(steps[row]), 1 << 62)
            category, role = _of_output(tensor, op, structure, sharing, gradients, infer, waits)
            labels.set(row, category, role=role)


def _brings_in_an_input(op: Op, structure: GraphIndex) -> bool:
    """Say whether a copy to the device is one of an argument of the step."""
    sources = (structure.ops.get(split_tensor(tensor)[0]) for tensor in op.inputs)
    return any(source is not None and source.type in ARGUMENT_TYPES for source in sources)


def match_outputs(allocations: pd.DataFrame, structure: GraphIndex) -> list[str]:
    """Return for each buffer the tensor of the graph that it was asked for, empty for none."""
    known = allocations["tensor"].astype(object).to_numpy()
    ops = allocations["op"].astype(object).to_numpy()
    runs = allocations["run_id"].to_numpy()
    dtypes = allocations["dtype"].astype(object).to_numpy()
    shapes = allocations["shape"].astype(object).to_numpy()
    sizes = allocations["requested_bytes"].to_numpy()
    used: dict[tuple[int, str], set[int]] = {}
    tensors = [""] * len(allocations)
    for row, name in enumerate(ops):
        op = structure.ops.get(name)
        if known[row]:
            tensors[row] = str(known[row])
        elif op is not None:
            seen = used.setdefault((int(runs[row]), name), set())
            tensors[row] = _match_output(op, seen, dtypes[row], shapes[row], int(sizes[row]))
    return tensors


def _of_output(
    tensor: str,
    op: Op,
    structure: GraphIndex,
    sharing: Sharing,
    gradients: set[str],
    infer: bool,
    alive_in_backward: bool,
) -> tuple[Category, str]:
    phase = structure.phases[op.name]
    if phase is Phase.UPDATE:
        if tensor in gradients:
            return Category.GRADIENT, "gradient"
        return Category.TEMPORARY, "optimizer temporary"
    if phase is Phase.BACKWARD:
        if any(member in gradients for member in sharing.members(tensor)):
            return Category.GRADIENT, "gradient"
        return Category.TEMPORARY, "backward temporary"
    if infer:
        return Category.ACTIVATION, "activation"
    kept = any(structure.phases[user] is Phase.BACKWARD for user in sharing.consumers(tensor))
    if kept or alive_in_backward:
        return Category.ACTIVATION, "kept for the backward pass" if kept else "alive in backward"
    return Category.TEMPORARY, "forward temporary"


def _with_partial_sums(structure: GraphIndex) -> set[str]:
    """Return the gradients, and the terms that are summed to one (a weight used more than once)."""
    gradients = set(structure.gradients)
    queue = list(gradients)
    while queue:
        name, _, _ = queue.pop().rpartition(":")
        op = structure.ops.get(name)
        if op is None or op.type not in _ADDS or structure.phases[name] is not Phase.BACKWARD:
            continue
        shape = op.outputs[0].shape if op.outputs else None
        for tensor in op.inputs:
            spec = structure.spec(tensor)
            if tensor not in gradients and spec is not None and spec.shape == shape:
                gradients.add(tensor)
                queue.append(tensor)
    return gradients


def _match_output(op: Op, used: set[int], dtype: str, shape: str, size_bytes: int) -> str:
    """Return which of the op's outputs a buffer is, empty where it is none of them.

    A kernel asks for its outputs in any order, and for scratch of its own besides: dtype and shape
    tell, then the bytes. In a loop an op runs often; once all outputs were seen, it starts anew.
    """
    if not op.outputs:
        return ""
    if len(used) >= len(op.outputs):
        used.clear()
    for exact in (True, False):
        for index, spec in enumerate(op.outputs):
            if index in used or not _fits(spec, dtype, shape, size_bytes, exact=exact):
                continue
            used.add(index)
            return f"{op.name}:{index}"
    return ""


def _fits(spec: TensorSpec, dtype: str, shape: str, size_bytes: int, *, exact: bool) -> bool:
    if spec.dtype in ("resource", "variant"):
        return False
    if exact:
        return spec.dtype == dtype and spec.shape_text == shape and bool(shape)
    if dtype and spec.dtype and dtype != spec.dtype:
        return False
    return spec.size_bytes is None or spec.size_bytes == size_bytes


# Long: one table of rules, and the masks that it is written in.
def label_eager(
    labels: Labels,
    allocations: pd.DataFrame,
    steps: Sequence[Step],
    phases: np.ndarray,
    backward_starts: dict[int, int],
    gradient_rows: set[int],
    by_python: Mask,
    *,
    infer: bool,
    jit: bool,
) -> None:
    """Label the buffers born in ops outside the graph, by when they are born and die.

    Args:
        labels: The labels to fill.
        allocations: Table with the columns of ``ALLOCATIONS``.
        steps: The steps.
        phases: Phase at each buffer's birth: 0 forward, 1 backward, 2 update; shape ``(n,)``.
        backward_starts: Step -> first instant of its backward pass.
        gradient_rows: Buffers that the tape returned as gradients.
        by_python: Buffers asked for on the thread that marks the steps, shape ``(n,)``.
        infer: The step has no backward pass.
        jit: XLA runs the step: what is asked for inside it without an op is XLA's.
    """
    op = allocations["op"].cat
    codes = op.codes.to_numpy()
    named = _of_categories([name != "" for name in op.categories], codes)
    folded = _of_categories([_FOLDED in name for name in op.categories], codes)
    given = _of_categories([name == _HOST_CONSTANT for name in op.categories], codes)
    ring = _of_categories([name == _RING_CHUNK for name in op.categories], codes)
    born, dies = allocations["born"].to_numpy(), allocations["dies"].to_numpy()
    in_step = allocations["step"].fillna(-1).to_numpy(dtype=np.int64)
    inside = in_step >= 0
    ends = np.array([step.last for step in steps] or [-1], np.int64)
    short = inside & (dies <= ends[in_step])
    following = in_step + 1 < len(ends)
    until_next = inside & (dies <= np.where(following, ends[(in_step + 1) % len(ends)], dies))
    before = (
        ~inside & (born < steps[0].first) & (steps[0].first < dies) if steps else ~inside & False
    )
    starts = np.array([backward_starts.get(step.index, -1) for step in steps] or [-1], np.int64)
    start = starts[in_step]
    is_gradient = np.zeros(len(born), bool)
    is_gradient[list(gradient_rows)] = True
    result = Category.ACTIVATION if infer else Category.TEMPORARY
    # In order: what an earlier line took is not taken again; None leaves a buffer unattributed.
    rules: tuple[tuple[Mask, Category | None, str], ...] = (
        (is_gradient, Category.GRADIENT, "gradient"),
        (short & jit, Category.TEMPORARY, XLA_ROLE),
        # Python holds them until the next step returns.
        (until_next & ~named & jit, result, "result of the step"),
        (inside & (given | (~named & by_python)), Category.INPUT, HOST_COPY_ROLE),
        (short & ~named, Category.TEMPORARY, POOL_THREAD_ROLE),
        (~named, None, ""),
        (folded, Category.CONSTANT, "constant computed beforehand"),
        (ring & inside, Category.TEMPORARY, "part of an all-reduce, from another device"),
        (before, Category.CONSTANT, "tensor held by Python"),
        (~inside, Category.TEMPORARY, "building the model"),
        (phases == 1, Category.TEMPORARY, "backward temporary"),
        (phases == 2, Category.TEMPORARY, "optimizer temporary"),
        (short & infer, Category.ACTIVATION, "activation"),
        ((born < start) & (start < dies), Category.ACTIVATION, "kept for the backward pass"),
        (inside, Category.TEMPORARY, "forward temporary"),
    )
    left = labels.open_rows()
    for rows, category, role in rules:
        if category is not None:
            labels.fill(left & rows, category, role)
        left &= ~rows


def _of_categories(told: Sequence[bool], codes: np.ndarray) -> Mask:
    """Return for each row what is told of its category, bool, shape ``(n,)``."""
    found: Mask = np.array([*told, False], bool)[codes]
    return found
