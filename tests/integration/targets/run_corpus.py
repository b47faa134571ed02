"""Notes or runs many targets in one process and writes down what became of each."""

# ruff: noqa: TID253

import gc
import json
import sys
from pathlib import Path

import keras
import msgspec
import tensorflow as tf

from analyzer.capture.graph.estimate_capture import capture_unrun_step
from analyzer.capture.run.profiled_run import run_steps
from analyzer.capture.targets.resolve_target import resolve
from analyzer.capture.targets.target_spec import parse_target
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.errors import InputError


def outcome(kind, target, values):
    options = msgspec.convert({"device": "cpu", **values}, CaptureOptions)
    keras.utils.clear_session()
    gc.collect()

    def make():
        return resolve(parse_target(target), options)

    try:
        is_estimate = kind == "estimate"
        captured = (
            capture_unrun_step(make, options) if is_estimate else run_steps(make, 2)
        )
    except InputError as error:
        return {"error": str(error)}
    run = captured.run
    batches = [
        op
        for op in captured.ops
        if op.type in ("IteratorGetNext", "IteratorGetNextSync")
    ]
    categories: dict[str, int] = {}
    for row in run.variables:
        size = tf.as_dtype(row.dtype).size if row.dtype != "string" else 0
        for axis in row.shape or ():
            size *= axis
        categories[row.category.value] = categories.get(row.category.value, 0) + size
    return {
        "failed": None if run.error is None else str(run.error),
        "mode": run.step.mode,
        "optimizer": run.step.optimizer,
        "inputs": [row.shape for row in run.inputs]
        or [spec.shape for op in batches for spec in op.outputs],
        "bytes": categories,
        "notes": run.notes,
    }


if __name__ == "__main__":
    gc.freeze()  # TensorFlow's own objects need not be looked through for each case
    keras.config.disable_traceback_filtering()
    cases = json.load(sys.stdin)
    results = {
        kind: {name: outcome(kind, *case) for name, case in cases.items()}
        for kind in ("estimate", "trace")
    }
    Path("results.json").write_text(json.dumps(results, indent=1))
