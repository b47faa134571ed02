"""A target is estimated by other interpreters, and the two estimates are compared."""

import json
import sys
from pathlib import Path

import pytest
from builders import analyze_in_child, refusal

TARGET = f"{Path(__file__).parent}/targets/gpu_steps.py:cnn"


@pytest.mark.slow
def test_two_interpreters_are_compared(tmp_path: Path) -> None:
    arguments = ("diff", TARGET, "--python", sys.executable, "--json", "diff.json")
    ended = analyze_in_child(*arguments, "--python", sys.executable, cwd=tmp_path)
    peaks = json.loads((tmp_path / "diff.json").read_text())["peak"]
    assert all(row["a_bytes"] for row in peaks if row["number"] == "requested")
    assert "Different settings" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--python", "gone", "--python", "gone"), "gone cannot be run"),
        (("--python", "gone"), "--python twice"),
    ],
)
def test_a_wrong_interpreter_is_one_line(
    arguments: tuple[str, ...], words: str
) -> None:
    assert words in refusal("diff", TARGET, *arguments)
