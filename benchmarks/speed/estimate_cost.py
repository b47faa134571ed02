"""What an estimate costs: CPU seconds over TensorFlow's own, and over growing steps.

    python benchmarks/speed/estimate_cost.py                       # three models, one after the other
    python benchmarks/speed/estimate_cost.py --growth 5000 100000  # our part alone, on generated steps
    python benchmarks/speed/estimate_cost.py --write benchmarks/results/speed.md

*TensorFlow's own* is a process that imports TensorFlow, builds the model, traces its step as ``fit``
does (twice, since the first tracing makes the optimizer's variables) and has the executor built, which
is where grappler works; it is cancelled there. *The whole* is ``analyze estimate --device cpu --no-jit``
with all its children, the package's bytecode in its cache, as pip leaves it. Both are user and system
time of processes that end, taken one after the other, so that a machine under load slows both.

A generated step is a chain of dense residual layers, forward, backward and update, fifteen ops each: our
part reads the graph, predicts without TensorFlow, and writes the report and the page.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
COMMAND = HERE.parents[2] / "cli.py"
CASES = {
    "ResNet50, batch 8": ("keras:ResNet50", 8),
    "decoder of 12 layers, batch 4": (f"{HERE}:decoder", 4),
    "EfficientNetV2B0, batch 8": ("keras:EfficientNetV2B0", 8),
}
GROWTH = (5_000, 20_000, 100_000)
OPS_OF_A_LAYER = 15
_PREDICT = """
import resource, tempfile
from pathlib import Path
from analyzer.session.opening import open_estimate
result = open_estimate(Path({!r}))
with tempfile.TemporaryDirectory() as folder:
    result.to_json(Path(folder) / "report.json")
    result.to_html(Path(folder) / "report.html")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
"""Our part alone: a graph read, predicted, and its report and page written."""
MOST = 1.3
"""The whole command over TensorFlow's own: what it should stay under."""


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


def tensorflow_alone(target: str, batch: int) -> None:
    """Do what TensorFlow does before a step's first op runs, and print the CPU seconds of each part."""
    marks = [("", 0.0)]
    import keras
    import tensorflow as tf
    from tensorflow.python.eager import cancellation

    marks.append(("import", _own_seconds()))
    if target.startswith("keras:"):
        model = getattr(keras.applications, target.partition(":")[2])(weights=None)
        model.compile("adam", "sparse_categorical_crossentropy")
    else:
        model = decoder()
    model.jit_compile = False
    marks.append(("build", _own_seconds()))
    given = keras.tree.map_structure(
        lambda tensor: tf.zeros((batch, *tensor.shape[1:]), tensor.dtype), model.input
    )
    per_token = len(model.output.shape) == 3
    labels = tf.zeros(
        (batch, model.output.shape[1]) if per_token else (batch,), tf.int32
    )
    # As Keras' own train function is: autograph has nothing to convert in it.
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    function = step.get_concrete_function(given, labels)
    marks.append(("trace", _own_seconds()))
    manager = cancellation.CancellationManager()
    manager.start_cancel()
    try:
        with cancellation.CancellationManagerContext(manager):
            function(given, labels)
    except tf.errors.CancelledError:
        pass
    marks.append(("optimise", _own_seconds()))
    for (_, before), (name, after) in zip(marks, marks[1:], strict=False):
        print(f"{name} {after - before:.2f}", flush=True)
    os._exit(0)  # taking the graph apart is nobody's work


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def seconds_of(
    *command: str, variables: Mapping[str, str] | None = None
) -> tuple[float, str]:
    """Run a command and return its CPU seconds, children included, and what it printed.

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
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        ended.stdout,
    )


def compared(folder: Path, wanted: str) -> list[str]:
    """Return a row for each model: TensorFlow's seconds, the whole command's, and their ratio.

    Args:
        folder: Where the run folders go.
        wanted: A part of the names of the models; empty for all.
    """
    rows: list[str] = []
    for name, (target, batch) in CASES.items():
        if wanted not in name:
            continue
        own, parts = seconds_of(str(HERE), "--alone", target, str(batch))
        out = folder / f"run{len(rows)}"
        options = ("--batch-size", str(batch), "--device", "cpu", "--no-jit", "-q")
        whole, _ = seconds_of(
            str(COMMAND), "estimate", target, *options, "--out", str(out)
        )
        ours, _ = seconds_of("-c", _PREDICT.format(str(out)))
        told = ", ".join(parts.split("\n")).rstrip(", ")
        rows.append(
            f"| {name} | {own:.1f} ({told}) | {whole:.1f} | {whole / own:.2f} | {ours:.1f} |"
        )
        print(rows[-1], flush=True)
    return rows


def grown(folder: Path, counts: list[int]) -> list[str]:
    """Return a row for each number of ops: seconds, memory, and seconds over those of the first.

    Args:
        folder: Where the run folders go.
        counts: The numbers of ops.
    """
    rows: list[str] = []
    first = 0.0
    for count in counts:
        made = folder / f"generated-{count}"
        write_step(made, count)
        seconds, printed = seconds_of("-c", _PREDICT.format(str(made)))
        first = first or seconds
        memory = int(printed.split()[-1]) >> 10
        rows.append(
            f"| {count:,} | {seconds:.1f} | {memory:,} MiB | {seconds / first:.1f} |"
        )
        print(rows[-1], flush=True)
    return rows


def write_step(folder: Path, count: int) -> None:
    """Leave a run folder of a generated training step of about ``count`` ops."""
    from analyzer.model.choice import Category
    from analyzer.model.contract.graph_note import GraphFile, encode_graph
    from analyzer.model.contract.run_note import (
        RunFile,
        ThreadsNote,
        VariableNote,
        encode_run,
    )

    layers = max(count // OPS_OF_A_LAYER, 1)
    shapes = [shape for _ in range(layers) for shape in ((64, 64), (64,))]
    run = RunFile(
        kind="static",
        steps_wanted=3,
        variables=tuple(
            VariableNote(
                path=f"layer_{index // 2}/{'bias' if index % 2 else 'kernel'}",
                dtype="float32",
                shape=shape,
                category=Category.PARAMETER,
                trainable=True,
                argument=index + 1,
            )
            for index, shape in enumerate(shapes)
        ),
        graph="graph.json.gz",
        graph_kind="executed",
        function="generated",
        threads=ThreadsNote(intra_op=2, inter_op=2, inter_op_fixed=False),
    )
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(encode_run(run))
    graph = encode_graph(GraphFile(ops=tuple(_ops(layers))))
    (folder / "graph.json.gz").write_bytes(gzip.compress(graph, 1))


def _ops(layers: int) -> list[Any]:
    from analyzer.model.contract.graph_note import Op, TensorSpec

    rows, kernel, bias = (
        TensorSpec("float32", shape) for shape in ((32, 64), (64, 64), (64,))
    )
    handle = TensorSpec("resource", ())
    ops: list[Op] = []

    def add(
        name: str, kind: str, *inputs: str, spec: TensorSpec | None = rows, **attrs: Any
    ) -> str:
        outputs = () if spec is None else (spec,)
        ops.append(Op(name, kind, inputs, outputs=outputs, attrs=attrs))
        return f"{name}:0"

    x = [add("x", "_Arg", index=0)]
    rate = add("rate", "Const", spec=TensorSpec("float32", ()))
    kernels, activations = [], []
    for k in range(layers):
        w = add(f"w{k}", "_Arg", spec=handle, index=2 * k + 1)
        b = add(f"b{k}", "_Arg", spec=handle, index=2 * k + 2)
        kernels.append(add(f"read_w{k}", "ReadVariableOp", w, spec=kernel))
        read = add(f"read_b{k}", "ReadVariableOp", b, spec=bias)
        product = add(f"product{k}", "MatMul", x[-1], kernels[-1])
        activations.append(
            add(f"relu{k}", "Relu", add(f"biased{k}", "BiasAdd", product, read))
        )
        x.append(add(f"sum{k}", "AddV2", activations[-1], x[-1]))
    gradient = add("top", "Mul", x[-1], x[-1])
    for k in reversed(range(layers)):
        inner = add(f"relu_grad{k}", "ReluGrad", gradient, activations[k])
        of_bias = add(f"bias_grad{k}", "BiasAddGrad", inner, spec=bias)
        of_kernel = add(
            f"kernel_grad{k}", "MatMul", x[k], inner, spec=kernel, transpose_a=True
        )
        back = add(f"back{k}", "MatMul", inner, kernels[k], transpose_b=True)
        update = "ResourceApplyGradientDescent"
        add(f"update_w{k}", update, f"w{k}:0", rate, of_kernel, spec=None)
        add(f"update_b{k}", update, f"b{k}:0", rate, of_bias, spec=None)
        gradient = add(f"gradient{k}", "AddV2", back, gradient)
    ops.append(Op("loss", "_Retval", (gradient,), attrs={"index": 0}))
    return ops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--alone", nargs=2, metavar=("TARGET", "BATCH"), help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--case", default="", help="models with this in their names alone"
    )
    parser.add_argument(
        "--growth", type=int, nargs="*", help="generated steps of so many ops alone"
    )
    parser.add_argument("--write", type=Path, help="Markdown file for both tables")
    options = parser.parse_args()
    if options.alone:
        tensorflow_alone(options.alone[0], int(options.alone[1]))
    compileall.compile_dir(HERE.parents[2] / "analyzer", quiet=2)
    with tempfile.TemporaryDirectory() as made:
        parts = []
        if options.growth is None:
            parts += [_MODELS, *compared(Path(made), options.case), ""]
            write(options.write, parts)
        if options.growth is not None or options.write:
            parts += [_GROWTH, *grown(Path(made), options.growth or list(GROWTH)), ""]
            write(options.write, parts)


def write(path: Path | None, parts: list[str]) -> None:
    """Write what is done so far, so that a run that is ended leaves it."""
    if path is not None:
        path.write_text("\n".join([_INTRODUCTION, *parts]), encoding="utf-8")


_INTRODUCTION = f"""# What an estimate costs

Written by `benchmarks/speed/estimate_cost.py`: CPU seconds, user and system, of whole processes that
ran one after the other on the same machine. Only their ratios mean something: seconds differ with the
machine and with what else it does. The whole command should stay under {MOST} times TensorFlow's own,
and a step of 100,000 ops under 30 times one of 5,000.
"""
_MODELS = """| step | TensorFlow's own (s) | whole command (s) | ratio | our part alone (s) |
|---|--:|--:|--:|--:|"""
_GROWTH = """| ops of a generated step | CPU (s) | memory | over the first |
|--:|--:|--:|--:|"""


if __name__ == "__main__":
    main()
