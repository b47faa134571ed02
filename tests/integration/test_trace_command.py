"""The whole way: a target is run by TensorFlow, traced, read and explained."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import (
    COMMAND,
    analyze,
    analyze_in_child,
    check_bytes_in_use,
    listing,
)
from workbench import TARGETS, Workbench

import analyzer

PARAMETERS = 4 * (8 * 64 + 64 + 64 * 4 + 4)  # of `network` in steps.py, float32
ADAM = 2 * PARAMETERS + 8 + 4  # two slots, the counter (int64) and the learning rate
RUN_FILES = {"report.html", "report.json", "run.json", "graph.json.gz", "plugins"}


@pytest.fixture(scope="module")
def function(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trace by a process of its own."""
    folder = tmp_path_factory.mktemp("captures")
    shutil.copy(TARGETS / "steps.py", folder)
    step = ("steps.py:compiled", "--batch-size", "8")
    analyze_in_child("trace", *step, "--out", "function", cwd=folder)
    return folder / "function"


def trace(workbench: Workbench, target: str, *options: str) -> analyzer.Result:
    return workbench.run("trace", target, "--batch-size", "8", *options).result


def assert_books_balance(result: analyzer.Result) -> None:
    check_bytes_in_use(result)
    document = result.document
    total = document["peak"]["requested_bytes"]
    assert sum(document["categories_at_peak"].values()) == total
    # A peak of a few KiB is mostly scalars; a kibibyte of them has no name at times.
    assert document["categories_at_peak"]["unattributed"] <= max(0.01 * total, 1024)
    assert len(result.recording.steps) == 3


def assert_is_the_network(result: analyzer.Result) -> None:
    assert_books_balance(result)
    document = result.document
    assert document["categories_at_peak"]["parameter"] == PARAMETERS
    assert document["categories_at_peak"]["optimizer_state"] == ADAM
    assert document["step"]["optimizer"] == "Adam"
    assert document["step"]["batch_size"] == 8
    assert document["error"] is None


def test_adam_in_a_function(function: Path) -> None:
    result = analyzer.open_trace(function)
    assert_is_the_network(result)
    assert result.document["step"]["jit"] is False


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("steps:compiled", ["--jit"]),
        ("steps.py:eager", []),
        ("steps.py:make_step", []),
    ],
)
def test_adam_in_other_forms(
    target: str, options: list[str], workbench: Workbench
) -> None:
    result = trace(workbench, target, *options)
    assert_is_the_network(result)
    assert result.document["step"]["jit"] is ("--jit" in options)


def test_what_is_left_in_the_folder(function: Path) -> None:
    folder = function
    assert {path.name for path in folder.iterdir()} >= RUN_FILES
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]
    # It is TensorBoard's layout, and each part of it opens.
    (trace,) = folder.glob("plugins/profile/*/*.xplane.pb")
    whole = analyzer.open_trace(folder).document
    for part in (trace, trace.parent):
        assert analyzer.open_trace(part).document["peak"] == whole["peak"]
    assert json.loads((folder / "report.json").read_text())["peak"] == whole["peak"]
    assert "<html" in (folder / "report.html").read_text()


def test_xprof_reads_the_logdir(function: Path) -> None:
    from xprof.convert.raw_to_tool_data import xspace_to_tool_data

    result = analyzer.open_trace(function)
    (trace,) = function.glob("plugins/profile/*/*.xplane.pb")
    data, _ = xspace_to_tool_data([str(trace)], "memory_profile", {})
    (summary,) = json.loads(data)["memoryProfilePerAllocator"].values()
    ever = result.document["peak_ever"]["allocated_bytes"]
    assert int(summary["profileSummary"]["peakStats"]["heapAllocatedBytes"]) == ever


def test_labels_of_a_step(function: Path) -> None:
    rows = analyzer.open_trace(function).allocations
    held = {
        (row.variable, row.layer, row.category, row.requested_bytes)
        for row in rows[rows["variable"].str.startswith("network/")].itertuples()
    }
    assert held == {
        ("network/hidden/kernel", "network/hidden", "parameter", 4 * 8 * 64),
        ("network/hidden/bias", "network/hidden", "parameter", 4 * 64),
        ("network/out/kernel", "network/out", "parameter", 4 * 64 * 4),
        ("network/out/bias", "network/out", "parameter", 4 * 4),
    }
    assert {"activation", "gradient", "input", "optimizer_state"} <= set(
        rows["category"]
    )


@pytest.mark.slow
def test_a_function_with_a_signature(workbench: Workbench) -> None:
    result = trace(workbench, "ready_made.py:signed")
    assert_books_balance(result)
    assert result.document["step"]["mode"] == "infer"
    assert result.document["categories_at_peak"]["parameter"] == 4 * 16 * 32
    assert result.document["categories_at_peak"]["input"] >= 4 * 8 * 16


@pytest.mark.slow
def test_a_table_that_was_looked_up_before_the_trace(workbench: Workbench) -> None:
    result = trace(workbench, "ready_made.py:looked_up")
    assert_books_balance(result)
    assert result.document["categories_at_peak"]["parameter"] == 4 * 3000 * 16


@pytest.mark.slow
def test_an_application(workbench: Workbench) -> None:
    result = trace(
        workbench, "keras:MobileNetV3Small", "--shape", "32,32,3", "--mode", "infer"
    )
    assert_books_balance(result)
    # 2,554,968 parameters, all float32, is what Keras says of this model; the state of the random
    # numbers (two int64) is one of its variables too.
    assert result.document["categories_at_peak"]["parameter"] == 4 * 2_554_968 + 16
    assert result.document["categories_at_peak"]["optimizer_state"] == 0
    assert "keras:MobileNetV3Small" in repr(result)


@pytest.mark.slow  # a quick one: test_options.py
@pytest.mark.parametrize("file", ["saved.keras", "saved.h5"])
def test_saved_models(file: str, workbench: Workbench) -> None:
    trace(workbench, "ready_made.py:saved")
    result = trace(workbench, file)
    assert_books_balance(result)
    assert result.document["categories_at_peak"]["parameter"] == PARAMETERS
    assert result.document["categories_at_peak"]["optimizer_state"] == ADAM


def test_a_saved_model_folder(workbench: Workbench) -> None:
    trace(workbench, "ready_made.py:saved")
    result = trace(workbench, "saved_model")
    assert_books_balance(result)
    assert result.document["step"]["mode"] == "infer"
    assert result.document["categories_at_peak"]["parameter"] == PARAMETERS
    # Keras writes each weight twice, and TensorFlow loads both.
    rows = result.document["tensors_at_peak"]
    unused = [row for row in rows if row["why_alive"] == "loaded, but not used"]
    assert sum(row["requested_bytes"] for row in unused) >= PARAMETERS


@pytest.mark.slow  # on a sample: test_samples.py
def test_inference_has_no_optimizer(workbench: Workbench) -> None:
    result = trace(workbench, "ready_made.py:model", "--mode", "infer")
    assert_books_balance(result)
    categories = result.document["categories_at_peak"]
    assert categories["parameter"] == PARAMETERS
    assert categories["optimizer_state"] == categories["gradient"] == 0


def test_a_step_that_raises(workbench: Workbench) -> None:
    # GIVEN a step that fails while it runs
    ran = workbench.run("trace", "steps.py:failing", code=2)
    # THEN the run up to there is written and says why
    error = ran.document["error"]
    assert error["type"] == "InvalidArgumentError"
    assert "the loss is no loss" in error["message"]
    assert (ran.folder / "report.html").is_file()
    assert "Traceback" not in ran.ended.err
    assert "the loss is no loss" in ran.ended.out
    assert analyze("trace", ran.folder, "--quiet").code == 0


def interrupted(
    folder: Path, *arguments: str, wait: Callable[[subprocess.Popen[bytes]], None]
) -> tuple[int, bytes]:
    """Run the command, press Ctrl-C for it and its child once ``wait`` returns; return code, stderr."""
    child = subprocess.Popen(
        [sys.executable, str(COMMAND), *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        wait(child)
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=600)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    assert b"Traceback" not in err
    return child.returncode, err


def test_an_interrupted_estimate_leaves_nothing(tmp_path: Path) -> None:
    def started(child: subprocess.Popen[bytes]) -> None:
        while child.poll() is None and not list(
            tmp_path.glob(".analyze-*/capture.log")
        ):
            time.sleep(0.05)

    target = ("keras:MobileNetV2", "--out", "stopped")
    code, err = interrupted(tmp_path, "estimate", *target, wait=started)
    assert code == 130, err
    assert listing(tmp_path) == set()
