"""The remedies that a step may have: a table, other optimizers, recomputed blocks of layers."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files

import msgspec
from msgspec import structs

from analyzer.cards.catalogue import Gpu
from analyzer.model.contract.child_messages import (
    CaptureOptions,
)
from analyzer.model.contract.reading import read_table
from analyzer.model.contract.run_note import CONSTANTS, op_types, split_tensor
from analyzer.model.errors import InputError, suggest_names
from analyzer.model.graph.graph_index import GraphIndex, Phase
from analyzer.tracing.parse.run_folder import RunNote, index_note_graph

# smaller tensors are ignored: shapes, axes, batch statistics
_LEAST_BYTES = 1024

# Ops whose output shares their input's buffer.
_ALIASES = op_types("Identity Reshape Squeeze ExpandDims StopGradient")

_NAME = re.compile(r"[\w.-]+")

# Index of the first unit, and of the first unit after the block.
Block = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ChainUnit:
    """Layers between two tensors that all later layers depend on."""

    layers: tuple[str, ...]
    kept_bytes: int  # tensors that the backward pass needs, without the output
    leaves_bytes: int  # the output
    is_random: bool  # whether it draws random numbers, which would differ when repeated


def choose_blocks(units: Sequence[ChainUnit]) -> list[Block]:
    """Return the blocks with the lowest peak; none if no partition lowers it.

    A recomputed block keeps only the tensor that enters it. So the peak is about the sum of the kept
    tensors plus the tensors of the largest block. For each number of parts, the chain is cut greedily
    into the longest blocks of at most one part of the bytes (Chen, Xu, Zhang and Guestrin, "Training
    deep nets with sublinear memory cost", 2016).
    """
    total = _bytes_inside(units, (0, len(units)))
    partitions = [_cut(units, total // count) for count in range(2, len(units))]

    # No blocks at all win if no partition lowers the peak.
    return min([[], *partitions], key=lambda blocks: find_peak(units, blocks))


def find_peak(units: Sequence[ChainUnit], blocks: Sequence[Block]) -> int:
    """Return the kept bytes of a partition beside its largest block."""
    kept = sum(unit.kept_bytes + unit.leaves_bytes for unit in units)
    inside = [_bytes_inside(units, block) for block in blocks]

    return kept - sum(inside) + max(inside, default=0)


def _bytes_inside(units: Sequence[ChainUnit], block: Block) -> int:
    """Return the bytes of a block while its gradient is computed, without its output."""
    start, stop = block
    total = sum(unit.kept_bytes + unit.leaves_bytes for unit in units[start:stop])

    return total - units[stop - 1].leaves_bytes


def _cut(units: Sequence[ChainUnit], bound: int) -> list[Block]:
    """Return the longest blocks, from the first unit on, that hold at most ``bound`` bytes."""
    blocks = []
    start = 0

    for stop in range(1, len(units) + 1):
        is_random = units[stop - 1].is_random
        if not is_random and _bytes_inside(units, (start, stop)) <= bound:
            continue

        if stop - 1 > start:
            blocks.append((start, stop - 1))

        is_alone = is_random or _bytes_inside(units, (stop - 1, stop)) > bound
        start = stop if is_alone else stop - 1

    if start < len(units):
        blocks.append((start, len(units)))

    return blocks


def chain_of(note: RunNote) -> tuple[ChainUnit, ...]:
    """Return the units of a captured training step, in order; none if its layers are not a chain.

    The chain is cut where a single tensor connects the layers before with the layers after.
    """
    graph = index_note_graph(note)
    if note.xla:
        return ()

    layers = _skip_constants(graph, _map_forward_layers(graph))

    order = _sort_layers(graph, layers)
    if len(order) < 2 or not all(_NAME.fullmatch(layer) for layer in order):
        return ()

    return tuple(_find_units(graph, layers, order))


def _map_forward_layers(graph: GraphIndex) -> dict[str, str]:
    """Map the ops of the forward pass to the model's own layers.

    The path of a layer with weights starts with the model's name, other paths may not.
    """
    paths = {}
    for name, path in graph.layers.items():
        if path and graph.phases.get(name) is Phase.FORWARD:
            paths[name] = path.split("/")

    heads = Counter(path[0] for path in paths.values() if len(path) > 1)
    model = heads.most_common(1)[0][0] if heads else ""
    layers = {}

    for name, parts in paths.items():
        is_below_model = len(parts) > 1 and parts[0] == model
        layers[name] = parts[1] if is_below_model else parts[0]

    return layers


def _skip_constants(graph: GraphIndex, layers: Mapping[str, str]) -> dict[str, str]:
    """Return the ops of layers that depend on data or weights.

    Grappler merges equal constants and ops on them (``DedupComputations``), so that layers without any
    connection share them.
    """
    constant = set()
    queue = [name for name, op in graph.ops.items() if op.type in CONSTANTS]

    while queue:
        name = queue.pop()
        if name in constant:
            continue

        constant.add(name)

        for user in graph.users_of(name):
            makers = {split_tensor(tensor)[0] for tensor in graph.ops[user].inputs}

            if makers <= constant:
                queue.append(user)

    return {name: layer for name, layer in layers.items() if name not in constant}


def _sort_layers(graph: GraphIndex, layers: Mapping[str, str]) -> list[str]:
    """Return the layers, each after those whose tensors it reads; none if there is a cycle."""
    before: dict[str, set[str]] = {layer: set() for layer in layers.values()}

    for name, layer in layers.items():
        inputs = graph.ops[name].inputs
        makers = {layers.get(split_tensor(one)[0], layer) for one in inputs}
        before[layer] |= makers - {layer}

    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return []


def _find_units(
    graph: GraphIndex,
    layers: Mapping[str, str],
    order: Sequence[str],
) -> Iterator[ChainUnit]:
    place = {layer: number for number, layer in enumerate(order)}

    # Tensors in use after each layer
    crossing: list[dict[str, int]] = [{} for _ in order]
    kept = [0] * len(order)
    is_random = [False] * len(order)

    for name, layer in layers.items():
        op = graph.ops[name]
        at = place[layer]
        is_random[at] |= "Random" in op.type

        for index, spec in enumerate(op.outputs):
            size_bytes = spec.size_bytes or 0
            if size_bytes < _LEAST_BYTES or op.type == "ReadVariableOp":
                continue

            tensor = f"{name}:{index}"
            users = graph.consumers.get(tensor, ())
            is_for_backward = any(
                graph.phases.get(user) is Phase.BACKWARD for user in users
            )

            if op.type not in _ALIASES and is_for_backward:
                kept[at] += size_bytes

            readers = [place[layers[user]] for user in users if user in layers]

            # It is in use until the layer before its last reader.
            for end in range(at, max(readers, default=at)):
                crossing[end][tensor] = size_bytes

    first = 0

    # A unit ends where a single tensor is in use.
    for end in range(len(order) - 1):
        if len(crossing[end]) != 1:
            continue

        (leaves_bytes,) = crossing[end].values()
        members = slice(first, end + 1)

        yield ChainUnit(
            layers=tuple(order[members]),
            kept_bytes=max(sum(kept[members]) - leaves_bytes, 0),
            leaves_bytes=leaves_bytes,
            is_random=any(is_random[members]),
        )

        first = end + 1


_ACCUMULABLE_BATCH = 4

# Keras' classes, each of which is a remedy ``optimizer-NAME``, in lower case.
_OPTIMIZERS = ("SGD", "Lion", "Adafactor", "RMSprop", "Adagrad")

# The remedy that recomputes blocks of layers; it needs the order of the layers.
RECOMPUTING = "recompute-blocks"

_OF_STATE = 0.3
"""Likely share of the variables that another optimizer saves."""

_OF_ACTIVATIONS = 0.4
"""Likely share of the activations that recomputed blocks save."""

_LEAST_UNITS = 3  # fewest units of a chain for which blocks are recomputed
_TYPE_IGNORE = re.compile(r"  # type: ignore\[[\w-]+\]")
_PASTE_BEGIN = "# --- begin of the pasted code ---"
_PASTE_END = "# --- up to here ---"

_GLOBAL_POLICIES = frozenset({"float32", "float64", ""})


class RemedyRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A remedy of the table; ``remedies.toml`` explains the fields."""

    id: str
    title: str
    kind: str
    costs: str = ""
    when: tuple[str, ...] = ()
    batch_size: str = ""
    dtype_policy: str = ""
    jit: bool | None = None
    remedy: str = ""
    before: str = ""
    model: str = ""
    optimizer_option: str = ""
    of_activations: float = 0.0
    of_state: float = 0.0


class RemedyPlan(RemedyRow, frozen=True, kw_only=True):
    """A remedy that can be applied to a step, with the sizes of that step in its texts."""

    options: CaptureOptions  # capture options of the changed step
    # class of the optimizer, if the remedy sets an option of it or replaces it
    optimizer: str = ""


@cache
def read_remedies() -> tuple[RemedyRow, ...]:
    """Return the remedies of ``remedies.toml``."""
    table = read_table("fitting/remedies.toml", dict[str, tuple[RemedyRow, ...]])
    return table["remedies"]


@cache
def remedy_names() -> tuple[str, ...]:
    """Return the name of every remedy that some step may have."""
    return (
        *(row.id for row in read_remedies()),
        *(f"optimizer-{name.lower()}" for name in _OPTIMIZERS),
        RECOMPUTING,
    )


def plan_remedies(options: CaptureOptions, note: RunNote) -> Iterator[RemedyPlan]:
    """Yield the remedies that a step may have.

    A graph without XLA shows the order of the layers, so no blocks of a compiled step are recomputed.
    """
    conditions = _conditions_of(options, note)

    for row in read_remedies():
        if conditions.issuperset(row.when):
            yield _plan_row(row, options, note)

    if note.step.infers:
        return

    current = _optimizer_class(note)

    # The optimizer of a custom step is part of its code.
    for name in () if note.step.own else _OPTIMIZERS:
        if name == current:
            continue

        key = name.lower()
        yield RemedyPlan(
            id=f"optimizer-{key}",
            title=f"{name} instead of {current}",
            optimizer=name,
            costs="other hyper-parameters",
            kind="optimizer",
            of_state=_OF_STATE,
            options=replace(options, optimizer=key),
        )

    yield from _plan_blocks(options, chain_of(note))


def _conditions_of(options: CaptureOptions, note: RunNote) -> set[str]:
    """Return the conditions of the table that hold for a step."""
    step = note.step
    batch = options.open_batch_size

    holds = {
        "train": not step.infers,
        "infer": step.infers,
        "xla": bool(step.jit),
        "op-by-op": not step.jit,
        "from-python": step.own and step.eager,
        "several-examples": batch > 1,
        "accumulable": batch >= _ACCUMULABLE_BATCH,
        "default-policy": step.dtype_policy in _GLOBAL_POLICIES,
        "float64": step.dtype_policy == "float64",
    }

    return {name for name, is_true in holds.items() if is_true}


def _plan_row(row: RemedyRow, options: CaptureOptions, note: RunNote) -> RemedyPlan:
    """Return a remedy of the table for a step."""
    batch = options.open_batch_size
    sizes = {
        "half": batch // 2,
        "quarter": batch // _ACCUMULABLE_BATCH,
    }

    size = row.batch_size.format(**sizes)
    texts = {"title": row.title.format(**sizes), "batch_size": size}

    return RemedyPlan(
        **{**structs.asdict(row), **texts},
        optimizer=_optimizer_class(note) if row.optimizer_option else "",
        options=replace(
            options,
            batch_size=int(size) if size else options.batch_size,
            dtype_policy=row.dtype_policy or options.dtype_policy,
            jit=options.jit if row.jit is None else row.jit,
            remedy=row.remedy or options.remedy,
        ),
    )


def _plan_blocks(
    options: CaptureOptions,
    units: Sequence[ChainUnit],
) -> Iterator[RemedyPlan]:
    """Yield the blocks of layers to recompute, if the layers are a chain."""
    blocks = choose_blocks(units) if len(units) >= _LEAST_UNITS else []
    if not blocks:
        return

    names = [
        (units[start].layers[0], units[stop - 1].layers[-1]) for start, stop in blocks
    ]
    pairs = "".join(f'    ["{first}", "{last}"],\n' for first, last in names)
    call = f"model = recompute_blocks(model, [  # before compile\n{pairs}])"
    ranges = "|".join(f"{first}>{last}" for first, last in names)

    yield RemedyPlan(
        id=RECOMPUTING,
        title=f"{len(blocks)} blocks of layers recomputed",
        model=f"{read_recomputing_code()}\n\n\n{call}",
        costs="their ops run twice; batch normalization updates twice",
        kind="recomputation",
        of_activations=_OF_ACTIVATIONS,
        options=replace(options, remedy=f"recompute={ranges}"),
    )


def read_recomputing_code() -> str:
    """Return the code that recomputes blocks of a model, the same that captures of the remedy run."""
    text = (
        files("analyzer.capture.targets")
        .joinpath("recomputed_blocks.py")
        .read_text("utf-8")
    )

    body = text.split(_PASTE_BEGIN)[1].split(_PASTE_END)[0]
    body = _TYPE_IGNORE.sub("", body).strip()

    return (
        f"from typing import Any\n\nimport keras\nimport tensorflow as tf\n\n\n{body}"
    )


def _optimizer_class(note: RunNote) -> str:
    """Return the class of a step's optimizer: the recorded one, else by the paths of its variables."""
    heads = {variable.path.split("/")[0] for variable in note.variables}
    by_path = (name for name in _OPTIMIZERS if name.lower() in heads)

    return note.step.optimizer or next(by_path, "Adam")


def write_code(plan: RemedyPlan, *, is_own_step: bool) -> str:
    """Return the code for a remedy."""
    lines = [plan.before.strip("\n"), plan.model.strip("\n")]
    arguments = []

    if plan.optimizer:
        given = ", ".join(filter(None, ("...", plan.optimizer_option)))
        lines.append(f"optimizer = keras.optimizers.{plan.optimizer}({given})")
        arguments.append("optimizer=optimizer")

    if plan.jit is not None:
        arguments.append(f"jit_compile={plan.jit}")

    if is_own_step:
        if plan.jit is not None:
            lines.append(f"step = tf.function(step, jit_compile={plan.jit})")
        if plan.batch_size:
            lines.append(f"dataset = dataset.batch({plan.batch_size})")
    else:
        if arguments:
            lines.append(f"model.compile({', '.join(arguments)}, loss=...)")
        if plan.batch_size:
            lines.append(f"model.fit(..., batch_size={plan.batch_size})")

    return "\n".join(filter(None, lines))


# compute capability from which tensor cores take bfloat16 (NVIDIA, "Ampere Tuning Guide")
_BFLOAT16_SINCE = (8, 0)
ALL = "all"  # stands for every remedy that may save memory


def choose_plans(
    plans: Sequence[RemedyPlan],
    names: Sequence[str],
    gpu: Gpu | None = None,
) -> list[RemedyPlan]:
    """Return the named remedies, or all that may save memory; raise for an unknown name.

    Of the two mixed precisions, all means that of the card: both save the same.
    """
    if not names:
        unsuited = None if gpu is None else _find_unsuited_policy(gpu)
        return [plan for plan in plans if plan.dtype_policy != unsuited]

    known = {plan.id: plan for plan in plans}
    for name in names:
        if name in known:
            continue

        hint = f"This step's remedies: {', '.join(known)}."
        if name == RECOMPUTING:
            hint = "It needs layers in a chain of three parts or more, without XLA."

        raise InputError(f"This step has no remedy {name!r}.", hint)

    return [known[name] for name in names]


def _find_unsuited_policy(gpu: Gpu) -> str:
    """Return the mixed precision in which a card does not compute, or that needs loss scaling there."""
    has_bfloat16 = gpu.is_amd or gpu.compute_capability >= _BFLOAT16_SINCE
    return "mixed_float16" if has_bfloat16 else "mixed_bfloat16"


def parse_remedies(text: str) -> tuple[str, ...] | None:
    """Return the remedies in a comma-separated list; empty for all, None for no list."""
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names or names == (ALL,):
        return () if names else None

    known = remedy_names()

    for name in names:
        if name not in known:
            hint = suggest_names(name, known) or f"Use all, or {', '.join(known)}."
            raise InputError(f"There is no remedy {name!r}.", hint)

    return names
