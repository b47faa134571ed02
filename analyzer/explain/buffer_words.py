"""The last use of a buffer; names, descriptions and rows of evidence, the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pandas as pd

from analyzer.model.contract.fields import Category, EvidenceRow
from analyzer.model.contract.report_file import BufferRow
from analyzer.model.contract.run_note import (
    ACCUMULATOR_ROLE,
    UNUSED_ROLE,
    HeldTensors,
)
from analyzer.model.graph.buffer_sharing import find_copies_of_inputs
from analyzer.model.graph.graph_index import PASSING_ROLES, Phase
from analyzer.model.recording.labels import ELEMENT_ROLE
from analyzer.model.recording.records import Kind, Recording, Step, find_last_runs

_Row = TypeVar("_Row", bound=BufferRow)

# Why a buffer of a category without a known reader is alive.
_WITHOUT_READER = {
    Category.WORKSPACE.value: "scratch memory of its op",
    Category.GRADIENT.value: "gradient of a variable, until the update",
}

_VARIABLES = (Category.PARAMETER, Category.OPTIMIZER_STATE)
_PUSH = "TensorListPushBack"
_OPS = 10  # rows of evidence

# assumed: time from the end of an op to the release of its inputs, which follows at once
_LATEST_PS = 100_000_000

# Columns of a buffer without a known consumer.
NO_USE = {"waits_for": "", "waits_for_type": "", "copied_by": "", "is_sure": False}


def with_uses(
    rows: pd.DataFrame,
    recording: Recording,
    step: Step | None,
) -> pd.DataFrame:
    """Return buffers with their columns of ``NO_USE`` filled in.

    They are the consumer that frees the buffer, else the one that runs last of those that begin before
    the free; its op type; the op type that copied an input of the step into the buffer; and whether no
    run of the trace contradicts the consumer. ``step`` is None for the whole trace.
    """
    structure = recording.structure
    sharing = recording.sharing
    op_runs = recording.op_runs

    if not structure.ops:
        return rows

    # An op's inputs are released after it, on its thread.
    last = find_last_runs(recording.events, op_runs)
    is_near = last["time_ps"] - last["end_ps"] < _LATEST_PS
    freers = last.loc[is_near, "op_y"].reindex(rows["dies"])
    time = "start_ps"

    if recording.kind is not Kind.ESTIMATE:
        op_runs = recording.allocations.dropna(subset="born_ps")
        time = "born_ps"
        if step is not None:
            op_runs = op_runs[op_runs["step"] == step.index]

    runs = op_runs.groupby("op", observed=True)[time]
    starts, ends = runs.min().to_dict(), runs.max().to_dict()
    copies = find_copies_of_inputs(structure)
    columns = (rows["tensor"], rows["dies_ps"].fillna(1 << 62), freers)
    is_measured = recording.kind is Kind.TRACE and not structure.evidence
    uses = []

    for tensor, dies_ps, freer in zip(*columns, strict=True):
        readers = sharing.consumers(tensor) if tensor else ()
        names = [name for name in readers if starts.get(name, 0) <= dies_ps]

        # A run has its op's name without the function's prefix.
        frees = [name for name in names if f"/{name}".endswith(f"/{freer}")]
        order = [
            (structure.phases[one] is not Phase.FORWARD, ends.get(one, -1), one)
            for one in frees or names
        ]
        name = max(order)[-1] if order else ""
        kind = structure.ops[name].type if name else ""
        is_sure = bool(frees if is_measured else names)
        uses.append((name, kind, copies.get(tensor, ""), is_sure))

    return rows.assign(**pd.DataFrame(uses, index=rows.index, columns=list(NO_USE)))


def name_of(row: Mapping[str, Any]) -> str:
    """Return the buffer's variable, tensor or op, the first that is known; the role of an input."""
    unnamed = row["role"] if row["category"] == Category.INPUT else "unnamed"
    keys = ("variable", "tensor", "op")
    return next((str(row[key]) for key in keys if row[key]), unnamed)


def buffer_row(row: Mapping[str, Any], kind: type[_Row], **more: Any) -> _Row:
    """Return a row of the allocations table as a row of the report.

    A field with the name of a column has its value, or None if it is missing.
    """
    columns: dict[str, Any] = {
        field: None if row[field] is pd.NA else row[field]
        for field in kind.__struct_fields__
        if field in row
    }
    columns["category"] = Category(str(row["category"]))

    return kind(name=name_of(row), **columns, **more)


def describe_largest(table: pd.DataFrame) -> tuple[EvidenceRow, ...]:
    """Return evidence on the largest buffers of a table."""
    largest = table.sort_values("requested_bytes", ascending=False, kind="stable")
    rows = largest.head(20).to_dict("records")
    return tuple(msgspec.to_builtins(buffer_row(row, BufferRow)) for row in rows)


def evidence_row(
    what: str,
    *,
    name: str = "",
    where: str = "",
    count: int | None = None,
    size: int | None = None,
) -> EvidenceRow:
    """Return a row with the columns of all findings about a program; ``where`` is ``file:line``."""
    return {"what": what, "name": name, "where": where, "count": count, "bytes": size}


def describe_ops(
    what: str,
    sizes: pd.Series,
    rows: pd.DataFrame,
) -> tuple[EvidenceRow, ...]:
    """Return evidence on the ops with the largest sizes; their lines are those of ``rows``."""
    sources = dict(zip(rows["op"].astype(str), rows["source"].astype(str), strict=True))
    largest = {str(op): int(size) for op, size in sizes.nlargest(_OPS).items()}

    return tuple(
        evidence_row(what, name=op or "without a name", where=sources[op], size=size)
        for op, size in largest.items()
    )


def holder_row(what: str, held: HeldTensors) -> EvidenceRow:
    """Return the row of a name or container that holds tensors, with the first shapes."""
    shapes = ", ".join(str(list(shape)) for shape in held.shapes[:3])

    return evidence_row(
        f"{what}, shape {shapes}" if shapes else what,
        name=held.holder,
        where=held.where,
        count=held.count,
        size=held.size_bytes,
    )


def in_brackets(where: str) -> str:
    """Return `` (file:line)``; empty if the line is unknown."""
    return f" ({where})" if where else ""


def is_passing(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which buffers are activations and gradients that are freed in the pass that made them."""
    return rows["role"].isin(PASSING_ROLES)


def is_retained(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which buffers are activations that wait for the backward pass."""
    return (rows["category"] == Category.ACTIVATION) & ~is_passing(rows)


def why_alive(row: Mapping[str, Any], *, first: int, end: int) -> str:
    """Return why a buffer is alive in a step from the instant ``first`` on, in words.

    One that dies at ``end`` or later is never freed.
    """
    category = str(row["category"])
    role = str(row["role"])
    reader = str(row["waits_for"]).removeprefix("StatefulPartitionedCall/")

    if role == UNUSED_ROLE:
        return role
    if row["variable"] or category in _VARIABLES:
        is_changing = category == Category.GRADIENT and role != ACCUMULATOR_ROLE
        if category == Category.TEMPORARY or is_changing:
            return "a variable's next value, before the update"
        if int(row["dies"]) < end or int(row["born"]) >= first:
            return "a variable's value, until the next update"

        return "a variable, in all steps"

    if category == Category.INPUT:
        if role.startswith("batch"):
            return "a batch or an example of the data set"
        if role == ELEMENT_ROLE:
            return role
        if int(row["born"]) < first or int(row["dies"]) >= end:
            return "an input that the program holds"

        return "an input, until its step returns"

    if category == Category.CONSTANT:
        return f"{role or 'constant'}, until its owner is freed"

    # TensorFlow's graph has other readers than the compiled module, which fuses ops.
    if not row["is_sure"] or row["instruction"]:
        unknown = "no known reader"
        if row["instruction"]:
            unknown = "read later in its module"
        elif row["op"] and not row["tensor"] and "/" not in row["op"]:
            unknown = "an eager op's result, until Python and tapes free it"

        unsaid = _WITHOUT_READER.get(category, unknown)
        if category == Category.GRADIENT and int(row["born"]) < first:
            return "gradient of an earlier step, which the program holds"

        return unsaid if role in ("", category) else role

    if row["waits_for_type"] == _PUSH:
        return "kept in a list of its loop"

    is_passing_on = role in PASSING_ROLES or role == category  # as of inference
    is_kept = category == Category.ACTIVATION and not is_passing_on

    return f"{'kept for' if is_kept else 'waits for'} {reader}"
