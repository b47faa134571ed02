"""Rows of evidence with the columns that all findings about a program share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from analyzer.model.contract.fields import EvidenceRow

if TYPE_CHECKING:
    import pandas as pd


def evidence_row(
    what: str, *, name: str = "", where: str = "", count: int | None = None, size: int | None = None
) -> EvidenceRow:
    """Return one row.

    Args:
        what: What it shows.
        name: Of an op, a holder, a change.
        where: ``file:line``.
        count: How many.
        size: Bytes.
    """
    return {"what": what, "name": name, "where": where, "count": count, "bytes": size}


def tensor_rows(
    tensors: pd.DataFrame, what: Callable[[Mapping[Any, Any]], str]
) -> tuple[EvidenceRow, ...]:
    """Return a row for each of some tensors, named by what it is, or by its op.

    Args:
        tensors: Rows of allocations.
        what: What the row of a tensor shows.
    """
    return tuple(
        evidence_row(
            what(row),
            name=str(row["tensor"] or row["op"]),
            where=str(row["source"]),
            size=int(row["requested_bytes"]),
        )
        for row in tensors.to_dict("records")
    )


def first_source(tensors: pd.DataFrame) -> str:
    """Return the first line that made one of some tensors, ``file:line``; empty where none is known."""
    return next((str(one) for one in tensors["source"] if str(one)), "")
