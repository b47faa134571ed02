"""The document's contract, on every sample."""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import Any

import pytest
from builders import SAMPLES, TraceBuilder, sample_folder

import analyzer
from analyzer.model.recording.schema import ALLOCATIONS


@cache
def opened(name: str) -> analyzer.Result:
    return analyzer.open_trace(sample_folder(name))


@pytest.mark.parametrize("name", SAMPLES)
def test_numbers_of_the_document_agree(name: str) -> None:
    document = opened(name).document
    peak, ever, resident = document["peak"], document["peak_ever"], document["resident"]
    assert (
        resident["requested_bytes"]
        <= peak["requested_bytes"]
        <= ever["requested_bytes"]
    )
    assert peak["requested_bytes"] <= peak["allocated_bytes"] <= ever["allocated_bytes"]
    assert peak["allocated_bytes"] <= peak["pool_bytes"] <= ever["pool_bytes"]
    assert document["fragmentation"]["replay_equals_trace"] is True
    sizes = [row["requested_bytes"] for row in document["tensors_at_peak"]]
    assert sizes == sorted(sizes, reverse=True)
    steps = document["steps"]
    assert peak["requested_bytes"] == steps[-1]["requested_bytes"]
    assert max(step["allocated_bytes"] for step in steps) <= ever["allocated_bytes"]


@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_what_is_retained_waits_for_a_backward_op(name: str) -> None:
    document = opened(name).document
    rows = [
        one
        for one in document["tensors_at_peak"]
        if one["role"] == "kept for the backward pass"
    ]
    # The rest is results of metrics, which the step returns.
    rest_bytes = document["categories_at_peak"]["activation"] - sum(
        r["requested_bytes"] for r in rows
    )
    assert 0 <= rest_bytes <= 8
    readers = [re.match(r"kept for (\S+)", row["why_alive"]) for row in rows]
    waiting = [row for row, reader in zip(rows, readers, strict=True) if reader]
    assert sum(r["requested_bytes"] for r in waiting) > 0.5 * sum(
        r["requested_bytes"] for r in rows
    )
    ops = {node[1] for node in opened(name).graph.nodes if node[0] == "op"}
    assert {reader[1] for reader in readers if reader} <= ops


def test_every_row_and_column_is_in_the_csv(tmp_path: Any) -> None:
    opened("infer").to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = opened("infer").allocations
    assert list(rows[0]) == [*ALLOCATIONS, "alive_at_peak"]
    assert len(rows) == len(table)
    assert (
        sum(int(row["requested_bytes"]) for row in rows)
        == table["requested_bytes"].sum()
    )
    alive = [
        int(row["requested_bytes"]) for row in rows if row["alive_at_peak"] == "True"
    ]
    assert sum(alive) == opened("infer").peak_bytes


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
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
