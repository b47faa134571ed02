"""Layers whose form takes most of the peak, and results that nothing reads again."""

from collections.abc import Iterator

import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import in_brackets
from analyzer.explain.questions.amplification import (
    MATRICES,
    Tensors,
    report_rows,
    share_of_peak,
    with_plain_types,
)
from analyzer.model.recording.records import Finding

_MOST_OF_PEAK = 0.5  # share of the peak from which on a form is its cause
_LEAST_BYTES = 1 << 20
_TIMES = 4  # attention scores over queries and keys
_IMAGE_RANK = 4
_RESULTS = 8
_LEFT = 0.25  # share of the scores with pooled keys


def find_layers(analysis: Analysis) -> Iterator[Finding]:
    """Report the layers of a step with a graph whose form takes most of the peak."""
    graph = analysis.recording.structure
    if graph is None:
        return

    analysis, graph = with_plain_types(analysis, graph)
    tensors = Tensors(analysis, graph)

    yield from _find_wide_kernel(analysis, tensors)
    yield from _find_attention(analysis, tensors)
    yield from _find_sigmoids(analysis, tensors)
    yield from _find_targets(analysis, tensors)


def _find_wide_kernel(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report the kernel of a dense layer that reads a flattened image."""
    alive = analysis.alive
    variables = alive[alive["variable"] != ""]
    if variables.empty:
        return

    kernel = variables.loc[variables["requested_bytes"].idxmax()]
    like = analysis.rows[analysis.rows["requested_bytes"] == kernel["requested_bytes"]]
    at_peak = like[like.index.isin(alive.index)]
    graph = tensors.graph
    read = [
        graph.maker_of(tensor)
        for name, layer in graph.layers.items()
        if layer == kernel["layer"]
        for tensor in graph.inputs_of(name)
    ]
    flattened = [
        shape
        for maker in read
        if maker is not None and maker.type == "Reshape"
        for shape, _ in tensors.inputs_of(maker.name)[:1]
        if shape.count(",") >= _IMAGE_RANK - 1
    ]
    if not flattened or not _is_most(analysis, at_peak):
        return

    yield report_rows(
        analysis,
        "wide-kernel",
        f"{kernel['variable']} {kernel['shape']} with its gradient and its optimizer's "
        f"tensors: {share_of_peak(analysis, at_peak)}",
        f"Flatten gives the layer all numbers of {flattened[0]}. Pool first, with "
        "GlobalAveragePooling2D() in its place or further MaxPooling2D(). The saving "
        "is that without this kernel.",
        like,
    )


def _find_attention(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report scores of each position with each that are far larger than queries and keys."""
    rows = analysis.rows
    is_product = rows["op_type"].isin(MATRICES) & (rows["category"] == "activation")
    products = rows[is_product & (rows["requested_bytes"] >= _LEAST_BYTES)]

    for row in products.drop_duplicates("requested_bytes").to_dict("records"):
        size = row["requested_bytes"]
        given = [one for _, one in tensors.inputs_of(row["op"]) if one]
        same = rows[rows["requested_bytes"] == size]
        at_peak = same[same.index.isin(analysis.alive.index)]
        is_large = len(given) == 2 and size >= _TIMES * max(given)
        if not is_large or not _is_most(analysis, at_peak):
            continue
        softmax = _softmax_after(row["tensor"], tensors)
        if not softmax:
            continue

        where = tensors.line_of({"op": softmax, "source": row["source"]})
        yield report_rows(
            analysis,
            "attention-scores",
            f"Attention of each position with each: scores {row['shape']} take "
            f"{share_of_peak(analysis, at_peak)}{in_brackets(where)}",
            "They grow with the square of the positions. Pool the keys and values of an "
            "image, attend within windows, or compute the scores for blocks of queries "
            "inside tf.recompute_grad. The saving is that of a quarter of the scores.",
            same,
            share=1 - _LEFT,
        )
        return


def _softmax_after(tensor: str, tensors: Tensors) -> str:
    """Return the softmax to which elementwise ops lead from a product; empty without one."""
    for _ in range(_TIMES):
        readers = tensors.readers_of(tensor)
        for reader in readers:
            if tensors.graph.ops[reader].type == "Softmax":
                return reader

        tensor = f"{readers[0]}:0" if readers else ""

    return ""


def _find_targets(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report targets with a number for each class that a cross entropy reads."""
    inputs = analysis.alive[analysis.alive["category"] == "input"]
    is_read = [
        "SoftmaxCrossEntropyWithLogits" in tensors.types_of_readers(tensor)
        for tensor in inputs["tensor"]
    ]
    targets = inputs.loc[is_read]
    if targets["requested_bytes"].sum() < _LEAST_BYTES:
        return

    yield report_rows(
        analysis,
        "class-targets",
        f"Targets {targets['shape'].iloc[0]} have one number for each class: "
        f"{share_of_peak(analysis, targets)}",
        "If they are one-hot, give SparseCategoricalCrossentropy the class numbers. The "
        "input pipeline then needs no one-hot tensors either.",
        targets,
    )


def _find_sigmoids(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report sigmoids kept for the gradient of ``x * tf.sigmoid(x)``.

    ``tf.nn.silu`` keeps x alone and computes the sigmoid again (``nn_impl.py``).
    """
    alive = analysis.alive
    graph = tensors.graph
    is_sigmoid = (alive["op_type"] == "Sigmoid") & (alive["category"] == "activation")
    sigmoids = alive[is_sigmoid].sort_values("born")
    multiplied = [
        index
        for index, row in sigmoids.to_dict("index").items()
        for reader in tensors.readers_of(row["tensor"])
        if graph.ops[reader].type == "Mul"
        and {*graph.inputs_of(reader)} == {row["tensor"], *graph.inputs_of(row["op"])}
    ]
    kept = sigmoids.loc[multiplied]
    if len(kept) < 2:
        return

    yield report_rows(
        analysis,
        "sigmoids-kept",
        f"{len(kept)} results of x * tf.sigmoid(x) keep their sigmoid too: "
        f"{share_of_peak(analysis, kept)}{in_brackets(tensors.line_of(kept.iloc[0]))}",
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
    keys = ["op", "shape"]
    for (_, shape), rows in results.groupby(keys, observed=True):
        if len(rows) < _RESULTS or not _is_most(analysis, rows):
            continue

        layer = next((f" of {one}" for one in rows["layer"] if one), "")
        where = next((str(one) for one in rows["source"] if one), watch.where)
        yield report_rows(
            analysis,
            "results-kept",
            f"{len(rows)} results {shape}{layer} are held at once: "
            f"{share_of_peak(analysis, rows)}{in_brackets(where)}",
            "A list or another container of the program holds them. Store NumPy arrays, "
            "which lie outside the card, or numbers.",
            rows.iloc[1:],
        )


def _is_most(analysis: Analysis, rows: pd.DataFrame) -> bool:
    total = int(rows["requested_bytes"].sum())
    return total >= _MOST_OF_PEAK * analysis.peak.requested_bytes
