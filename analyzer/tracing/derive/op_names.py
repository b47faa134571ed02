"""What the names of ops tell: the optimizer, the forward op of a gradient, the layer, the type.

Two runs of one program may name an op differently: the executor puts the name of the call before the
ops of an inlined function, and a layer has another number if the program built other models before.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from analyzer.model.contract.run_note import Op
from analyzer.model.graph.graph_index import (
    ScopeTable,
    find_inlined,
    is_in_gradient_scope,
    remove_rewrite,
)
from analyzer.model.recording.attribution import FUSED_INTO

# Name scope of Keras' optimizers.
_OPTIMIZER = re.compile(
    r"(adam_?w?|ada_?max|n_?adam|sgd|rm_?s_?prop|ada_?grad|ada_?delta|ada_?factor|ftrl|lion|lamb|muon"
    r"|loss_?scale_?optimizer)(_\d+)?",
    re.IGNORECASE,
)
_APPLIES = re.compile(r"Resource(Sparse)?Apply\w+")
_SUFFIX = re.compile(r"(_\d+)?(-\d+-.*-LayoutOptimizer)?$")
_NO_LAYERS = ("gradient_tape", "gradients", "ArithmeticOptimizer")

# Outermost scopes of losses of Keras 2, and of a replica of a distribution strategy.
_NO_OWNERS = re.compile(
    r"replica_\d+|\w*(crossentropy|hinge|_error|_loss|divergence)(_\d+)?"
)

# Name scopes of functions (``math_ops.py``, ``nn_impl.py``, ``special_math_ops.py``).
_FUNCTIONS = (
    *("Tensordot", "einsum", "Einsum", "GatherV2"),
    *("moments", "batchnorm", "stateless_dropout"),
    *("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
)
_LONGEST = 512  # characters of a name's last part; TensorFlow's have about 100

# Name of an op type that computes a gradient; the tape opens the forward op's scope around it.
_GRADIENT_KERNEL = re.compile(r"(\w*?(Grad|GradV\d|Backprop\w*?))(_\d+)?(-|$)")

# Bytes before and after a buffer (``kDefaultRedzoneSize`` in ``redzone_allocator.h``).
GUARDS_BYTES = 2 * (8 << 20)

# End of the name of a transposition that Grappler adds (``generic_layout_optimizer_transposer.cc``).
LAYOUT = "-LayoutOptimizer"


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
            owners[root] = ("optimizer", root)
        elif scope and scope not in owners:
            layer = scope
            if op.type == "_Recv" or find_forward_op(op.name, known):
                layer = scope.rpartition("/")[0]

            layer = _drop_functions(layer, op.name, known, types)
            is_layer = not _NO_OWNERS.fullmatch(layer)
            owners[scope] = ("layer" if is_layer else "loss", layer)

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


_NUMBER = re.compile(r"_\d+(?=/|$)")
CALLS = re.compile(r"^((Stateful)?PartitionedCall(_\d+)?/)+")  # of inlined functions


def match_names(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return the name among ``others`` of each op or layer of another run, if it has one.

    Names that differ otherwise are matched without their numbers, then without the model's name.
    """
    own = {name: name for name in others}
    names = list(dict.fromkeys(names))
    found = {}

    for name in names:
        op = find_inlined(name, own) or find_inlined(remove_rewrite(name), own)
        if op is not None:
            found[name] = op

    # Layers are numbered in the order of their creation in both programs.
    for write_key in (_drop_numbers, _drop_root):
        candidates = _group(set(own) - set(found.values()), write_key)

        for key, mine in _group(set(names) - found.keys(), write_key).items():
            theirs = candidates.get(key, [])

            if key and len(mine) == len(theirs):
                found.update(zip(mine, theirs, strict=True))

    return found


def _group(
    names: Iterable[str],
    write_key: Callable[[str], str],
) -> dict[str, list[str]]:
    """Return the names by their key, in the order of their numbers."""
    groups: dict[str, list[str]] = defaultdict(list)

    for name in sorted(names, key=_numbers):
        groups[write_key(name)].append(name)

    return groups


def _drop_numbers(name: str) -> str:
    return CALLS.sub("", _NUMBER.sub("", name))


def _drop_root(name: str) -> str:
    """Return a name without numbers and the model's name, its first scope; empty if it has none."""
    tape = "gradient_tape/" if name.startswith("gradient_tape/") else ""
    _, _, rest = _drop_numbers(name).removeprefix(tape).partition("/")

    if not rest or find_optimizer(name):
        return ""

    return tape + rest


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(number[1:]) for number in _NUMBER.findall(name)], name
