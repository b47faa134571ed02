"""Predicted against real peaks: fresh processes, one inter-op thread, the third step.

    python benchmarks/accuracy.py mlp ResNet50:8:adam --runs 5 --out accuracy.json

A case is ``mlp``, ``lstm`` or ``NAME:BATCH:OPTIMIZER`` with a name of ``keras.applications``. The
error is the distance of the prediction outside the range of the real runs, over their median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = 3
THREADS = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=["run", "predict"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        result = run(options.cases[0]) if options.child == "run" else estimate(options.cases[0])
        print(json.dumps(result))
        return
    rows = [compare(case, options.runs) for case in options.cases]
    errors = sorted(row["error_ratio"] for row in rows)
    print(f"median {statistics.median(errors):.3%}, worst {errors[-1]:.3%}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


def compare(case: str, runs: int) -> dict[str, Any]:
    predicted = child("predict", case)
    real = [child("run", case) for _ in range(runs)]
    peaks = sorted(row["peak_bytes"] for row in real)
    middle = statistics.median(peaks)
    outside = max(0, peaks[0] - predicted["peak_bytes"], predicted["peak_bytes"] - peaks[-1])
    resident = statistics.median(row["resident_bytes"] for row in real)
    row = {
        "case": case,
        **{f"predicted_{key}": value for key, value in predicted.items()},
        "real_peak_bytes": peaks,
        "real_resident_bytes": resident,
        "error_ratio": outside / middle,
        "to_median_ratio": (predicted["peak_bytes"] - middle) / middle,
        "resident_ratio": (predicted["resident_bytes"] - resident) / resident,
    }
    print(
        f"{case:28} {predicted['peak_bytes']:>14,} real {peaks[0]:,} to {peaks[-1]:,} "
        f"error {row['error_ratio']:.3%} to median {row['to_median_ratio']:+.3%} "
        f"resident {row['resident_ratio']:+.3%}",
        flush=True,
    )
    return row


def child(what: str, case: str) -> dict[str, Any]:
    environment = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, __file__, "--child", what, case],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{case}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def build(case: str) -> tuple[Any, tuple[Any, Any]]:
    """Return a Keras model's step, traced without autograph, and its batch."""
    import keras
    import tensorflow as tf

    layers = keras.layers
    if case == "mlp":
        model = keras.Sequential([keras.Input((64,)), layers.Dense(512, "gelu"), layers.Dense(10)])
        inputs, optimizer = tf.random.normal((32, 64)), "adam"
    elif case == "lstm":
        entry = keras.Input((40,), dtype="int32")
        hidden = layers.LSTM(128)(layers.Embedding(5000, 128)(entry))
        model, optimizer = keras.Model(entry, layers.Dense(10)(hidden)), "adam"
        inputs = tf.zeros((16, 40), tf.int32)
    else:
        name, batch, optimizer = case.split(":")
        model = getattr(keras.applications, name)(weights=None, classifier_activation=None)
        inputs = tf.random.normal((int(batch), *model.input_shape[1:]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    labels = tf.zeros((inputs.shape[0],), tf.int32)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False, jit_compile=False)
    return step, (inputs, labels)


def run(case: str) -> dict[str, int]:
    import tensorflow as tf

    from analyzer.measure.pairing import pair
    from analyzer.parse.xplane import read_trace

    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        step, batch = build(case)
        for number in range(STEPS):
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                step(*batch)
        tf.profiler.experimental.stop()
        (path,) = Path(folder).rglob("*.xplane.pb")
        raw = read_trace(path)
    table = pair(raw.events).allocations
    last = raw.step_markers[-1]
    times = raw.events["time_ps"].to_numpy()
    first, end = times.searchsorted(last.start_ps), times.searchsorted(last.end_ps)
    change = raw.events["time_ps"].to_numpy() * 0
    born = table[table.born >= 0]
    change[born.born.to_numpy()] += born.requested_bytes.to_numpy()
    died = table[table.dies < len(change)]
    change[died.dies.to_numpy()] -= died.requested_bytes.to_numpy()
    live = change.cumsum()
    return {"peak_bytes": int(live[first:end].max()), "resident_bytes": int(live[first - 1])}


def estimate(case: str) -> dict[str, int]:
    from analyzer.capture.static import static_step
    from analyzer.predict import Owner, predict

    step, batch = build(case)
    found = static_step(step.get_concrete_function(*batch))
    owners = [
        Owner(
            op=variable.op,
            path=variable.name,
            size_bytes=variable.size_bytes,
            is_counter=variable.dtype in ("int32", "int64") and not variable.shape,
        )
        for variable in found.variables
    ]
    made = predict(found.ops, owners, threads=os.cpu_count() or 1)
    return {
        "peak_bytes": made.peak_bytes,
        "low_bytes": made.low_bytes,
        "high_bytes": made.high_bytes,
        "resident_bytes": made.resident_bytes,
    }


if __name__ == "__main__":
    main()
