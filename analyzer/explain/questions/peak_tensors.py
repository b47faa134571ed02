"""The op of the peak, and findings about memory that is alive at it and could be smaller or absent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from analyzer.explain.analysis import (
    LOW,
    PERSISTENT,
    Analysis,
    of_category,
    saved_without,
    saved_without_rows,
    sum_requested,
)
from analyzer.explain.buffer_words import (
    describe_largest,
    is_passing,
    is_retained,
)
from analyzer.explain.questions.amplification import (
    LOOKUPS,
    find_layer_line,
    is_most,
    report_share,
)
from analyzer.explain.running.slope import SMALL_SLOPE_BYTES
from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import (
    ACCUMULATOR_ROLE,
    LOOP_SCOPE,
    WatchNote,
)
from analyzer.model.graph.graph_index import Phase, is_in_gradient_scope
from analyzer.model.recording.labels import BATCH_ROLE, ELEMENT_ROLE
from analyzer.model.recording.records import FIXED_ROLES, TRIAL_ROLES, Finding, Severity
from analyzer.model.units import format_bytes

_EXAMPLES = 16  # cuDNN pads a batch to a multiple, as in ``cudnn_algorithms.py``
_BATCH_RATIO = 0.5  # of the activations that share a first axis: it is the batch
_FACTOR_RATIO = (
    0.25  # of the bytes of the commonest first axis: a factor of it is the batch
)

_LONG_AXIS = r",\d{3,}(?=,)"  # of an image, between those of batch and channels
_TENSORS = 8
_MANY_EXAMPLES = 1000  # in a single call from which on it seems to have all data
_USUAL_BATCH = 32  # of ``predict``

# Categories of tensors with the shape of a variable, besides the variable.
_OF_WEIGHTS = (Category.GRADIENT.value, Category.TEMPORARY.value)

# Name of a cast inside an op, such as ``dense/MatMul/Cast``: mixed precision casts its weight.
_CAST_OF_WEIGHT = re.compile(r"/[A-Z]\w*/Cast(?:_\d+)?$")
_STATE_RATIO = 0.2  # share of the peak from which on optimizer state is reported
_ONE_SLOT = ("SGD", "RMSprop", "Adagrad", "Lion")  # per parameter, as usual


def peak_op(analysis: Analysis) -> tuple[str, str, str]:
    """Return op, layer and source line of the allocation at the requested peak."""
    born = analysis.rows[analysis.rows["born"] == analysis.peak.requested_instant]
    if born.empty:
        return "", "", ""

    row = born.iloc[0]
    is_known = row["op"] != row["instruction"]  # XLA's own names tell nothing

    return str(row["op"]) if is_known else "", str(row["layer"]), str(row["source"])


def find_whole_set(analysis: Analysis) -> Iterator[Finding]:
    """Report a program that calls a model once, with all of its data."""
    watch = analysis.recording.watch or WatchNote()
    config = analysis.recording.step_config

    # The first axis with the most bytes, in the layers that a model calls.
    alive = analysis.alive
    activations = of_category(alive, Category.ACTIVATION)
    sums = _sum_by_first_axis(activations[activations["layer"] != ""])
    examples = int(sums.idxmax()) if len(sums) else 0

    trains = Phase.BACKWARD in analysis.recording.structure.phases.values()
    is_single = watch.whole_run or (watch.steps <= 1 and config.batch_size is None)
    may_train = watch.ended and config.optimizer  # it failed before it could
    if trains or not is_single or not config.infers or may_train:
        return
    if examples < _MANY_EXAMPLES or _is_paired(analysis, examples):
        return

    # ``predict`` copies the whole array to the card too (``array_data_adapter.py``).
    rows = analysis.rows[~analysis.rows["category"].isin(PERSISTENT)]

    yield report_share(
        analysis,
        "whole-set",
        f"One call takes {examples:,} examples at once",
        "Each activation has an entry for each example. model.predict(x) calls "
        f"the model in batches of {_USUAL_BATCH} and returns NumPy arrays; the saving "
        "is that of this batch.",
        rows,
        watch.peak_call or watch.where,
        saved_without_rows(analysis, rows, 1 - _USUAL_BATCH / examples),
    )


def find_batch_tensors(analysis: Analysis) -> Iterator[Finding]:
    """Report the tensors that a smaller batch makes smaller, and what half the batch or its pixels save.

    A matrix with a row for each example holds no pixels.
    """
    batch = find_batch(analysis)
    if _is_paired(analysis, batch):
        return

    rows = analysis.rows
    is_own = analysis.in_step(rows)
    is_own |= rows["category"].isin([Category.INPUT, Category.CONSTANT])
    freed = _freed_by_half(analysis, rows, batch)
    growing = rows[freed > 0]
    growing_bytes = sum_requested(analysis.at_peak(growing))

    freed = freed.where(is_own & (batch > 1), 0)
    saves = saved_without(analysis, freed, rows["born"], rows["dies"])
    is_stated = analysis.recording.step_config.batch_size is not None
    guess = "" if is_stated else f", if the batch has {batch:,} examples"
    detail = "Variables and their gradients keep their size."
    if (growing["category"] == Category.WORKSPACE).any():
        detail += (
            " Workspaces count as half, but cuDNN may take another algorithm for a "
            "smaller batch."
        )

    yield Finding(
        id="batch-tensors",
        severity=analysis.rate(saves),
        title=f"{format_bytes(growing_bytes)} of tensors grow with the batch size{guess} "
        f"({growing_bytes / analysis.peak.requested_bytes:.0%} of the peak)",
        detail=detail,
        saves_bytes=saves,
    )

    is_matrix = growing["shape"].astype(str).str.match(rf"\[{batch},\d+\]$")
    images = growing[~is_matrix]
    given = of_category(images, Category.INPUT)["shape"]
    long_axes = given.astype(str).str.count(_LONG_AXIS).max()
    if long_axes > 1:
        sides = "0.8 of each axis" if long_axes > 2 else "0.7 of height and width"
        yield report_share(
            analysis,
            "image-tensors",
            f"Tensors that grow with the size of the images{guess}",
            "Images with half as many pixels, or patches of them, leave half of these tensors: "
            f"{sides}.",
            images,
            saves=saved_without_rows(analysis, images, 0.5),
        )


def _is_paired(analysis: Analysis, batch: int) -> bool:
    """Say whether a tensor that is no input, such as a graph's adjacency, pairs the examples."""
    shapes = of_category(analysis.rows, Category.INPUT)["shape"]
    ops = analysis.recording.structure.ops.values()
    given = {one.shape_text for op in ops if op.type == "_Arg" for one in op.outputs}
    return f"[{batch},{batch}]" in given.difference(shapes)


def find_batch(analysis: Analysis) -> int:
    """Return the batch size, else the commonest first axis of activations or a factor; 0 if unknown.

    Half of their bytes have multiples of it, such as the parts that a dilated convolution takes.
    """
    stated = analysis.recording.step_config.batch_size
    watch = analysis.recording.watch
    if stated is not None or (watch and watch.whole_run):
        return stated or 0

    alive = analysis.alive
    kept = of_category(alive[alive["shape"] != ""], Category.ACTIVATION)
    sums = _sum_by_first_axis(kept)

    if sums.empty:
        return 0

    # Layers flatten batch and length to rows, such as a Dense layer before its product: a factor of the
    # commonest axis, the one with the most bytes, is the batch.
    sums.index = sums.index.astype(int)
    ranked = sums.sort_values(ascending=False)
    large = ranked.index[ranked >= _FACTOR_RATIO * ranked.max()]
    batch = large[large[0] % large == 0][:2][-1]
    multiples = sums[sums.index % batch == 0]
    if multiples.sum() < _BATCH_RATIO * sum_requested(kept):
        return 0

    # A length that only one of several steps has follows from values, such as those of a dropout.
    rows = analysis.rows
    steps = rows.loc[_first_axes(rows) == batch, "step"].nunique()

    return batch if steps >= min(2, len(analysis.full_steps)) else 0


def _sum_by_first_axis(rows: pd.DataFrame) -> pd.Series:
    """Return the requested bytes of tensors by the length of their first axis, as text.

    A single axis is no batch: cuDNN's reserved space is a vector.
    """
    first = rows["shape"].astype(str).str.extract(r"^\[(\d+),", expand=False)
    return rows["requested_bytes"].groupby(first).sum()


def _first_axes(rows: pd.DataFrame) -> pd.Series[float]:
    first = rows["shape"].str.extract(r"^\[(\d+)", expand=False)
    return first.astype("float64")


def _axes_of(shape: str) -> str:
    """Return a shape of more than two axes without their order, other shapes as they are."""
    axes = re.findall(r"\d+", shape)
    return str(sorted(axes)) if len(axes) > 2 else shape


def _is_packed(rows: pd.DataFrame, every: pd.DataFrame) -> pd.Series[bool]:
    """Say of each buffer if it is a vector as long as all weights of its layer.

    cuDNN packs the weights of a recurrent layer, and their gradients, into a vector
    (``_cudnn_lstm``, ``keras/src/backend/tensorflow/rnn.py``), with a second bias for an LSTM. The
    weights belong to the layer's cell.
    """
    weights = of_category(every, "parameter")
    layers = weights["layer"].str.replace(r"/?[^/]*$", "", regex=True)
    lengths = weights["requested_bytes"].groupby(layers).sum() / 4  # of a number
    length = rows["layer"].astype(str).map(lengths).astype("float64")
    first = _first_axes(rows)

    return (first / length).between(1, 1.25)  # with the second bias


def _freed_by_half(
    analysis: Analysis,
    rows: pd.DataFrame,
    batch: int,
) -> pd.Series[int]:
    """Return the bytes of each buffer that half the batch frees: half, if its first axis is the batch.

    The first axis may also be a multiple of the batch, such as batch x sequence length or two views of
    each example, or another one the batch. Pairs have it twice, and half the batch leaves a quarter,
    if no variable and no example has an axis of that length. Gradients of variables keep their size, and
    so do constants that hold no pairs.
    """
    shapes = rows["shape"]  # ``map`` reads each category once
    first = _first_axes(rows)

    # XLA's copy of a convolution's kernel, or its gradient, has the axes in another order.
    every = analysis.rows
    weights = {*every.loc[every["variable"] != "", "shape"].map(_axes_of)}

    is_weight = rows["category"].isin(_OF_WEIGHTS) & shapes.map(_axes_of).isin(weights)
    is_weight |= rows["variable"] != ""
    is_weight |= rows["op"].map(_CAST_OF_WEIGHT.search).notna()
    is_weight |= _is_packed(rows, every)

    # Most activations have the batch as their first axis, so those of unknown shape count too.
    is_unknown = is_retained(rows) | is_passing(rows) | rows["role"].eq(BATCH_ROLE)
    is_unknown &= shapes == ""
    is_batch = first % max(batch, 1) == 0

    # An input of several batches is a data set, whose size the batch does not change.
    is_batch &= (rows["category"] != Category.INPUT) | (first == batch)

    examples = of_category(every, Category.INPUT)["shape"]
    lengths = [*weights, *(re.sub(r"^\[\d+", "", one) for one in examples)]
    known = {*re.findall(r"\d+", str(lengths))}
    # recurrent layers have it second, XLA's layouts anywhere
    if str(batch) not in known:
        is_batch |= shapes.str.contains(rf",{batch}[,\]]")
    length = shapes.astype(str).str.extract(r"^\[(\d+),\1(?:,\d+)?\]$", expand=False)
    is_pair = length.notna() & ~length.isin(known)
    is_zeros = rows["op"].map(is_in_gradient_scope).astype(bool)  # as gradients
    is_batch &= (rows["category"] != Category.CONSTANT) | is_pair | is_zeros
    is_batch &= ~is_weight

    # The bytes of a workspace are a vector. On cards it has tiles of padded examples.
    is_scratch = (rows["category"] == Category.WORKSPACE) & ~shapes.str.contains(",")
    is_batch = is_batch.mask(
        is_scratch,
        analysis.recording.device.kind == "gpu" and batch > _EXAMPLES,
    )
    is_batch &= ~rows["role"].isin(TRIAL_ROLES)  # other algorithms may be tried

    count = 1 + is_pair  # axes with the batch
    freed = rows["requested_bytes"] * (1 - 0.5**count)

    return freed.where(is_batch | is_unknown, 0).astype("int64")


def find_growth(analysis: Analysis) -> Iterator[Finding]:
    """Report memory that grows from step to step; ``leaks`` does for a watched program."""
    steps = analysis.full_steps
    rows = analysis.rows
    if len(steps) < 3 or analysis.recording.watch is not None:
        return

    rises = np.diff([analysis.line.at(step.last)[0] for step in steps[1:]])
    rise = int(rises.mean())
    if rises.min() <= 0 or rise < SMALL_SLOPE_BYTES:
        return

    # The function of a Jacobian is garbage until Python collects it.
    if rows["op"].str.contains(LOOP_SCOPE, regex=False).any():
        return

    is_before = rows["born"].between(steps[-3].last + 1, steps[-2].last)
    is_left = is_before & (rows["dies"] > steps[-1].last)
    left = rows[is_left & (rows["role"] != ELEMENT_ROLE)]

    if sum_requested(left) < SMALL_SLOPE_BYTES:
        return  # the data set fills its buffers

    yield Finding(
        id="growth-per-step",
        severity=Severity.HIGH,
        title=f"Memory grows by {format_bytes(rise)} a step",
        detail="Tensors that are alive after a step are not freed by the next one. "
        "Usual causes: a list that collects tensors, a metric that is never reset, a "
        "function that is traced again each time. Store numbers instead of "
        "tensors: .numpy() or float().",
        saves_bytes=rise,
        evidence=describe_largest(left),
    )


def find_wide_numbers(analysis: Analysis) -> Iterator[Finding]:
    """Report float64 tensors that are a large part of the peak."""
    rows = analysis.alive[analysis.alive["dtype"] == "float64"]
    is_wide = analysis.rows["dtype"].isin(("float64", ""))  # temporaries have no type

    if sum_requested(rows) < analysis.least_bytes:
        return

    yield report_share(
        analysis,
        "float64",
        "float64 tensors",
        "NumPy's default is float64, and TensorFlow keeps the type. Use float32, which "
        "takes half: array.astype('float32'), tf.constant(x, tf.float32), or dtype= "
        "when the data is read.",
        rows,
        saves=saved_without_rows(analysis, analysis.rows[is_wide], 0.5),
    )


def find_whole_tables(analysis: Analysis) -> Iterator[Finding]:
    """Report tensors as large as an embedding table that an update or a gradient makes.

    The gradient of a lookup has few rows (``IndexedSlices``). If an op needs it as a tensor, TensorFlow
    sums the rows into a tensor of the table's shape (``UnsortedSegmentSum``,
    ``_indexed_slices_to_tensor`` in ``indexed_slices.py``). The optimizers of Keras compute moments for
    all rows; only SGD without momentum scatters the rows of the gradient (``update_step`` in ``sgd.py``,
    ``assign_sub`` in ``keras/src/backend/tensorflow/optimizer.py``).
    """
    rows = analysis.rows
    tables, is_like_table = _find_tables(analysis)

    is_new = is_like_table & (rows["born"] >= analysis.first)
    whole = rows[is_new & rows["category"].isin(_OF_WEIGHTS)]
    read = of_category(rows[is_new], Category.ACTIVATION)
    at_peak = analysis.at_peak(whole)

    if sum_requested(at_peak) < analysis.least_bytes:
        return

    state = of_category(rows, Category.OPTIMIZER_STATE)
    id_ = "dense-gradient"
    words = "Dense gradients of embedding tables"
    detail = (
        "The gradient of a lookup has few rows, but something converts it to a tensor "
        "of the table's shape: a penalty of the whole table (activity_regularizer has one "
        "of the looked-up rows), gradient accumulation, clipping by the global norm, or "
        "the loss scaling of mixed precision. Keep the gradient sparse."
    )

    ops = analysis.recording.structure.ops.values()
    squares = (op for op in ops if op.type in ("L2Loss", "Square"))
    penalties = {tensor for op in squares for tensor in op.inputs}
    gone = pd.concat([whole, read]) if penalties & {*read["tensor"]} else whole
    has_slots = is_like_table[state.index].any()

    # After a scattered update, each read of the table copies it (``copy_on_read_mode`` in
    # ``resource_variable_ops.cc``); a function that XLA compiles does not.
    copies = read.empty and not analysis.recording.step_config.jit
    is_dense = (whole["category"] == Category.GRADIENT).any()

    if has_slots and not is_dense:
        gone = pd.concat([gone, state])
        optimizer = analysis.recording.step_config.optimizer or "the optimizer"
        id_ = "whole-table"
        words = f"Tensors that {optimizer} makes for all rows of a table"
        detail = (
            f"A step looks up few rows of an embedding, but {optimizer} updates its "
            "moments for all of them. Of Keras' optimizers only SGD without momentum "
            "writes the looked-up rows alone. Pretrained vectors often need no training: "
            "Embedding(..., trainable=False). The saving is that of SGD and includes the state of "
            f"all variables{', without a copy of the table for SGD' if copies else ''}."
        )

    saves = saved_without_rows(analysis, gone)

    if copies:
        saves -= int(tables["requested_bytes"].max())

    where = max(read["source"], default="") or find_layer_line(analysis, tables)
    finding = report_share(analysis, id_, words, detail, at_peak, where, saves)

    # With a sparse gradient, an optimizer of moments makes other tensors of the table's shape.
    yield replace(finding, saves_bytes=None) if has_slots and is_dense else finding


def _find_tables(analysis: Analysis) -> tuple[pd.DataFrame, pd.Series[bool]]:
    """Return the embedding tables, and whether each buffer has the size of one."""
    rows = analysis.rows
    graph = analysis.recording.structure
    ops = graph.ops.values()
    gathers = {graph.layers[op.name] for op in ops if op.type in LOOKUPS} - {""}

    summed = rows.loc[rows["op_type"] == "UnsortedSegmentSum", "shape"]
    is_table = rows["layer"].isin(gathers) | rows["shape"].isin(summed)
    tables = of_category(rows[is_table], Category.PARAMETER)

    is_like_table = rows["requested_bytes"].isin(set(tables["requested_bytes"]))
    is_like_table &= rows["layer"].isin([*gathers, ""])

    return tables, is_like_table


def find_eager_results(analysis: Analysis) -> Iterator[Finding]:
    """Report the activations of a training step whose ops run one by one from Python.

    The name of such an op is its type; in a function the name has a scope.
    """
    step = analysis.recording.step_config
    alive = analysis.alive
    is_scoped = alive["op"].str.contains("/")
    rows = of_category(alive[~is_scoped], Category.ACTIVATION)
    gradients = of_category(analysis.rows, Category.GRADIENT)
    is_eager = step.eager and not step.is_jax

    if not is_eager or gradients.empty or not is_most(analysis, rows):
        return

    finding = report_share(
        analysis,
        "from-python",
        "Results of ops that run one by one from Python",
        "Each lives as long as a tape or a variable of Python holds it. In a tf.function "
        "TensorFlow knows all ops of the step: it combines them, writes into buffers that "
        "no other op needs, and frees each result after its last reader.",
        rows,
    )
    yield replace(finding, severity=Severity.MEDIUM, saves_bytes=None)


def find_input_copies(analysis: Analysis) -> Iterator[Finding]:
    """Report copies of the step's inputs that are alive at the peak.

    A step that no program was watched for needs its inputs; without copies it gets them converted. A
    gradient needs such a copy, which then saves the input. The layout of a convolution is no such copy.
    """
    alive = analysis.alive
    watch = analysis.recording.watch

    rows = alive[alive["copied_by"] != ""]
    saves_bytes = sum_requested(rows)
    where = ""

    if watch is None:
        is_layout = rows["op"].astype(str).str.contains("LayoutOptimizer")
        rows = rows[is_retained(rows) & ~is_layout]
        inputs = of_category(alive, Category.INPUT)
        saves_bytes = min(sum_requested(inputs), sum_requested(rows))
    else:
        from analyzer.explain.running.leaks import tensors_left

        left = tensors_left(analysis)
        kept = left.loc[left["op"].isin(set(rows["op"])), "address"]
        addresses = set(kept.astype("int64"))
        holders = [one.where for one in watch.held if addresses & {*one.addresses}]
        where = next(iter(holders), watch.where)

    if sum_requested(rows) < analysis.least_bytes:
        return

    kinds = rows["op_type"].where(rows["op_type"] != "", rows["op"]).astype(str)
    yield report_share(
        analysis,
        "input-copies",
        f"Copies of the input, made by {', '.join(kinds.unique()[:_TENSORS])}",
        "Each copy has as many elements as the input. Convert type, order and scale "
        "before the step: in the map of tf.data, which frees the original, or once for "
        "the whole data set.",
        rows,
        next(filter(None, rows["source"]), where),
        saves_bytes,
    )


def find_state(analysis: Analysis) -> Iterator[Finding]:
    """Report optimizer state of several slots that is a large share of the peak."""
    alive = analysis.alive
    slots = of_category(alive, Category.OPTIMIZER_STATE)
    state = sum_requested(slots)
    least = _STATE_RATIO * analysis.peak.requested_bytes
    optimizer = analysis.recording.step_config.optimizer or "The optimizer"
    watch = analysis.recording.watch

    if state <= least or optimizer in _ONE_SLOT:
        return
    if watch and watch.whole_run and watch.ended:
        return  # the program failed while it made the state

    yield report_share(
        analysis,
        "optimizer-state",
        f"{optimizer}'s state",
        "A smaller batch does not reduce it. SGD with momentum, Lion and Adagrad "
        "have one slot per parameter; the saving is that of one slot of two. Training "
        "fewer parameters (freezing, LoRA) reduces it in proportion.",
        slots,
        saves=state // 2,
    )


def find_accumulators(analysis: Analysis) -> Iterator[Finding]:
    """Report variables that add up the gradients of several steps.

    Keras writes zeros into them after an update (``_backend_reset_gradient_accumulators`` in
    ``base_optimizer.py``); those of a graph are constants.
    """
    rows = analysis.rows
    is_sum = rows["role"] == ACCUMULATOR_ROLE
    is_zeros = rows["category"] == Category.CONSTANT
    is_zeros &= rows["shape"].isin(rows.loc[is_sum, "shape"])
    older = rows[(is_sum | is_zeros) & (rows["born"] < analysis.first)]

    held = sum_requested(analysis.at_peak(older))
    batch = find_batch(analysis)
    of_batch = 2 * _freed_by_half(analysis, analysis.alive, batch).sum()

    # An update holds all gradients without sums too: they cost little if it is the peak.
    if not batch or not analysis.least_bytes <= held <= 2 * of_batch:
        return

    saves = saved_without_rows(analysis, older)
    equal = batch + batch * saves // of_batch

    yield report_share(
        analysis,
        "accumulators",
        "Variables that add up gradients, and their zeros",
        "Gradient accumulation needs a sum as large as each parameter, whatever the batch. "
        f"Without it a batch of {equal:,} examples needs as much as this step. If the "
        "accumulated batch is no larger, train with it directly.",
        older,
        saves=saves,
    )


def find_workspaces(analysis: Analysis) -> Iterator[Finding]:
    """Report workspaces that are alive at the peak, and the most that smaller ones can save."""
    rows = analysis.rows
    is_fixed = rows["role"].isin(FIXED_ROLES + TRIAL_ROLES)
    own = of_category(rows[~is_fixed], Category.WORKSPACE)
    at_peak = analysis.at_peak(own)

    if sum_requested(at_peak) <= LOW * analysis.peak.requested_bytes:
        return

    row = at_peak.loc[at_peak["requested_bytes"].idxmax()]
    largest = int(row["requested_bytes"])
    limit_mib = largest // 2 >> 20

    if not limit_mib or analysis.recording.device.kind != "gpu":
        return  # no setting limits them

    yield report_share(
        analysis,
        "workspace",
        "Workspaces of convolutions",
        f"The largest is in {row['op']}. Layout copies and unused outputs are not "
        "counted here. cuDNN's fastest algorithm may need more memory than a slower one. "
        f"Start with TF_CUDNN_WORKSPACE_LIMIT_IN_MB={limit_mib} (by default 4096, and "
        "8192 in newer releases) to exclude it.",
        own,
    )
