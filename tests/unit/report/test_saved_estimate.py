"""A finished result is opened as it was saved, and made anew only where it has to be."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest
from builders import ROOT, analyze

import analyzer
from analyzer.explain.analysis import Analysis
from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.report_file import (
    REPORT_JSON,
    read_saved_report,
)
from analyzer.report.result import Result
from analyzer.session.opening import analyse_path, open_estimate, open_result
from analyzer.session.target_results import save_report

NOTES = ROOT / "tests" / "unit" / "predict" / "notes"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Return the folder of a finished estimate, and the result that was saved in it."""
    folder = tmp_path_factory.mktemp("estimate") / "run"
    shutil.copytree(NOTES / "infer", folder)
    result = open_estimate(folder)
    return folder, save_report(result, folder)


@pytest.fixture
def folder(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


@pytest.fixture
def predicted() -> Iterator[list[Path]]:
    """Count the folders that are predicted anew."""
    found: list[Path] = []

    def counted(path: Path, **options: Any) -> Analysis:
        found.append(path)
        return analyse_path(path, **options)

    with patch("analyzer.session.opening.analyse_path", counted):
        yield found


@pytest.mark.parametrize("command", ["estimate", "trace"])
def test_both_commands_open_it(
    command: str, folder: Path, predicted: list[Path]
) -> None:
    done = analyze(command, folder, "--json", "-", "--full")
    assert (done.code, predicted) == (0, [])
    assert json.loads(done.out) == json.loads((folder / REPORT_JSON).read_text())


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """Return the folder of a finished trace, without its report."""
    return Path(shutil.copytree(ROOT / "traces" / "infer", tmp_path / "traced"))


def test_a_finished_result_is_shown_without_what_works_it_out(
    folder: Path, traced: Path
) -> None:
    save_report(analyzer.open_trace(traced), traced)
    heavy = "{'pandas', 'numpy', 'networkx', 'jinja2', 'google.protobuf'}"
    code = (
        "import sys; from analyzer.cli import run; code = run()\n"
        f"print(sorted({heavy} & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    for command, place in (("estimate", folder), ("trace", traced)):
        done = subprocess.run(
            [sys.executable, "-c", code, command, str(place)],
            capture_output=True,
            check=True,
            cwd=ROOT,
            text=True,
        )
        assert done.stdout
        assert done.stderr.splitlines()[-1] == "[]", (command, done.stderr)


def test_a_finished_trace_opens_as_it_was_saved(traced: Path) -> None:
    was = save_report(analyzer.open_trace(traced), traced)
    with patch("analyzer.session.opening.explain", side_effect=AssertionError):
        now = analyzer.open_trace(traced)
        assert now.document == json.loads(json.dumps(was.document))
    pd.testing.assert_frame_equal(now.allocations, was.allocations)


@pytest.mark.parametrize("change", ["note", "trace", "another trace", "what-if"])
def test_a_trace_that_is_another_is_explained_anew(change: str, traced: Path) -> None:
    asked = WhatIf(memory_limit_bytes=1 << 30) if change == "what-if" else WhatIf()
    save_report(open_result(traced, what_if=asked), traced)
    file = next(traced.rglob("*.xplane.pb*"))
    if change == "note":
        (traced / "run.json").write_text((traced / "run.json").read_text() + "\n")
    elif change == "trace":
        file.write_bytes(file.read_bytes() + b"\0")
    elif change == "another trace":
        shutil.copy(file, file.with_name("another" + file.name))
    assert read_saved_report(traced)[0] is None


def test_another_version_predicts_anew_and_says_so(
    folder: Path, predicted: list[Path]
) -> None:
    with patch("analyzer.model.contract.report_file.__version__", "99.0"):
        result = analyzer.open_trace(folder)
    assert predicted == [folder]
    assert "Predicted again: another version" in result.document["notes"][0]


@pytest.mark.parametrize("name", ["run.json", REPORT_JSON])
def test_a_changed_file_predicts_anew(
    name: str, folder: Path, predicted: list[Path]
) -> None:
    (folder / name).write_text((folder / name).read_text() + "\n")
    result = analyzer.open_trace(folder)
    assert predicted == [folder]
    assert "a file has changed" in result.document["notes"][0]
