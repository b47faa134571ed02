"""What a trace on a phantom card costs, over TensorFlow's own import, tracing and first step on it.

    python benchmarks/speed/phantom_cost.py                          # every step, one after the other
    python benchmarks/speed/phantom_cost.py --case decoder --repeat 3

*TensorFlow's own* is a process that sees the same phantom card, imports TensorFlow, builds the model,
traces its step as ``fit`` does and runs it once; it ends there. *The whole* is ``analyze trace --gpu``
with all its children, three steps and the page. Both are user and system time of processes that end,
taken one after the other, so that a machine under load slows both; of repeats the least of each is
taken.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from estimate_cost import COMMAND, decoder, seconds_of

from analyzer.model.user_cache import cache_folder, create_cache_folder
from analyzer.phantom.phantom_environment import (
    PhantomOptions,
    make_phantom_environment,
    parse_cards,
)

HERE = Path(__file__).resolve()
CARD = "t4"
CASES = {
    "ResNet50, batch 64": ("keras:ResNet50", 64, "op"),
    "ResNet50 with XLA, batch 64": ("keras:ResNet50", 64, "xla"),
    "MobileNetV2, batch 32": ("keras:MobileNetV2", 32, "op"),
    "decoder of 12 layers, batch 4": (f"{HERE.with_name('estimate_cost.py')}:decoder", 4, "op"),
    "two dense layers, batch 128": (f"{HERE}:dense", 128, "op"),
}
MOST = 1.3
"""The whole command over TensorFlow's own: what it should stay under."""


def dense() -> Any:
    """Return a network of two dense layers, compiled."""
    import keras
    from keras import layers

    entry = keras.Input((784,))
    model = keras.Model(entry, layers.Dense(10)(layers.Dense(512, activation="relu")(entry)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def tensorflow_alone(target: str, batch: int, way: str) -> None:
    """Import TensorFlow, build the model, trace its step and run it once."""
    import keras
    import numpy as np

    if target.startswith("keras:"):
        model = getattr(keras.applications, target.partition(":")[2])(weights=None)
        model.compile("adam", "sparse_categorical_crossentropy")
    else:
        model = decoder() if target.endswith("decoder") else dense()
    model.jit_compile = way == "xla"
    entry = model.input
    given = np.zeros((batch, *entry.shape[1:]), entry.dtype)
    per_token = len(model.output.shape) == 3
    labels = np.zeros((batch, model.output.shape[1]) if per_token else (batch,), "int32")
    model.train_on_batch(given, labels)
    os._exit(0)  # taking the graph apart is nobody's work


def compared(folder: Path, wanted: str, repeat: int) -> None:
    """Print a row for each step: TensorFlow's seconds, the whole command's, and their ratio.

    Args:
        folder: Where the run folders go.
        wanted: A part of the names of the steps; empty for all.
        repeat: How often each is run.
    """
    create_cache_folder()
    variables = make_phantom_environment(
        PhantomOptions(gpus=parse_cards(CARD)), cache_folder() or folder
    )
    for number, (name, (target, batch, way)) in enumerate(CASES.items()):
        if wanted not in name:
            continue
        own, whole = [], []
        for turn in range(repeat):
            alone = (str(HERE), "--alone", target, str(batch), way)
            own.append(seconds_of(*alone, variables=variables)[0])
            jit = "--jit" if way == "xla" else "--no-jit"
            options = ("--batch-size", str(batch), "--gpu", CARD, jit, "-q")
            out = folder / f"run{number}-{turn}"
            whole.append(seconds_of(str(COMMAND), "trace", target, *options, "--out", str(out))[0])
        ratio = min(whole) / min(own)
        print(f"| {name} | {min(own):.1f} | {min(whole):.1f} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--alone", nargs=3, metavar=("TARGET", "BATCH", "WAY"), help=argparse.SUPPRESS
    )
    parser.add_argument("--case", default="", help="steps with this in their names alone")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, the least counts")
    options = parser.parse_args()
    if options.alone:
        target, batch, way = options.alone
        tensorflow_alone(target, int(batch), way)
    print(
        "| step | TensorFlow's own (s) | whole command (s) | ratio |\n|---|--:|--:|--:|", flush=True
    )
    with tempfile.TemporaryDirectory() as made:
        compared(Path(made), options.case, options.repeat)


if __name__ == "__main__":
    sys.exit(main())
