"""The whole way: a target is run by TensorFlow, traced, read and explained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import COMMAND, Ended, analyze, analyze_in_child, listing

import analyzer

pytestmark = pytest.mark.tf
TARGETS = Path(__file__).parent / "targets"
PARAMETERS = 4 * (8 * 64 + 64 + 64 * 4 + 4)  # of `network` in steps.py, float32
ADAM = 2 * PARAMETERS + 8 + 4  # two slots, the counter (int64) and the learning rate
RUN_FILES = {"report.html", "report.json", "run.json", "graph.json.gz", "plugins"}


class Captures:
    """Runs each command once and keeps what it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, tuple[Ended, analyzer.Result]] = {}

    def get(
        self, name: str, target: str, *options: str, code: int = 0, **environment: str
    ) -> analyzer.Result:
        if name not in self.results:
            ended = analyze_in_child(
                "trace", target, "--out", name, "--batch-size", "8", *options,
                cwd=self.folder, **environment,
            )  # fmt: skip
            assert ended.code == code, ended.err
            self.results[name] = ended, analyzer.open_trace(self.folder / name)
        return self.results[name][1]

    def ended(self, name: str) -> Ended:
        return self.results[name][0]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Captures:
    folder = tmp_path_factory.mktemp("captures")
    for name in ("steps.py", "ready_made.py"):
        shutil.copy(TARGETS / name, folder)
    return Captures(folder)


def assert_books_balance(result: analyzer.Result) -> None:
    recording, line, document = result.recording, result.analysis.line, result.document
    own = recording.events[recording.events["allocator"] == recording.allocator]
    ours = line.allocated[1:][own.index.to_numpy()]
    assert np.array_equal(ours, own["in_use_bytes"].to_numpy())
    assert np.array_equal(
        np.maximum.accumulate(ours), own["peak_in_use_bytes"].to_numpy()
    )
    total = document["peak"]["requested_bytes"]
    assert sum(document["categories_at_peak"].values()) == total
    # A peak of a few KiB is mostly scalars; a kibibyte of them has no name at times.
    assert document["categories_at_peak"]["unattributed"] <= max(0.01 * total, 1024)
    assert len(recording.steps) == 3


FORMS: dict[str, tuple[str, list[str], str]] = {
    # name: target, options, optimizer
    "function": ("steps.py:compiled", [], "Adam"),
    "module": ("steps:compiled", ["--jit"], "Adam"),
    "eager": ("steps.py:eager", [], "Adam"),
    "step": ("steps.py:make_step", [], "Adam"),
}


@pytest.mark.parametrize(
    "name",
    [
        "function",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("module", "eager", "step")),
    ],
)
def test_adam_models(name: str, captures: Captures) -> None:
    target, options, optimizer = FORMS[name]
    result = captures.get(name, target, *options)
    assert_books_balance(result)
    document = result.document
    assert document["categories_at_peak"]["parameter"] == PARAMETERS
    assert document["categories_at_peak"]["optimizer_state"] == ADAM
    assert document["step"]["optimizer"] == optimizer
    assert document["step"]["jit"] is ("--jit" in options)
    assert document["step"]["batch_size"] == 8
    assert document["error"] is None


def test_what_is_left_in_the_folder(captures: Captures) -> None:
    captures.get("function", *FORMS["function"][:1])
    folder = captures.folder / "function"
    assert {path.name for path in folder.iterdir()} >= RUN_FILES
    assert not [path for path in captures.folder.iterdir() if path.name.startswith(".")]
    # It is TensorBoard's layout, and each part of it opens.
    (trace,) = folder.glob("plugins/profile/*/*.xplane.pb")
    whole = analyzer.open_trace(folder).document
    for part in (trace, trace.parent, captures.folder / "function"):
        assert analyzer.open_trace(part).document["peak"] == whole["peak"]
    assert json.loads((folder / "report.json").read_text())["peak"] == whole["peak"]
    assert "<html" in (folder / "report.html").read_text()


def test_xprof_reads_the_logdir(captures: Captures) -> None:
    from xprof.convert.raw_to_tool_data import xspace_to_tool_data

    result = captures.get("function", "steps.py:compiled")
    (trace,) = (captures.folder / "function").glob("plugins/profile/*/*.xplane.pb")
    data, _ = xspace_to_tool_data([str(trace)], "memory_profile", {})
    (summary,) = json.loads(data)["memoryProfilePerAllocator"].values()
    ever = result.document["peak_ever"]["allocated_bytes"]
    assert int(summary["profileSummary"]["peakStats"]["heapAllocatedBytes"]) == ever


def test_labels_of_a_step(captures: Captures) -> None:
    rows = captures.get("function", "steps.py:compiled").allocations
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


@pytest.mark.slow  # on a sample: test_samples.py
def test_accumulators_of_a_custom_step(captures: Captures) -> None:
    result = captures.get("step", "steps.py:make_step")
    rows = result.allocations
    sums = rows[
        rows["variable"].str.startswith("sum") & (rows["dies"] == rows["dies"].max())
    ]
    assert set(sums["category"]) == {"optimizer_state"}
    assert set(sums["role"]) == {"state with a parameter's shape"}
    assert sums["requested_bytes"].sum() == PARAMETERS
    sources = {str(source) for source in rows["source"].unique()}
    assert any("steps.py:" in source for source in sources)


@pytest.mark.slow
def test_a_function_with_a_signature(captures: Captures) -> None:
    result = captures.get("signed", "ready_made.py:signed")
    assert_books_balance(result)
    assert result.document["step"]["mode"] == "infer"
    assert result.document["categories_at_peak"]["parameter"] == 4 * 16 * 32
    assert result.document["categories_at_peak"]["input"] >= 4 * 8 * 16


@pytest.mark.slow
def test_a_table_that_was_looked_up_before_the_trace(captures: Captures) -> None:
    result = captures.get("looked_up", "ready_made.py:looked_up")
    assert_books_balance(result)
    assert result.document["categories_at_peak"]["parameter"] == 4 * 3000 * 16


@pytest.mark.slow
def test_an_application(captures: Captures) -> None:
    result = captures.get(
        "mobilenet", "keras:MobileNetV3Small", "--shape", "32,32,3", "--mode", "infer"
    )
    assert_books_balance(result)
    # 2,554,968 parameters, all float32, is what Keras says of this model; the state of the random
    # numbers (two int64) is one of its variables too.
    assert result.document["categories_at_peak"]["parameter"] == 4 * 2_554_968 + 16
    assert result.document["categories_at_peak"]["optimizer_state"] == 0
    assert "keras:MobileNetV3Small" in repr(result)


@pytest.fixture(scope="module")
def saved(captures: Captures) -> Path:
    code = """
import steps
model = steps.compiled()
model.save("saved.keras"); model.save("saved.h5"); model.export("saved_model", verbose=False)
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=captures.folder, check=True, timeout=600,
        capture_output=True,
    )  # fmt: skip
    return captures.folder


@pytest.mark.slow  # a quick one: test_options.py
@pytest.mark.parametrize("file", ["saved.keras", "saved.h5"])
def test_saved_models(file: str, captures: Captures, saved: Path) -> None:
    result = captures.get(f"of-{file}", file)
    assert_books_balance(result)
    assert result.document["categories_at_peak"]["parameter"] == PARAMETERS
    assert result.document["categories_at_peak"]["optimizer_state"] == ADAM


def test_a_saved_model_folder(captures: Captures, saved: Path) -> None:
    result = captures.get("of-folder", "saved_model")
    assert_books_balance(result)
    assert result.document["step"]["mode"] == "infer"
    assert result.document["categories_at_peak"]["parameter"] == PARAMETERS
    # Keras writes each weight twice, and TensorFlow loads both.
    unused = result.allocations[result.allocations.role == "loaded, but not used"]
    assert unused.requested_bytes[unused.variable.astype(str) != ""].sum() >= PARAMETERS


@pytest.mark.slow  # on a sample: test_samples.py
def test_inference_has_no_optimizer(captures: Captures) -> None:
    result = captures.get("infer", "ready_made.py:model", "--mode", "infer")
    assert_books_balance(result)
    categories = result.document["categories_at_peak"]
    assert categories["parameter"] == PARAMETERS
    assert categories["optimizer_state"] == categories["gradient"] == 0


def test_a_step_that_raises(captures: Captures) -> None:
    # GIVEN a step that fails while it runs
    result = captures.get("failing", "steps.py:failing", code=2)
    # THEN the run up to there is written and says why
    error = result.document["error"]
    assert error["type"] == "InvalidArgumentError"
    assert "the loss is no loss" in error["message"]
    assert (captures.folder / "failing" / "report.html").is_file()
    assert "Traceback" not in captures.ended("failing").err
    assert "the loss is no loss" in captures.ended("failing").out
    assert analyze("trace", captures.folder / "failing", "--quiet").code == 0


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


BAD = {  # more of them, all in one process: test_options.py
    "syntax": ("bad.py:x", "def (:\n", "SyntaxError"),
}


@pytest.mark.parametrize(("target", "code", "says"), BAD.values(), ids=BAD)
def test_bad_targets(target: str, code: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(code)
    before = listing(tmp_path)
    done = analyze_in_child("trace", *target.split(), cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1, done.err
    assert says in done.err
    assert "Traceback" not in done.err
    assert listing(tmp_path) == before
