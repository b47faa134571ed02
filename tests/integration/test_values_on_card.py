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


def trace(folder: Path, name: str, *options: str) -> dict[str, Any]:
    shutil.copy(TARGETS / "value_steps.py", folder)
    out = folder / "-".join((name, *options))
    ended = analyze_in_child(
        "trace",
        f"value_steps.py:{name}",
        "--no-jit",
        "--out",
        str(out),
        *options,
        cwd=folder,
    )
    assert ended.code == 0, ended.err
    document: dict[str, Any] = json.loads((out / "report.json").read_text())
    return document


def test_values_of_inputs_and_counters_decide_as_on_the_cpu(tmp_path: Path) -> None:
    on_card = trace(tmp_path, "decided", "--gpu", "t4")
    on_cpu = trace(tmp_path, "decided", "--device", "cpu")
    for card, cpu in zip(on_card["steps"], on_cpu["steps"], strict=True):
        assert card["requested_bytes"] == pytest.approx(
            cpu["requested_bytes"],
            rel=0.1,  # the CPU has other temporaries; wrong counts move more
        )
    assert not [text for text in on_card["warnings"] if "depend on the weights" in text]


def test_a_value_of_the_weights_is_named_and_gives_a_range(tmp_path: Path) -> None:
    document = trace(tmp_path, "undecided", "--gpu", "t4")
    (warning,) = [
        text for text in document["warnings"] if "depend on the weights" in text
    ]
    for name in ("Where", "Unique", "DynamicPartition"):
        assert f"{name} at value_steps.py" in warning
    peaks = [step["requested_bytes"] for step in document["steps"]]
    assert peaks[1] >= peaks[2] + ROWS_BYTES / 2
