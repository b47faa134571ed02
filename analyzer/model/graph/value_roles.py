"""The category and role of a value that an op of the step computes; for traces and predictions alike.

A *gradient* is the gradient of a variable or of an activation: a result of the backward pass that
depends on the gradient with which the tape starts, and that another op reads. An *activation* is a
result of the forward pass that another op reads. Results that no op reads are temporaries, as is
scratch memory.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import chain
from typing import Final

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import Op, op_types, split_tensor
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.phases import Phase

GRADIENT_ROLE: Final = "gradient"  # role of the gradient of a variable
_PASSED_GRADIENT_ROLE: Final = "gradient read in the backward pass"  # of an activation
_KEPT_ROLES: Final = ("kept for the backward pass", "alive in backward")
"""Roles of activations that wait for the backward pass, by their readers or only by their lifetime."""
_FORWARD_ROLE: Final = "read in the forward pass only"
PASSING_ROLES: Final = frozenset({_PASSED_GRADIENT_ROLE, _FORWARD_ROLE})
"""Roles of activations and gradients that are freed in the pass that made them."""
_FLOATS: Final = frozenset(
    {"", "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "half", "float"}
)
"""Element types of activations and gradients; empty if unknown."""
_GRADIENT_TYPE: Final = re.compile(r"\w*(Grad|GradV\d|GradWithArgmax|Backprop\w*)")
_FROM_NOTHING: Final = re.compile(
    r"(Stateless)?(Random|TruncatedNormal|Multinomial)\w*|Fill|\w+Like"
)
"""Types of ops that make random numbers or constants, which are no activations."""
_ONE_INPUT: Final = op_types(
    """
    Cast Cos Erf Exp Identity Log Log1p Neg Pow Reciprocal Reshape Rsqrt Sigmoid Sin Softmax Softplus
    Sqrt Square Tanh Transpose
    """
)
"""Types of ops with one input besides sizes and constants."""


def describe_value(
    phase: Phase,
    *,
    infers: bool = False,
    of_variable: bool = False,
    carries_gradient: bool = False,
    is_kept: bool = False,
    is_alive: bool = False,
    is_activation: bool = False,
) -> tuple[Category, str]:
    """Return the category and the role of a value that an op computes.

    Args:
        phase: The op's.
        infers: Whether the step has no backward pass.
        of_variable: Whether it is the gradient of a variable.
        carries_gradient: Whether it is any other gradient.
        is_kept, is_alive: Whether the backward pass reads it, or begins while it is alive.
        is_activation: Whether another op reads this result of the forward pass.
    """
    if phase is not Phase.FORWARD:
        if of_variable:
            return Category.GRADIENT, GRADIENT_ROLE
        if carries_gradient and phase is Phase.BACKWARD:
            return Category.GRADIENT, _PASSED_GRADIENT_ROLE
        kind = "optimizer" if phase is Phase.UPDATE else "backward"
        return Category.TEMPORARY, f"{kind} temporary"
    if infers:
        return Category.ACTIVATION, "activation"
    if is_kept or is_alive:
        return Category.ACTIVATION, _KEPT_ROLES[not is_kept]
    if is_activation:
        return Category.ACTIVATION, _FORWARD_ROLE
    return Category.TEMPORARY, "forward temporary"


def is_float(dtype: str) -> bool:
    """Say whether activations and gradients may have the element type; True if it is unknown."""
    return dtype in _FLOATS


def makes_activation(op_type: str) -> bool:
    """Say whether the result of a forward op of the type is computed from other tensors."""
    return not _FROM_NOTHING.fullmatch(op_type)


def find_gradient_ops(structure: GraphIndex) -> frozenset[str]:
    """Return the ops of the backward pass whose results depend on the gradient of the loss.

    These are gradient kernels, the ops that make the tape's first gradient, and all ops after them.
    Others compute a value of the forward pass again, or copy it. A graph that is derived from a trace
    lacks edges: there an op of the tape with two inputs reads a gradient unless both are known to be
    results of the forward pass.
    """
    backward = {name for name, phase in structure.phases.items() if phase is Phase.BACKWARD}
    found = {
        op.name
        for op in structure.ops.values()
        if op.name in backward
        and (_GRADIENT_TYPE.fullmatch(op.type) or _reads_unknown_gradient(structure, op))
    }
    queue = deque(found)
    while queue:
        op = structure.ops[queue.popleft()]
        floats = (index for index, spec in enumerate(op.outputs) if is_float(spec.dtype))
        users = (structure.consumers.get(f"{op.name}:{index}", ()) for index in floats)
        new = backward.intersection(chain.from_iterable(users)) - found
        found |= new
        queue.extend(new)
    return frozenset(found)


def _reads_unknown_gradient(structure: GraphIndex, op: Op) -> bool:
    """Say whether an op reads no known gradient because it has no input, or an unknown one."""
    specs = {tensor: structure.spec(tensor) for tensor in op.inputs}
    values = [tensor for tensor, spec in specs.items() if spec is None or is_float(spec.dtype)]
    if not structure.evidence:
        return not values
    phases = (structure.phases.get(split_tensor(tensor)[0]) for tensor in values)
    of_forward = sum(phase is Phase.FORWARD for phase in phases)
    return of_forward < (1 if op.type in _ONE_INPUT else 2)
