"""The document's contract, on every sample."""

import csv
from typing import Any

import pytest
from builders import opened_sample
from msgspec.structs import replace

from analyzer.model.contract.report_file import (
    Finding,
    ProgramFigures,
    ReportFile,
    TrendFigures,
)
from analyzer.model.recording.records import ALLOCATIONS
from analyzer.model.units import format_bytes
from analyzer.report.actions import change_items
from analyzer.report.answer import LEAST_RATIO, answer_lines, notices_of
from analyzer.report.report_sections import (
    report_document,
)


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
    """Return the report as that of a script of TensorFlow 1 on the CPU."""
    slope = TrendFigures(trend=trend, low_bytes=-1, high_bytes=1, level_bytes=1)
    program = ProgramFigures(
        step="a call of Session.run",
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


def test_a_program_without_steps_is_one() -> None:
    report = program_of(opened_sample("cnn").report, "flat")
    whole = replace(report, program=replace(report.program, whole_run=True))
    verdict, _, action = answer_lines(replace(whole, findings=()))
    assert verdict.startswith("No step was found. Peak ")
    assert "more steps" in action


@pytest.mark.parametrize("times", [1, 3])
def test_the_tensors_of_a_process_are_its_highest_allocated_peak(times: int) -> None:
    # GIVEN a script that allocated more before its traced steps, by TensorFlow's counter, or did not
    report = program_of(opened_sample("cnn").report, "flat")
    shown = report.peak.allocated_bytes
    ever = replace(report.peak_ever, since_start_bytes=times * shown)
    report = replace(report, peak_ever=ever)
    # THEN the second line has that figure
    line = answer_lines(report)[1]
    assert f": at most {format_bytes(times * shown)} allocated for tensors" in line


def test_a_need_of_trials_states_the_need_without_them() -> None:
    report = opened_sample("cnn").report
    verdict = report.verdict
    ever = replace(report.peak_ever, phase="step 0 by trials of algorithms")
    need = replace(verdict.need, without_trials_bytes=1 << 30)
    report = replace(report, peak_ever=ever, verdict=replace(verdict, need=need))
    end = "skipped if they do not fit; without them it needs 1.00 GiB."
    assert answer_lines(report)[1].endswith(end)


@pytest.mark.parametrize(("name", "heading"), [("cnn", ""), ("jit", "steady step")])
def test_the_categories_add_up_to_the_peak_that_they_name(
    name: str, heading: str
) -> None:
    report = opened_sample(name).report
    sections = report_document(report).sections
    section = next(one for one in sections if one.blocks)
    table = section.blocks[0]
    assert section.heading.endswith(heading)
    assert (format_bytes(report.peak.requested_bytes) in section.heading) == bool(
        heading
    )
    *shown, (name, rest, share, _) = table.rows
    assert sum(row[1] for row in shown) + rest == report.peak.requested_bytes
    assert (name, share < LEAST_RATIO) == ("Others", True)
    half = Finding(
        id="batch-tensors", severity="high", title="", detail="", saves_bytes=9
    )
    (item,) = change_items(replace(report, findings=(half,)))
    assert ("at most" in item.gain) == bool(heading)  # XLA plans another layout


@pytest.mark.parametrize(
    ("kept", "shape", "code"),
    [
        ("kept-tensors", "shape []", "runs.append(float(loss))"),
        ("kept-tensors", "shape [], [32, 8]", ""),
        ("models-kept", "", "runs.remove(model)\ndel model"),
    ],
)
def test_the_code_names_the_list_that_holds(kept: str, shape: str, code: str) -> None:
    title = "held by the global list `runs`"
    rows = ({"what": shape},)
    found = Finding(id=kept, severity="high", title=title, detail="", evidence=rows)
    report = replace(opened_sample("cnn").report, findings=(found,))
    assert change_items(report)[0].code.partition("\nkeras")[0] == code
    assert not change_items(program_of(report, "flat", found))[0].code
