"""The document's contract, on every sample."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from builders import opened_sample
from msgspec.structs import replace

from analyzer.model.contract.report_file import (
    Finding,
    LifePhase,
    ProgramFigures,
    ReportFile,
    TrendFigures,
)
from analyzer.model.recording.records import ALLOCATIONS
from analyzer.model.units import BoundedBytes, format_bytes
from analyzer.report.actions import change_items
from analyzer.report.answer import answer_lines, notices_of
from analyzer.report.report_sections import steps_section


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


def program_of(report: ReportFile, trend: Any, *findings: Finding) -> ReportFile:
    """Return the report as that of a script on the CPU."""
    slope = TrendFigures(trend=trend, low_bytes=-1, high_bytes=1, level_bytes=1)
    program = ProgramFigures(
        step="a call of f",
        steps=20,
        warmup=3,
        device=slope,
        host=slope,
        process_peak_bytes=1 << 40,
    )
    return replace(report, program=program, findings=findings)


@pytest.mark.parametrize("trend", ["flat", "cannot tell"])
def test_no_leak_is_denied_beside_models_that_stay_alive(trend: Any) -> None:
    report = opened_sample("cnn").report
    kept = Finding(id="models-kept", severity="medium", title="3 are alive", detail="")
    texts = [
        " ".join((*answer_lines(one), *notices_of(one)))
        for one in (program_of(report, trend), program_of(report, trend, kept))
    ]
    assert ["leak" in text for text in texts] == [True, False]


def test_tensors_outside_the_traced_steps_are_tensorflows_own_peak() -> None:
    # GIVEN a script whose largest phase lies outside the traced steps
    report = program_of(opened_sample("cnn").report, "flat")
    assert report.verdict is not None
    assert report.verdict.need is not None
    need = replace(
        report.verdict.need,
        before_trace=BoundedBytes.exactly(1 << 34),
        own_peak_bytes=3 << 33,
    )
    assert need.largest_phase is LifePhase.BEFORE_TRACE
    report = replace(report, verdict=replace(report.verdict, need=need))
    # THEN the second line has TensorFlow's figure
    assert f"tensors {format_bytes(3 << 33)} (outside" in answer_lines(report)[1]


def test_a_need_of_trials_states_the_need_without_them() -> None:
    report = opened_sample("cnn").report
    verdict = report.verdict
    assert verdict is not None
    assert verdict.need is not None
    assert report.peak_ever is not None
    ever = replace(report.peak_ever, phase="step 0 by trials of algorithms")
    need = replace(verdict.need, without_trials_bytes=1 << 30)
    report = replace(report, peak_ever=ever, verdict=replace(verdict, need=need))
    assert answer_lines(report)[1].endswith("without them it needs 1.00 GiB.")


def test_the_highest_of_many_steps_is_shown() -> None:
    report = opened_sample("cnn").report
    steps = [replace(report.steps[0], number=number) for number in range(20)]
    steps[7] = replace(steps[7], allocated_bytes=1 << 40)
    (table,) = steps_section(replace(report, steps=tuple(steps)), 4).blocks
    assert [row[0] for row in table.rows] == [0, 1, 7, 18, 19]
    assert "15 other steps" in table.caption


@pytest.mark.parametrize(
    ("kept", "shape", "code"),
    [
        ("kept-tensors", "shape []", "runs.append(float(loss))"),
        ("kept-tensors", "shape [32, 8]", ""),
        ("models-kept", "", "runs.remove(model)\ndel model"),
    ],
)
def test_the_code_names_the_list_that_holds(kept: str, shape: str, code: str) -> None:
    title = "held by the global list `runs`"
    rows = ({"what": shape},)
    found = Finding(id=kept, severity="high", title=title, detail="", evidence=rows)
    report = replace(opened_sample("cnn").report, findings=(found,))
    assert change_items(report)[0].code.partition("\nkeras")[0] == code
