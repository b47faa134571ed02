"""Steps that XLA compiles are run, not estimated from their graph."""

import json
import shutil
from pathlib import Path

import pytest
from builders import analyze_in_child

pytestmark = pytest.mark.tf
TARGET = Path(__file__).parents[1] / "targets" / "compiled_steps.py"


def test_a_compiled_step_on_the_cpu_is_refused_in_one_line(tmp_path: Path) -> None:
    shutil.copy(TARGET, tmp_path)
    ended = analyze_in_child("estimate", "compiled_steps.py:anew", cwd=tmp_path)
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert "analyze trace" in ended.err
    assert {path.name for path in tmp_path.iterdir()} <= {TARGET.name, "__pycache__"}


@pytest.mark.slow
def test_a_step_that_is_compiled_each_time_is_found(tmp_path: Path) -> None:
    shutil.copy(TARGET, tmp_path)
    ended = analyze_in_child(
        "trace", "compiled_steps.py:anew", "--out", "out", cwd=tmp_path
    )
    assert ended.code == 0, ended.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "compiled-anew" in [found["id"] for found in report["findings"]]
