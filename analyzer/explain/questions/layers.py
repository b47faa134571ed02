"""Layers and elementwise functions whose form takes much of the peak."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from analyzer.explain.analysis import (
    Analysis,
    of_category,
    saved_without,
    saved_without_rows,
    sum_requested,
)
from analyzer.explain.buffer_words import is_retained
from analyzer.explain.questions.amplification import (
    POINTWISE,
    Tensors,
    find_layer_line,
    is_most,
    report_share,
    saved_after_use,
)
from analyzer.model.contract.run_note import LOADED_ROLE
from analyzer.model.graph.graph_index import (
    PASSED_GRADIENT_ROLE,
    is_in_gradient_scope,
)
from analyzer.model.recording.records import Finding

_CALLS = 4  # of a layer in a step
_LEAST_KERNEL = 0.1  # of the peak
_LEAST_WIDE = 0.5  # of the peak
_GATES = 4  # of an LSTM, whose kernel has their weights side by side
_MANY_TRIPS = 256  # of a loop, such as a recurrent layer's


def find_wide_kernel(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report the kernel of a product with flattened images or sequences."""
    for kernel, words, same in _find_kernel(analysis, _LEAST_KERNEL):
        length = kernel.partition(",")[0][1:]
        images = {
            shape: op.source
            for op in tensors.graph.ops.values()
            if op.type == "Reshape"
            for shape, _ in map(tensors.size_of, op.inputs[:1])
            if shape.count(",") > 1
            and tensors.size_of(f"{op.name}:0")[0]
            == f"{shape.partition(',')[0]},{length}]"
        }
        inputs = of_category(analysis.rows, "input")["shape"]
        image = max(images, default="")
        if image in {"", *inputs}:
            return

        yield report_share(
            analysis,
            "wide-kernel",
            words,
            f"It multiplies all numbers of {image}. Pool first, with "
            "GlobalAveragePooling2D() (1D for a sequence) in place of Flatten(), or further "
            "MaxPooling2D(). The saving is that without these tensors.",
            analysis.at_peak(same),
            images[image],
            saved_without_rows(analysis, same),
        )


def find_wide_layer(analysis: Analysis) -> Iterator[Finding]:
    """Report a hidden layer with at least as many units as the input has features."""
    inputs = of_category(analysis.rows, "input")["shape"]
    others = of_category(analysis.rows, "parameter")["shape"]

    for kernel, words, same in _find_kernel(analysis, _LEAST_WIDE):
        features, _, units = kernel.strip("[]").partition(",")
        is_first = inputs.str.match(rf"\[\d+,{features}\]$").any()
        # The last layer has a unit for each class or feature, which no other kernel reads.
        is_read = others.str.startswith(f"[{units},") & others.ne(kernel)
        if not is_first or not is_read.any() or int(units) < int(features):
            return

        yield report_share(
            analysis,
            "wide-layer",
            words,
            f"A hidden layer has {units} units for {features} features, and its "
            "kernel a number for each pair. Leave the layer out, or give it fewer units, "
            "which shrinks these tensors in proportion. The saving is that without them.",
            same,
            find_layer_line(analysis, same[same["variable"] != ""]),
        )


def _find_kernel(
    analysis: Analysis, least_ratio: float
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield the shape and name of the largest kernel that learns, and all tensors of its size.

    With them it is at least ``least_ratio`` of the peak.
    """
    rows = analysis.rows
    kernels = analysis.alive[analysis.alive["variable"] != ""]
    if analysis.recording.step_config.infers:
        return  # another model, which has to learn

    for _, kernel in kernels.nlargest(1, "requested_bytes").iterrows():
        size = kernel["requested_bytes"]
        shape = kernel["shape"]
        is_same = rows["shape"].isin((shape, ""))
        is_same &= rows["requested_bytes"] == size
        # cuDNN packs a recurrent layer's weights gate by gate, and has scratch memory for them.
        layers = {kernel["layer"], kernel["layer"].rpartition("/")[0]} - {""}
        is_packed = rows["layer"].isin(layers)
        is_packed &= rows["requested_bytes"] >= size // _GATES
        same = rows[is_same | is_packed]
        held = sum_requested(analysis.at_peak(same))
        if held >= least_ratio * analysis.peak.requested_bytes:
            words = "with gradients and the optimizer's tensors"
            yield shape, f"{kernel['variable']} {shape} {words}", same


def find_one_hot(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report targets of a cross entropy, or words of a sequence, with a number for each class.

    A product with one-hot words selects rows of its kernel, as a lookup does.
    """
    rows = analysis.rows
    sizes = rows["requested_bytes"]
    losses = [
        op.name
        for op in tensors.graph.ops.values()
        if op.type == "SoftmaxCrossEntropyWithLogits"
    ]
    read = {size for loss in losses for size in tensors.sizes_read(loss)}
    is_input = (rows["category"] == "input") & (rows["dies"] > analysis.first)
    is_large = is_input & (sizes >= analysis.least_bytes)

    is_wide = is_large & sizes.isin(read)
    is_scratch = rows["op"].isin(losses) & (rows["tensor"] == "")
    detail = (
        "If they are one-hot, give class numbers to SparseCategoricalCrossentropy, which "
        "then needs no scratch memory. The input pipeline then makes no one-hot tensors."
    )
    if not is_wide.any():
        kernels = rows.loc[rows["variable"] != "", "shape"]
        words = kernels.str.extract(r"^\[(\d{4,}),", expand=False).dropna()
        last = rows["shape"].str.extract(r",\d+,(\d+)\]$", expand=False)
        is_wide = is_large & last.isin(words)
        is_scratch = (rows["category"] == "temporary") & (sizes >= sizes[is_wide].min())
        detail = (
            "If they are one-hot, give the numbers of the words to an Embedding layer, "
            "which looks up the rows that a product with one-hot tensors selects."
        )

    at_peak = analysis.at_peak(rows[is_wide])
    if at_peak.empty:
        return

    of_layer = rows[sizes.isin(at_peak["requested_bytes"]) & (rows["layer"] != "")]
    yield report_share(
        analysis,
        "one-hot",
        f"Inputs {at_peak['shape'].iloc[0]} have one number for each class",
        detail,
        at_peak,
        find_layer_line(analysis, of_layer),
        saved_without_rows(analysis, rows[is_wide | is_scratch]),
    )


def find_recomputable(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report results of elementwise ops kept beside the tensor that all of them come from.

    The gradient of ``x * tf.tanh(tf.math.softplus(x))`` needs each result unless it computes them again.
    """
    alive = analysis.alive
    sharing = analysis.recording.sharing
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

    # After the ops at the peak, the first gradient needs a result again, and its derivative.
    first = gone.loc[gone["dies"].idxmin()]
    is_busy = alive["category"].isin(("workspace", "temporary"))
    after = max(alive.loc[is_busy, "dies"], default=analysis.peak.requested_instant)
    saves = saved_without(
        analysis,
        [*gone["requested_bytes"], -2 * first["requested_bytes"]],
        [*gone["born"], after],
        [*gone["dies"], first["dies"]],
    )

    yield report_share(
        analysis,
        "recomputable",
        "Results of elementwise ops are kept beside their operand",
        "tf.recompute_grad keeps the operand of a function alone, and computes the results "
        "again. A fused op does so too: tf.nn.silu(x) for x * tf.sigmoid(x), or a fused batch "
        "normalization.",
        gone,
        max(lines),
        saves,
    )


_FUSED = (
    "On a card, an LSTM or GRU of Keras with recurrent_dropout=0, unroll=False and its "
    "default activations runs in one op of cuDNN, which keeps less than a loop. "
)


def find_kept_again(analysis: Analysis) -> Iterator[Finding]:
    """Report results of many calls of a layer, or trips of a loop, that wait for a gradient.

    Keras runs its LSTM and GRU in one op of cuDNN on the conditions of ``cudnn_ok``
    (``keras/src/backend/tensorflow/rnn.py``), else in a loop.
    """
    alive = analysis.alive
    kept = alive[is_retained(alive) & (alive["tensor"] != "")]
    trips = kept.groupby("tensor", observed=True)["op"].transform("size")

    scopes = kept["op"].astype(str).str.rsplit("/", n=1).str[0]
    groups = kept.assign(op=scopes).groupby(["layer", "op_type"], observed=True)
    is_loop = (kept["layer"] == "") | (trips >= _MANY_TRIPS)
    counts = trips.where(is_loop, groups["op"].transform("nunique"))
    rows = kept[counts >= _CALLS]

    if not is_most(analysis, rows):
        return

    count = int(counts[rows.index].median())
    is_recurrent = rows["layer"].str.contains("lstm|gru", case=False).any()
    fused = _FUSED if is_recurrent else ""
    finding = report_share(
        analysis,
        "kept-again",
        f"Results of {count:,} calls of a layer, or trips of a loop, wait for a gradient",
        f"{fused}tf.recompute_grad(layer), or of the body of a loop, keeps the inputs and computes "
        "the results again. A long sequence can also be cut into parts, each with its own "
        "gradient and tf.stop_gradient between them. The saving is not computed: it "
        "depends on what the inputs need.",
        rows,
    )

    yield replace(finding, saves_bytes=None)


def find_calls(analysis: Analysis) -> Iterator[Finding]:
    """Report results of many calls of a layer that a tape keeps in an eager step.

    Parts of a batch have losses of their own, whose gradients can be added up.
    """
    rows = analysis.rows
    is_own = is_retained(rows) & (rows["layer"] != "")
    kept = analysis.at_peak(rows[is_own])

    # Between two calls of a layer other ops run, such as those of a loss. Ops of one call may be equal.
    ordered = of_category(rows, "activation").sort_values("born")
    outermost = ordered["layer"].str.extract("^([^/]*)", expand=False)
    calls = (outermost != outermost.shift()).cumsum()
    groups = kept.assign(call=calls.reindex(kept.index)).groupby(
        ["layer", "op", "requested_bytes"], observed=True
    )
    counts = groups["call"].transform("nunique")
    kept = kept[counts >= _CALLS]

    if analysis.recording.structure.ops or not is_most(analysis, kept):
        return

    count = int(counts.max())
    is_own |= rows["role"] == PASSED_GRADIENT_ROLE

    yield report_share(
        analysis,
        "calls-in-tape",
        f"A tape keeps the results of {count:,} calls of a layer",
        "If each call has a loss of its own, such as a part of a batch, take its gradient "
        "in a tape of its own, and add up the gradients. Otherwise tf.recompute_grad(layer) "
        "keeps the inputs of a call alone. The saving is that of one call at a time.",
        kept,
        saves=saved_without_rows(analysis, rows[is_own], 1 - 1 / count),
    )


def find_trained_base(analysis: Analysis) -> Iterator[Finding]:
    """Report a loaded network with results that wait for gradients, and new layers behind it.

    They wait for its own gradients, or for those of new layers in front of it.
    """
    rows = analysis.rows
    weights = of_category(rows, "parameter")
    loaded = {*weights.loc[weights["role"] == LOADED_ROLE, "layer"]}
    new = {*weights["layer"]} - loaded

    forward = of_category(rows[rows["born"] > analysis.first], "activation")
    births = forward["born"]
    own = forward[forward["layer"].isin(loaded)]
    if own.empty or not new:
        return

    first = births[own["requested_bytes"].idxmax()]
    news = births[forward["layer"].isin(new)]
    start = news[news > first].min()  # unknown if XLA fuses the first new op
    before = forward[~(births >= start)]
    if news.min() < first and not start > first:
        return  # the network judges the results of the new layers

    # The rows of its backward pass and of its update.
    is_later = rows["born"] > before["born"].max()
    is_later |= rows["category"] == "optimizer_state"
    is_of_base = rows["layer"].isin(before["layer"])
    kept = before[is_retained(before)]

    yield report_share(
        analysis,
        "trained-base",
        "Results of a loaded network wait for gradients",
        "If the layers behind it alone should learn, freeze it before compile(): "
        "base.trainable = False. To train also its last layers, freeze those before them. "
        "The gradients of layers in front of it need its results too: for grey images, repeat "
        "the channel with Concatenate()([x, x, x]). The saving is that of a frozen network "
        "without such layers.",
        kept,
        saves=saved_after_use(analysis, kept, before, rows[is_later & is_of_base]),
    )
