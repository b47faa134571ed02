"""How a buffer is named and described, the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import to_builtins

from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import Cell, EvidenceRow
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.tracing.measure.buffer_uses import BufferUse

_Row = TypeVar("_Row", bound=BufferRow)


def name_of(row: Mapping[str, Any]) -> str:
    """Return what to call the buffer: its variable, its tensor, its op, or its role."""
    for key in ("variable", "tensor", "op", "role"):
        if row[key]:
            return str(row[key])
    return "unnamed"


def buffer_row(row: Mapping[str, Any], kind: type[_Row], **more: Any) -> _Row:
    """Return a buffer as a row of one of the report's tables.

    Args:
        row: The buffer's row of the allocations table.
        kind: The type of row.
        more: What that type has beside ``BufferRow``.
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
    """Return a buffer as a row of a finding's evidence, with more columns behind."""
    plain: EvidenceRow = to_builtins(buffer_row(row, BufferRow))
    return {**plain, **more}


def why_alive(row: Mapping[str, Any], use: BufferUse | None, *, end: int | None = None) -> str:
    """Return in words why the buffer is alive.

    Args:
        row: The buffer, with the category that it has at the instant looked at.
        use: Who uses it.
        end: The number of events: what dies at it lives to the end of the recording.
    """
    replaced = end is not None and int(row["dies"]) < end
    category = str(row["category"])
    if row["variable"]:
        return _of_variable(category, is_replaced=replaced)
    if category == Category.INPUT:
        return "fed to the step, until it returns"
    if category == Category.CONSTANT:
        return f"{row['role'] or 'constant'}, as long as its holder"
    if use is not None and use.waits_for:
        verb = "kept for" if category == Category.ACTIVATION else "waits for"
        return f"{verb} {use.waits_for}{_type_unless_told(use.waits_for, use.waits_for_type)}"
    return str(row["role"]) or "unknown"


def _of_variable(category: str, *, is_replaced: bool) -> str:
    if category == Category.TEMPORARY:
        return "a variable's next value, until it takes the old one's place"
    if is_replaced:
        return "a variable's value, until the next takes its place"
    return "a variable, for the whole run"


def _type_unless_told(name: str, op_type: str) -> str:
    """Return an op's type in brackets, or nothing where its name ends with it: ``relu/ReluGrad``."""
    last = name.rpartition("/")[2].rstrip("_0123456789")
    plain = op_type.removeprefix("_Mkl").removeprefix("Native")
    return "" if last and (plain.startswith(last) or last == op_type) else f" ({op_type})"
