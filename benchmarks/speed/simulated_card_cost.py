"""Cost of a trace on a simulated card, as a multiple of TensorFlow's own work on it.

    python benchmarks/speed/simulated_card_cost.py                     # every step, one after the other
    python benchmarks/speed/simulated_card_cost.py --case decoder --repeat 3

*TensorFlow's own* is a process on the same simulated card that imports TensorFlow, builds the model,
and calls Keras' training step three times. *The whole* is ``analyze trace --gpu`` with all its
processes, three steps and the page. Both are user and system time, measured one after the other, so that
a machine under load slows both. The least of the repeats counts. The table of the cost in
``benchmarks/results/simulated-card.md`` comes from it.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.machine import cache_folder, create_cache_folder
from analyzer.simulated_card.card_environment import make_card_environment

HERE = Path(__file__).resolve()
COMMAND = HERE.parents[2] / "cli.py"
CARD = "t4"
DECODER = f"{HERE}:decoder"
CASES = {
    "ResNet50, batch 64": ("keras:ResNet50", 64, "op"),
    "ResNet50 with XLA, batch 64": ("keras:ResNet50", 64, "xla"),
    "EfficientNetV2B0, batch 32": ("keras:EfficientNetV2B0", 32, "op"),
    "EfficientNetV2B0 with XLA, batch 32": ("keras:EfficientNetV2B0", 32, "xla"),
    "decoder of 12 layers, batch 4": (DECODER, 4, "op"),
    "decoder of 12 layers with XLA, batch 4": (DECODER, 4, "xla"),
}
STEPS = 3
MOST = 1.25
"""Largest ratio that passes; a larger one ends in exit code 1."""


def decoder() -> Any:
    """Return a language model of twelve layers, compiled."""
    import keras
    from keras import layers

    width, length, vocabulary = 384, 128, 8000
    entry = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(entry)
    for _ in range(12):
        h = layers.LayerNormalization()(x)
        h = layers.MultiHeadAttention(6, width // 6)(h, h, use_causal_mask=True)
        x = layers.Add()([x, h])
        h = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(h)])
    model = keras.Model(entry, layers.Dense(vocabulary)(layers.LayerNormalization()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def seconds_of(*command: str, variables: Mapping[str, str] | None = None) -> float:
    """Run a command and return its CPU seconds, children included.

    Args:
        *command: What Python is to run, and its arguments.
        variables: Environment variables in the place of those that hide every card.

    Raises:
        SystemExit: it failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = {"CUDA_VISIBLE_DEVICES": "-1"} if variables is None else variables
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **shown}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {ended.stderr.strip()[-400:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tensorflow_alone(target: str, batch: int, way: str) -> None:
    """Import TensorFlow, build the model, and call its training step."""
    import keras
    import numpy as np

    if target.startswith("keras:"):
        model = getattr(keras.applications, target.partition(":")[2])(weights=None)
        model.compile("adam", "sparse_categorical_crossentropy")
    else:
        model = decoder()
    model.jit_compile = way == "xla"
    entry = model.input
    given = np.zeros((batch, *entry.shape[1:]), entry.dtype)
    per_token = len(model.output.shape) == 3
    labels = np.zeros(
        (batch, model.output.shape[1]) if per_token else (batch,), "int32"
    )
    for _ in range(STEPS):
        model.train_on_batch(given, labels)
    os._exit(0)  # taking the graph apart is nobody's work


def compare(folder: Path, wanted: str, repeat: int) -> float:
    """Print a row for each step and return the largest ratio.

    Args:
        folder: Where the run folders go.
        wanted: A part of the steps' names; empty for all.
        repeat: How often each is run.
    """
    create_cache_folder()
    cache = cache_folder() or folder
    variables = make_card_environment(CaptureOptions(gpu=CARD), cache)
    largest = 0.0
    for number, (name, (target, batch, way)) in enumerate(CASES.items()):
        if wanted not in name:
            continue
        own, whole = [], []
        for turn in range(repeat):
            alone = (str(HERE), "--alone", target, str(batch), way)
            own.append(seconds_of(*alone, variables=variables))
            jit = "--jit" if way == "xla" else "--no-jit"
            options = ("--batch-size", str(batch), "--gpu", CARD, jit, "-q")
            out = folder / f"run{number}-{turn}"
            command = (str(COMMAND), "trace", target, *options, "--out", str(out))
            whole.append(seconds_of(*command))
        ratio = min(whole) / min(own)
        print(
            f"| {name} | {min(own):.1f} | {min(whole):.1f} | {ratio:.2f} |", flush=True
        )
        largest = max(largest, ratio)
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--alone", nargs=3, metavar=("TARGET", "BATCH", "WAY"), help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--case", default="", help="steps with this in their names alone"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs of each, the least counts"
    )
    options = parser.parse_args()
    if options.alone:
        target, batch, way = options.alone
        tensorflow_alone(target, int(batch), way)
    print(
        "| step | TensorFlow's own (s) | whole command (s) | ratio |\n|---|--:|--:|--:|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as made:
        largest = compare(Path(made), options.case, options.repeat)
    if largest > MOST:
        sys.exit(f"The largest ratio is {largest:.2f}, and {MOST} is allowed.")


if __name__ == "__main__":
    main()
