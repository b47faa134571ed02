"""Cost of watching a step: while steps are traced, compared with the profiler alone, and afterwards.

    python benchmarks/watch/watch_overhead.py [--rounds 12] [--steps 25] [--seconds 75]

One process runs each kind of step (op by op, a tf.function, Keras' train_on_batch) in turn: alone, under
TensorFlow's profiler, traced by ``analyzer.watch``, and after the traced steps. Times are CPU times of
all threads, with one thread per op, so that other load has little effect. A round's figure
is the median step. Ratios are of one round, and every second round has the reverse order. After the
traced steps, short runs with and without the hooks alternate in one block. The table shows the median of
the rounds' ratios and its 95 % interval by ranks. The last line is the cost that the hooks add to a call
of an empty tf.function: the least of many batches with and without them.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253

from analyzer.capture.watch.watch_block import WatchBlock

WARMUP = 3
FEWEST = 3  # rounds


def network() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((16, 16, 3))]
        + [keras.layers.Conv2D(32, 3, activation="relu") for _ in range(3)]
        + [keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def steps() -> dict[str, Callable[[], object]]:
    model = network()
    x, y = tf.random.normal((32, 16, 16, 3)), tf.zeros((32,), tf.int32)

    def eager() -> object:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    compiled = network()

    @tf.function
    def function() -> object:
        with tf.GradientTape() as tape:
            loss = compiled.compute_loss(x, y, compiled(x, training=True))
        gradients = tape.gradient(loss, compiled.trainable_variables)
        compiled.optimizer.apply(gradients, compiled.trainable_variables)
        return loss

    fitted = network()
    return {
        "op by op": eager,
        "tf.function": function,
        "train_on_batch": lambda: fitted.train_on_batch(x, y),
    }


def timed(step: Callable[[], object], count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = time.process_time()
        step()
        found.append(time.process_time() - start)
    return found


def counter_s(calls: int = 400, batches: int = 15) -> float:
    """Return the seconds that the counter adds to one call."""

    @tf.function
    def empty(x: tf.Tensor) -> tf.Tensor:
        return x

    x = tf.zeros(())
    found: dict[bool, list[float]] = {True: [], False: []}
    timed(lambda: empty(x), calls)
    for _ in range(batches):
        for watched in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                block = None
                if watched:
                    block = WatchBlock(
                        Path(folder) / "out", steps=1, warmup=1, name="empty", force=False
                    )
                timed(lambda: empty(x), 20)  # the traced one and more
                start = time.process_time()
                for _ in range(calls):
                    empty(x)
                found[watched].append((time.process_time() - start) / calls)
                if block is not None:
                    block.end()
    return min(found[True]) - min(found[False])


def alternate(block: WatchBlock, step: Callable[[], object], runs: int) -> dict[str, float]:
    """Return the median step after the traced ones with the hooks (after) and without (bare)."""
    hooks = block._watcher._hooks
    found: dict[str, list[float]] = {"bare": [], "after": []}
    timed(step, 64)  # all of the first steps are read
    for run in range(runs):
        hooks.remove()
        if run % 2:
            hooks.install_lasting(has_tapes=False)
        timed(step, 1)
        found["after" if run % 2 else "bare"] += timed(step, 5)
    return {name: statistics.median(times) for name, times in found.items()}


def measured(
    name: str, step: Callable[[], object], count: int, is_turned: bool
) -> dict[str, float]:
    """Return the median step of each kind in one round, seconds."""
    found: dict[str, float] = {}

    def alone() -> None:
        found["alone"] = statistics.median(timed(step, count))

    def profiled() -> None:
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            found["profiled"] = statistics.median(timed(step, count))
            tf.profiler.experimental.stop()

    def watched() -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "watched"
            block = WatchBlock(place, steps=count, warmup=WARMUP, name=name, force=False)
            timed(step, WARMUP + 3)  # a function that was traced before may be no training
            found["watched"] = statistics.median(timed(step, count)[:-4])
            found.update(alternate(block, step, max(count // 5, 4) * 4))
            block.end()

    order = [alone, profiled, watched]
    for part in reversed(order) if is_turned else order:
        part()
    return found


def rounds_of(
    name: str, step: Callable[[], object], asked: argparse.Namespace
) -> list[dict[str, float]]:
    """Return the rounds of one kind of step that its seconds allow."""
    found: list[dict[str, float]] = []
    ends = time.monotonic() + asked.seconds
    while len(found) < asked.rounds:
        begun = time.monotonic()
        found.append(measured(name, step, asked.steps, bool(len(found) % 2)))
        now = time.monotonic()
        if len(found) >= FEWEST and now + (now - begun) > ends:
            break
    return found


def told(rounds: list[dict[str, float]], over: str, under: str) -> str:
    """Return the median ratio of two kinds with the range of the true median."""
    ratios = sorted(one[over] / one[under] for one in rounds)
    count = len(ratios)
    low = max(round(count / 2 - 0.98 * math.sqrt(count)), 1)
    middle = statistics.median(ratios)
    return f"{over}/{under} {middle:.3f} ({ratios[low - 1]:.3f} to {ratios[count - low]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=75, help="for each kind of step")
    asked = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    print(
        f"{'step':16} {'alone':>9} {'profiled':>9} {'watched':>9} {'bare':>9} {'after':>9}   ratios"
    )
    for name, step in steps().items():
        timed(step, WARMUP)
        rounds = rounds_of(name, step, asked)
        kinds = ("alone", "profiled", "watched", "bare", "after")
        ms = "".join(
            f" {statistics.median(one[kind] for one in rounds) * 1e3:7.2f}ms" for kind in kinds
        )
        ratios = f"{told(rounds, 'watched', 'profiled')}, {told(rounds, 'after', 'bare')}"
        print(f"{name:16}{ms}   {ratios}, {len(rounds)} rounds", flush=True)
    print(f"the counter adds {counter_s() * 1e6:.1f} microseconds to a call")


if __name__ == "__main__":
    main()
