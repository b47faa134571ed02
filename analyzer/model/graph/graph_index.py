"""The indexed graph: producer, consumers, phase, layer and purpose of each op and tensor.

A capture records the phase of each op (``capture/graph/op_phases.py``). In another graph a *backward*
op is in a name scope of the gradient tape, and an *update* op in that of an optimizer. Each layer
records the scope that it opens: ``resnet50_1/conv1_conv_1`` belongs to the layer ``conv1_conv``.

A *gradient* is the gradient of a variable or of an activation: a result of the backward pass that
depends on the gradient with which the tape starts, and that another op reads. An *activation* is a
result of the forward pass that another op reads. Other results are temporaries, as is scratch memory.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from analyzer.model.contract.fields import Category, Choice
from analyzer.model.contract.run_note import (
    Op,
    TensorSpec,
    split_tensor,
)

_Node = TypeVar("_Node", bound=Hashable)


def reach(
    start: Iterable[_Node], step: Callable[[_Node], Iterable[_Node]]
) -> set[_Node]:
    """Return the nodes of ``start`` and all that follow; ``step`` returns the next nodes of one."""
    reached = set(start)
    queue = list(reached)

    while queue:
        new = set(step(queue.pop())) - reached
        reached |= new
        queue += new

    return reached


_GRADIENT_SCOPES = frozenset({"gradient_tape", "gradients"})

# Name of the lists of a loop's gradient (``while_v2.py``, ``_build_accumulator_name``).
_ACCUMULATOR = "accumulator"
# limit of the depth of scopes and of inlined callers; Keras' have about ten
_DEEPEST = 256

Label = tuple[Category, str]  # category and role of a buffer
Owner = tuple[str, str]  # kind and path of the object that opened a scope


class Phase(Choice):
    """The phase of an op in a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def is_in_gradient_scope(name: str) -> bool:
    """Say whether the op is of the backward pass, by the scope of the tape or JAX's ``transpose``.

    The tape's empty lists of a loop (``accumulator``), to which the forward loop appends, are not.
    """
    parts = name.split("/")
    is_gradient = not _GRADIENT_SCOPES.isdisjoint(parts[:-1]) or "/transpose(" in name
    return is_gradient and _ACCUMULATOR not in parts


# Owners in a training step without Keras: scopes are those of functions, such as ``while/body``.
NO_LAYERS = {"": ("", "")}


class ScopeTable:
    """Name scopes and their owners."""

    def __init__(self, owners: Mapping[str, Owner] | None = None) -> None:
        """Take the layer, optimizer, metric or loss of each scope."""
        self.owners = owners or {}
        parts = (scope.count("/") + 1 for scope in self.owners)
        self._deepest = min(max(parts, default=0), _DEEPEST)
        self._first_parts = {scope.partition("/")[0] for scope in self.owners}
        self._owners_by_scope: dict[str, Owner | None] = {}

    def owner_of(self, op_name: str) -> Owner | None:
        """Return the owner of the first and longest known scope in the op's name, if any."""
        scope = op_name.rpartition("/")[0]
        if scope not in self._owners_by_scope:
            parts = [part for part in scope.split("/") if part not in _GRADIENT_SCOPES]
            self._owners_by_scope[scope] = self._find_owner(parts)

        return self._owners_by_scope[scope]

    def _find_owner(self, parts: Sequence[str]) -> Owner | None:
        for start, part in enumerate(parts):
            if part not in self._first_parts:
                continue

            longest = min(start + self._deepest, len(parts))

            for end in range(longest, start, -1):
                owner = self.owners.get("/".join(parts[start:end]))
                if owner is not None:
                    return owner

        return None

    def layer_of(self, op_name: str) -> str:
        """Return the op's layer, empty for none; without recorded scopes, Keras' name scope."""
        if self.owners:
            kind, path = self.owner_of(op_name) or ("", "")
            return path if kind == "layer" else ""

        return "/".join(
            part for part in op_name.split("/")[:-1] if part not in _GRADIENT_SCOPES
        )

    def is_optimizer(self, op_name: str) -> bool:
        """Say whether the innermost known scope around the op is an optimizer's."""
        return (self.owner_of(op_name) or ("",))[0] == "optimizer"


_Value = TypeVar("_Value")


@dataclass(frozen=True)
class GraphIndex:
    """The indexed graph."""

    ops: Mapping[str, Op]
    consumers: Mapping[str, list[str]]  # tensor (``node:output``) -> ops
    gradients: frozenset[str]  # gradients of parameters
    phases: Mapping[str, Phase]
    layers: Mapping[str, str]  # empty for none
    # input and op of an edge -> how it is known, if derived from a trace
    evidence: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # ops of the tape that began before any gradient existed
    early: frozenset[str] = frozenset()

    def spec(self, tensor: str) -> TensorSpec | None:
        """Return dtype and shape of a tensor, None if unknown."""
        name, index = split_tensor(tensor)
        outputs = self.ops[name].outputs if name in self.ops else ()
        return outputs[index] if index < len(outputs) else None

    def users_of(self, name: str) -> list[str]:
        """Return the ops that use an op's outputs."""
        outputs = list_outputs(self.ops[name])
        return [user for tensor in outputs for user in self.consumers.get(tensor, ())]

    def users_behind(self, name: str, types: frozenset[str]) -> list[Op]:
        """Return the ops that use an op's outputs, also behind ops of some types, with these."""

        def pass_on(user: str) -> list[str]:
            return self.users_of(user) if self.ops[user].type in types else []

        return [self.ops[user] for user in reach(self.users_of(name), pass_on)]

    def maker_of(self, tensor: str) -> Op | None:
        """Return the op that makes a tensor, None if unknown."""
        op = self.ops.get(split_tensor(tensor)[0])
        return op if op is not None and op.outputs else None

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """Return the tensors that an op reads; none for an op outside the graph."""
        op = self.ops.get(name)
        return () if op is None else op.inputs

    def casts_weight(self, op: Op, dtype: str) -> bool:
        """Say whether a forward op casts a variable to ``dtype`` for mixed precision.

        A graph that is derived from a trace has no reads: there such a cast is in the scope of the op
        that uses the weight (``dense/MatMul/Cast``).
        """
        is_cast = op.type == "Cast" and dtype in HALVES
        if not is_cast or self.phases[op.name] is not Phase.FORWARD:
            return False

        if not self.evidence:
            makers = (self.ops.get(split_tensor(one)[0]) for one in op.inputs[:1])
            return any(maker and maker.type == "ReadVariableOp" for maker in makers)

        user, _, own = op.name.rpartition("/")

        # Layers have small letters, types of ops begin with a capital.
        is_user = user in self.ops or user.rpartition("/")[2][:1].isupper()

        return own == "Cast" and is_user


def build_graph_index(
    ops: Sequence[Op],
    *,
    gradients: Iterable[str] = (),
    scopes: ScopeTable | None = None,
) -> GraphIndex:
    """Index the ops of the executed graph and find their layers; ``gradients`` are its own.

    The scopes decide the phase of an op without a recorded one.
    """
    table = scopes or ScopeTable()
    by_name = {op.name: op for op in ops}
    phases = {
        op.name: Phase(op.phase or find_phase_by_scope(op.name, table)) for op in ops
    }
    layers = {name: table.layer_of(name) for name in by_name}

    # The tape's scope of an op without a recorded scope has the op's name.
    for name, layer in layers.items():
        if layer in by_name:
            layers[name] = layers[layer] or layer

    outputs = (tensor for op in ops for tensor in list_outputs(op))
    present = frozenset(gradients).intersection(outputs)

    return GraphIndex(by_name, find_consumers(ops), present, phases, layers)


def find_phase_by_scope(name: str, scopes: ScopeTable) -> Phase:
    """Return the phase of an op of which no trace was observed."""
    if is_in_gradient_scope(name):
        return Phase.BACKWARD

    return Phase.UPDATE if scopes.is_optimizer(name) else Phase.FORWARD


def find_consumers(ops: Iterable[Op]) -> dict[str, list[str]]:
    """Return the ops that use each tensor."""
    consumers: dict[str, list[str]] = {}

    for op in ops:
        for tensor in dict.fromkeys(op.inputs):
            consumers.setdefault(tensor, []).append(op.name)

    return consumers


def find_inlined(name: str, table: Mapping[str, _Value]) -> _Value | None:
    """Return the entry of ``name``, or of its name before its function was inlined."""
    for _ in range(_DEEPEST):
        if name in table:
            return table[name]

        _, slash, name = name.partition("/")
        if not slash:
            break

    return None


# Parts of the names of ops that Grappler puts in the place of another: ``OptimizedNodeName`` in
# ``graph_optimizer_stage.h``, for a sum ``RewriteAddN`` in ``memory_optimizer.cc``, and for another
# layout of an input or an output ``GetTransposeNodeName`` in ``generic_layout_optimizer_transposer.cc``.
_REWRITTEN = re.compile(
    r"ArithmeticOptimizer/[A-Za-z]+_|/tmp_var(_[a-z]+(_\d+)?)?$|(-\d+)+-\w+-LayoutOptimizer$"
)


def remove_rewrite(name: str) -> str:
    """Return the name that an op had before Grappler rewrote it."""
    return _REWRITTEN.sub("", name)


def list_outputs(op: Op) -> list[str]:
    """Return the tensors that an op makes; one if its outputs are unknown."""
    return [f"{op.name}:{index}" for index in range(max(len(op.outputs), 1))]


HALVES = ("float16", "bfloat16")
HALF_WEIGHT_ROLE = "weight in half precision"

GRADIENT_ROLE = "gradient"  # of a variable
UPDATE_ROLE = "optimizer temporary"
PASSED_GRADIENT_ROLE = "gradient read in the backward pass"  # of an activation
_KEPT_ROLE = "kept for the backward pass"  # by readers
ALIVE_ROLE = "alive in backward"  # by lifetime, without known readers
_RECOMPUTED_ROLE = "computed again in the backward pass"
LEFT_ROLE = "its readers are not in the trace"  # of a step that was cut
FORWARD_ROLE = "read in the forward pass only"

# Roles of activations and gradients that are freed in the pass that made them.
PASSING_ROLES = frozenset({PASSED_GRADIENT_ROLE, FORWARD_ROLE})

# Element types of activations and gradients; empty if unknown.
_FLOATS = frozenset(
    {
        "",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
        "half",
        "float",
    }
)
_GRADIENT_TYPE = re.compile(r"\w*(Grad|GradV\d|GradWithArgmax|Backprop\w*)")

# Types of ops that make random numbers, constants or the buffer of a sum, which are no activations.
_FROM_NOTHING = re.compile(
    r"(Stateless)?(Random|TruncatedNormal|Multinomial)\w*|Fill|\w+Like|TemporaryVariable"
)

# Types of ops that make truths or bits; MLIR's kernels request memory without an element type.
_NO_FLOATS = re.compile(
    r"(Not)?Equal|(Greater|Less)(Equal)?|Is(Finite|Inf|Nan)|(Logical|Bitwise)\w+|(Left|Right)Shift"
)
_LOSS_WITH_GRADIENT = "SoftmaxCrossEntropyWithLogits"

# in a name without a type
_ZEROS = re.compile(r"\b(zeros_like|ZerosLike)(_\d+)?(#\d+)?$")


def describe_value(
    phase: Phase,
    *,
    infers: bool = False,
    of_variable: bool = False,
    carries_gradient: bool = False,
    is_kept: bool = False,
    is_alive: bool = False,
    is_activation: bool = False,
    is_recomputed: bool = False,
) -> Label:
    """Return the category and the role of a value that an op of a phase computes.

    ``infers`` says that the step has no backward pass, ``is_kept`` that the backward pass reads the
    value, ``is_alive`` that it begins while the value is alive, ``is_recomputed`` that it computes the
    value again.
    """
    if phase is not Phase.FORWARD:
        if of_variable:
            return Category.GRADIENT, GRADIENT_ROLE
        if carries_gradient and phase is Phase.BACKWARD:
            return Category.GRADIENT, PASSED_GRADIENT_ROLE

        if phase is Phase.UPDATE:
            return Category.TEMPORARY, UPDATE_ROLE
        if is_recomputed and is_activation:
            return Category.ACTIVATION, _RECOMPUTED_ROLE

        return Category.TEMPORARY, "backward temporary"

    if infers:
        return Category.ACTIVATION, "activation"
    if is_kept or is_alive:
        return Category.ACTIVATION, _KEPT_ROLE if is_kept else ALIVE_ROLE

    if is_activation:
        return Category.ACTIVATION, FORWARD_ROLE

    return Category.TEMPORARY, "forward temporary"


def is_float(dtype: str, op_type: str = "") -> bool:
    """Say whether activations and gradients may have the element type; True if it is unknown."""
    return dtype in _FLOATS and not _NO_FLOATS.fullmatch(op_type)


def makes_activation(op_type: str) -> bool:
    """Say whether the result of a forward op of the type is computed from other tensors."""
    return not _FROM_NOTHING.fullmatch(op_type)


def find_gradient_ops(structure: GraphIndex) -> frozenset[str]:
    """Return the ops of the backward pass whose results depend on the gradient of the loss.

    These are gradient kernels, the ops that make the tape's first gradient, and all ops after them.
    Others compute a value of the forward pass again, or copy it. A graph that is derived from a trace
    lacks edges: there all ops of the tape read a gradient that begin after the loss.
    """
    backward = {
        name for name, phase in structure.phases.items() if phase is Phase.BACKWARD
    }
    found = set()

    for name in backward & structure.ops.keys():
        op = structure.ops[name]
        is_kernel = _GRADIENT_TYPE.fullmatch(op.type)

        if is_kernel or _reads_unknown_gradient(structure, op):
            found.add(name)

    def find_users(name: str) -> set[str]:
        users: set[str] = set()

        for index, spec in enumerate(structure.ops[name].outputs):
            if is_float(spec.dtype):
                users.update(structure.consumers.get(f"{name}:{index}", ()))

        return users & backward

    return frozenset(reach(found, find_users))


def is_recomputed(
    structure: GraphIndex, name: str, gradient_ops: frozenset[str]
) -> bool:
    """Say whether an op of the backward pass computes a value of the forward pass again.

    ``tf.recompute_grad`` runs the function itself, outside of the tape's scope.
    """
    is_backward = structure.phases.get(name) is Phase.BACKWARD
    is_derived = bool(structure.evidence) or name in gradient_ops

    return is_backward and not is_derived and not is_in_gradient_scope(name)


def _reads_unknown_gradient(structure: GraphIndex, op: Op) -> bool:
    """Say whether an op without a known gradient among its inputs reads one.

    The loss ``(Sparse)SoftmaxCrossEntropyWithLogits`` computes its gradient in the forward pass, as its
    second result.
    """
    if structure.evidence:
        is_size = op.type == "Cast" and all(spec.shape == () for spec in op.outputs)
        return not (is_size or op.name in structure.early or _ZEROS.search(op.name))

    has_values = False

    for tensor in op.inputs:
        spec = structure.spec(tensor)
        if spec is not None and not is_float(spec.dtype):
            continue

        has_values = True
        name, index = split_tensor(tensor)
        loss = structure.ops.get(name) if index == 1 else None

        if loss is not None and loss.type.endswith(_LOSS_WITH_GRADIENT):
            return True

    return not has_values and is_in_gradient_scope(op.name)


NO_GRAPH = build_graph_index(())
