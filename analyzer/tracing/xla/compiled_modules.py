"""The buffers of compiled modules in a trace, and the values inside them: their labels and rows.

The profiler saves each module with its buffer assignment. A run of a module requests its results and
its temporaries in the order of the assignment, on one thread, without an op's name
(``BuildBufferAllocations`` in ``gpu_executable.cc``).

XLA keeps the name of the framework's op of each instruction; a fusion has that of its root. The graph
gives the op's phase, layer and source line. The compiler may compute some values of the backward pass
early, such as masks. So the backward pass is assumed to begin at the moment that minimises the bytes of
values on the wrong side. A value that is made before and still alive then is kept for it.

The allocator sees one request for all temporaries. To show the values, *moments* (rows of kind 0) are
inserted after the event with the most requested bytes in the buffer's life. Rows are inserted into the
allocations table, each ``part_of`` the buffer's row: one for each value, and others for idle bytes (gaps
between values and the surplus of the chunk). At every moment the parts add up to the buffer, requested
and allocated.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import StepConfig, TensorSpec, split_tensor
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import CACHE_ROLE, find_cache
from analyzer.model.graph.graph_index import (
    HALF_WEIGHT_ROLE,
    NO_GRAPH,
    GraphIndex,
    Phase,
    describe_value,
    find_gradient_ops,
    find_inlined,
    is_float,
    is_in_gradient_scope,
    is_recomputed,
    makes_activation,
)
from analyzer.model.recording.attribution import match_output
from analyzer.model.recording.records import (
    ALLOCATIONS,
    EVENTS,
    IDLE_ROLE,
    Step,
    conform,
    running_sum,
)
from analyzer.tracing.derive.op_names import find_optimizer, plain_scope
from analyzer.tracing.measure.buffers_and_steps import MODULE_TYPES
from analyzer.tracing.parse.buffer_plan import (
    ARGUMENTS,
    BufferPlan,
    Holder,
    PlanRegion,
    Plans,
    read_plan,
)
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace

_NUMBER = re.compile(r"\(\d+\)$")
_JAX_MODULE = ("jit_", "pjit_", "pmap_")  # start of the names of JAX's modules
_BYTES = frozenset({"int8", "uint8"})  # element types of a workspace
_LEAST_UNIQUE = 4096  # a lone request below this size does not identify a module

_Fit = tuple[
    str, list[PlanRegion]
]  # a module, and its regions in the order of the requests


def read_modules(raw: RawTrace) -> dict[str, BufferPlan]:
    """Return the memory plans of a trace's modules by name, without those that cannot be read."""
    plans = {}

    for name, content in raw.modules.items():
        with suppress(TraceError):
            plans[name] = read_plan(content)

    return plans


def describe_modules(raw: RawTrace, plans: Plans) -> StepConfig:
    """Return what a trace's modules show of its step: JAX, and inference without a backward pass."""
    has_jax_module = any(name.startswith(_JAX_MODULE) for name in raw.modules)
    is_jax = bool(raw.calls) or has_jax_module

    # Programs of other languages have no ops of TensorFlow either.
    is_jax |= bool(raw.modules) and set(raw.op_types.values()) <= MODULE_TYPES

    infers = bool(plans) and not any(map(runs_backward, plans.values()))

    return StepConfig(mode="infer" if infers else "", is_jax=is_jax)


def name_module_buffers(
    table: pd.DataFrame,
    raw: RawTrace,
    plans: Plans,
) -> pd.DataFrame:
    """Name the buffers without an op that a compiled module of a trace requested.

    ``table`` has attributed allocations with index 0, 1, 2 and so on.
    """
    is_training = any(map(runs_backward, plans.values()))
    named = {}

    for rows, fits in match_requests(table, raw, plans) if plans else ():
        # Several modules may fit; if their names differ by more than XLA's number, it is unknown.
        names = {_NUMBER.sub("", name) for name, _ in fits}
        name, regions = fits[0]
        is_forward = not runs_backward(plans[name])

        for row, region in zip(rows, regions, strict=True):
            facts = _label(region, is_training=is_training, is_forward=is_forward)
            known = name if len(names) == 1 else ""
            role = f"{facts['role']} of {known or 'a compiled module'}"
            named[row] = {**facts, "op": known, "role": role}

    if not named:
        return table

    labels = pd.DataFrame.from_dict(named, orient="index")
    old = table[labels.columns].astype(object)
    old.loc[labels.index] = labels

    return table.assign(**{name: pd.Categorical(old[name]) for name in old})


def warn_about_modules(
    raw: RawTrace,
    plans: Plans,
) -> Iterator[str]:
    """Yield sentences about buffers that cannot be named."""
    if raw.ran_xla and not raw.modules:
        yield (
            "XLA compiled the program, and the trace has no HLO modules: its buffers have no names. "
            "Keep the whole .xplane.pb; its plane /host:metadata holds the modules."
        )

    unreadable = len(raw.modules) - len(plans)

    if unreadable:
        yield f"{unreadable} HLO modules of the trace cannot be read."


def runs_backward(plan: BufferPlan) -> bool:
    """Say whether any value of a module is made by an op of the backward pass."""
    for region in plan:
        names = [region.op_name, *(one.op_name for one in region.holders)]
        if any(map(is_in_gradient_scope, names)):
            return True

    return False


def match_requests(
    table: pd.DataFrame,
    raw: RawTrace,
    plans: Plans,
) -> Iterator[tuple[list[int], list[_Fit]]]:
    """Yield runs of rows whose sizes equal a module's buffer assignment, and all such modules.

    The longest run counts. A module's regions are in the order of the rows.
    """
    by_first: dict[int, list[_Fit]] = {}

    for name, plan in plans.items():
        regions = [one for one in plan if one.size_bytes]
        if regions:
            by_first.setdefault(regions[0].size_bytes, []).append((name, regions))

    threads = raw.events["thread"].to_numpy()[table["born"]]
    bare = (table["born"] >= 0) & (table["op"].astype(str) == "")
    groups = table.assign(thread=threads)[bare].sort_values("born")

    for _, group in groups.groupby(["allocator", "thread"], observed=True):
        rows = group.index.tolist()
        sizes = group["requested_bytes"].tolist()
        at = 0

        while at < len(rows):
            fits = []
            most = 0

            for name, regions in by_first.get(sizes[at], ()):
                wanted = [region.size_bytes for region in regions]
                if sizes[at : at + len(wanted)] == wanted:
                    fits.append((name, regions))
                    most = max(most, len(regions))

            if fits and (most > 1 or sizes[at] >= _LEAST_UNIQUE):
                longest = [one for one in fits if len(one[1]) == most]
                yield rows[at : at + most], longest

            at += max(most, 1)


def name_call_requests(
    table: pd.DataFrame,
    raw: RawTrace,
    plans: Plans,
    structure: GraphIndex,
) -> pd.DataFrame:
    """Return the table with op, region and tensor of the requests of compiled functions in a step.

    ``plans`` are by the calling op. Calls with equal assignments are in the order of the graph.
    """
    ops = structure.ops
    functions = [name for name in plans if name.startswith("__")]  # outside the step
    calls = {name: plans[name] for name in (*ops, *functions) if name in plans}

    names = ("op", "region", "tensor", "dtype")
    columns = {name: table[name].astype(object).to_numpy().copy() for name in names}
    turns: Counter[tuple[int, str]] = Counter()

    for rows, fits in match_requests(table, raw, calls) if calls else ():
        step = table["step"].fillna(-1).iloc[rows[0]]
        turn = (step, fits[0][0])
        name, regions = fits[turns[turn] % len(fits)]
        turns[turn] += 1
        used: set[int] = set()

        for row, region in zip(rows, regions, strict=True):
            tensor = ""

            if name in ops and region.is_result and not region.is_tuple:
                tensor = match_output(ops[name], used, "", "", region.size_bytes)

            kind = "output" if tensor else "temp"
            facts = (name, kind, tensor, region.dtype)

            for column, fact in zip(names, facts, strict=True):
                columns[column][row] = fact

    changed = {name: pd.Categorical(column) for name, column in columns.items()}

    return table.assign(**changed)


def _label(
    region: PlanRegion,
    *,
    is_training: bool,
    is_forward: bool,
) -> dict[str, str]:
    """Return the columns of a buffer of a module, without the module's name.

    ``is_forward``: whether the module runs no backward pass.
    """
    op_name = region.op_name
    is_result = region.is_result

    # JAX has no scope for updates; ``jvp`` marks its forward pass.
    is_of_jax = op_name.startswith(("jit(", "pjit("))
    is_value = bool(op_name) and not find_optimizer(op_name)
    is_value &= is_forward and ("jvp(" in op_name or not is_of_jax)

    scratch = sum(one.size_bytes for one in region.holders if is_workspace(one))

    category = Category.TEMPORARY if is_training else Category.ACTIVATION

    if is_result and is_in_gradient_scope(op_name):
        category = Category.GRADIENT
    elif is_result and is_training:
        category = Category.ACTIVATION if is_value else Category.UNATTRIBUTED
    elif not is_result and 2 * scratch >= region.size_bytes:
        category = Category.WORKSPACE

    return {
        "op_type": "XlaModule",
        "layer": find_layer(op_name),
        "tensor": op_name if is_result else "",
        "category": category.value,
        "role": "result" if is_result else "temporaries",
        "dtype": region.dtype,
        "shape": TensorSpec("", region.shape).shape_text,
    }


def find_layer(op_name: str) -> str:
    """Return the scope in the name of TensorFlow's op; JAX's scopes are functions, not layers."""
    return "" if "(" in op_name else plain_scope(op_name)


def is_workspace(holder: Holder) -> bool:
    """Say whether a value is the workspace of a library's call (``cublas_gemm``, ``cudnn``)."""
    return holder.dtype in _BYTES and holder.opcode.startswith("custom-call __cu")


# Limit of the added rows: in a long trace only the last steps are divided.
_MOST_PARTS = 100_000

# tf2xla's names for parameters and results, and no name.
_NAMELESS = ("", ARGUMENTS, "XLA_Retvals")


# A buffer to divide: its row, its region, and the columns of each holder.
_Division = tuple[int, PlanRegion, Sequence[Mapping[str, str]]]

# Allocations, events and steps, with moments and parts.
Divided = tuple[pd.DataFrame, pd.DataFrame, tuple[Step, ...]]


def find_plans(
    note: RunNote,
    structure: GraphIndex,
) -> dict[str, BufferPlan]:
    """Return a note's memory plans by the calling op, also by its name in the graph ``structure``."""
    plans = dict(note.plans)

    for op in structure.ops.values():
        if op.attrs.get("_XlaMustCompile"):
            plan = find_inlined(op.name, note.plans)
            if plan is not None:
                plans[op.name] = plan

    return plans


def divide_temporaries(
    allocations: pd.DataFrame,
    events: pd.DataFrame,
    steps: Sequence[Step],
    plans: Plans,
    structure: GraphIndex,
    *,
    allocator: str,
    infer: bool,
) -> Divided:
    """Divide the temporaries of compiled functions into their values.

    ``plans`` are by the name of the calling op, and ``structure`` has the ops of the functions.
    ``infer``: whether the step has no backward pass.
    """
    regions: dict[tuple[str, int], PlanRegion] = {}

    for op, plan in plans.items():
        for region in plan:
            if region.holders:
                regions.setdefault((op, region.size_bytes), region)

    labels: dict[tuple[str, int], list[dict[str, str]]] = {}
    divisions = []
    own = allocations[allocations["allocator"] == allocator]
    rows = own[own["op"].isin(plans)].sort_values("born", kind="stable")
    columns = (rows["op"].astype(object), rows["requested_bytes"])

    for row, op, size in zip(rows.index, *columns, strict=True):
        key = (op, size)
        found = regions.get(key)

        if found is None:
            continue

        if key not in labels:
            # A graph that is derived from a trace has no ops of the module.
            names = {one.op_name for one in found.holders} - set(_NAMELESS)
            is_known = any(find_inlined(name, structure.phases) for name in names)
            graph = structure if is_known else NO_GRAPH
            is_forward = infer or not (is_known or runs_backward(plans[op]))
            labels[key] = label_holders(found, graph, infer=is_forward)

        divisions.append((int(row), found, labels[key]))

    return _divide(allocations, own, events, steps, divisions)


def label_holders(
    region: PlanRegion,
    structure: GraphIndex,
    *,
    infer: bool,
) -> list[dict[str, str]]:
    """Return the attributing columns of ``ALLOCATIONS`` for each holder of a region."""
    # ops that make gradients of variables
    makers = {split_tensor(one)[0] for one in structure.gradients}
    passing = find_gradient_ops(structure)
    cache = find_cache(structure) if infer else frozenset[str]()
    phases, start = _find_phases(region, structure)
    labels = []

    for holder, phase in zip(region.holders, phases, strict=True):
        name, layer = _name_op(holder.op_name, structure)
        op = structure.ops.get(name)
        outputs = op.outputs if op is not None else ()
        own = TensorSpec(holder.dtype, holder.shape)

        is_number = is_float(holder.dtype)
        tensors = {f"{name}:{index}" for index in range(len(outputs))}

        if holder.is_argument:
            category = Category.TEMPORARY
            role = "copy of an argument in another layout"
        elif is_workspace(holder):
            category = Category.WORKSPACE
            role = "workspace"
        elif op and structure.casts_weight(op, holder.dtype):
            category = Category.TEMPORARY
            role = HALF_WEIGHT_ROLE
        elif is_number and not cache.isdisjoint(tensors):
            category = Category.KV_CACHE
            role = CACHE_ROLE
        elif not holder.op_name:  # such as zeros, which XLA may make early
            category, role = Category.TEMPORARY, ""
        else:
            is_kept = holder.first < start < holder.last

            category, role = describe_value(
                Phase.FORWARD if infer or is_kept else phase,
                infers=infer,
                of_variable=name in makers,
                carries_gradient=is_number and (not structure.ops or name in passing),
                is_kept=is_kept,
                is_activation=is_number and makes_activation(holder.op_type),
                is_recomputed=is_recomputed(structure, name, passing),
            )

        tensor = f"{name}:{outputs.index(own)}" if own in outputs else ""
        is_named = holder.op_name not in _NAMELESS
        in_module = holder.op_name if is_named else holder.instruction
        labels.append(
            {
                "op": name or in_module,
                "op_type": holder.op_type or holder.opcode,
                "layer": layer,
                "source": op.source if op is not None else "",
                "tensor": tensor,
                "category": category.value,
                "role": role,
            }
        )

    return labels


def _name_op(op_name: str, structure: GraphIndex) -> tuple[str, str]:
    """Return the graph's op in XLA's name of it, and its layer; empty if unknown.

    The layer of another function's op, which is not in the graph, is the scope in its name.
    """
    name = op_name if structure.ops else ""  # XLA may add callers' names as prefix
    while name and name not in structure.ops:
        name = name.partition("/")[2]

    return name, structure.layers.get(name, "") if name else find_layer(op_name)


def _find_phases(
    region: PlanRegion,
    structure: GraphIndex,
) -> tuple[list[Phase], int]:
    """Return the phase of each holder, and the moment at which the backward pass begins.

    A holder without a known op has the phase of the one before it.
    """
    phases = []
    last = Phase.FORWARD

    for holder in region.holders:
        known = None

        if holder.op_name not in _NAMELESS:
            known = find_inlined(holder.op_name, structure.phases)

        if known is None and is_in_gradient_scope(holder.op_name):
            known = Phase.BACKWARD

        is_named = bool(holder.op_name) and not holder.is_argument
        if known is None and is_named and not structure.ops:
            known = Phase.UPDATE if find_optimizer(holder.op_name) else Phase.FORWARD

        last = known or last
        phases.append(last)

    start = _find_backward_start(region, phases)

    for index, holder in enumerate(region.holders):
        if holder.first >= start and phases[index] is Phase.FORWARD:
            phases[index] = Phase.BACKWARD

    return phases, start


def _find_backward_start(region: PlanRegion, phases: list[Phase]) -> int:
    """Return the moment that best separates values of forward ops from all others.

    It is the moment of the first of these others: a value that is freed before is not kept for them.
    """
    made: Counter[int] = Counter()

    for holder, phase in zip(region.holders, phases, strict=True):
        if is_float(holder.dtype):
            sign = -1 if phase is Phase.FORWARD else 1
            made[holder.first] += sign * holder.size_bytes

    if not made:
        return region.moments

    # Moving the border past a moment corrects its forward values and misplaces the others.
    wrong = least = 0
    moments = sorted(made)
    start = moments[0]

    for moment, following in zip(moments, [*moments[1:], region.moments], strict=True):
        wrong += made[moment]
        if wrong <= least:
            least = wrong
            start = following

    return start


def _divide(
    allocations: pd.DataFrame,
    own: pd.DataFrame,
    events: pd.DataFrame,
    steps: Sequence[Step],
    divisions: Sequence[_Division],
) -> Divided:
    """Insert moments and parts; the divisions are in order of birth, the last ones are kept."""
    chosen: list[_Division] = []
    room = _MOST_PARTS

    for division in reversed(divisions):
        region = division[1]
        room -= 2 * len(region.holders) + region.moments
        if chosen and room < 0:
            break

        chosen.insert(0, division)

    if not chosen:
        return allocations, events, tuple(steps)

    fullest = find_fullest(own, len(events), [row for row, _, _ in chosen])
    order = np.argsort(fullest, kind="stable")
    chosen = [chosen[place] for place in order]
    at = fullest[order]
    count = np.array([region.moments for _, region, _ in chosen], np.int64)
    before = np.concatenate([[0], np.cumsum(count)])

    def shift(instants: Any) -> Any:
        return instants + before[np.searchsorted(at, instants, side="left")]

    turns = allocations["turns_at"].astype("Int64")
    known_turns = turns.fillna(0).to_numpy("int64")

    table = allocations.assign(
        born=shift(allocations["born"].to_numpy()),
        dies=shift(allocations["dies"].to_numpy()),
        turns_at=turns + (shift(known_turns) - known_turns),
    )

    parts = []

    for (row, region, labels), first in zip(
        chosen, (at + before[:-1] + 1).tolist(), strict=True
    ):
        parts.append(_list_parts(table, row, region, labels, first))

    joined = pd.concat([table.astype(object), *parts], ignore_index=True)
    moved = (
        replace(step, first=int(shift(step.first)), last=int(shift(step.last)))
        for step in steps
    )

    return (
        conform(joined, ALLOCATIONS),
        _insert_moments(events, at, count),
        tuple(moved),
    )


def find_fullest(own: pd.DataFrame, count: int, rows: Sequence[int]) -> np.ndarray:
    """Return the instant of the most requested bytes in the life of each row of an allocator.

    XLA runs a module while other ops request memory. Its values are shown where they matter most.
    ``count``: number of events.
    """
    names = ("born", "dies", "requested_bytes")
    born, dies, sizes = (own[name].to_numpy() for name in names)
    in_use = running_sum(born, dies, sizes, count)[1:]
    lives = own.loc[rows, ["born", "dies"]].to_numpy()

    return np.array(
        [first + in_use[first:end].argmax() for first, end in lives], np.int64
    )


def _list_parts(
    table: pd.DataFrame,
    row: int,
    region: PlanRegion,
    labels: Sequence[Mapping[str, str]],
    first: int,
) -> pd.DataFrame:
    """Return the rows inside the buffer of a row; its first moment is instant ``first``."""
    whole = table.loc[row]
    last = int(whole["dies"])

    common = {
        **{name: whole[name] for name in ("allocator", "step", "run_id")},
        "region": "temp",
        "part_of": row,
    }

    rows = []

    for holder, label in zip(region.holders, labels, strict=True):
        is_last = holder.last >= region.moments
        rows.append(
            {
                **common,
                "requested_bytes": holder.size_bytes,
                "allocated_bytes": holder.size_bytes,
                "born": first + holder.first,
                "dies": last if is_last else first + holder.last,
                "address": whole["address"] + holder.offset_bytes,
                "dtype": holder.dtype,
                "shape": TensorSpec(holder.dtype, holder.shape).shape_text,
                "instruction": holder.instruction,
                **label,
            }
        )

    surplus = max(int(whole["allocated_bytes"]) - region.size_bytes, 0)
    occupied = [0, *region.occupied_bytes]  # entry 0: before the module begins
    starts = [0, *(np.flatnonzero(np.diff(occupied)) + 1).tolist()]

    for start, end in zip(starts, [*starts[1:], len(occupied)], strict=True):
        idle = region.size_bytes - occupied[start]

        if idle or surplus:
            rows.append(
                {
                    **common,
                    "requested_bytes": idle,
                    "allocated_bytes": idle + surplus,
                    "born": first - 1 + start if start else int(whole["born"]),
                    "dies": last if end == len(occupied) else first - 1 + end,
                    "op": whole["op"],
                    "op_type": whole["op_type"],
                    "category": Category.TEMPORARY.value,
                    "role": IDLE_ROLE,
                }
            )

    return pd.DataFrame(rows, dtype=object)


def _insert_moments(
    events: pd.DataFrame,
    at: np.ndarray,
    count: np.ndarray,
) -> pd.DataFrame:
    """Return the events with moments after each row in ``at``, with interpolated times."""
    counts = np.zeros(len(events), np.int64)
    np.add.at(counts, at, count)
    source = np.repeat(np.arange(len(events)), 1 + counts)
    place = np.arange(len(source)) - np.searchsorted(source, source, side="left")

    times = events["time_ps"].to_numpy()
    following = np.minimum(source + 1, len(events) - 1)
    gaps = times[following] - times[source]
    shares = place / (1 + counts[source])

    grown = events.iloc[source].reset_index(drop=True)
    grown = grown.assign(
        kind=grown["kind"].mask(place > 0, 0),
        time_ps=times[source] + (gaps * shares).astype(np.int64),
    )

    return conform(grown, EVENTS)
