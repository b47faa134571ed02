"""Variables of a compiled training step, from the readers of its parameters.

TensorFlow gives variables that a step updates to XLA with leave to write the new values into their
buffers (``input_output_alias``). A parameter of the model is read by ops of the optimizer's scope and of
other scopes, a slot only by ops of the optimizer's scope. A moving average is read in the scope of a
layer with parameters. JAX has no such scopes: a buffer that is updated and read inside ``jvp`` is a
parameter of the model, and the purpose of the other state is unknown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.fields import tensor_bytes
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.graph.phases import is_in_gradient_scope
from analyzer.model.units import round_up
from analyzer.tracing.derive.op_names import find_optimizer
from analyzer.tracing.derive.state_buffers import PART_COLUMNS, take_parts
from analyzer.tracing.parse.hlo import Hlo, Instruction
from analyzer.tracing.xla.buffer_plan import ARGUMENTS
from analyzer.tracing.xla.trace_modules import find_jax_layer

_CALLS: Final = frozenset({"fusion", "call"})
_KINDS: Final = {
    Category.PARAMETER: "parameter",
    Category.OPTIMIZER_STATE: "slot",
    Category.UNATTRIBUTED: "slot or other state",
}


def label_module_variables(
    table: pd.DataFrame, modules: Iterable[Hlo], allocator: str
) -> pd.DataFrame:
    """Return the table with the variables of the module that updates the most bytes.

    The buffers of a size are named if they are as many as the variables, in order of birth. Without any
    such buffer the variables are a part of the memory from before the trace.
    """
    plans = [pd.DataFrame(columns=PART_COLUMNS), *(find_variables(hlo) for hlo in modules)]
    found = max(plans, key=lambda one: int(one["requested_bytes"].sum()))
    if found.empty:
        return table
    is_open = (table["allocator"] == allocator) & (table["category"] == Category.UNATTRIBUTED.value)
    is_held = is_open & table["address"].notna() & table["dies_ps"].isna()
    columns = ["category", "role", "variable", "layer"]
    labels = {name: table[name].astype(object) for name in columns}
    missing = []
    for size, variables in found.groupby("requested_bytes"):
        rows = table.index[is_held & (table["requested_bytes"] == size)]
        if rows.empty:
            missing.append(variables)
        elif len(rows) == len(variables):
            for name in columns:
                labels[name][table.loc[rows].sort_values("born").index] = variables[name].to_list()
    table = table.assign(**{name: label.astype("category") for name, label in labels.items()})
    return take_parts(table, pd.concat(missing), allocator) if missing else table


def find_variables(hlo: Hlo) -> pd.DataFrame:
    """Return the variables that a module updates, parameters of the model first."""
    readers, updated = _find_readers(hlo), set(hlo.aliases.values())
    parameters, slots = list[tuple[Instruction, str]](), list[Instruction]()
    averages = []
    for one in sorted(hlo.instructions.values(), key=lambda one: one.parameter or 0):
        if one.computation != hlo.entry or one.parameter not in updated:
            continue
        names = sorted(_find_names(one.id, readers))
        others = [name for name in names if not find_optimizer(name)]
        layer = find_jax_layer(next((one for one in others if not is_in_gradient_scope(one)), ""))
        if others and (len(others) < len(names) or any("jvp(" in name for name in others)):
            parameters.append((one, layer))
        elif names and not others:
            slots.append(one)
        elif one.shape:
            averages.append((one, layer))
    scopes = sorted(f"{layer}/" for _, layer in parameters)
    unknown = averages if parameters and not slots else []
    for one, layer in averages if slots else ():
        at = bisect_left(scopes, f"{layer}/")
        if at < len(scopes) and scopes[at].startswith(f"{layer}/"):
            parameters.append((one, layer))
    parameters.sort(key=lambda pair: pair[0].parameter or 0)
    # The update of a parameter reads its slots.
    owners = {(by.id, one.shape): layer for one, layer in parameters for by, _ in readers[one.id]}
    parts = [_describe(one, layer, Category.PARAMETER) for one, layer in parameters]
    for one in slots:
        found = (owners.get((by.id, one.shape), "") for by, _ in readers[one.id])
        parts.append(_describe(one, next(filter(None, found), ""), Category.OPTIMIZER_STATE))
    parts += [_describe(one, "", Category.UNATTRIBUTED) for one, _ in unknown]
    return pd.DataFrame(parts, columns=PART_COLUMNS)


def _describe(one: Instruction, layer: str, category: Category) -> tuple[str | int, ...]:
    """Return the columns of a variable."""
    text, dtype = TensorSpec("", one.shape).shape_text, one.shapes[()][0]
    kind = _KINDS[category]
    name, size = f"{layer or one.name} {text} {kind}", tensor_bytes(dtype, one.shape) or 0
    role = f"{kind} that the compiled step updates"
    return category.value, role, name, layer, dtype, text, size, round_up(size)


def _find_readers(hlo: Hlo) -> dict[int, list[tuple[Instruction, int]]]:
    """Return instruction -> readers, each with the instruction that stands for the value in it.

    A fusion reads an operand as a parameter of its computation, and returns the computation's root.
    """
    parameters = {(one.computation, one.parameter): one.id for one in hlo.instructions.values()}
    readers: dict[int, list[tuple[Instruction, int]]] = {one: [] for one in hlo.instructions}
    for one in hlo.instructions.values():
        called = one.calls[0] if one.opcode in _CALLS and one.calls else None
        for place, operand in enumerate(one.operands):
            inner = one.id if called is None else parameters.get((called, place), one.id)
            readers[operand].append((one, inner))
        if called is not None and called in hlo.roots:
            readers[hlo.roots[called]].append((one, one.id))
    return readers


def _find_names(value: int, readers: Mapping[int, Sequence[tuple[Instruction, int]]]) -> set[str]:
    """Return the framework's ops that read a value, also inside fusions and behind copies."""
    names, queue, seen = set[str](), [value], {value}
    while queue:
        for one, inner in readers[queue.pop()]:
            if one.opcode not in _CALLS and one.op_name not in ("", ARGUMENTS):
                names.add(one.op_name)
            elif inner not in seen:
                seen.add(inner)
                queue.append(inner)
    return names
