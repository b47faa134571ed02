"""Layers whose form takes most of the peak, and results that nothing reads again."""

from collections.abc import Iterator

import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import in_brackets
from analyzer.explain.questions.amplification import (
    TIMES,
    Tensors,
    report_rows,
)
from analyzer.model.recording.records import Finding

_MOST_OF_PEAK = 0.5  # share of the peak from which on a form is its cause
_LEAST_BYTES = 1 << 20
_IMAGE_RANK = 4
_RESULTS = 8
_LEFT = 0.25  # share of the scores with pooled keys


def find_wide_kernel(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report the kernel of a dense layer that reads a flattened image."""
    alive = analysis.alive
    graph = tensors.graph
    kernels = alive[alive["variable"] != ""].nlargest(1, "requested_bytes")

    for kernel in kernels.to_dict("records"):
        same, at_peak = _rows_of_size(analysis, kernel["requested_bytes"])
        ops = [op for op, layer in graph.layers.items() if layer == kernel["layer"]]
        makers = [graph.maker_of(one) for op in ops for one in graph.inputs_of(op)]
        flattened = [
            tensors.inputs_of(maker.name)[0][0]
            for maker in makers
            if maker and maker.type == "Reshape"
        ]
        images = [one for one in flattened if one.count(",") >= _IMAGE_RANK - 1]
        if not images or not _is_most(analysis, at_peak):
            return

        is_kernel = at_peak["category"] == "parameter"
        names = at_peak.loc[is_kernel, "variable"].unique()

        yield report_rows(
            analysis,
            "wide-kernel",
            f"{' and '.join(names)} {kernel['shape']} with gradients and the "
            f"optimizer's tensors: {analysis.share_words(at_peak)}",
            f"Flatten gives the layer all numbers of {images[0]}. Pool first, with "
            "GlobalAveragePooling2D() in its place or further MaxPooling2D(). The "
            "saving is that without these tensors.",
            same,
        )


def find_attention(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report scores of each position with each that are far larger than values and results."""
    for op in filter(tensors.is_attention, tensors.graph.ops):
        shape, size = tensors.size_of(f"{op}:0")
        same, at_peak = _rows_of_size(analysis, size or 0)
        sizes = [
            given or 0
            for reader in tensors.readers_of(f"{op}:0")
            for _, given in (
                *tensors.inputs_of(reader),
                tensors.size_of(f"{reader}:0"),
            )
            if given != size
        ]
        if (size or 0) < TIMES * max(sizes, default=0) or not _is_most(
            analysis, at_peak
        ):
            continue

        where = tensors.line_of({"op": op, "source": ""})
        yield report_rows(
            analysis,
            "attention-scores",
            f"Attention of each position with each: scores {shape} take "
            f"{analysis.share_words(at_peak)}{in_brackets(where)}",
            "They grow with the square of the positions. Pool the keys and values of an "
            "image, attend within windows, or compute the scores for blocks of queries "
            "inside tf.recompute_grad. The saving is that of a quarter of the scores.",
            same,
            share=1 - _LEFT,
        )
        return


def find_targets(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report inputs of the size of the logits that a cross entropy compares them with."""
    inputs = analysis.alive[analysis.alive["category"] == "input"]
    ops = tensors.graph.ops.values()
    losses = [op.name for op in ops if op.type == "SoftmaxCrossEntropyWithLogits"]
    sizes = {size for loss in losses for _, size in tensors.inputs_of(loss)}
    targets = inputs[inputs["requested_bytes"].isin(sizes)]
    if targets["requested_bytes"].sum() < _LEAST_BYTES:
        return

    rows = analysis.rows
    scratch = rows[rows["op"].isin(losses) & (rows["tensor"] == "")]

    yield report_rows(
        analysis,
        "class-targets",
        f"Targets {targets['shape'].iloc[0]} have one number for each class: "
        f"{analysis.share_words(targets)}",
        "If they are one-hot, give SparseCategoricalCrossentropy the class numbers. The "
        "loss then needs no scratch memory, and the input pipeline no one-hot tensors.",
        pd.concat([targets, scratch]),
    )


def find_sigmoids(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report sigmoids kept for the gradient of ``x * tf.sigmoid(x)``.

    ``tf.nn.silu`` keeps x alone and computes the sigmoid again (``nn_impl.py``).
    """
    alive = analysis.alive
    graph = tensors.graph
    sigmoids = alive[alive["op_type"] == "Sigmoid"].sort_values("born")
    multiplied = [
        index
        for index, row in sigmoids.to_dict("index").items()
        for reader in graph.consumers.get(row["tensor"], [])
        if {*graph.inputs_of(reader)} == {row["tensor"], *graph.inputs_of(row["op"])}
        and f"{reader}:0" in tensors.allocated
    ]
    kept = sigmoids.loc[multiplied]
    if len(kept) < 2:
        return

    yield report_rows(
        analysis,
        "sigmoids-kept",
        f"{len(kept)} results of x * tf.sigmoid(x) keep their sigmoid too: "
        f"{analysis.share_words(kept)}{in_brackets(tensors.line_of(kept.iloc[0]))}",
        "tf.nn.silu(x) is the same function. It keeps x alone for its gradient, and "
        "computes the sigmoid again.",
        kept.iloc[:-1],  # one is computed again at a time
    )


def find_kept_results(analysis: Analysis) -> Iterator[Finding]:
    """Report equal results of an eager inference that are alive together.

    Without a tape, a tensor dies with its last use, unless the program holds it.
    """
    watch = analysis.recording.watch
    step = analysis.recording.step_config
    if watch is None or not step.eager or not step.infers:
        return

    alive = analysis.alive
    results = alive[(alive["tensor"] == "") & (alive["category"] == "activation")]

    for (_, shape), rows in results.groupby(["op", "shape"], observed=True):
        if len(rows) < _RESULTS or not _is_most(analysis, rows):
            continue

        layer = rows["layer"].iloc[0]
        yield report_rows(
            analysis,
            "results-kept",
            f"{len(rows)} results {shape}{layer and f' of {layer}'} are held at once: "
            f"{analysis.share_words(rows)}{in_brackets(watch.where)}",
            "A list or another container of the program holds them. Store NumPy arrays, "
            "which lie outside the card, or numbers.",
            rows.iloc[1:],
        )


def _rows_of_size(analysis: Analysis, size: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the buffers of a size, and those of them that are alive at the peak."""
    tables = analysis.rows, analysis.alive
    same, at_peak = (table[table["requested_bytes"] == size] for table in tables)
    return same, at_peak


def _is_most(analysis: Analysis, rows: pd.DataFrame) -> bool:
    total = int(rows["requested_bytes"].sum())
    return total >= _MOST_OF_PEAK * analysis.peak.requested_bytes
