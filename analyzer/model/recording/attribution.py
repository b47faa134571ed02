"""Attribution of buffers to categories, layers and tensors, by variables and the graph.

The first rule that matches a buffer decides. A buffer of a variable is a parameter, optimizer state, a
gradient accumulator or other state, and one of the step's inputs an input. For an op in the graph its
phase and consumers decide (``describe_value``); for constants, workspaces and copies of inputs its type.
For an op outside the graph the phase of an eager step decides, or whether the buffer outlives the step.
A buffer without an op is unattributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import (
    CONSTANTS,
    CONVOLUTIONS,
    Op,
    op_types,
    split_tensor,
)
from analyzer.model.graph.buffer_sharing import (
    CACHE_ROLE,
    COLLECTIVES,
    INPUT_TYPES,
    ITERATOR,
    Sharing,
    find_cache,
)
from analyzer.model.graph.graph_index import (
    HALF_WEIGHT_ROLE,
    GraphIndex,
    Label,
    Phase,
    describe_value,
    find_gradient_ops,
    is_float,
    is_recomputed,
    list_outputs,
    makes_activation,
)
from analyzer.model.recording.labels import (
    BATCH_ROLE,
    COPIED_BATCH,
    COPIED_INPUT,
    Labels,
    Mask,
)
from analyzer.model.recording.records import (
    COPY_ROLE,
    DROPPED_ROLE,
    SUMS_ROLE,
    Instants,
    Step,
)

PACKED_ROLE = "gradients packed for the all-reduce"
REDUCED_ROLE = "all-reduced gradients"

_VIEWS = op_types("Identity Reshape Squeeze ExpandDims")
HANDLE = "VarHandleOp"

# Name that the allocator gets for a copy between devices (``rendezvous_mgr.cc``).
RECEIVED = "SameWorkerRecvDone"

# Names of the ops that Grappler fuses a convolution into (``remapper.cc``).
FUSED_INTO = ("Relu", "Relu6", "Elu", "LeakyRelu", "BiasAdd", "Sigmoid", "Tanh")

# Part of the name of a constant that was folded before the first step (``constant_folding.cc``,
# ``GenerateUniqueName``).
FOLDED = "__cf__"
XLA_ROLE = "XLA's buffer: activations, gradients and temporaries in one block"

# Only the thread that runs the kernel knows the op. Eigen's pool threads, which pack operands of a
# product into their own scratch memory, do not.
POOL_THREAD_ROLE = "requested outside of an op"

# Requested outside of ops on the program's thread, which converts values to tensors
# (``NdarrayToTensor``, ``pywrap_tensor.cc``).
HOST_COPY_ROLE = "copy of a NumPy array or Python value"

# The op that copies such a value to a card (``ConvertToEagerTensor``, ``pywrap_tensor.cc``).
_HOST_CONSTANT = "_EagerConst"

# ``CopyToDeviceNode`` requests a ``dynamic`` region before the eager op that reads the copy.
_COPY_FROM_HOST_ROLE = "copied from the host"

_ELEMENT_ROLE = "element of a tensor list"
AFTER_ROLE = "made after the last gradient"

# Region -> role of a convolution's buffer on a card that holds no output.
_COPY_ROLES = {"temp": COPY_ROLE, "output": DROPPED_ROLE}


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
    """Label the buffers of ops in the graph, with the ``tensors`` that ``match_outputs`` finds.

    ``backward_starts``: step -> instant of the first birth in a backward op.
    """
    values = _Values(structure, sharing, infers=infer)
    names = ("op", "dtype", "region", "shape", "requested_bytes")
    ops, dtypes, regions, shapes, sizes = (
        allocations[name].astype(object).to_numpy() for name in names
    )

    dies = allocations["dies"].to_numpy()
    steps = allocations["step"].fillna(-1).to_numpy(np.int64).tolist()
    on_card = _is_on_card(allocations)

    for row, name in enumerate(ops):
        op = structure.ops.get(name)
        if op is None:
            continue

        # An eager op before the steps may have the name of an op in the graph.
        is_copied = regions[row] == "dynamic" and op.type not in CONSTANTS
        if (is_copied or labels.variable[row]) and steps[row] < 0:
            continue

        labels.op_type[row] = op.type
        labels.source[row] = op.source
        labels.layer[row] = labels.layer[row] or structure.layers.get(name, "")
        labels.tensor[row] = labels.tensor[row] or tensors[row]

        stated = None if shapes[row] else structure.spec(tensors[row])
        spec = stated and stated.of_size(sizes[row])
        if spec is not None:
            labels.specs.setdefault(row, spec)

        if labels.is_open(row):
            category, role = values.describe_buffer(
                op,
                tensors[row],
                dtypes[row],
                regions[row],
                on_card=on_card[row],
                is_alive=dies[row] > backward_starts.get(steps[row], 1 << 62),
            )

            labels.set(row, category, role=role)


def match_outputs(
    allocations: pd.DataFrame,
    structure: GraphIndex,
    freers: np.ndarray | None = None,
) -> list[str]:
    """Return the tensor of the graph that each buffer was requested for; empty for none.

    ``freers``, shape ``(n,)``, are the ops that free the buffers; None if unknown. A convolution on a
    card that computes into scratch memory frees its output and returns that memory
    (``conv_grad_input_ops.cc``).
    """
    names = ("tensor", "op", "run_id", "region", "dtype", "shape", "requested_bytes")
    columns = (allocations[name].astype(object).tolist() for name in names)
    used: dict[tuple[int, str], set[int]] = {}
    tensors = [""] * len(allocations)

    for row, facts in enumerate(zip(*columns, strict=True)):
        known, name, run, region, dtype, shape, size = facts
        op = structure.ops.get(name)
        plain = name.partition("#")[0]
        freer = "" if freers is None else freers[row]

        # A run has its op's name without the function's prefix.
        frees_itself = freer != "" and f"/{plain}".endswith(f"/{freer}")

        if known:
            tensors[row] = str(known)
        elif op is not None and not frees_itself:
            taken = used.setdefault((run, name), set())
            tensors[row] = match_output(op, taken, dtype, shape, size)

            # The graph of another trace of the function has other shapes.
            if not tensors[row] and region == "output" and len(op.outputs) == 1:
                tensors[row] = f"{name}:0"

    return tensors


class _Values:
    """The outputs of a graph's ops, as ``describe_value`` names them."""

    def __init__(
        self,
        structure: GraphIndex,
        sharing: Sharing,
        *,
        infers: bool,
    ) -> None:
        self._structure = structure
        self._sharing = sharing
        self._infers = infers
        self._has_backward = Phase.BACKWARD in structure.phases.values()
        self._gradients = structure.gradients
        self._gradient_ops = find_gradient_ops(structure)
        self._reduced = find_all_reduce_roles(structure)
        self._cache = find_cache(structure) if infers else frozenset()

    def describe_buffer(
        self,
        op: Op,
        tensor: str,
        dtype: str,
        region: str,
        *,
        on_card: bool,
        is_alive: bool,
    ) -> Label:
        """Return the category and the role of a buffer that an op requested.

        ``tensor`` is the output that it holds, empty for none; ``is_alive`` says whether it is alive
        when the backward pass begins.
        """
        known = self._describe_by_type(op, tensor, dtype, region, on_card=on_card)
        if known is not None:
            return known

        structure = self._structure
        is_unread = region == "temp" and tensor not in structure.consumers

        if tensor in self._reduced:
            return Category.GRADIENT, self._reduced[tensor]

        if not tensor or is_unread:
            phase = structure.phases[op.name]
            if not op.type.startswith(("TensorList", "ZerosLike")):  # of a list
                return Category.TEMPORARY, f"{phase} scratch"

            is_kept = is_alive and phase is Phase.FORWARD and is_float(dtype)
            return Category.ACTIVATION if is_kept else Category.TEMPORARY, _ELEMENT_ROLE

        return self._describe_output(op, tensor, dtype, region, is_alive=is_alive)

    def _describe_by_type(
        self,
        op: Op,
        tensor: str,
        dtype: str,
        region: str,
        *,
        on_card: bool,
    ) -> Label | None:
        """Return the category and the role that follow from the op's type; None for most types."""
        structure = self._structure
        is_convolution = op.type in CONVOLUTIONS

        if op.type in CONSTANTS:
            return Category.CONSTANT, "constant"
        if is_convolution and dtype == "uint8":
            return Category.WORKSPACE, f"{structure.phases[op.name]} workspace"

        if is_convolution and on_card and not tensor and region in _COPY_ROLES:
            return Category.WORKSPACE, _COPY_ROLES[region]

        if structure.casts_weight(op, dtype):
            return Category.TEMPORARY, HALF_WEIGHT_ROLE

        if tensor in self._cache:
            return Category.KV_CACHE, CACHE_ROLE

        is_sum = op.type == "BiasAddGrad" and region == "temp" and is_float(dtype)
        if is_sum and on_card:
            return Category.WORKSPACE, SUMS_ROLE

        if op.type == ITERATOR:
            return Category.INPUT, BATCH_ROLE

        if op.type == "_Recv":
            sources = (structure.ops.get(split_tensor(one)[0]) for one in op.inputs)
            types = {source.type for source in sources if source is not None}

            if ITERATOR in types:
                return Category.INPUT, COPIED_BATCH
            if types & INPUT_TYPES:
                return Category.INPUT, COPIED_INPUT

        if region == "dynamic" and op.type != "_Recv":
            return Category.INPUT, _COPY_FROM_HOST_ROLE

        return None

    def _describe_output(
        self,
        op: Op,
        tensor: str,
        dtype: str,
        region: str,
        *,
        is_alive: bool,
    ) -> Label:
        """Return the category and the role of an output, by its phase and its readers."""
        structure = self._structure
        phase = structure.phases[op.name]
        members: Sequence[str] = (tensor,)

        if phase is Phase.BACKWARD:
            members = self._sharing.members(tensor)

        readers = {structure.phases[user] for user in self._sharing.consumers(tensor)}

        # TensorFlow prunes an op whose only result no op reads. A convolution may replace its output.
        is_result = (
            bool(structure.evidence) and region == "output" and len(op.outputs) == 1
        )
        of_floats = is_float(dtype, op.type)
        is_read_later = is_result and op.type not in CONVOLUTIONS
        is_read = (bool(readers) or is_read_later) and of_floats
        is_activation = is_read and makes_activation(op.type)

        return describe_value(
            phase,
            # The trace of a program may end in the forward pass.
            infers=self._infers or (is_activation and not self._has_backward),
            of_variable=not self._gradients.isdisjoint(members),
            carries_gradient=is_read and op.name in self._gradient_ops,
            is_kept=Phase.BACKWARD in readers,
            is_alive=is_alive and of_floats and not readers,
            is_activation=is_activation,
            is_recomputed=is_recomputed(structure, op.name, self._gradient_ops),
        )


def match_output(
    op: Op,
    used: set[int],
    dtype: str,
    shape: str,
    size_bytes: int,
) -> str:
    """Return the op's output that a buffer was requested for; empty for none.

    A kernel requests outputs in any order, and scratch memory in between; dtype and shape decide, then
    the size. In a loop an op runs often: after all outputs were seen, matching restarts.
    """
    if len(used) >= len(op.outputs):
        used.clear()

    equal = []
    similar = []

    for index, spec in enumerate(op.outputs):
        if index in used or spec.dtype in ("resource", "variant"):
            continue

        has_type = not dtype or spec.dtype in ("", dtype)

        if shape and spec.dtype == dtype and spec.shape_text == shape:
            equal.append(index)
        elif has_type and spec.size_bytes in (None, size_bytes):
            similar.append(index)

    found = equal + similar
    used.update(found[:1])

    return f"{op.name}:{found[0]}" if found else ""


def find_all_reduce_roles(structure: GraphIndex) -> dict[str, str]:
    """Return the role of each tensor that is a buffer of an all-reduce."""
    roles = {}

    for op in structure.ops.values():
        if op.type not in COLLECTIVES:
            continue

        roles.update(dict.fromkeys(list_outputs(op), REDUCED_ROLE))
        packed = ""
        source = op

        for _ in structure.ops:  # follow views back to the op that packs the gradients
            packed = source.inputs[0] if source.inputs else ""
            found = structure.ops.get(split_tensor(packed)[0])
            if found is None:
                break

            source = found
            if source.type not in _VIEWS:
                break

        if source.type in ("Concat", "ConcatV2", "Pack", "AddN"):
            roles[packed] = PACKED_ROLE

        for user in structure.users_behind(op.name, _VIEWS):
            if user.type in ("Split", "SplitV", "Unpack"):
                roles.update(dict.fromkeys(list_outputs(user), REDUCED_ROLE))

    return roles


def label_eager(
    labels: Labels,
    allocations: pd.DataFrame,
    steps: Sequence[Step],
    phases: np.ndarray,
    backward: Instants,
    by_python: Mask,
    *,
    infer: bool,
    jit: bool,
    is_captured: bool = True,
) -> None:
    """Label buffers of ops outside the graph, or of none (``TF_NewTensor``), by their lifetimes.

    Args:
        phases: Phase at each buffer's birth: 0 forward, 1 backward, 2 update; shape ``(n,)``.
        backward: Instants of births in the backward passes, ascending; empty if unknown.
        by_python: Buffers requested on the thread that marks the steps, shape ``(n,)``.
        jit: Whether XLA runs the step.
    """
    lives = Lifetimes(allocations, steps, backward)
    is_value = (allocations["region"] == "output").to_numpy()
    is_value = is_value & allocations["dtype"].map(is_float).to_numpy(bool)

    # the name of an eager op is its type
    is_convolution = allocations["op"].isin(CONVOLUTIONS).to_numpy()
    labels.op_type[is_convolution] = allocations["op"][is_convolution]
    is_scratch = (allocations["dtype"] == "uint8").to_numpy()
    is_temp = (allocations["region"] == "temp").to_numpy()
    is_copy = is_convolution & is_temp & _is_on_card(allocations)

    # The first rule that matches decides; None leaves a buffer unattributed.
    rules = (
        (is_convolution & is_scratch, Category.WORKSPACE, ""),
        (is_copy, Category.WORKSPACE, COPY_ROLE),
        *_list_rules_without_op(allocations, lives, by_python, infer, jit, is_captured),
        *_list_rules_by_op(lives, phases, backward, is_value, infer),
    )

    left = labels.open_rows()

    for rows, category, role in rules:
        if category is not None:
            labels.fill(left & rows, category, role)

        left &= ~rows


_Rule = tuple[Mask, Category | None, str]


def _list_rules_without_op(
    allocations: pd.DataFrame,
    lives: Lifetimes,
    by_python: Mask,
    infer: bool,
    jit: bool,
    is_captured: bool,
) -> Iterator[_Rule]:
    """Yield the rules that leave only the buffers of ops in the steps."""
    op = allocations["op"]
    named = (op != "").to_numpy()
    given = (op == _HOST_CONSTANT).to_numpy()

    result = Category.ACTIVATION if infer else Category.TEMPORARY
    outside = "outside the steps"
    on_card = _is_on_card(allocations)

    # JAX names no requests
    unnamed = lives.short & ~named & (is_captured or bool(named.any()))

    # not from another card
    has_one_card = allocations["allocator"][on_card].nunique() == 1
    is_from_host = has_one_card and not is_captured
    copied = lives.inside & (op == RECEIVED).to_numpy() & on_card & is_from_host

    yield lives.short & jit, Category.TEMPORARY, XLA_ROLE
    yield lives.until_next & ~named & jit, result, "result of the step"

    by_host = lives.inside & (given | (~named & by_python))
    yield by_host, Category.INPUT, HOST_COPY_ROLE
    yield copied, Category.INPUT, _COPY_FROM_HOST_ROLE

    yield unnamed, Category.TEMPORARY, POOL_THREAD_ROLE

    yield _is_folded(allocations), Category.CONSTANT, "constant computed beforehand"
    yield lives.before & is_captured, Category.CONSTANT, "made before the steps"

    yield ~named, None, ""
    yield lives.before, Category.UNATTRIBUTED, outside
    yield ~lives.inside, Category.TEMPORARY, outside


def _list_rules_by_op(
    lives: Lifetimes,
    phases: np.ndarray,
    backward: Instants,
    is_value: Mask,
    infer: bool,
) -> Iterator[_Rule]:
    """Yield the rules for buffers that ops request in the steps, by phase and lifetime."""
    inside = lives.inside
    is_backward = phases == 1

    yield is_backward & is_value, *describe_value(Phase.BACKWARD, carries_gradient=True)
    yield is_backward, *describe_value(Phase.BACKWARD)
    yield phases == 2, *describe_value(Phase.UPDATE)

    passing = describe_value(Phase.FORWARD, infers=True)
    yield lives.short & infer, *passing
    yield lives.into_backward, *describe_value(Phase.FORWARD, is_kept=True)

    # such as the update that a loop makes itself
    yield inside & lives.after_backward, Category.TEMPORARY, AFTER_ROLE

    if len(backward):
        yield inside & is_value, *passing

    yield inside & ~lives.until_next, Category.TEMPORARY, "outlives its step"

    yield inside, *describe_value(Phase.FORWARD)


class Lifetimes:
    """Masks of buffers by their lifetimes and the steps, shape ``(n,)``."""

    def __init__(
        self,
        allocations: pd.DataFrame,
        steps: Sequence[Step],
        backward: Instants,
    ) -> None:
        born = allocations["born"].to_numpy()
        dies = allocations["dies"].to_numpy()
        step = allocations["step"].fillna(-1).to_numpy(np.int64)
        ends = np.array([step.last for step in steps] or [-1], np.int64)
        self.inside: Mask = step >= 0  # allocated in a step
        self.short: Mask = self.inside & (dies <= ends[step])  # and freed in it
        next_end = np.append(ends, np.iinfo(np.int64).max)[step + 1]
        self.until_next: Mask = self.inside & (dies <= next_end)  # or in the next one
        first = steps[0].first if steps else -1

        # Allocated before the first step and alive in it.
        self.before: Mask = ~self.inside & (born < first) & (first < dies)

        # Alive when the next backward pass of its step begins; a step may have several.
        coming = np.append(backward, np.iinfo(np.int64).max)
        start = coming[np.searchsorted(backward, born, side="right")]
        self.into_backward: Mask = (start < dies) & (start <= ends[step])

        # Allocated after the last backward pass of its step.
        firsts = np.array([step.first for step in steps] or [-1], np.int64)
        previous = np.append(-1, backward)[np.searchsorted(backward, born)]
        had_backward = self.inside & (previous >= firsts[step])
        self.after_backward: Mask = had_backward & (start > ends[step])


def _is_folded(allocations: pd.DataFrame) -> Mask:
    """Return which buffers are computed or copied when a function is instantiated, before it runs.

    An eager op, which has no run either, has its type as name, such as ``AddV2``.
    """
    op = allocations["op"]
    before_run = op.str.match("[a-z][^:]*$|.*/") & (allocations["run_id"] == 0)
    found: Mask = (op.str.contains(FOLDED) | before_run).to_numpy()

    return found


def _is_on_card(allocations: pd.DataFrame) -> Mask:
    """Return which buffers are of a card's allocator, shape ``(n,)``."""
    found: Mask = allocations["allocator"].astype(str).str.startswith("GPU_").to_numpy()
    return found
