"""The JSON of each answer ends with the command that continues, as its text does."""

from __future__ import annotations

import json

import pytest
from builders import analyze, sample_folder


@pytest.mark.parametrize(
    "words",
    [
        ("trace", sample_folder("cnn")),
        ("gpus", "rtx", "4090"),
    ],
)
def test_json_and_text_state_the_same_next_command(words: tuple[str, ...]) -> None:
    stated = json.loads(analyze(*words, "--json", "-").out)["next_command"]
    assert stated.startswith("analyze ")
    assert analyze(*words).out.rstrip().endswith(f"Next: {stated}")
