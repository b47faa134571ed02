"""What the names of ops tell: the optimizer, the forward op of a gradient, the layer, the type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from analyzer.model.contract.graph_note import (
    PARAMETER_GRADIENTS as PARAMETER_GRADIENTS,
)
from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.graph_index import ScopeTable, is_in_gradient_scope
from analyzer.model.recording.attribution import FUSED_INTO

_OPTIMIZER: Final = re.compile(
    r"(adam_?w?|ada_?max|n_?adam|sgd|rm_?s_?prop|ada_?grad|ada_?delta|ada_?factor|ftrl|lion|lamb|muon"
    r"|loss_?scale_?optimizer)(_\d+)?",
    re.IGNORECASE,
)
"""Name scope of Keras' optimizers."""
_APPLIES: Final = re.compile(r"Resource(Sparse)?Apply\w+")
_SUFFIX: Final = re.compile(r"(_\d+)?(-\d+-.*-LayoutOptimizer)?$")
_NO_LAYERS: Final = ("gradient_tape", "gradients", "ArithmeticOptimizer")
_FUNCTIONS: Final = (
    *("Tensordot", "einsum", "Einsum", "GatherV2"),
    *("moments", "batchnorm", "stateless_dropout"),
)
"""Name scopes of functions (``math_ops.py``, ``nn_impl.py``, ``special_math_ops.py``)."""
_LONGEST: Final = 512  # characters of a name's last part; TensorFlow's have about 100
_GRADIENT_KERNEL: Final = re.compile(r"(\w*?(Grad|GradV\d|Backprop\w*?))(_\d+)?(-|$)")
"""Name of an op type that computes a gradient; the tape opens the forward op's scope around it."""
GUARDS_BYTES: Final = 2 * (8 << 20)
"""Bytes before and after a buffer (``kDefaultRedzoneSize`` in ``redzone_allocator.h``)."""
LAYOUT: Final = "-LayoutOptimizer"
"""End of the name of a transposition that Grappler adds (``generic_layout_optimizer_transposer.cc``)."""


def find_gradient_kernel(name: str) -> str:
    """Return the type of the gradient's kernel that an op is named after; empty for another op."""
    last = name.rpartition("/")[2]
    found = _GRADIENT_KERNEL.match(last[:_LONGEST])

    return found[1] if found is not None else ""


def make_type_finder(
    annotated: Mapping[str, str],
    guarded: Iterable[str],
) -> Callable[[str], str]:
    """Return a function from an op's name to its type; empty if unknown.

    The type is in the annotation of a kernel, or else the name's last part. Only convolutions request
    ``guarded`` buffers (``RedzoneAllocator``).
    """
    known = {}
    for name in guarded:
        is_fused = name.rpartition("/")[2] in FUSED_INTO
        known[name] = "_FusedConv2D" if is_fused else "Conv2D"

    known.update(annotated)

    @cache
    def find_type(name: str) -> str:
        plain = name.partition("#")[0]
        if plain in known:
            return known[plain]

        if LAYOUT in plain and "Transpose" in plain:
            return "Transpose"

        last = plain.rpartition("/")[2]
        kind = _SUFFIX.sub("", last[-_LONGEST:])

        return kind if kind[:1].isupper() else ""

    return find_type


def is_apply(op_type: str) -> bool:
    """Say whether an op type updates a variable by an optimizer's rule."""
    return bool(_APPLIES.fullmatch(op_type))


def find_optimizer(name: str) -> str:
    """Return the innermost name scope of Keras' optimizers around an op; empty for none.

    Keras 2 computes gradients in the optimizer's scope (``Adam/gradients/AddN``).
    """
    if is_in_gradient_scope(name):
        return ""

    for part in reversed(name.split("/")[:-1]):
        if _OPTIMIZER.fullmatch(part):
            return part.lower()

    return ""


def find_forward_op(name: str, known: set[str]) -> str:
    """Return the forward op that the name of an op of the tape contains; empty for none."""
    if not is_in_gradient_scope(name):
        return ""

    scope = plain_scope(name)
    last = scope.rpartition("/")[2]
    own = name.rpartition("/")[2]

    is_prefix = bool(last) and own.lower().startswith(_plain_number(last).lower())
    if scope in known or is_prefix or find_gradient_kernel(name):
        return scope

    return ""


def plain_scope(name: str) -> str:
    """Return an op's name scope without those of the tape and of Grappler's arithmetic rewrites."""
    parts = name.split("/")[:-1]
    return "/".join(part for part in parts if part not in _NO_LAYERS)


def find_scopes(ops: Sequence[Op], known: set[str]) -> ScopeTable:
    """Return the owners of the ops' scopes: an optimizer, else the layer that the scope names."""
    owners = {}
    types = {op.type for op in ops} - {""}

    for op in ops:
        scope = plain_scope(op.name)

        if find_optimizer(op.name):
            root = next(part for part in scope.split("/") if _OPTIMIZER.fullmatch(part))
            owners[root] = ("layer", root)
        elif scope and scope not in owners:
            is_in_op = op.type == "_Recv" or find_forward_op(op.name, known)
            layer = scope.rpartition("/")[0] if is_in_op else scope
            owners[scope] = ("layer", _drop_functions(layer, op.name, known, types))

    return ScopeTable(owners)


def _drop_functions(scope: str, op_name: str, known: set[str], types: set[str]) -> str:
    """Return the layer around a scope that an op or a function of TensorFlow opens in it.

    In ``dense/MatMul/Cast`` the op casts its weight, in ``dropout_3/dropout/Mul`` and ``Relu/Relu`` a
    function has the name of its layer or its op.
    """
    inner = _plain_number(op_name.rpartition("/")[2])

    while "/" in scope:
        outer, _, last = scope.rpartition("/")
        plain = _plain_number(last)
        around = _plain_number(outer.rpartition("/")[2])
        is_named_alike = plain in (inner, around)

        is_op = scope in known or plain in types
        if not (is_op or is_named_alike or plain in _FUNCTIONS):
            break

        scope = outer

    return scope


def _plain_number(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


@cache
def read_shape(text: str) -> tuple[int, ...] | None:
    """Return the axes of a shape such as ``[3,4]``; None if unknown."""
    axes = text.removeprefix("[").removesuffix("]")
    if axes == text:
        return None

    parts = axes.split(",") if axes else []
    for part in parts:
        is_number = part.isascii() and part.isdigit()
        if not is_number or len(part) >= 16:
            return None

    return tuple(map(int, parts))
