"""The buffers of compiled modules in a trace of JAX or of TensorFlow with XLA.

The profiler saves each module with its buffer assignment. A run of a module requests its results and
its temporaries in the order of the assignment, on one thread, without an op's name
(``BuildBufferAllocations`` in ``gpu_executable.cc``).
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import TraceError
from analyzer.model.graph.graph_index import GraphIndex, is_in_gradient_scope
from analyzer.model.recording.attribution import match_output
from analyzer.tracing.derive.op_names import find_optimizer, plain_scope
from analyzer.tracing.measure.steps import MODULE_TYPES
from analyzer.tracing.parse.buffer_plan import (
    BufferPlan,
    Holder,
    PlanRegion,
    Plans,
    read_plan,
)
from analyzer.tracing.parse.xplane import RawTrace

_NUMBER = re.compile(r"\(\d+\)$")
_JAX_MODULE = ("jit_", "pjit_", "pmap_")  # start of the names of JAX's modules
_BYTES = frozenset({"int8", "uint8"})  # element types of a workspace
_LEAST_UNIQUE = 4096  # a lone request below this size does not identify a module


def read_modules(raw: RawTrace) -> dict[str, BufferPlan]:
    """Return the memory plans of a trace's modules by name, without those that cannot be read."""
    plans: dict[str, BufferPlan] = {}

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
) -> Iterator[tuple[list[int], list[tuple[str, list[PlanRegion]]]]]:
    """Yield runs of rows whose sizes equal a module's buffer assignment, and all such modules.

    The longest run counts. A module's regions are in the order of the rows.
    """
    by_first: dict[int, list[tuple[str, list[PlanRegion]]]] = {}

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
    structure: GraphIndex | None,
) -> pd.DataFrame:
    """Return the table with op, region and tensor of the requests of compiled functions in a step.

    ``plans`` are by the calling op. Calls with equal assignments are in the order of the graph.
    """
    ops = structure.ops if structure is not None else {}
    calls = {name: plans[name] for name in ops if name in plans}

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

            if region.is_result and not region.is_tuple:
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
