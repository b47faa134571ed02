"""Each wording of the table gives its component, its cause and its figures; others are no failure."""

import io
from pathlib import Path
from typing import Any

import pytest
import tomllib

from analyzer.oom import OomDocument, read_oom_log

WORDINGS = tomllib.loads((Path(__file__).parent / "wordings.toml").read_text("utf-8"))


def document(text: str) -> OomDocument:
    return read_oom_log(io.BytesIO(text.encode()), "a log").report


@pytest.mark.parametrize("row", WORDINGS["failure"], ids=lambda row: str(row["name"]))
def test_each_wording_has_its_cause_and_its_figures(row: dict[str, Any]) -> None:
    found = document(row["log"])
    (failure,) = found.failures
    assert row.get("notes") in (None, len(found.notes))
    assert (failure.component, failure.verdict.id) == (row["component"], row["cause"])
    assert row.get("words", "") in f"{failure.verdict.title}\n"
    assert failure.op_type == row.get("op_type")
    assert failure.op == row.get("op", failure.op)
    assert row.get("source") in (None, failure.source or "")
    assert row.get("next") in (None, found.next_command or "")
    actions = [remedy.action for remedy in failure.remedies]
    assert " ".join(actions).startswith(row.get("advice", ""))
    because = " ".join(remedy.because for remedy in failure.remedies)
    assert row.get("because", "") in because
    assert row.get("reason", "") in " ".join(failure.verdict.reasons)
    if "request" in row:
        assert failure.asked.requested_bytes == row["request"]
        assert row.get("basis", "") in failure.asked.basis


@pytest.mark.parametrize(
    "row", WORDINGS["no_failure"], ids=lambda row: str(row["log"])[:40]
)
def test_lines_that_only_mention_memory_are_no_failure(row: dict[str, Any]) -> None:
    found = document(row["log"])
    assert not found.failures
    assert row.get("words", "") in " ".join((found.headline, *found.notes))


def test_a_kill_after_a_failure_is_its_consequence() -> None:
    first = WORDINGS["failure"][0]["log"]
    killed = "train.sh: line 3:  4242 Killed   python train.py"
    (failure,) = document(f"{first}\n{killed}\nExit Code:    137\n").failures
    assert (failure.component, failure.limit_bytes) == ("TensorFlow", None)


def test_an_eager_op_after_a_failed_graph_is_another_failure() -> None:
    graph = "failed to allocate memory\n\t [[{{node model/conv/Conv2D}}]]"
    eager = "{{function_node __wrapped__Add_device_/GPU:0}} failed to allocate memory"
    first, second = document(f"{graph}\n{eager} [Op:Add]\n").failures
    assert (first.op_type, second.op_type) == (None, "Add")
