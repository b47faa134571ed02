from __future__ import annotations

import dataclasses
import importlib.util
import json
from itertools import pairwise
from pathlib import Path

import pytest
from make_recording import Made, make_recording

from analyzer.explain.comparison import compare
from analyzer.model.contract.report.writing import convert_report
from analyzer.model.errors import InputError
from analyzer.model.recording.records import Kind
from analyzer.model.recording.schema import EVENTS, empty
from analyzer.report.diff_sections import diff_summary
from analyzer.report.other_formats import check_export, chrome_trace, write_parquet
from analyzer.report.render.markdown import to_markdown
from analyzer.report.report_sections import summary_document


@pytest.fixture(scope="module")
def made() -> Made:
    return make_recording(600)


def test_the_counter_reaches_the_peak_and_its_parts(made: Made) -> None:
    events = json.loads(chrome_trace(made.recording))["traceEvents"]
    peak = made.document["peak"]
    time_us = made.recording.events["time_ps"].iloc[peak["instant"]] / 1e6
    at_peak = [
        e
        for e in events
        if e["ph"] == "C" and e["name"] == "requested bytes" and e["ts"] == time_us
    ]
    stated = made.document["categories_at_peak"]
    used = set(made.recording.allocations["category"])
    expected = {name: size for name, size in stated.items() if name in used}
    assert [event["args"] for event in at_peak] == [expected]
    allocated = [e["args"]["allocated"] for e in events if e["name"] == "allocated bytes"]
    assert allocated == made.recording.events["in_use_bytes"].tolist()


def test_slices_of_one_row_do_not_overlap(made: Made) -> None:
    events = json.loads(chrome_trace(made.recording))["traceEvents"]
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) == len(made.recording.allocations) + len(
        made.recording.steps
    )
    for slices in rows.values():
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(sorted(slices)))


@pytest.mark.parametrize("has_events", [True, False])
def test_a_prediction_counts_instants(made: Made, has_events: bool) -> None:
    recording = dataclasses.replace(made.recording, kind=Kind.ESTIMATE)
    if not has_events:
        recording = dataclasses.replace(recording, events=empty(EVENTS))
    events = json.loads(chrome_trace(recording))["traceEvents"]
    assert any(
        event["ph"] == "C" and event["ts"] == made.document["peak"]["instant"] for event in events
    )


def test_markdown_of_one_run(made: Made) -> None:
    text = to_markdown(summary_document(made.report))
    assert text.startswith("### Peak ")
    assert "| Activations |" in text
    assert "#### What to change" in text


def test_markdown_of_two_runs(made: Made) -> None:
    other = make_recording(700, scale=2)
    found = compare(made.report, made.recording, other.report, other.recording)
    text = to_markdown(diff_summary(found, other.report))
    assert "The requested peak grew by" in text
    assert "| allocated |" in text


def test_markdown_keeps_names_as_text(made: Made) -> None:
    document = {**made.document, "warnings": ["<img src=x>\n# head | `code` [a](b) *b*"]}
    assert "> &lt;img src=x&gt; # head \\| \\`code\\` \\[a\\](b) \\*b\\*" in to_markdown(
        summary_document(convert_report(document))
    )


def test_parquet_without_pyarrow_says_what_to_do(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        check_export(tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_parquet_of_half_a_character(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    table = made.recording.allocations
    names = pd.Index(["a\ud800", "b"], dtype=object)
    held = pd.Categorical.from_codes([row % 2 for row in range(len(table))], names)
    recording = dataclasses.replace(made.recording, allocations=table.assign(op=held))
    write_parquet(recording, tmp_path / "a.parquet")
    again = pd.read_parquet(tmp_path / "a.parquet")["op"].astype(str)
    assert again.tolist()[:3] == ["a?", "b", "a?"]


def test_parquet_keeps_every_row(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    write_parquet(made.recording, tmp_path / "a.parquet")
    again = pd.read_parquet(tmp_path / "a.parquet")
    assert (
        again["requested_bytes"].tolist() == made.recording.allocations["requested_bytes"].tolist()
    )
