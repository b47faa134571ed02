"""Rows of evidence with the columns that all findings about a program share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.watch_note import HeldTensors

if TYPE_CHECKING:
    import pandas as pd


def evidence_row(
    what: str, *, name: str = "", where: str = "", count: int | None = None, size: int | None = None
) -> EvidenceRow:
    """Return one row; ``where`` is ``file:line``, ``size`` is in bytes."""
    return {"what": what, "name": name, "where": where, "count": count, "bytes": size}


def holder_row(what: str, held: HeldTensors) -> EvidenceRow:
    """Return the row of a name or container that holds tensors."""
    return evidence_row(
        what, name=held.holder, where=held.where, count=held.count, size=held.size_bytes
    )


def tensor_rows(
    tensors: pd.DataFrame, describe: Callable[[Mapping[Any, Any]], str]
) -> tuple[EvidenceRow, ...]:
    """Return a row for each tensor of a table; ``describe`` gives its description."""
    return tuple(
        evidence_row(
            describe(row),
            name=str(row["tensor"] or row["op"]),
            where=str(row["source"]),
            size=int(row["requested_bytes"]),
        )
        for row in tensors.to_dict("records")
    )


def first_source(tensors: pd.DataFrame) -> str:
    """Return the first known source line of a table of tensors; empty if none is known."""
    return next((str(one) for one in tensors["source"] if str(one)), "")


def in_brackets(where: str) -> str:
    """Return `` (file:line)``; empty if the line is unknown."""
    return f" ({where})" if where else ""
