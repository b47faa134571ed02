"""The report's contract: the schema is that of the types, and everything that is written keeps to it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import ROOT, SAMPLES, sample_folder
from schemas import breaches

import analyzer
from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.report_file import (
    DiffFile,
    ReportFile,
    encode_report,
    plain_report,
    read_report,
)
from analyzer.model.errors import TraceError
from analyzer.session.opening import open_result

NOTES = ROOT / "tests" / "unit" / "predict" / "notes"


def check(report: ReportFile | DiffFile) -> dict[str, Any]:
    """Check what is written against the schema and the types; return it."""
    written: dict[str, Any] = json.loads(encode_report(report))
    assert breaches(written, "report", type(report).__name__) == []
    return written


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_keep_to_it(name: str) -> None:
    written = check(open_result(sample_folder(name), search=False).report)
    assert plain_report(msgspec.convert(written, ReportFile)) == written


def test_estimates_differences_and_other_settings_keep_to_it() -> None:
    estimate = open_result(NOTES / "gpu")
    check(estimate.report)
    check(analyzer.diff(sample_folder("oom"), estimate).report)
    tight = open_result(
        sample_folder("oom"), what_if=WhatIf(memory_limit_bytes=8 << 20)
    ).report
    assert tight.what_if.failure is not None
    assert tight.error is not None
    check(tight)


def test_a_simulated_card_keeps_to_it(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sample_folder("infer"), tmp_path / "run"))
    note = json.loads((folder / "run.json").read_text())
    note["simulated_card"] = {
        "cards": ["Tesla T4"],
        "convolution_workspace_bytes": 1024,
    }
    (folder / "run.json").write_text(json.dumps(note))
    report = open_result(folder, search=False).report
    assert report.kind == "simulated_card"
    assert report.simulated_card is not None
    check(report)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peak": 3}, "Expected `object`, got `int` - at `$.peak`"),
        ({"kind": "guess"}, "Invalid enum value 'guess' - at `$.kind`"),
        ({"resident": {"requested_bytes": -1}}, "`$.resident.requested_bytes`"),
        ({"resident": {"requested_bytes": 2**63}}, "`$.resident.requested_bytes`"),
        ({"findings": [{"id": "x"}]}, "missing required field"),
        ({"schema_version": 2}, "newer version"),
    ],
)
def test_a_report_that_breaks_it_is_refused_in_one_line(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    written = {**check(open_result(NOTES / "infer", search=False).report), **change}
    file = tmp_path / "report.json"
    file.write_text(json.dumps(written))
    with pytest.raises(TraceError) as refused:
        read_report(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_numbers_that_json_lacks_and_numpys_are_written() -> None:
    import numpy as np

    report = open_result(NOTES / "infer", search=False).report
    finding = dataclasses.replace(
        report.findings[0],
        evidence=({"a": float("nan"), "b": np.float64(0.5), "c": np.int64(3)},),  # type: ignore[dict-item]
    )
    from msgspec.structs import replace

    written = check(replace(report, findings=(finding,)))
    assert written["findings"][0]["evidence"] == [{"a": None, "b": 0.5, "c": 3}]
