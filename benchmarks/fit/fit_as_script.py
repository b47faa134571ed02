"""Peaks of Keras models as a script with ``fit`` and as a target: they should agree within 0.5 %.

    python benchmarks/fit/fit_as_script.py                      # 21 models on the CPU
    python benchmarks/fit/fit_as_script.py --gpu t4 --no-jit    # op by op on a simulated card
    python benchmarks/fit/fit_as_script.py --gpu t4 CASE...     # compiled with XLA

Each case runs ``analyze trace script.py``, in which Keras' ``fit`` trains the model on a data set of
batches with an open axis, and ``analyze trace`` of the model; ``--estimate`` also estimates the model.
One inter-op thread makes runs on the CPU repeat. The data set prefetches nothing, not even by an
optimization of tf.data: a prefetched batch is in the host's memory in addition to a step. A script's
trace begins late and knows only the chunks of earlier tensors, so their unused space is left out. On the
CPU, TensorFlow's order of ops differs from process to process: the model runs up to three times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
COMMAND = HERE.parents[2] / "cli.py"
NAMES = """
    plain_16_sgd vgg_4_adam resnet_8_adam depthwise_16_adamw encoder_8_adamw lstm_16_adam unet_4_adam
    recommender_256_adam half_16_adam dense_8_adam inception_8_adam decoder_4_adamw vit_8_adamw
    gru_16_adam temporal_16_adam autoencoder_16_adam convnext_8_adamw brain_8_adamw swish_16_adam
    sliced_32_adam resized_16_adam
"""
SCRIPT = """
import sys
sys.path[:0] = [{folder!r}]
import fit_as_script
fit_as_script.train({name!r}, jit={jit!r})
"""
MOST_RATIO = 0.005
RUNS = 3


def sliced() -> Any:
    """Return a model that uses a sixteenth of its input."""
    import keras
    from keras import layers

    entry = keras.Input((256, 256, 3))
    x = layers.Lambda(lambda images: images[:, ::4, ::4, :])(entry)
    return _classify(entry, x)


def resized() -> Any:
    """Return a model that shrinks its input."""
    import keras
    from keras import layers

    entry = keras.Input((224, 224, 3))
    return _classify(entry, layers.Resizing(96, 96)(entry))


def _classify(entry: Any, x: Any) -> Any:
    import keras
    from keras import layers

    for _ in range(2):
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(entry, x)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def make(name: str) -> Any:
    """Return the compiled model of a case."""
    network = name.split("_")[0]
    if network in ("sliced", "resized"):
        return globals()[network]()
    sys.path.insert(0, str(HERE.parents[1] / "accuracy"))
    import accuracy_models

    return accuracy_models.make(name)


def __getattr__(name: str) -> Any:
    """Return a function that makes a case's model, as ``fit_as_script.py:NAME`` asks for it."""
    if name in NAMES.split():
        return lambda: make(name)
    raise AttributeError(name)


def train(name: str, *, jit: bool | None) -> None:
    """Train a case's model with ``fit``."""
    import tensorflow as tf

    model = make(name)
    if jit is not None:
        model.jit_compile = jit
    batch = int(name.split("_")[1])
    loss = str(getattr(model.loss, "name", model.loss))
    outputs = [
        (out.shape[1:-1], "int32") if "sparse" in loss else (out.shape[1:], "float32")
        for out in model.outputs
    ]
    inputs = [(entry.shape[1:], str(entry.dtype)) for entry in model.inputs]

    def draw(shape: Any, dtype: str, number: Any) -> Any:
        rows = tf.cast(number * 0 + batch, "int32")  # not known when the step is traced
        axes = tf.concat([[rows], tf.constant(shape, "int32")], 0)
        if "int" in dtype:
            return tf.fill(axes, tf.cast(number < 0, dtype))
        return tf.random.stateless_uniform(axes, (0, number), dtype=dtype)

    def make_batch(number: Any) -> Any:
        parts = [
            tuple(draw(*spec, number) for spec in specs) for specs in (inputs, outputs)
        ]
        return tuple(part[0] if len(part) == 1 else part for part in parts)

    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    dataset = tf.data.Dataset.range(1 << 40).map(make_batch).with_options(options)
    model.fit(dataset, steps_per_epoch=12, verbose=0)


def read_peak(*arguments: str) -> int:
    """Return the requested bytes at the peak that a command reports, without unattributed bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [
            sys.executable,
            str(COMMAND),
            *arguments[:2],
            "--no-save",
            "--json",
            str(file),
        ]
        ended = subprocess.run(
            [*command, *arguments[2:]], capture_output=True, text=True
        )
        if not file.is_file():
            raise SystemExit(f"{' '.join(command)}: {ended.stderr[-2000:]}")
        document = json.loads(file.read_text())
    unknown = document["categories_at_peak"].get("unattributed", 0)
    return int(document["peak"]["requested_bytes"]) - int(unknown)


def compare(name: str, options: argparse.Namespace) -> bool:
    """Print the peaks of a case; return whether they agree."""
    place = ["--gpu", options.gpu] if options.gpu else ["--inter-op-threads", "1"]
    jit = False if options.no_jit else None
    target = [f"{HERE}:{name}", *place, "--batch-size", name.split("_")[1]]
    target += ["--no-jit"] if options.no_jit else []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{name}.py"
        script.write_text(SCRIPT.format(folder=str(HERE.parent), name=name, jit=jit))
        real = read_peak("trace", str(script), *place)
    kinds = ["trace", "estimate"] if options.estimate else ["trace"]
    found = {kind: read_peak(kind, *target) for kind in kinds}
    for _ in range(RUNS - 1):
        if abs(found["trace"] / real - 1) > MOST_RATIO:
            found["trace"] = read_peak("trace", *target)
    ratios = {kind: value / real - 1 for kind, value in found.items()}
    rows = [
        f"{kind} {found[kind] / 2**20:9.2f} MiB ({ratios[kind]:+7.3%})"
        for kind in kinds
    ]
    print(f"{name:24} fit {real / 2**20:9.2f} MiB  {'  '.join(rows)}", flush=True)
    return abs(ratios["trace"]) <= MOST_RATIO


def main() -> None:
    """Compare the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--gpu", default="")
    parser.add_argument("--no-jit", action="store_true")
    parser.add_argument(
        "--estimate", action="store_true", help="also estimate the target"
    )
    options = parser.parse_args()
    cases = options.cases or NAMES.split()
    agreed = sum(compare(name, options) for name in cases)
    print(f"{agreed} of {len(cases)} within {MOST_RATIO:.1%}")


if __name__ == "__main__":
    main()
