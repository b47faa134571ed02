"""Values that decide sizes, trips and branches on simulated cards."""

import json
from typing import Any

import pytest
from builders import analyze_in_child
from simulated_cards import NEEDS_CARDS
from workbench import Workbench

pytestmark = NEEDS_CARDS
ROWS_BYTES = 16 * 4096 * 64 * 4  # the rows that ``undecided`` may select


def trace(workbench: Workbench, target: str, *options: str) -> dict[str, Any]:
    return workbench.run("trace", target, "--no-jit", *options).document


def trace_script(
    workbench: Workbench,
    script: str,
    *options: str,
    code: int = 0,
    **environment: str,
) -> dict[str, Any]:
    words = ("trace", script, "--out", "of-a-script", *options)
    analyze_in_child(*words, cwd=workbench.folder, code=code, **environment)
    report = workbench.folder / "of-a-script" / "report.json"
    document: dict[str, Any] = json.loads(report.read_text())
    return document


def test_values_of_inputs_and_counters_decide_as_on_the_cpu(
    workbench: Workbench,
) -> None:
    on_card = trace(workbench, "value_steps.py:decided", "--gpu", "t4")
    on_cpu = trace(workbench, "value_steps.py:decided", "--device", "cpu")
    for card, cpu in zip(on_card["steps"], on_cpu["steps"], strict=True):
        assert card["requested_bytes"] == pytest.approx(
            cpu["requested_bytes"],
            rel=0.1,  # the CPU has other temporaries; wrong counts move more
        )
    assert not [text for text in on_card["warnings"] if "computed from weights" in text]
    assert "Repeat" not in str(on_card["notes"])


@pytest.mark.parametrize(
    "target",
    [
        "value_steps.py:undecided",
        pytest.param("value_steps.py:undecided_eagerly", marks=pytest.mark.slow),
        pytest.param("value_steps.py", marks=pytest.mark.slow),
    ],
)
def test_an_unknown_value_is_named_and_gives_a_range(
    workbench: Workbench, target: str
) -> None:
    is_script = ":" not in target
    run = trace_script if is_script else trace
    document = run(workbench, target, "--gpu", "t4")
    (warning,) = [
        text for text in document["warnings"] if "computed from weights" in text
    ]
    assert "Where at value_steps.py" in warning

    # The order of the first step may differ from those that the range describes.
    most, none = (step["requested_bytes"] for step in document["steps"][1:3])
    assert most >= none + ROWS_BYTES / 2
    stated = document["uncertainty"]
    assert stated["low_bytes"] <= none < most <= stated["high_bytes"]


def test_values_of_freed_memory_are_no_counts_and_reads_of_python_are_named(
    workbench: Workbench,
) -> None:
    document = trace(workbench, "value_steps.py:reuse_memory", "--gpu", "t4")
    assert document["error"] is None
    assert "(read in Python)" in str(document["warnings"])


def test_a_script_gets_its_values_and_an_unknown_one_that_ends_it_is_named(
    workbench: Workbench,
) -> None:
    # without a folder that keeps the card's library
    cache = {"TF_MEMORY_ANALYZER_CACHE": "off"}
    words = ("vocabulary_script.py", "--gpu", "t4", "--force")
    document = trace_script(workbench, *words, code=1, **cache)
    program = document["program"]
    assert program["steps"] > 0
    lines = (workbench.folder / "vocabulary_script.py").read_text().splitlines()
    assert program["ended"].endswith(f"lacks (vocabulary_script.py:{len(lines)})")
    assert "without --gpu" in document["answer"][2]
