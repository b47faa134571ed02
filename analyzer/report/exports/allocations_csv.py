"""The allocations as CSV: one row a buffer, nothing left out."""

from __future__ import annotations

import csv
from typing import TextIO

from analyzer.explain.analysis import Analysis
from analyzer.report.untrusted import csv_cell


def write_csv(analysis: Analysis, file: TextIO) -> None:
    """Write every allocation of the allocator in order of birth, with the attribution.

    ``alive_at_peak`` says whether the buffer is alive at the requested peak. Texts that a
    spreadsheet would run as a formula are preceded by an apostrophe: names in a trace are untrusted.
    """
    rows = analysis.rows.sort_values("born", kind="stable")
    rows = rows.assign(alive_at_peak=rows.index.isin(analysis.alive.index))
    writer = csv.writer(file)
    writer.writerow(list(rows.columns))
    for values in rows.astype(object).itertuples(index=False, name=None):
        writer.writerow([csv_cell(value) for value in values])
