"""Values that decide sizes, trips and branches on simulated cards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child
from simulated_cards import NEEDS_CARDS

pytestmark = [pytest.mark.tf, NEEDS_CARDS]
TARGETS = Path(__file__).parent / "targets"
ROWS_BYTES = 16 * 4096 * 64 * 4  # the rows that ``undecided`` may select


def trace(folder: Path, target: str, *options: str) -> dict[str, Any]:
    shutil.copy(TARGETS / "value_steps.py", folder)
    out = folder / "-".join((target, *options))
    if ":" in target:
        options = ("--no-jit", *options)
    ended = analyze_in_child(
        "trace",
        target,
        "--out",
        str(out),
        *options,
        cwd=folder,
    )
    assert ended.code == 0, ended.err
    document: dict[str, Any] = json.loads((out / "report.json").read_text())
    return document


def test_values_of_inputs_and_counters_decide_as_on_the_cpu(tmp_path: Path) -> None:
    on_card = trace(tmp_path, "value_steps.py:decided", "--gpu", "t4")
    on_cpu = trace(tmp_path, "value_steps.py:decided", "--device", "cpu")
    for card, cpu in zip(on_card["steps"], on_cpu["steps"], strict=True):
        assert card["requested_bytes"] == pytest.approx(
            cpu["requested_bytes"],
            rel=0.1,  # the CPU has other temporaries; wrong counts move more
        )
    assert not [text for text in on_card["warnings"] if "depend on the weights" in text]


@pytest.mark.parametrize(
    "target",
    [
        "value_steps.py:undecided",
        pytest.param("value_steps.py:undecided_eagerly", marks=pytest.mark.slow),
        "value_steps.py",
    ],
)
def test_an_unknown_value_is_named_and_gives_a_range(
    tmp_path: Path, target: str
) -> None:
    document = trace(tmp_path, target, "--gpu", "t4")
    (warning,) = [
        text for text in document["warnings"] if "depend on the weights" in text
    ]
    assert "Where at value_steps.py" in warning
    assert ("taken for 0" in warning) != target.endswith("eagerly")

    # The order of the first step may differ from those that the range describes.
    most, none = (step["requested_bytes"] for step in document["steps"][1:3])
    assert most >= none + ROWS_BYTES / 2
    stated = document["uncertainty"]
    assert stated["low_bytes"] <= none < most <= stated["high_bytes"]


def test_values_of_freed_memory_are_no_counts(tmp_path: Path) -> None:
    document = trace(tmp_path, "value_steps.py:reuse_memory", "--gpu", "t4")
    assert document["error"] is None
