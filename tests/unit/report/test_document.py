"""The document's contract, on every sample."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from builders import TraceBuilder, opened_sample

import analyzer
from analyzer.model.recording.records import ALLOCATIONS


def test_every_row_and_column_is_in_the_csv(tmp_path: Any) -> None:
    opened_sample("infer").to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = opened_sample("infer").allocations
    assert list(rows[0]) == [*ALLOCATIONS, "alive_at_peak"]
    assert len(rows) == len(table)
    assert (
        sum(int(row["requested_bytes"]) for row in rows)
        == table["requested_bytes"].sum()
    )
    alive = [
        int(row["requested_bytes"]) for row in rows if row["alive_at_peak"] == "True"
    ]
    assert sum(alive) == opened_sample("infer").peak_bytes


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_a_name_that_is_a_formula_is_text_in_the_csv(start: str, tmp_path: Any) -> None:
    # GIVEN an op whose name a spreadsheet would run
    name = f'{start}HYPERLINK("http://x","y")'
    trace = TraceBuilder().allocate(1, 1, 256, op=name)
    # WHEN it is written as CSV
    analyzer.open_trace(trace.write(tmp_path / "a.xplane.pb")).to_csv(
        tmp_path / "a.csv"
    )
    # THEN it starts with an apostrophe
    with (tmp_path / "a.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["op"] == f"'{name}"
