"""Rows of evidence with the columns that all findings about a program share."""

from __future__ import annotations

from analyzer.contract.report.figures import EvidenceRow


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
