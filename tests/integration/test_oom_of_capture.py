"""A step that runs out of memory under `analyze trace`: `analyze oom` explains the log that it left."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT, analyze, analyze_in_child
from simulated_cards import NEEDS_CARDS

import analyzer


@pytest.mark.slow
def test_it_is_reported_and_the_run_folder_keeps_the_allocators_own_list(
    tmp_path: Path,
) -> None:
    shutil.copy(ROOT / "traces" / "models.py", tmp_path)
    analyze_in_child(
        "trace",
        "models.py:too_large",
        "--batch-size",
        "16",
        "--out",
        "run",
        "--quiet",
        cwd=tmp_path,
        code=5,
        TF_CPU_BFC_MEM_LIMIT_IN_MB="48",
    )
    result = analyzer.open_trace(tmp_path / "run")
    assert result.recording.device.memory_limit_bytes == 48 << 20
    assert result.document["findings"][0]["id"] == "out-of-memory"
    log = (tmp_path / "run" / "capture.log").read_text("utf-8", "replace")
    dump = log.partition("BFCAllocator dump for")[2].partition("] Stats:")[0]
    used = [int(size) for size in re.findall(r"\] InUse at \w+ of size (\d+)", dump)]
    free = [int(size) for size in re.findall(r"\] Free  at \w+ of size (\d+)", dump)]
    told = analyze("oom", tmp_path / "run", "--json", "-")
    (failure,) = json.loads(told.out)["failures"]
    least, most = failure["ranges"]["limit_bytes"]  # this TensorFlow prints 48.00MiB
    assert least <= 48 << 20 <= most
    assert failure["in_use_bytes"] == sum(used)
    assert failure["largest_hole_bytes"] == max(free)
    assert failure["asked"]["requested_bytes"] == 16 * 64 * 64 * 64 * 4
    assert failure["asked"]["is_exact"]


def reproduce(step: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Return what ``--reproduce`` finds of a step and the log of the run in ``folder``."""
    arguments = ("oom", "run/capture.log", "--reproduce", "--json", "oom.json")
    analyze_in_child(*arguments, "--target", *step, cwd=folder)
    return json.loads((folder / "oom.json").read_text())["reproduction"]


@pytest.mark.slow
@NEEDS_CARDS
@pytest.mark.parametrize("way", ["--jit --limit 200MiB", "--no-jit --limit 320MiB"])
def test_a_log_is_reproduced_on_a_simulated_card(tmp_path: Path, way: str) -> None:
    # GIVEN the log of a step that found no memory
    shutil.copy(Path(__file__).parent / "targets" / "gpu_steps.py", tmp_path)
    step = ("gpu_steps.py:cnn", "--batch-size", "1024")
    options = ("--gpu", "t4", *way.split(), "--out", "run")
    analyze_in_child("trace", *step, *options, cwd=tmp_path, code=5)

    # WHEN the step runs again under the limit of the log
    found = reproduce(step, tmp_path)

    # THEN the same op fails, and each change that is listed lets it run
    assert found["is_same_op"]
    assert found["is_same_request"]
    assert "accumulate-4" in [one["id"] for one in found["remedies"]]
    quarter = ("gpu_steps.py:cnn", "--batch-size", "256")
    analyze_in_child("trace", *quarter, *options, "--force", cwd=tmp_path)


_BESIDE = """
import keras
import tensorflow as tf

held = []


def wide():
    rows = [keras.layers.Dense(1024, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((1024,)), *rows])
    model.compile("sgd", "mse")
    return model


def beside():
    held.append(tf.Variable(tf.zeros((50, 1024, 1024))))
    return wide()
"""


@pytest.mark.slow
@NEEDS_CARDS
def test_what_the_log_holds_beside_the_step_is_taken_off_the_limit(
    tmp_path: Path,
) -> None:
    # GIVEN the log of a step that does not fit beside a variable of 200 MiB
    (tmp_path / "steps.py").write_text(_BESIDE)
    options = ("--batch-size", "8192", "--gpu", "t4", "--no-jit", "--limit", "500MiB")
    arguments = ("trace", "steps.py:beside", *options, "--out", "run")
    analyze_in_child(*arguments, cwd=tmp_path, code=5)

    # WHEN the step runs without the variable, under the limit of the log
    step = ("steps.py:wide", "--batch-size", "8192")
    found = reproduce(step, tmp_path)

    # THEN it fails in the same op, for the step has less memory by the variable's bytes
    assert found["is_same_op"]
    assert found["is_same_request"]
    assert found["history_bytes"] == pytest.approx(50 << 22, rel=0.05)
