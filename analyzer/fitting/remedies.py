"""Estimate a step with remedies: each is a real change of the step, captured and estimated.

A remedy is also written as an edit of the user's source, if the file has exactly one place for it. Edits
of one argument can be written: batch size, dtype policy, XLA, the optimizer of ``compile``. The line of
a finding's cause is edited too, and the step runs again. A line may be mended in several ways, such as
at either operand of a subtraction, and each of them is run. A cause without such an edit has to be
mended by hand.

The table ``remedies.toml`` has most; smaller inputs and recomputed blocks depend on the model.

A block of layers is recomputed so that the peak of a training step is lowest. The chain is cut where a
single tensor connects the layers before with the layers after; the layers between two cuts are a *unit*,
and a block is a run of units. A recomputed block keeps only the tensor that enters it. So the peak is
about the sum of the kept tensors plus the tensors of the largest block. For each number of parts, the
chain is cut greedily into the longest blocks of at most one part of the bytes (Chen, Xu, Zhang and
Guestrin, "Training deep nets with sublinear memory cost", 2016). The saving that users see is estimated
from a capture with these blocks.
"""

import ast
import difflib
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from msgspec.structs import replace as replace_fields

from analyzer.cards.catalogue import Gpu, look_up_gpu
from analyzer.fitting.step_access import (
    StepAccess,
    StepEstimate,
    estimate_folder,
    estimate_step,
    open_accesses,
    run_at_once,
)
from analyzer.model.contract.child_messages import (
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.reading import read_table
from analyzer.model.contract.report_file import Finding, StepRemedy
from analyzer.model.contract.run_note import CONSTANTS, split_tensor
from analyzer.model.errors import InputError, suggest_names
from analyzer.model.graph.graph_index import GraphIndex, Phase
from analyzer.model.progress import listening, report_stage
from analyzer.model.units import format_bytes
from analyzer.report.actions import remedy_of
from analyzer.report.answer import add_answer
from analyzer.report.output_files import write_text
from analyzer.report.result import Result
from analyzer.session.target_results import save_report
from analyzer.tracing.parse.run_folder import RunNote, index_note_graph

# smaller tensors are ignored: shapes, axes, batch statistics
_LEAST_BYTES = 1024

# Ops whose output shares their input's buffer.
_ALIASES = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient"})

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
    """Return the blocks with the lowest peak; none if no partition lowers it."""
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
    blocks: list[Block] = []
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
    """Return the units of a captured training step, in order; none if its layers are not a chain."""
    graph = index_note_graph(note)
    if graph is None or note.xla:
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
    constant: set[str] = set()
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

            for end in range(at, max(readers, default=at)):
                crossing[end][tensor] = size_bytes

    first = 0

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


_LONGEST_REASON = 240  # characters of the reason why a remedy cannot be applied

# of the saving, by which that of the patched file may differ
_PATCH_TOLERANCE = 0.03
_BY_HAND = "The change has to be made by hand, so that its saving is computed, not run."
# compute capability from which tensor cores take bfloat16 (NVIDIA, "Ampere Tuning Guide")
_BFLOAT16_SINCE = (8, 0)
ALL = "all"  # stands for every remedy that may save memory


@dataclass(frozen=True)
class RemedyTrial:
    """A step, its options without remedies, and an optional limit to judge by."""

    access: StepAccess
    options: CaptureOptions
    limit_bytes: int | None
    # Takes each as it is known
    keep: Callable[[StepRemedy], None] = lambda remedy: None
    patch_file: Path | None = None  # the file to write patches of, into a folder
    patch_folder: Path = Path()
    others: tuple[StepAccess, ...] = ()  # for further captures at the same time


def try_remedies(
    trial: RemedyTrial,
    names: Sequence[str],
    captured: Path | None = None,
) -> tuple[StepRemedy, ...]:
    """Estimate a step with each remedy.

    No names stand for all remedies that may save memory. ``captured`` is the folder of a capture of the
    unchanged step, which is captured here if it is None.
    """
    options = trial.options
    report_stage("estimating the unchanged step")

    before = (
        estimate_step(trial.access, options, "unchanged")
        if captured is None
        else estimate_folder(captured)
    )

    gpu = look_up_gpu(before.note.device.name)
    plans = choose_plans(list(plan_remedies(options, before.note)), names, gpu)
    plans.sort(key=lambda plan: -_guess_saving(plan, before))
    remedies: list[StepRemedy] = []
    begin = time.monotonic()

    accesses = (trial.access, *trial.others)

    def run(access: StepAccess, plan: RemedyPlan) -> StepRemedy:
        return _try_plan(replace(trial, access=access), plan, before)

    with (
        listening(lambda stage, share: None) as outer,  # captures at the same time
        closing(run_at_once(accesses, run, plans)) as found,
    ):
        for remedy in found:
            remedies.append(remedy)
            trial.keep(remedy)

            left = len(plans) - len(remedies)
            left_s = (time.monotonic() - begin) / len(remedies) * left
            minutes = math.ceil(left_s / 60)
            stage = f"{len(remedies)} of {len(plans)} changes, about {minutes} min left"
            outer(stage, (len(remedies) + 1) / (len(plans) + 1))

    remedies.sort(key=lambda one: (one.saves_bytes is None, -(one.saves_bytes or 0)))

    return tuple(remedies)


def _guess_saving(plan: RemedyPlan, before: StepEstimate) -> float:
    """Return the likely saving of a remedy in bytes, by the shares of its kind."""
    activation_bytes = before.requested_bytes - before.fixed_bytes
    of_activations = plan.of_activations * activation_bytes
    return of_activations + plan.of_state * before.fixed_bytes


def _try_plan(
    trial: RemedyTrial,
    plan: RemedyPlan,
    before: StepEstimate,
) -> StepRemedy:
    """Return the savings of a remedy, or why it cannot be applied."""
    code = write_code(plan, is_own_step=before.note.step.own)
    remedy = StepRemedy(id=plan.id, title=plan.title, code=code, costs=plan.costs)

    try:
        after = estimate_step(trial.access, plan.options, f"remedy-{plan.id}")
    except InputError as error:
        return replace_fields(remedy, code="", failed=error.message[:_LONGEST_REASON])

    remedy = _add_figures(remedy, trial, before, after)

    file = trial.patch_file
    if file is None or before.requested_bytes <= after.requested_bytes:
        return remedy

    try:
        patch = _write_patch(trial, file, plan, before, after)
    except InputError as error:
        return replace_fields(remedy, no_patch=error.message[:_LONGEST_REASON])

    return replace_fields(remedy, patch=str(patch))


def _add_figures(
    remedy: StepRemedy,
    trial: RemedyTrial,
    before: StepEstimate,
    after: StepEstimate,
) -> StepRemedy:
    """Return a remedy with the figures of the step before and after it."""
    outputs = before.note.outputs
    limit_bytes = trial.limit_bytes

    return replace_fields(
        remedy,
        saves_bytes=before.requested_bytes - after.requested_bytes,
        requested_bytes=after.requested_bytes,
        allocated_bytes=after.allocated_bytes,
        fits=None if limit_bytes is None else after.need_bytes <= limit_bytes,
        has_same_outputs=outputs == after.note.outputs if outputs else None,
    )


def prove_findings(
    trial: RemedyTrial,
    findings: Sequence[Finding],
    captured: Path,
    file: Path | None,
) -> tuple[StepRemedy, ...]:
    """Run the step with the change of each finding: a remedy, or an edit of the finding's line.

    ``captured`` is a capture of the unchanged step, ``file`` the target's file; None if it has none.
    """
    before = estimate_folder(captured)
    plans = {plan.id: plan for plan in plan_remedies(trial.options, before.note)}
    remedies: list[StepRemedy] = []

    for finding in findings:
        report_stage(f"running the change for {finding.id}")

        plan = plans.get(remedy_of(finding))
        if plan is None:
            remedies.append(_try_edits(trial, finding, before, file))
        elif plan.id not in [one.id for one in remedies]:
            remedies.append(_try_plan(trial, plan, before))
        else:
            continue

        trial.keep(remedies[-1])

    return tuple(one for one in remedies if not one.failed)


def _try_edits(
    trial: RemedyTrial,
    finding: Finding,
    before: StepEstimate,
    file: Path | None,
) -> StepRemedy:
    """Return the edit of a finding's line that lowers the peak most, or why there is none."""
    remedy = StepRemedy(id=finding.id, title=finding.title, code="")

    runs = [] if file is None else list(run_edits(trial, finding, file))
    if not runs:
        return replace_fields(remedy, failed=_BY_HAND)

    after, code = min(runs, key=lambda run: run[0].requested_bytes)

    return _add_figures(replace_fields(remedy, code=code), trial, before, after)


def _write_patch(
    trial: RemedyTrial,
    file: Path,
    plan: RemedyPlan,
    before: StepEstimate,
    after: StepEstimate,
) -> Path:
    """Write a remedy as a patch, if the patched file saves as much; InputError if it cannot be one."""
    try:
        text = file.read_bytes().decode()
        edited = edit_source(text, plan, trial.options.open_batch_size)
        options = replace(trial.options, batch_size=plan.options.batch_size)
        name = f"source-{plan.id}"
        patched = estimate_edited(trial.access, options, file, edited, name)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{file} cannot be edited: {error}.") from None

    stated = before.requested_bytes - after.requested_bytes
    if abs(patched.requested_bytes - after.requested_bytes) > _PATCH_TOLERANCE * stated:
        saves = format_bytes(before.requested_bytes - patched.requested_bytes)
        raise InputError(f"The edited file saves {saves}.")

    trial.patch_folder.mkdir(exist_ok=True)
    path = trial.patch_folder / f"{plan.id}.patch"
    write_text(path, write_diff(file, text, edited))

    return path


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

        raise InputError(f"This step has no remedy {name!r}.", hint=hint)

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
            raise InputError(f"There is no remedy {name!r}.", hint=hint)

    return names


def add_remedies(
    result: Result,
    spec: TargetSpec,
    options: CaptureOptions,
    names: Sequence[str] | None,
    folder: Path,
    *,
    keep: Callable[[StepRemedy], None],
    patches: Path | None,
) -> Result:
    """Return an estimate with the savings of remedies, and save the changed report in its folder.

    Without ``names`` they are the changes of its findings. Remedies that the target's source can express
    are written as patches into the folder ``patches``.
    """
    verdict = result.report.verdict
    limit_bytes = None if verdict is None else verdict.pool_limit_bytes
    file = None if patches is None else spec.source

    with open_accesses(spec) as accesses:
        trial = RemedyTrial(
            accesses[0],
            options,
            limit_bytes,
            keep,
            file,
            patches or Path(),
            tuple(accesses[1:]),
        )

        if names is None:
            findings = result.report.findings
            source = spec.source if spec.kind is TargetKind.FILE else None
            remedies = prove_findings(trial, findings, folder, source)
        else:
            remedies = try_remedies(trial, names, folder)

    return save_remedies(result, remedies, folder)


def save_remedies(
    result: Result,
    remedies: Sequence[StepRemedy],
    folder: Path,
) -> Result:
    """Return an estimate with remedies, and save the changed report in its folder."""
    known = {one.id: one.saves_bytes for one in remedies if one.saves_bytes is not None}
    # one number for one change: the run's
    findings = tuple(
        replace(one, saves_bytes=known.get(remedy_of(one), one.saves_bytes))
        for one in result.report.findings
    )
    report = replace_fields(
        result.report,
        findings=findings,
        remedies=tuple(remedies),
    )

    return save_report(replace(result, report=add_answer(report)), folder)


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PLACE = re.compile(r"\(([^()\s]+):(\d+)\)$")
_MOST_EDITS = 6  # runs for one cause


def edit_source(text: str, plan: RemedyPlan, batch_size: int) -> str:
    """Return the text of a file with a remedy; InputError if it has no single place for it.

    ``batch_size`` is the batch without the remedy.
    """
    tree = ast.parse(text)
    if plan.model or plan.optimizer_option:
        raise InputError("This change is not one of an argument.")

    if plan.dtype_policy:
        return _set_policy(text, tree, plan.dtype_policy)
    if plan.batch_size:
        return _splice(text, _find_batch(tree, batch_size), plan.batch_size)

    name = "optimizer"
    value = f'"{plan.optimizer.lower()}"'

    if plan.jit is not None:
        name = "jit_compile"
        value = str(plan.jit)

    return _set_keyword(text, tree, name, value)


def write_diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff for the working folder, or for the file's own if it lies elsewhere."""
    name = Path(os.path.relpath(path)).as_posix()
    name = path.name if name.startswith("..") else name
    old = _LINE.findall(before)

    new = _LINE.findall(after)
    end = "\n\\ No newline at end of file\n"
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")

    return "".join(line if line.endswith("\n") else line + end for line in lines)


def estimate_edited(
    access: StepAccess,
    options: CaptureOptions,
    file: Path,
    text: str,
    name: str,
) -> StepEstimate:
    """Estimate the step of a target whose file has another text, beside links to its neighbours."""
    make = access.capture_file
    assert make is not None
    folder = access.folder / name
    folder.mkdir()

    for other in file.resolve().parent.iterdir():
        if other.name not in (file.name, "__pycache__"):
            (folder / other.name).symlink_to(other)

    copy = folder / file.name
    copy.write_bytes(text.encode())
    edited = replace(access, capture=lambda *given: make(copy, *given))

    return estimate_step(edited, options, f"{name}-run")


def _splice(text: str, node: Any, new: str) -> str:
    """Replace a node of the syntax tree, which counts bytes."""
    data = text.encode()
    lines = data.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    first = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset

    return (data[:first] + new.encode() + data[end:]).decode()


def _find_calls(tree: ast.AST, *names: str) -> list[ast.Call]:
    """Return the calls of functions or methods with one of these last names."""
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] in names and name != "re.compile":
                calls.append(node)

    return calls


def _find_batch(tree: ast.Module, before: int) -> ast.expr:
    """Return the only number that sets the batch size, which must be that of the estimate."""
    assigned: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            assigned[ast.unparse(statement.targets[0])] = statement.value

    places = [call.args[0] for call in _find_calls(tree, "batch") if call.args]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "batch_size":
            places.append(node.value)

    values = list(dict.fromkeys(assigned.get(ast.unparse(one), one) for one in places))

    value = _get_only(values, "batch size")
    if not isinstance(value, ast.Constant) or value.value != before:
        text = ast.unparse(value)
        raise InputError(f"The file sets a batch of {text}, not of {before}.")

    return value


def _set_policy(text: str, tree: ast.Module, policy: str) -> str:
    calls = _find_calls(tree, "set_dtype_policy", "set_global_policy")
    if calls:
        values = [call.args[0] for call in calls if call.args]
        return _splice(text, _get_only(values, "dtype policy"), f'"{policy}"')

    imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    end = max((one.end_lineno or 0 for one in imports), default=0)
    lines = text.splitlines(keepends=True)
    code = f'\nimport keras\n\nkeras.config.set_dtype_policy("{policy}")\n'

    return "".join((*lines[:end], code, *lines[end:]))


def _set_keyword(text: str, tree: ast.Module, name: str, value: str) -> str:
    """Set an argument where the model is compiled."""
    call = _get_only(_find_calls(tree, "compile"), "compile() call")
    for keyword in call.keywords:
        if keyword.arg == name:
            return _splice(text, keyword.value, value)

    if call.args or not call.keywords:
        raise InputError("The arguments of compile() have no names.")

    last = call.keywords[-1]

    own = ast.get_source_segment(text, last)

    return _splice(text, last, f"{own}, {name}={value}")


def _get_only(places: list[Any], what: str) -> Any:
    """Return the only place; InputError if there is none or a choice."""
    if len(places) != 1:
        plural = "s" * (len(places) > 1)
        raise InputError(f"The file has {len(places) or 'no'} {what}{plural}.")

    return places[0]


def run_edits(
    trial: RemedyTrial,
    finding: Finding,
    file: Path,
) -> Iterator[tuple[StepEstimate, str]]:
    """Yield the estimate of each edit of a cause's line that runs, and the edit as a diff."""
    place = _PLACE.search(finding.title)
    if place is None or Path(place[1]).name != file.name or finding.id not in _EDITS:
        return

    text = file.read_text("utf-8")
    number = int(place[2])
    edits = [
        _splice(text, part, new)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.expr)
        and (node.lineno, node.end_lineno) == (number, number)
        for part, new in _EDITS[finding.id](node)
    ]

    for count, edited in enumerate(edits[:_MOST_EDITS]):
        name = f"{finding.id}-{number}-{count}"
        try:
            after = estimate_edited(trial.access, trial.options, file, edited, name)
        except InputError:  # the edited step does not run
            continue

        yield after, write_diff(file, text, edited)


def _add_axes(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield each operand of a sum, difference or call with a further last axis."""
    operands: list[ast.expr] = []

    if isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    elif isinstance(node, ast.Call):
        operands = node.args

    for operand in operands:
        if isinstance(operand, (ast.Name, ast.Attribute, ast.Subscript)):
            yield operand, f"{ast.unparse(operand)}[:, None]"


def _contract(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield a product of matrices as a contraction of one axis."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        factors = f"{ast.unparse(node.left)}, {ast.unparse(node.right)}"
        yield node, f"tf.tensordot({factors}, 1)"

    if isinstance(node, ast.Call) and len(node.args) == 2:
        module, _, name = ast.unparse(node.func).rpartition(".")
        if name == "matmul" and not node.keywords:
            factors = ", ".join(map(ast.unparse, node.args))
            yield node, f"{module.removesuffix('.linalg')}.tensordot({factors}, 1)"


# Cause -> parts of an expression and their new text.
_EDITS = {"outer-product": _add_axes, "reduced-at-once": _contract}
