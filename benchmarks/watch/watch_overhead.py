"""Cost of watching a step: while steps are traced, compared with the profiler alone, and afterwards.

    python benchmarks/watch/watch_overhead.py [--rounds 12] [--steps 25] [--seconds 75]
    python benchmarks/watch/watch_overhead.py --after [--count 600]

One process runs each kind of step (op by op, a tf.function, Keras' train_on_batch) in turn: alone, under
TensorFlow's profiler, traced by ``analyzer.watch``, and after the traced steps. Times are CPU times of
all threads, with one thread per op, so that other load has little effect. A round's figure
is the median step. Ratios are of one round, and every second round has the reverse order. After the
traced steps, short runs with and without the hooks alternate in one block. The table shows the median of
the rounds' ratios and its 95 % interval by ranks. The last line is the cost that the hooks add to a call
of an empty tf.function: the least of many batches with and without them.

``--after`` measures only the steps after the traced ones, for each way to watch: ``analyzer.watch`` with
``out`` and with ``on_oom``, ``MemoryCallback``, and ``analyze trace script.py``. Runs of ten steps with
and without the hooks alternate in one process. The figure is the processor time between the two ends of
a hooked call and the call that it wraps, in the middle of a real step.

Figures: benchmarks/results/watching.md.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253

import analyzer
from analyzer.capture.private_names import Function
from analyzer.capture.watch.watch_block import WatchBlock
from analyzer.capture.watch.watcher import Hooks

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
                        Path(folder) / "out",
                        steps=1,
                        warmup=1,
                        name="empty",
                        force=False,
                    )
                timed(lambda: empty(x), 20)  # the traced one and more
                start = time.process_time()
                for _ in range(calls):
                    empty(x)
                found[watched].append((time.process_time() - start) / calls)
                if block is not None:
                    block.end()
    return min(found[True]) - min(found[False])


def alternate(
    block: WatchBlock, step: Callable[[], object], runs: int
) -> dict[str, float]:
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
            block = WatchBlock(
                place, steps=count, warmup=WARMUP, name=name, force=False
            )
            timed(
                step, WARMUP + 3
            )  # a function that was traced before may be no training
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


class HookClock:
    """The processor time of the hooks around each hooked call, in runs with and without them.

    ``time.thread_time`` is read outside and inside of the hook. The same without the hooks is the cost
    of the clocks.
    """

    def __init__(self, steps: int) -> None:
        self.left, self._steps = steps, 0
        hooks = [one for one in gc.get_objects() if isinstance(one, Hooks)]
        self._hooks = next(
            one for one in hooks if one._undo
        )  # others are of earlier blocks
        self._hooks.remove()
        self._calls = [(Function, "__call__"), (keras.optimizers.Optimizer, "apply")]
        self._old = [getattr(owner, name) for owner, name in self._calls]
        self._outside = self._inside = 0.0
        self._hooked: dict[bool, list[float]] = {True: [], False: []}
        self._whole: list[float] = []
        self._arrange(True)

    def _arrange(self, has_hooks: bool) -> None:
        self._hooks.remove()
        for (owner, name), old in zip(self._calls, self._old, strict=True):
            setattr(owner, name, self._timed(old, "_inside"))
        if has_hooks:
            self._hooks.install_lasting(has_tapes=False)
        for owner, name in self._calls:
            setattr(owner, name, self._timed(getattr(owner, name), "_outside"))

    def _timed(self, call: Callable[..., object], place: str) -> Callable[..., object]:
        def timed(*args: object, **kwargs: object) -> object:
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                setattr(self, place, getattr(self, place) + time.thread_time() - start)

        return timed

    def add(self, seconds: float) -> None:
        """Add a step; change sides after ten."""
        has_hooks = not self._steps // 10 % 2
        if self._steps % 10:  # the first one comes after a change
            self._hooked[has_hooks].append(self._outside - self._inside)
            self._whole.append(seconds)
        self._outside = self._inside = 0.0
        self._steps += 1
        self.left -= 1
        if not self._steps % 10:
            self._arrange(not has_hooks)

    def says(self) -> str:
        """Return the time that the hooks add to a step, and its share of the step."""
        added, whole = self._hooked[True], statistics.mean(self._whole)
        mean = statistics.mean(added) - statistics.mean(self._hooked[False])
        error = 1.96 * statistics.stdev(added) / math.sqrt(len(added))
        middle = statistics.median(added) - statistics.median(self._hooked[False])
        return (
            f"{mean * 1e6:6.1f} ± {error * 1e6:4.1f} µs (median {middle * 1e6:.1f}) of "
            f"{whole * 1e3:5.2f} ms: {mean / whole:.2%}, {len(added)} steps"
        )


class Timer(keras.callbacks.Callback):
    """Times the batches of ``fit`` after the traced ones."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.seen, self.start_s = steps, 0, 0.0
        self.clock: HookClock | None = None

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self.start_s = time.process_time()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        seconds, self.seen = time.process_time() - self.start_s, self.seen + 1
        if self.seen == SETTLED:
            self.clock = HookClock(self.steps)
        elif self.clock is not None and self.clock.left:
            self.clock.add(seconds)


SETTLED = 90  # steps before the measured ones: warm-up, traced steps, and those that are all read


def alternate_steps(step: Callable[[], object], count: int) -> str:
    timed(step, SETTLED)
    found = HookClock(count)
    while found.left:
        found.add(timed(step, 1)[0])
    return found.says()


def after(kind: str, way: str, count: int) -> str:
    """Return the cost of the hooks after the traced steps, for one kind of step and way to watch."""
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "run")
        if way == "script":
            call = "from analyzer.cli import main; main()"
            command = (
                sys.executable,
                "-c",
                call,
                "trace",
                __file__,
                "--out",
                place,
                "--",
            )
            own = ("--inside", kind, "--count", str(count))
            done = subprocess.run(
                (*command, *own), capture_output=True, text=True, check=False
            )
            return next(
                line for line in done.stdout.splitlines() if line.endswith(" steps")
            )
        if way == "callback":
            timer = Timer(count)
            x, y = (
                tf.random.normal((32 * 100, 16, 16, 3)),
                tf.zeros((32 * 100,), tf.int32),
            )
            callbacks = [analyzer.MemoryCallback(place), timer]
            epochs = (count + SETTLED) // 100 + 1
            network().fit(x, y, epochs=epochs, verbose=0, callbacks=callbacks)
            return timer.clock.says()
        options = {"on_oom": place} if way == "on_oom" else {"out": place}
        with analyzer.watch(**options):
            return alternate_steps(steps()[kind], count)


def print_after(count: int) -> None:
    kinds = tuple(steps())
    rows = [(kind, way) for way in ("watch", "on_oom", "script") for kind in kinds]
    for kind, way in (*rows, ("fit", "callback")):
        print(f"{way:10}{kind:16}{after(kind, way, count)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--inside", default="")
    parser.add_argument("--count", type=int, default=600, help="steps with --after")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument(
        "--seconds", type=float, default=75, help="for each kind of step"
    )
    asked = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if asked.inside:
        print(alternate_steps(steps()[asked.inside], asked.count))
    elif asked.after:
        print_after(asked.count)
    else:
        print_ratios(asked)


def print_ratios(asked: argparse.Namespace) -> None:
    print(
        f"{'step':16} {'alone':>9} {'profiled':>9} {'watched':>9} {'bare':>9} {'after':>9}   ratios"
    )
    for name, step in steps().items():
        timed(step, WARMUP)
        rounds = rounds_of(name, step, asked)
        kinds = ("alone", "profiled", "watched", "bare", "after")
        ms = "".join(
            f" {statistics.median(one[kind] for one in rounds) * 1e3:7.2f}ms"
            for kind in kinds
        )
        ratios = (
            f"{told(rounds, 'watched', 'profiled')}, {told(rounds, 'after', 'bare')}"
        )
        print(f"{name:16}{ms}   {ratios}, {len(rounds)} rounds", flush=True)
    print(f"the counter adds {counter_s() * 1e6:.1f} microseconds to a call")


if __name__ == "__main__":
    main()
