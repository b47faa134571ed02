"""``analyzer.trace`` of a live object, in a process that has TensorFlow already."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from builders import INSTALLED, listing, run_python

TARGETS = Path(__file__).parent / "targets"
PARAMETERS = 4 * (8 * 64 + 64 + 64 * 4 + 4)
ADAM = 2 * PARAMETERS + 8 + 4

# Each script prints one JSON object: what was so before and after.
COMMON = """
import json, os, sys, threading
import numpy as np
import tensorflow as tf
import analyzer, steps

def state(model):
    return [value.numpy().tolist() for value in model.variables]

def answer(result, model, before, environment, threads):
    line, events = result.analysis.line, result.recording.events
    own = events[events["allocator"] == result.recording.allocator]
    print(json.dumps({
        "same variables": state(model) == before,
        "same environment": dict(os.environ) == environment,
        "new threads": sorted(t.name for t in set(threading.enumerate()) - threads if t.is_alive()),
        "differences": int((line.allocated[1:][own.index] != own["in_use_bytes"]).sum()),
        "categories": result.document["categories_at_peak"],
        "peak": result.document["peak"]["requested_bytes"],
        "steps": len(result.recording.steps),
        "warnings": result.document["warnings"],
        "folder": str(result.folder),
        "error": result.document["error"],
    }))
"""


def run(code: str, folder: Path, **environment: str) -> list[Any]:
    """Return what a script printed, as JSON."""
    places = f"{INSTALLED}{os.pathsep}{TARGETS}"
    done = run_python("-c", COMMON + code, cwd=folder, PYTHONPATH=places, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line[0] in "{["]


MODEL = """
model = steps.compiled()
model(tf.zeros((1, 8)))
before, environment, threads = state(model), dict(os.environ), set(threading.enumerate())
result = analyzer.trace(model, out="out", batch_size=8)
answer(result, model, before, environment, threads)
"""


REFUSED = """
from analyzer.model.errors import TargetError
step, args = steps.make_step()
try:
    analyzer.trace((step, args), out="out")
    raise AssertionError("it was not refused")
except TargetError as error:
    assert "TF_CPU_ALLOCATOR_USE_BFC=1" in str(error), error
assert not os.path.exists("out")
"""


def assert_unchanged(told: dict[str, Any]) -> None:
    assert told["same environment"]
    assert told["new threads"] == []
    assert told["differences"] == 0
    assert told["steps"] == 3
    assert told["error"] is None
    assert sum(told["categories"].values()) == told["peak"]


def test_a_model_is_captured_in_a_process_of_its_own(tmp_path: Path) -> None:
    # GIVEN a process whose allocator writes no events
    (told,) = run(REFUSED + MODEL, tmp_path)
    # THEN a step that lives there alone is refused; nothing of a model is touched, and its variables
    # are known
    assert told["same variables"]
    assert_unchanged(told)
    assert told["categories"]["parameter"] == PARAMETERS
    assert told["categories"]["optimizer_state"] == ADAM
    assert told["warnings"] == []
    assert {path for path in listing(tmp_path) if "/" not in path} == {"out"}


IN_PLACE = """
shapes = [(4, 50, 64), (64, 4, 32)]
einsum = tf.function(
    lambda left, right: tf.raw_ops.Einsum(inputs=[left, right], equation="...ni,iho->...nho"),
    input_signature=[tf.TensorSpec(shape) for shape in shapes],
)
results = [call(einsum) for call in (analyzer.trace, analyzer.estimate)]
print(json.dumps([result.report.steps[-1].requested_bytes for result in results]))

# its scratch memory has the size of the output
shapes = [(2, 4, 50, 50), (2, 50, 4, 32)]
einsum = tf.function(
    lambda left, right: tf.raw_ops.Einsum(inputs=[left, right], equation="acbe,aecd->abcd"),
    input_signature=[tf.TensorSpec(shape) for shape in shapes],
)
parts = analyzer.trace(einsum).allocations.query("step == 2 and op == 'Einsum'")
assert (len(parts), (parts.tensor != "").sum()) == (4, 1), parts

step, args = steps.make_step()
before, environment, threads = state(step.model), dict(os.environ), set(threading.enumerate())
result = analyzer.trace((step, args), out="out")
answer(result, step.model, before, environment, threads)
"""


def test_steps_are_captured_and_estimated_in_this_process(tmp_path: Path) -> None:
    # GIVEN a process that writes memory events, and variables that were made before the trace
    (measured, predicted), told = run(IN_PLACE, tmp_path, TF_CPU_ALLOCATOR_USE_BFC="1")
    # THEN a function with transposed operands, of which TensorFlow has an executor, is estimated
    assert predicted == pytest.approx(measured, rel=0.01)
    # AND the books of another step balance, and what was there before is known by its address
    assert_unchanged(told)
    assert told["same variables"]
    assert told["categories"]["parameter"] == PARAMETERS
    assert told["categories"]["optimizer_state"] == ADAM
    # AND each call of one second has a folder of its own
    assert {path for path in listing(tmp_path) if "/" not in path} == {"out", "traces"}
    assert len(list((tmp_path / "traces").iterdir())) == 3
