"""Name and describe a buffer, the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import to_builtins

from analyzer.model.choice import Category
from analyzer.model.contract.fields import Cell, EvidenceRow
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.tracing.measure.buffer_uses import BufferUse

_Row = TypeVar("_Row", bound=BufferRow)


def name_of(row: Mapping[str, Any]) -> str:
    """Return the buffer's variable, tensor, op or role, the first that is known."""
    for key in ("variable", "tensor", "op", "role"):
        if row[key]:
            return str(row[key])
    return "unnamed"


def buffer_row(row: Mapping[str, Any], kind: type[_Row], **more: Any) -> _Row:
    """Return a row of the allocations table as a row of the report.

    Args:
        row: The buffer.
        kind: The type of the row.
        more: Fields of that type that ``BufferRow`` lacks.
    """
    return kind(
        name=name_of(row),
        op=str(row["op"]),
        op_type=str(row["op_type"]),
        layer=str(row["layer"]),
        source=str(row["source"]),
        category=Category(str(row["category"])),
        role=str(row["role"]),
        instruction=str(row["instruction"]),
        dtype=str(row["dtype"]),
        shape=str(row["shape"]),
        requested_bytes=int(row["requested_bytes"]),
        allocated_bytes=int(row["allocated_bytes"]),
        **more,
    )


def describe_buffer(row: Mapping[str, Any], **more: Cell) -> EvidenceRow:
    """Return a buffer as a row of a finding's evidence, with additional columns."""
    plain: EvidenceRow = to_builtins(buffer_row(row, BufferRow))
    return {**plain, **more}


def why_alive(row: Mapping[str, Any], use: BufferUse | None, *, end: int | None = None) -> str:
    """Return why a buffer is alive, in words.

    Args:
        row: The buffer, with its category at the instant.
        use: Its uses; None if unknown.
        end: Number of events: a buffer that dies then is alive until the end.
    """
    is_replaced = end is not None and int(row["dies"]) < end
    category = str(row["category"])
    if row["variable"]:
        return _of_variable(category, is_replaced=is_replaced)
    if category == Category.INPUT:
        reader = use.waits_for if use is not None and str(row["role"]).startswith("batch") else ""
        return f"an input, until {reader or 'the step returns'}"
    if category == Category.CONSTANT:
        return f"{row['role'] or 'constant'}, until its owner is freed"
    if use is not None and use.waits_for:
        verb = "kept for" if category == Category.ACTIVATION else "waits for"
        return f"{verb} {use.waits_for}{_type_in_brackets(use.waits_for, use.waits_for_type)}"
    return str(row["role"]) or "unknown"


def _of_variable(category: str, *, is_replaced: bool) -> str:
    if category == Category.TEMPORARY:
        return "a variable's next value, before the update"
    if is_replaced:
        return "a variable's value, until the next update"
    return "a variable, in all steps"


def _type_in_brackets(name: str, op_type: str) -> str:
    """Return an op's type in brackets; empty if the name ends with it, as in ``relu/ReluGrad``."""
    last = name.rpartition("/")[2].rstrip("_0123456789")
    plain = op_type.removeprefix("_Mkl").removeprefix("Native")
    return (
        ""
        if not plain or (last and (plain.startswith(last) or last == op_type))
        else f" ({op_type})"
    )
