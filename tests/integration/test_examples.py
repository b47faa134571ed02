"""The scripts of `examples/`: each runs as it is, and has the effect that the docs state."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT, analyze_in_child, run_python

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def ran(script: str) -> str:
    ended = run_python(EXAMPLES / f"{script}.py", TF_CPP_MIN_LOG_LEVEL="2")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def peak(folder: Path, target: str, *options: str) -> dict[str, Any]:
    script = target.partition(":")[0]
    shutil.copy(EXAMPLES / f"{script}.py", folder)
    words = (
        "trace",
        f"{script}.py:{target.partition(':')[2]}",
        "--no-save",
        "--json",
        "-",
    )
    ended = analyze_in_child(*words, "--inter-op-threads", "1", *options, cwd=folder)
    told: dict[str, Any] = json.loads(ended.out)
    return told


def requested(told: dict[str, Any]) -> int:
    return int(told["peak"]["requested_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [name for name in SCRIPTS if name != "on_a_simulated_card"]
)
def test_a_script_runs_as_it_is(script: str) -> None:
    assert ran(script).strip()


def test_a_function_that_is_reused_is_traced_once() -> None:
    said = ran("reusing_functions")
    assert "retraced: 20 traces" in said
    assert "reused: 1 traces" in said


@pytest.mark.slow
def test_a_deleted_tape_gives_its_activations_back(tmp_path: Path) -> None:
    kept = requested(peak(tmp_path, "deleting_the_tape:persistent"))
    deleted = requested(peak(tmp_path, "deleting_the_tape:persistent_deleted"))
    activations = 256 * 512 * 4
    assert kept - deleted >= 4 * activations


@pytest.mark.slow
def test_more_batch_is_more_activations_and_no_more_parameters(tmp_path: Path) -> None:
    small, large = (
        peak(tmp_path, "batch_size:model", "--batch-size", str(n)) for n in (16, 64)
    )
    assert requested(large) > requested(small)
    key = "parameter"
    assert small["categories_at_peak"][key] == large["categories_at_peak"][key]


@pytest.mark.slow
def test_accumulated_gradients_need_less_activations_and_one_more_copy(
    tmp_path: Path,
) -> None:
    whole, parts = (
        peak(tmp_path, f"gradient_accumulation:{name}")
        for name in ("whole_batch", "accumulated")
    )
    assert (
        parts["categories_at_peak"]["activation"]
        < whole["categories_at_peak"]["activation"]
    )


@pytest.mark.slow
def test_tapes_that_are_kept_grow(tmp_path: Path) -> None:
    kept, dropped = (
        peak(tmp_path, f"tape_and_growth:{name}", "--steps", "6")
        for name in ("keeps_tapes", "keeps_numbers")
    )
    assert requested(kept) > requested(dropped)
