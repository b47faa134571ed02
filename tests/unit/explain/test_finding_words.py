"""Why a buffer is alive, in words that hold for it."""

from __future__ import annotations

import pytest
from builders import sample_folder

from analyzer.explain.buffer_words import why_alive
from analyzer.session.opening import open_result

ROW = {"variable": "kernel", "role": "", "dies": 100}


@pytest.mark.parametrize(
    ("category", "dies", "words"),
    [
        ("parameter", 100, "a variable, in all steps"),
        ("parameter", 60, "a variable's value, until the next update"),
        ("temporary", 100, "a variable's next value, before the update"),
    ],
)
def test_a_variables_buffer(category: str, dies: int, words: str) -> None:
    assert why_alive({**ROW, "category": category, "dies": dies}, None, end=100) == words


def test_no_temporary_is_there_for_the_whole_run() -> None:
    for name in ("transformer", "accumulation", "cnn"):
        rows = open_result(sample_folder(name), search=False).document["tensors_at_peak"]
        held = {row["why_alive"] for row in rows if row["category"] == "temporary"}
        assert "a variable, in all steps" not in held
