"""Layers and elementwise functions whose form takes much of the peak."""

import math
from collections.abc import Iterator
from dataclasses import replace

from analyzer.explain.analysis import (
    PERSISTENT,
    Analysis,
    saved_without_rows,
    sum_requested,
)
from analyzer.explain.buffer_words import is_retained
from analyzer.explain.questions.amplification import (
    POINTWISE,
    Tensors,
    is_most,
    report_rows,
    report_share,
)
from analyzer.model.graph.graph_index import is_in_gradient_scope
from analyzer.model.recording.records import Finding

_IMAGE_RANK = 4
_CALLS = 4  # of a layer in a step
_MANY_TRIPS = 256  # of a loop, such as a recurrent layer's


def find_wide_kernel(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report the kernel of a dense layer that reads a flattened image."""
    alive = analysis.alive
    graph = tensors.graph
    kernels = alive[(alive["variable"] != "") & (alive["layer"] != "")]

    for kernel in kernels.nlargest(1, "requested_bytes").to_dict("records"):
        flattened = [
            tensors.size_of(maker.inputs[0])[0]
            for op, layer in graph.layers.items()
            if layer == kernel["layer"]
            for one in graph.inputs_of(op)
            if (maker := graph.maker_of(one)) and maker.type == "Reshape"
        ]
        images = [one for one in flattened if one.count(",") >= _IMAGE_RANK - 1]
        if not images:
            return

        same = analysis.of_size(kernel["requested_bytes"])
        at_peak = analysis.at_peak(same)
        rows = analysis.rows
        inputs = rows.loc[rows["category"] == "input", "shape"]
        if {*images} <= {*inputs} or not is_most(analysis, at_peak):
            return

        yield report_rows(
            analysis,
            "wide-kernel",
            f"{kernel['variable']} {kernel['shape']} with gradients and the "
            f"optimizer's tensors: {analysis.share_words(at_peak)}",
            f"Flatten gives the layer all numbers of {images[0]}. Pool first, with "
            "GlobalAveragePooling2D() in its place or further MaxPooling2D(). The "
            "saving is that without these tensors.",
            same,
        )


def find_one_hot(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report targets of a cross entropy with a number for each class."""
    rows = analysis.rows
    ops = tensors.graph.ops.values()
    losses = [op.name for op in ops if op.type == "SoftmaxCrossEntropyWithLogits"]

    if not losses:
        return

    sizes = {size for loss in losses for size in tensors.sizes_read(loss)}
    is_scratch = rows["op"].isin(losses) & (rows["tensor"] == "")

    is_wide = (rows["category"] == "input") & (rows["dies"] > analysis.first)
    is_wide &= rows["requested_bytes"].isin(sizes)
    at_peak = analysis.at_peak(rows[is_wide])

    if sum_requested(at_peak) < analysis.least_bytes:
        return

    yield report_share(
        analysis,
        "one-hot",
        f"Inputs {at_peak['shape'].iloc[0]} have one number for each class",
        "If they are one-hot, give class numbers to SparseCategoricalCrossentropy, which "
        "then needs no scratch memory. The input pipeline then makes no one-hot tensors.",
        at_peak,
        saves=saved_without_rows(analysis, rows[is_wide | is_scratch]),
    )


def find_recomputable(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report results of elementwise ops kept beside the tensor that all of them come from.

    The gradient of ``x * tf.tanh(tf.math.softplus(x))`` needs each result unless it computes them again.
    """
    alive = analysis.alive
    sharing = analysis.recording.sharing
    if sharing is None:
        return

    graph = tensors.graph
    known = alive[alive["tensor"] != ""]
    roots = {sharing.root(one) for one in known["tensor"]}

    def is_recomputable(tensor: str) -> bool:
        maker = graph.maker_of(tensor)
        _, size = tensors.size_of(tensor)
        users = {
            graph.ops[one].type
            for one in sharing.consumers(tensor)
            if not is_in_gradient_scope(one)
        }

        if maker is None or maker.type not in POINTWISE or not users <= POINTWISE:
            return False

        given = {
            sharing.root(one) for one in maker.inputs if tensors.size_of(one)[1] >= size
        }
        return bool(given) and given <= roots

    gone = known.loc[[is_recomputable(one) for one in known["tensor"]]]
    lines = gone.loc[is_retained(gone), "source"]
    if len(gone) < 2 or not any(lines):
        return

    yield report_share(
        analysis,
        "recomputable",
        "Results of elementwise ops are kept beside their operand",
        "tf.recompute_grad keeps the operand of a function alone, and computes the results "
        "again. A fused op does so too: tf.nn.silu(x) for x * tf.sigmoid(x), or a fused batch "
        "normalization.",
        gone,
        max(lines),
        saved_without_rows(analysis, gone[:-1]),  # one is computed again at a time
    )


def find_kept_again(analysis: Analysis) -> Iterator[Finding]:
    """Report results of many calls of a layer, or trips of its loop, that wait for a gradient."""
    alive = analysis.alive
    kept = alive[alive["category"].isin(("activation", "temporary"))]
    kept = kept[kept["layer"] != ""]
    if not is_most(analysis, kept[is_retained(kept)]):
        return

    scopes = kept["op"].astype(str).str.rpartition("/")[0]
    groups = kept.assign(op=scopes).groupby(["layer", "op_type"], observed=True)
    calls = groups["op"].transform("nunique")
    trips = groups["op"].transform("size") // groups["tensor"].transform("nunique")
    counts = calls.where(trips < _MANY_TRIPS, trips)
    rows = kept[counts >= _CALLS]

    if not is_most(analysis, rows):
        return

    count = int(counts[rows.index].median())
    parts = math.isqrt(count)
    gone = analysis.rows[~analysis.rows["category"].isin(PERSISTENT)]
    saves = saved_without_rows(analysis, gone, 1 - 1 / parts)
    finding = report_share(
        analysis,
        "kept-again",
        f"Results of {count:,} calls of a layer, or trips of its loop, wait for a gradient",
        f"Cut a long sequence into parts, such as {parts}, each with its own gradient and "
        "tf.stop_gradient between them. Of several calls, tf.recompute_grad(layer) keeps "
        "the inputs and computes the results again; that saving is not computed.",
        rows,
        saves=saves,
    )

    yield finding if count >= _MANY_TRIPS else replace(finding, saves_bytes=None)
