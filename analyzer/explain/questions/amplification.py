"""Tensors that an equivalent program does not need: the cause, and the code to write.

A large tensor at the peak is compared with the inputs of its op and with the results of its readers.
Three forms are recognised, each by the graph and by the sizes that were allocated:

- *pairs*: an elementwise op pairs each element of one operand with each of the other;
- *flow*: ops make large tensors of small ones, and then read a part, a sum or a product of them, or
  ops enlarge images;
- *copied*: an op repeats, widens or spreads a small tensor.

Logits of many classes that are held several times, tensors that wait for one sum, results that a tape
keeps without a use, and vectorized loops are further forms.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.explain.analysis import (
    PERSISTENT,
    Analysis,
    of_category,
    saved_without,
    saved_without_rows,
    sum_requested,
)
from analyzer.explain.buffer_words import describe_largest, in_brackets
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.run_note import LOOP_SCOPE, op_types, split_tensor
from analyzer.model.graph.graph_index import (
    GRADIENT_ROLE,
    PASSED_GRADIENT_ROLE,
    GraphIndex,
    is_in_gradient_scope,
    list_outputs,
)
from analyzer.model.recording.records import Finding
from analyzer.model.units import format_bytes

# bytes of a tensor over the inputs of its op, or over its readers' results
TIMES = 4
_WIDTHS = (4, 8)  # bytes of a number in an eager step
_MANY_CLASSES = 4096
_COPIES_OF_LOGITS = 3
_MOST_OF_PEAK = 0.5
_CHUNKS = 8
_SMALL = 64  # smaller parts of a buffer to report do not matter
_SUMMANDS = 3
_SUMMED_EAGERLY = 2  # the sum so far and the next gradient

_ELEMENTWISE = op_types(
    "Add AddV2 BiasAdd Div Equal Greater GreaterEqual Less LessEqual LogicalAnd "
    "LogicalNot Maximum Minimum Mul NotEqual RealDiv SquaredDifference Sub"
)
_PRODUCTS = op_types("BatchMatMul BatchMatMulV2 BatchMatMulV3")
MATRICES = ("MatMul", "Einsum", *_PRODUCTS)
_VENDOR = re.compile("^_(Mkl(Native)?)?(Fused(?=(Batch)?MatMul))?")
_SELECTIONS = op_types("Select SelectV2")
_SUMS = op_types("All Any Max Mean Min Prod Sum")
POINTWISE = _ELEMENTWISE | op_types(
    "Abs AddN Erf Exp Log Neg Pow Rsqrt Sigmoid Softplus Sqrt Square Tanh"
)
_CHAINED = POINTWISE | _SELECTIONS
# Ops that read some of a tensor's elements, and ops that pass them on.
_PARTS = op_types(
    "ArgMax ArgMin GatherNd GatherV2 MatrixDiagPartV3 Slice StridedSlice TopKV2"
)
_PATCHES = "ExtractImagePatches"
_JOINED = "ConcatV2"

# Ops whose result can be far larger than their input, with the words for it and the code to write.
_EXPANDING = {
    "OneHot": (
        "a one-hot tensor",
        "Look the rows up by their numbers with tf.gather, or use a loss that takes "
        "class numbers (SparseCategoricalCrossentropy).",
    ),
    "Tile": (
        "a repeated tensor",
        "Leave the repeated axis at length 1: elementwise ops broadcast it without a "
        "copy, and tf.einsum multiplies without one.",
    ),
    "BroadcastTo": (
        "a broadcast copy",
        "Leave the axis at length 1: elementwise ops broadcast it without a copy.",
    ),
    "Const": (
        "a tensor of one number",
        "Leave it a scalar, which elementwise ops broadcast without a copy: "
        "tf.where(mask, x, -1e9).",
    ),
    "Cast": (
        "a widened copy",
        "Keep the small type until the op that uses the values: tf.where(mask, x, 0) "
        "needs no float mask, and images stay uint8 until the first layer scales them.",
    ),
    "MatrixDiagV3": (
        "a diagonal matrix",
        "Multiply by the diagonal itself: diagonal[:, None] * x.",
    ),
    "SparseToDense": (
        "a sparse matrix made dense",
        "tf.sparse.sparse_dense_matmul multiplies the sparse tensor itself.",
    ),
    _JOINED: (
        "repeated tensors side by side",
        "A product of joined tensors is the sum of the products of each: x @ w[:n] + "
        "y @ w[n:]. The sum broadcasts, so tf.tile and tf.repeat go.",
    ),
    _PATCHES: (
        "an image's overlapping patches",
        "tf.nn.conv2d multiplies the patches without storing them. On a card its "
        "workspace decides how much that saves.",
    ),
    **dict.fromkeys(
        ("GatherV2", "ResourceGather"),
        (
            "a copy of a table's entry for each look-up",
            "Multiply with the table itself, and look up the products: "
            "tf.gather(q @ table, index, batch_dims=2). Relative positions have twice as "
            "many products as scores, which the saving counts.",
        ),
    ),
}
_NEEDS_COPIES = re.compile("Conv|Pool|Tile")  # in the type of a reader
_COPYING = ("OneHot", "Tile", "BroadcastTo", "Cast")
_PAIRING = {*_ELEMENTWISE, *_COPYING}  # types whose results or readers pair operands
_LONG_AXIS = re.compile(r"\b(?!1\b)\d+")
_LAST_AXIS = r",(\d+)\]$"
LOOKUPS = ("GatherV2", "ResourceGather")
_WITH_GRADIENT = (*MATRICES, *LOOKUPS)  # whose gradients are new tensors
_WITH_OPERANDS = (*MATRICES, *_PARTS)  # whose gradients read an operand again
_REPEATED = (
    "tf.repeat with counts pads each row to the largest count. Look the rows up: "
    "tf.gather(x, tf.repeat(tf.range(n), counts))."
)

_SCORES = (
    "attention-scores",
    "are attention's scores of each position with each",
    "They grow with the square of the positions. Pool the keys and values of an image, "
    "attend within windows, or compute the scores for blocks of queries inside "
    "tf.recompute_grad. The saving is that of a quarter of the scores.",
    0.75,
)
_PAIRS_OF_PRODUCT = (
    "all-pairs",
    "has a number for each pair of rows, of which sums are read",
    "Work on blocks of rows: tf.map_fn over parts of one operand, each with its own sum, "
    "and tf.recompute_grad in training. The saving is that of 16 blocks.",
    1 - 1 / 16,
)
_SUM_OF_PRODUCTS = (
    "reduced-at-once",
    "is a product for each example, made and added up at once",
    "tf.matmul or tf.linalg.triangular_solve of a batch with one matrix computes the "
    "matrix' gradient for each example, and then their sum. tf.tensordot(x, kernel, 1), "
    "or the same op of x reshaped to two axes, computes the sum alone.",
    1.0,
)
_ENLARGED = (
    "enlarged",
    "is enlarged before ops that can take the small tensor",
    "Pixels of an enlarged tensor repeat pixels of the small one. For a loss, shrink the "
    "labels: tf.image.resize(labels, size, method='nearest'). Add levels of a pyramid at "
    "the size of the smaller one, and enlarge the last result alone.",
)
_PART_OF_DIAGONAL = (
    "tf.reduce_sum(a * tf.transpose(b), -1) is the diagonal of a @ b. A covariance of "
    "each point with itself needs no matrix: full_cov=False."
)
_PART_OF_SLICES = (
    "tf.gather takes a whole slice for each number of its index. If the index holds "
    "positions, such as the result of tf.where, take one element for each: tf.gather_nd(x, "
    "index), or tf.boolean_mask(x, mask)."
)
_KERAS_TABLE = "GatherV2/ReadVariableOp"  # in the scope of an Embedding
_WITH_ROWS = (
    "Look up the rows of both operands of a product, and multiply those alone. Add up "
    "looked-up rows with tf.sparse.sparse_dense_matmul. The saving is not computed: the "
    "changed step holds other rows."
)
_PART = (
    "Take the part before the large tensor is made: head(hidden[:, -1:]) in place of "
    "head(hidden)[:, -1:], or normalize(tf.gather(table, ids)). If the part depends on "
    "the values (tf.math.top_k, tf.argmax), work on blocks of rows with tf.map_fn."
)

_OTHER_ORDER = (
    "product-order",
    "is a product that another one makes small again",
    "Multiply in the other order: x @ (a @ b) is (x @ a) @ b, and (x @ y) @ z is "
    "x @ (y @ z).",
)

# unneeded if a product reads them
_FOR_PRODUCTS = ("MatrixDiagV3", "SparseToDense", _PATCHES, *LOOKUPS)
_OF_PAIRS = r"^\[(\d+),\1,\d+\]$"  # shape of rows for pairs of positions
_MATRIX = 2  # axes
_OF_ONE_NUMBER = r"(^|/)(Fill|(ones|zeros)(_like)?)(_\d+)?$"  # TensorFlow's names

# Ops that repeat, or only reorder, the elements of their first input.
_SAME = ("ExpandDims", "Identity", "Reshape", "Squeeze")  # in the same buffer
_REPEATS = (*_SAME, "BroadcastTo", "Tile", "Transpose")
_OF_GRADIENTS = "gradient_tape/"  # scope of a gradient's ops
_FUSED = op_types("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits")
_MOVING = POINTWISE.union(_REPEATS, _PARTS, _SELECTIONS, _SUMS, _FUSED) | op_types(
    "ConcatV2 Cos Cumsum Expm1 Log1p LogicalOr MatrixBandPart MatrixSetDiagV3 Pack "
    "PadV2 Sign Sin Softmax Xdivy"
)
_ENLARGING = op_types("ResizeBilinear ResizeNearestNeighbor ResizeBicubic")
_MASKS = ("RandomUniform", "StatelessRandomUniformV2")  # of dropout
_STARTS = frozenset({*_ELEMENTWISE, *MATRICES, *_EXPANDING, *_MASKS, *_ENLARGING})

_SCORING = (*_FUSED, "Exp", "Log", "LogSoftmax", "Softmax")


class Tensors:
    """The tensors of the step: the graph around them, and their sizes."""

    def __init__(self, analysis: Analysis, graph: GraphIndex) -> None:
        self.graph = graph
        self.rows = analysis.rows

    @cached_property
    def allocated(self) -> dict[str, tuple[str, int]]:
        """Shape and bytes of each tensor that was allocated, by its name."""
        rows = self.rows.loc[
            self.rows["tensor"] != "", ["tensor", "shape", "requested_bytes"]
        ]

        return {
            tensor: (shape, size)
            for tensor, shape, size in rows.itertuples(index=False)
        }

    def size_of(self, tensor: str) -> tuple[str, int]:
        """Return shape and bytes as the graph states them, else as they were last allocated.

        The bytes are 0 if they are unknown.
        """
        spec = self.graph.spec(tensor)
        if spec and spec.size_bytes:
            return spec.shape_text, spec.size_bytes

        return self.allocated.get(tensor, ("", 0))

    def is_reused(self, tensor: str) -> bool:
        """Say whether an op writes into a tensor's buffer, and needs another without it.

        A chain of elementwise ops needs none if it ends with one that can broadcast the small tensor.
        """
        _, size = self.size_of(tensor)
        for reader in self.graph.consumers.get(tensor, []):
            made = f"{reader}:0"
            is_chain = self.graph.ops[reader].type in _CHAINED
            if is_chain and made not in self.allocated:
                operands = [one for one in self.sizes_read(reader) if one >= size]
                is_kept = not self.types_of_readers(made) <= _CHAINED
                if is_kept or len(operands) > 1 or self.is_reused(made):
                    return True

        return False

    def sizes_read(self, op: str) -> list[int]:
        """Return the bytes of each tensor that an op reads."""
        return [self.size_of(tensor)[1] for tensor in self.graph.inputs_of(op)]

    def line_of(self, row: Mapping[str, Any]) -> str:
        """Return the line of an op; of a gradient that of the op that it belongs to.

        A tape puts the ops of a gradient into the scope ``gradient_tape/``, under the name of the op
        (``backprop.py``, ``_gradient_function``). The scope of several ops holds one whose result the
        gradient reads.
        """
        own = str(row["op"])
        names = [own]
        if _OF_GRADIENTS in own:
            scope = forward_of(own)
            read = (split_tensor(one)[0] for one in self.graph.inputs_of(own))
            inside = [one for one in read if one.startswith(f"{scope}/")]
            names = [scope, *inside, own]

        for op in names:
            known = self.graph.ops.get(op)
            if known and known.source:
                return known.source

        return str(row["source"])

    def source_of(self, tensor: str) -> tuple[str, int]:
        """Return shape and bytes of the tensor whose elements one of the forward pass repeats."""
        source = tensor
        maker = self.graph.maker_of(tensor)

        while maker and maker.inputs and _OF_GRADIENTS not in maker.name:
            given = maker.inputs[0]
            (shape, size), (made, made_size) = map(self.size_of, (given, tensor))

            # as x[:, None] does
            adds_axis = size == made_size and shape.count(",") < made.count(",")
            if maker.type not in _REPEATS and not adds_axis:
                break

            if maker.type in _COPYING or adds_axis:
                source = given
            tensor = given
            maker = self.graph.maker_of(tensor)

        return self.size_of(source)

    def types_of_readers(self, tensor: str) -> set[str]:
        """Return the types of the ops that read a tensor."""
        return {self.graph.ops[reader].type for reader in self.readers_of(tensor)}

    def flow_around(self, tensor: str) -> tuple[set[str], set[str]]:
        """Return large tensors that ops make of small ones and of each other, around one of them.

        The second value are the types of the ops that make small ones of them again. Both are empty if
        there are none, or if another op makes or reads one, other than for a gradient.
        """
        least = self.size_of(tensor)[1] // TIMES
        found = [tensor]
        ends: set[str] = set()
        left = least

        is_of_gradient = is_in_gradient_scope(tensor)

        for one in found:
            for name in (split_tensor(one)[0], *self.graph.consumers.get(one, ())):
                is_other = is_in_gradient_scope(name) != is_of_gradient
                op = self.graph.ops.get(name)
                if op is None or (is_other and one not in op.inputs):
                    return set(), set()
                if is_other or op.type == "ReadVariableOp":
                    continue

                given, made = (
                    [other for other in names if self.size_of(other)[1] >= least]
                    for names in (op.inputs, list_outputs(op))
                )
                if op.type in _ENLARGING:
                    given = []
                if not made:
                    ends.add(op.type)
                    left -= self.size_of(f"{name}:0")[1]
                elif op.type not in (_MOVING if given else _STARTS):
                    return set(), set()

                found += [other for other in (*given, *made) if other not in found]

        return ({*found}, ends) if ends and left >= 0 else (set(), set())

    def forward_tensor(self, op: str, size: int) -> str:
        """Return the tensor of a size whose gradient an op computes.

        The op shares an operand, such as the index of a lookup, with an op that reads the tensor.
        """
        graph = self.graph
        near = (
            one
            for operand in graph.inputs_of(op)
            for reader in graph.consumers.get(operand, ())
            if graph.ops[reader].type in _WITH_OPERANDS
            for one in graph.inputs_of(reader)
            if self.size_of(one)[1] == size
        )

        return next(near, f"{forward_of(op)}:0")

    def size_in_other_order(self, product: str) -> float:
        """Return the bytes of B @ C, if a product is A @ B and is read by (A @ B) @ C.

        From the sizes: each of the axes of B @ C is in two of A, B, C and the result, and the axes of
        A @ B too. Infinite if its op adds a bias or an activation.
        """
        name = split_tensor(product)[0]
        if "fused_ops" in self.graph.ops[name].attrs:
            return math.inf

        size = self.size_of(product)[1]
        made_of = math.prod(self.sizes_read(name)[:2]) / size
        results = (
            made_of * math.prod(self.sizes_read(one)[:2]) * self.size_of(f"{one}:0")[1]
            for one in self.readers_of(product)
            if not is_in_gradient_scope(one)
        )

        return math.sqrt(max(results, default=math.inf)) / size

    def readers_of(self, tensor: str) -> list[str]:
        """Return the ops that read a tensor, also in another shape."""
        found = []

        for reader in self.graph.consumers.get(tensor, []):
            is_same = self.graph.ops[reader].type in _SAME
            found += self.readers_of(f"{reader}:0") if is_same else [reader]

        return found


def forward_of(op: str) -> str:
    """Return the op that an op of a gradient belongs to; else its scope."""
    return str(op).replace(_OF_GRADIENTS, "").rpartition("/")[0]


def find_amplified(analysis: Analysis, tensors: Tensors) -> Iterator[Finding]:
    """Report tensors at the peak that are far larger than the inputs or the results around them."""
    every = find_large(analysis)
    large = every[(every["tensor"] != "") & (every["op_type"] != "")]
    reported: set[str] = set()
    seen: list[tuple[EvidenceRow, ...]] = []

    is_looped = large["op"].str.contains(LOOP_SCOPE, regex=False)
    sizes: set[int] = set()

    for row in large[~is_looped].to_dict("records"):
        row["shape"] = row["shape"] or tensors.size_of(row["tensor"])[0]
        shape = str(row["shape"])
        if {shape, row["tensor"]} & reported:
            continue

        finding = _find_resized(analysis, row, tensors)
        size = row["requested_bytes"]
        if size not in sizes:  # both look at all buffers of a size
            kinds = {*analysis.of_size(size)["op_type"]}
            if kinds & _PAIRING:
                finding = finding or _find_pairs(analysis, row, tensors)
            if kinds & {*_EXPANDING}:
                finding = finding or _find_expanded(analysis, row, tensors)

        sizes.add(size)
        finding = finding or _find_flow(analysis, row, tensors)
        if finding and finding.evidence not in seen:
            seen.append(finding.evidence)  # a gradient has those of its tensor
            reported |= {shape, *tensors.graph.inputs_of(row["op"])}
            reported |= tensors.flow_around(row["tensor"])[0]
            yield finding

    is_other = every["shape"].isin(reported) | (every["category"] == "input")
    yield from _find_logits(analysis, every[~is_other], tensors)


def find_large(analysis: Analysis) -> pd.DataFrame:
    """Return the large buffers at the peak, the largest first."""
    alive = analysis.alive
    large = alive[alive["requested_bytes"] >= analysis.least_bytes]
    return large.sort_values("requested_bytes", ascending=False)


def with_tensors(analysis: Analysis, graph: GraphIndex) -> tuple[Analysis, Tensors]:
    """Return both with oneDNN's ops under TensorFlow's types: ``_MklMatMul`` is a ``MatMul``.

    The analysis lacks buffers that are too small for the questions.
    """
    tensors = Tensors(analysis, graph)
    rows, alive = (
        table[table["requested_bytes"] * _SMALL >= analysis.least_bytes]
        for table in (analysis.rows, analysis.alive)
    )
    analysis = replace(analysis, rows=rows, alive=alive)
    ops = {
        name: replace(op, type=_VENDOR.sub("", op.type))
        for name, op in graph.ops.items()
        if _VENDOR.match(op.type)
    }

    if ops:
        rows, alive = (
            table.assign(op_type=[_VENDOR.sub("", kind) for kind in table["op_type"]])
            for table in (rows, alive)
        )
        analysis = replace(analysis, rows=rows, alive=alive)
        tensors.graph = replace(graph, ops={**graph.ops, **ops})

    return analysis, tensors


def find_kept_by_tape(analysis: Analysis) -> Iterator[Finding]:
    """Report results of an eager forward pass that no wanted gradient needs and a tape keeps.

    ``tape.gradient`` releases those without a gradient before it computes the first one
    (``ComputeGradient`` in ``tape.h``), so that they all die between the last op of the forward pass and
    that gradient. It also computes the gradients of each variable that the tape watched: those after
    the last wanted one are for others.
    """
    step = analysis.step
    rows = analysis.rows

    of_step = rows[analysis.in_step(rows)]
    gradients = of_category(of_step, "gradient")
    is_wanted = gradients["role"] == GRADIENT_ROLE
    in_function = gradients["tensor"] != ""

    if step is None or in_function.any() or not is_wanted.any():
        return

    first = gradients["born"].min()
    last = _last_wanted(gradients)
    is_backward = of_step["role"].isin((PASSED_GRADIENT_ROLE, "backward temporary"))
    others = of_step[(of_step["born"] > last) & is_backward]

    forward = of_step[of_step["born"] < first]
    ops = forward[forward["category"] != "input"]  # the tape copies numbers
    is_kept = forward["dies"].between(ops["born"].max(), first)

    parameters = of_category(rows, "parameter")
    is_of_variable = gradients["shape"].isin(["[]", *parameters["shape"]])
    is_passed = gradients["role"].eq(PASSED_GRADIENT_ROLE) & ~is_of_variable
    passed = gradients[is_passed & (gradients["born"] <= last)]

    if (passed["dies"] > last).mean() > _MOST_OF_PEAK:
        yield from _report_persistent(analysis, forward, passed, last)
        return

    # A layer that is built before its model is called has no prefix in its variables' paths.
    layers = rows["layer"].str.rpartition("/")[2]
    kernels = parameters[parameters["shape"].str.contains(",")]
    is_trained = kernels["shape"].isin(gradients.loc[is_wanted, "shape"])
    trained = {*layers[kernels.index[is_trained]]}
    is_of_trained = layers[forward.index].isin(trained - {""})

    # a tensor that outlives the step is held by a name
    is_activation = forward["category"] == "activation"
    is_activation &= forward["dies"] <= analysis.last

    if len(others):  # of another tape
        is_kept |= is_activation & (forward["dies"] >= last) & ~is_of_trained

    if "" not in trained:
        is_unwanted = gradients["shape"].isin(kernels.loc[~is_trained, "shape"])
        unwanted = gradients.loc[is_unwanted & ~is_wanted, "born"]

        # What comes before all trained layers depends on no variable that is trained.
        is_before = forward["born"] < forward.loc[is_of_trained, "born"].min()
        is_before &= is_activation & (forward["dies"] >= unwanted.min())
        is_kept |= is_before

        shapes = {*forward.loc[is_before, "shape"]}
        shapes -= {*forward.loc[is_of_trained, "shape"]}
        is_other = is_backward & of_step["shape"].isin(shapes)
        others = of_step[is_other | of_step.index.isin(others.index)]

    yield from _report_taped(analysis, forward, is_kept, others)


def _report_taped(
    analysis: Analysis,
    forward: pd.DataFrame,
    is_kept: "pd.Series[bool]",
    others: pd.DataFrame,
) -> Iterator[Finding]:
    """Report results that a tape keeps; ``others`` are of gradients that nobody wants."""
    kept = analysis.at_peak(forward[is_kept])
    if sum_requested(kept) < analysis.least_bytes:
        return

    watch = analysis.recording.watch
    usual = "" if watch is None else watch.where

    yield report_share(
        analysis,
        "kept-by-tape",
        "A GradientTape keeps results that no wanted gradient needs",
        "A tape keeps the operands of each op that it records, also of those before "
        "tf.stop_gradient, inside a custom gradient, and of layers that are trainable but "
        "not trained. Compute them before the tape begins, or under "
        "tape.stop_recording().",
        kept,
        next(filter(None, kept["source"]), usual),
        saved_after_use(analysis, kept, forward, others),
    )


def _report_persistent(
    analysis: Analysis,
    forward: pd.DataFrame,
    passed: pd.DataFrame,
    last: int,
) -> Iterator[Finding]:
    """Report results and gradients that a persistent tape keeps after their last use.

    A result is last read for the last gradient of its size, and a gradient for the next two.
    """
    results = of_category(forward[forward["dies"] > last], "activation")
    ends = passed.groupby("requested_bytes")["born"].max()
    used = [*results["requested_bytes"].map(ends).fillna(last), *passed["born"]]
    freed = _born_after(passed["born"], used, _TENSORS_IN_USE - 1, last)

    rows = pd.concat([results, passed])
    where = next(filter(None, passed["source"]), "")  # of tape.gradient
    kept = analysis.at_peak(rows)
    yield report_share(
        analysis,
        "persistent-tape",
        "A persistent GradientTape keeps results and gradients",
        "A persistent tape frees nothing before it is deleted. Inside its with block it "
        "also records the ops of tape.gradient. Call tape.gradient once, after the "
        "block, without persistent=True.",
        kept,
        where,
        saved_without(analysis, rows["requested_bytes"], freed, rows["dies"]),
    )


def _born_after(
    births: pd.Series,
    instants: npt.ArrayLike,
    count: int,
    end: int,
) -> npt.NDArray[np.int64]:
    """Return when so many tensors have been made after each instant, at most ``end``."""
    order = np.append(np.sort(births), end)
    later = np.searchsorted(order, instants) + count
    found: npt.NDArray[np.int64] = order[later.clip(max=len(order) - 1)]

    return found


def _last_wanted(gradients: pd.DataFrame) -> int:
    """Return when the last wanted gradient was made.

    The gradients of a variable that a step uses twice are added up at the end, and die then. Other
    networks have variables of the same shape.
    """
    wanted = gradients[gradients["role"] == GRADIENT_ROLE]
    sums = wanted[wanted["op"] == "AddN"].sort_values("born")
    others = wanted.drop(sums.index)
    births = gradients["born"]
    is_made = births.isin(others["born"])

    if len(sums):
        number = sums["born"].searchsorted(gradients["dies"])
        shapes = np.array(["", *sums["shape"]])[
            number
        ]  # of the last sum before it died
        is_made |= (gradients["shape"] == shapes) & (gradients["op"] != "AddN")

    return int((births[is_made] if is_made.any() else wanted["born"]).max())


_TENSORS_IN_USE = 3  # operand, intermediate and result of a line


def saved_after_use(
    analysis: Analysis,
    kept: pd.DataFrame,
    forward: pd.DataFrame,
    others: pd.DataFrame,
) -> int:
    """Return the saving without ``others``, if each tensor lives until a few later ones are made.

    A graph has no intermediates. A model of Keras that runs eagerly holds the results of its layers
    until its call ends (``run_through_graph`` in ``keras/src/ops/function.py``). In another call each
    of its ops runs again.
    """
    is_large = TIMES * forward["requested_bytes"] >= kept["requested_bytes"].median()
    births = forward["born"]
    in_graph = bool(analysis.recording.structure.ops)
    count = _TENSORS_IN_USE - in_graph
    ends = _born_after(births[is_large], kept["born"], count, births.max())

    layers = forward["layer"].astype(str)
    models = layers.str.extract("^([^/]+)/", expand=False)
    models = models.ffill().where((forward["tensor"] == "") & (layers != ""))
    calls = forward.groupby(["layer", "op", "shape"], observed=True).cumcount()
    call_ends = births.groupby([models, calls]).transform("max")
    ends = np.maximum(ends, call_ends[kept.index].fillna(0))

    sizes = [*kept["requested_bytes"], *others["requested_bytes"]]
    deaths = [*kept["dies"], *others["dies"]]

    return saved_without(analysis, sizes, [*ends, *others["born"]], deaths)


def find_summands(analysis: Analysis) -> Iterator[Finding]:
    """Report equal tensors that wait at the peak for one op that adds them up.

    The tape adds the gradients of a tensor that several ops read with one ``AddN``
    (``_aggregate_grads`` in ``backprop.py``), so that all are alive together. Other sums of a line go
    with those of the peak.
    """
    alive = analysis.alive
    rows = of_category(alive, "gradient")
    graph = analysis.recording.structure

    if len(rows) < _SUMMANDS:
        return

    is_known = (rows["tensor"] != "").any()
    if is_known:
        every = analysis.rows
        rows = of_category(every[analysis.in_step(every)], "gradient")
        sums = [_sum_that_reads(tensor, graph) for tensor in rows["tensor"]]
    else:
        # A Jacobian stacks the gradients of its rows.
        stacks = alive.loc[alive["op"] == "Pack", "shape"]
        parts = ["[" + shape.partition(",")[2] for shape in stacks.astype(str)]
        rows = rows[~rows["shape"].astype(str).isin(parts)]
        sums = _eager_sums(rows, alive)

    rows = rows.assign(sum=sums)
    counts = rows["sum"].value_counts()
    has_others = rows["sum"].map(counts) >= _SUMMANDS
    rows = rows[(rows["sum"] != "") & has_others]

    rows = rows.sort_values("requested_bytes", ascending=False, kind="stable")
    is_later = rows.groupby("sum").cumcount() >= (1 if is_known else _SUMMED_EAGERLY)

    lines = analysis.rows["source"]
    busiest = next(iter(lines[lines != ""].mode()), "")  # that of a loop

    for _, equal in rows.groupby(["source", "op_type"], observed=True):
        saves = saved_without_rows(analysis, equal[is_later[equal.index]])
        if saves < analysis.least_bytes:
            continue

        where = Tensors(analysis, graph).line_of(equal.iloc[0].to_dict())
        where = where or busiest
        shapes = " and ".join(equal["shape"].astype(str).unique()[:2])
        words = f"Gradients of {shapes} wait to be added up"
        detail = (
            "One weight or tensor is used several times in one step, as in an unrolled "
            "Python loop, and each use has a gradient of its own. Stack the inputs and "
            "apply the op once, or write the loop with tf.while_loop or tf.scan in a "
            "tf.function, whose gradient adds up trip by trip. Keras' RNN(cell) and "
            "TimeDistributed are such loops: Dense needs none, and other layers can take all "
            "time steps as one batch."
        )

        name = "waits-for-sum"

        if (equal["op_type"] == "StridedSliceGrad").all():
            name = "sliced-often"
            detail = (
                "The gradient of each slice is as large as the whole tensor. That of "
                "tf.split or tf.unstack joins the parts."
            )

        yield report_share(analysis, name, words, detail, equal, where, saves)


def _eager_sums(rows: pd.DataFrame, alive: pd.DataFrame) -> list[str]:
    """Return for each gradient of an eager step the sum that it waits for; empty without one.

    Each variable of its shape has one sum.
    """
    shapes = rows["shape"].astype(str)
    variables = alive[alive["variable"] != ""].drop_duplicates("variable")
    counts = shapes.map(variables["shape"].astype(str).value_counts())
    numbers = rows.groupby(shapes).cumcount() % counts

    sums = (shapes + numbers.astype(str)).where(counts.notna(), "")
    return list(sums)


def _sum_that_reads(tensor: str, graph: GraphIndex) -> str:
    """Return the ``AddN`` that alone reads a tensor; empty if there is none."""
    readers = graph.consumers.get(tensor, [])
    if len(readers) != 1 or graph.ops[readers[0]].type != "AddN":
        return ""

    return readers[0]


def _find_pairs(
    analysis: Analysis,
    row: dict[str, Any],
    tensors: Tensors,
) -> Finding | None:
    """Return a finding about tensors whose first op pairs the elements of two operands."""
    size = row["requested_bytes"]
    same = analysis.of_size(size)
    is_product = same["op_type"].isin(MATRICES) & (same["category"] != "gradient")

    if is_product.any():  # it needs that size anyway
        return None

    # Not results inside XLA's fusions, whose op names only the last step.
    graph = tensors.graph
    results = same.loc[same["tensor"] != ""].drop_duplicates("op")
    ops = dict.fromkeys(results["op"])

    for copy in results.loc[results["op_type"].isin(_COPYING), "op"]:
        given = (split_tensor(one)[0] for one in graph.inputs_of(copy))
        writers = graph.consumers.get(f"{copy}:0", [])  # may write into the copy
        ops |= dict.fromkeys([*given, *writers])

    found = ((op, _pair_of(op, size, tensors)) for op in ops)
    op, pair = next((both for both in found if both[1]), ("", ()))
    if not pair:
        return None

    shape = tensors.size_of(f"{op}:0")[0] or row["shape"]
    where = tensors.line_of({"source": row["source"], "op": op})
    flow, _ = tensors.flow_around(f"{op}:0")
    rows = analysis.rows
    is_gone = rows["tensor"].isin(flow) | (rows["requested_bytes"] == size)
    is_gone |= (rows["shape"] == shape) & (shape != "")  # also of other types

    return _report_pairs(analysis, pair, shape, where, rows[is_gone])


def find_eager_pairs(analysis: Analysis) -> Iterator[Finding]:
    """Report an elementwise result of an eager step that pairs a vector with a column.

    Another elementwise op has an operand of the result's size.
    """
    if analysis.recording.structure.ops:
        return

    rows = analysis.rows
    large = find_large(analysis)
    results = large[large["op"].isin(_ELEMENTWISE)]

    for row in results.sort_values("born").to_dict("records"):
        size = row["requested_bytes"]
        before = rows[(rows["born"] < row["born"]) & (rows["dies"] > row["born"])]
        shapes = {*before["shape"].astype(str)}

        for width in _WIDTHS:
            n = math.isqrt(size // width)
            pair = (f"[{n}]", f"[{n},1]")
            if {*pair} <= shapes and size > before["requested_bytes"].max():
                same = analysis.of_size(size)
                made = f"[{n},{n}]"
                yield _report_pairs(analysis, pair, made, row["source"], same)
                return


def _report_pairs(
    analysis: Analysis,
    pair: tuple[str, ...],
    made: str,
    where: str,
    same: pd.DataFrame,
) -> Finding:
    left, right = pair
    short, long = sorted(pair, key=len)
    pairing = f"{left} with {right} makes {made}"

    if long == f"{short[:-1]},1]":
        name = "outer-product"
        title = f"Outer product, probably by accident: {pairing}"
        detail = (
            f"One operand lacks the last axis of the other ({long}), so that each "
            "value is combined with each value of the batch. The result is probably "
            "wrong too, a loss above all. Give both the same shape, y[:, None] or "
            "tf.squeeze(x, -1), unless all pairs are meant."
        )
    else:
        name = "all-pairs"
        title = f"All pairs at once: {pairing}"
        detail = (
            "Each element of one operand is combined with each of the other. Work on "
            "blocks of one operand (tf.map_fn, tf.while_loop), or write the sum over "
            "pairs as a product (tf.matmul, tf.einsum). Where a one-hot operand assigns "
            "rows, such as those of experts, use tf.gather and tf.scatter_nd. In training "
            "the loop keeps the results of all blocks, unless tf.recompute_grad computes "
            "them again. The saving is without the memory of a block, if all ops on pairs "
            "are in it."
        )

    return report_share(analysis, name, title, detail, same, where)


def _pair_of(op: str, size: int, tensors: Tensors) -> tuple[str, ...]:
    """Return the shapes of an elementwise op's two operands if each lacks an axis; else nothing."""
    known_op = tensors.graph.ops.get(op)
    if known_op is None or known_op.type not in _ELEMENTWISE:
        return ()

    operands = [tensors.source_of(one) for one in tensors.graph.inputs_of(op)]
    known = [size for _, size in operands if size]
    if len(operands) != 2 or len(known) != 2 or size < TIMES * max(known):
        return ()

    if size > known[0] * known[1]:  # a repeated scalar
        return ()

    shapes = tuple(shape for shape, _ in operands)
    fewer, more = sorted(len(_LONG_AXIS.findall(shape)) for shape in shapes)

    return () if fewer == 1 < more else shapes  # as a normalization's scale


def _find_expanded(
    analysis: Analysis,
    row: dict[str, Any],
    tensors: Tensors,
) -> Finding | None:
    """Return a finding about a tensor that repeats, widens or spreads a much smaller one."""
    size = row["requested_bytes"]
    same = analysis.of_size(size)
    is_made = same["op_type"].isin(_EXPANDING) & (same["category"] != "gradient")
    makers = [
        maker
        for maker in same[is_made].drop_duplicates("op").to_dict("records")
        if size >= TIMES * _bytes_given(maker, tensors)
        and _is_avoidable(maker, tensors)
    ]

    if not makers:
        return None

    maker = makers[0]
    kind = maker["op_type"]
    given = _bytes_given(maker, tensors)
    lost = {row for one in makers for row in _rows_without(same, one, tensors)}
    gone = same[same.index.isin(lost)]

    if gone.empty:
        return None

    made = tensors.size_of(maker["tensor"])[0] or "A tensor"
    what, detail = _EXPANDING[kind]
    title = f"{made} is {what}"

    if given and kind != "OneHot":
        title += f", {size // given} times as large as its input"

    if kind == "Tile" and "GatherV2" in tensors.types_of_readers(maker["tensor"]):
        detail = _REPEATED
    if kind == "OneHot":  # a loss of class numbers needs no scratch memory
        is_scratch = analysis.rows["op"] == row["waits_for"]
        is_scratch &= analysis.rows["tensor"] == ""
        gone = pd.concat([gone, analysis.rows[is_scratch]])

    if kind == _JOINED:
        rows = analysis.rows
        rows = rows[rows["requested_bytes"].isin(tensors.sizes_read(maker["op"]))]
        parts = {op for op in rows["op"] if size in tensors.sizes_read(op)}
        is_gradient = rows["category"] == "gradient"
        is_part = is_gradient & rows["op"].isin(parts)
        is_part |= ~is_gradient & rows["op_type"].isin(_COPYING)
        gone = pd.concat([gone, rows[is_part]])

    # A table of relative positions has a row for each distance, -n to n.
    products = [
        2 * tensors.size_of(f"{reader}:0")[1]
        for reader in tensors.readers_of(maker["tensor"])
        if kind in LOOKUPS and not is_in_gradient_scope(reader)
    ]
    saves = saved_without_rows(analysis, gone, added=sum(products))

    where = tensors.line_of(maker)
    finding = report_share(analysis, "small-copied", title, detail, gone, where, saves)
    if kind == _PATCHES and analysis.recording.device.kind == "gpu":
        finding = replace(finding, saves_bytes=None)

    return finding


def _bytes_given(maker: dict[str, Any], tensors: Tensors) -> int:
    """Return the bytes of the input that an op expands."""
    op, kind = maker["op"], maker["op_type"]
    if kind == _JOINED:
        return sum(tensors.source_of(one)[1] for one in tensors.graph.inputs_of(op))

    sizes = tensors.sizes_read(op)
    return max(sizes if kind == "OneHot" else sizes[:1], default=0)


def _is_avoidable(maker: dict[str, Any], tensors: Tensors) -> bool:
    """Say whether the ops that read an expanded tensor can do without it."""
    kind = maker["op_type"]
    readers = tensors.types_of_readers(maker["tensor"])

    if _OF_GRADIENTS in maker["op"]:  # not the program's own op
        return False
    if kind == "Const":
        is_named = re.search(_OF_ONE_NUMBER, maker["op"]) is not None
        return is_named and bool(readers) and readers <= {*_ELEMENTWISE, *_SELECTIONS}

    if kind == "Cast":  # a product needs the wide type itself
        return bool(readers) and readers <= _ELEMENTWISE

    if kind == _JOINED:
        return readers <= {*MATRICES}

    if any(map(_NEEDS_COPIES.search, readers)):
        return False

    if kind in LOOKUPS:
        shape = tensors.size_of(maker["tensor"])[0]
        ids = tensors.size_of(tensors.graph.inputs_of(maker["op"])[1])[0]
        is_of_matrices = bool(ids) and shape.count(",") - ids.count(",") >= _MATRIX
        if not is_of_matrices and not re.search(_OF_PAIRS, shape):
            return False

    return kind not in _FOR_PRODUCTS or not readers.isdisjoint(MATRICES)


def _rows_without(
    same: pd.DataFrame,
    maker: dict[str, Any],
    tensors: Tensors,
) -> "pd.Index[int]":
    """Return the buffers that a step without an expanded tensor does not need, of its size.

    A product or a lookup makes a gradient for it. An elementwise op may write into its buffer, and then
    needs another without it.
    """
    readers = tensors.readers_of(maker["tensor"])
    is_gone = same["op"] == maker["op"]
    is_gone |= same["op"].isin(readers) & (same["op_type"] == "Transpose")

    if not tensors.types_of_readers(maker["tensor"]).isdisjoint(_WITH_GRADIENT):
        gradients = of_category(same, "gradient")["op"]
        is_gone |= same["op"].isin(gradients)  # with its scratch memory
    elif tensors.is_reused(maker["tensor"]):
        flow, ends = tensors.flow_around(maker["tensor"])
        is_gone &= bool(flow) and ends <= _PARTS | _SUMS

    return same.index[is_gone]


def find_vectorized(analysis: Analysis) -> Iterator[Finding]:
    """Report a vectorized loop whose large results are larger than all tensors outside it."""
    rows = analysis.rows
    is_looped = rows["op"].astype(str).str.contains(LOOP_SCOPE, regex=False)
    looped = rows[is_looped]

    at_peak = analysis.at_peak(looped)
    made = at_peak["requested_bytes"]
    start = at_peak["born"].min()

    # A map over the examples of a batch makes nothing larger than the batch.
    before = analysis.alive[analysis.alive["born"] < start]
    if not made.max() >= TIMES * before["requested_bytes"].max():
        return

    words = (
        "A vectorized loop (tape.jacobian, tf.vectorized_map) makes all trips at once"
    )
    detail = (
        "tape.jacobian computes the gradients of all outputs together, of each example "
        "with respect to all examples. tape.batch_jacobian leaves other examples out; "
        "experimental_use_pfor=False runs trip by trip, as tf.map_fn does in place of "
        "tf.vectorized_map; in eager steps it needs a persistent tape. The saving is "
        "without the memory of a trip."
    )
    # ``batch_jacobian`` in backprop.py transposes the rows, which it needs all.
    sizes = rows["requested_bytes"]
    is_moved = rows["op_type"].eq("Transpose") & sizes.isin(
        {*looped["requested_bytes"]}
    )
    results = sizes[is_moved & ~is_looped & (rows["born"] >= start)].to_list()

    # Derivatives of weights stay: those of each trip, and then all of them in one tensor.
    weights = of_category(rows, "parameter").drop_duplicates("variable")
    counts = weights["shape"].astype(str).value_counts()
    stacked = looped.drop_duplicates("shape")
    of_trip = "[" + stacked["shape"].astype(str).str.partition(",")[2]
    is_kernel = of_trip.str.contains(",")
    stacks = stacked["requested_bytes"] * of_trip.where(is_kernel).map(counts)
    results += stacks.dropna().astype(int).to_list()

    # Results of the loop, and tensors made of them.
    is_gone = sizes.isin({*made, *results}) & (rows["born"] >= start)
    gone = rows[is_gone | is_looped]

    yield report_share(
        analysis,
        "vectorized-loop",
        words,
        detail,
        gone,
        at_peak["source"].iloc[0] or analysis.recording.layer_lines.get(LOOP_SCOPE, ""),
        saved_without_rows(analysis, gone, added=2 * sum(results)),
    )


class _Flow:
    """Large tensors that ops make of small ones and of each other, around that of a row."""

    def __init__(
        self,
        analysis: Analysis,
        row: dict[str, Any],
        tensors: Tensors,
    ) -> None:
        self.analysis = analysis
        self.tensors = tensors
        self.start = row["tensor"]
        self.size = row["requested_bytes"]

        names, ends = tensors.flow_around(self.start)
        is_product = row["op_type"] in _PRODUCTS
        self.is_summed = is_product and bool(ends) and ends <= _SUMS

        if is_in_gradient_scope(row["op"]) and not self.is_summed:
            self.start = tensors.forward_tensor(row["op"], self.size)
            names, ends = tensors.flow_around(self.start)

        self.ends = ends  # types of the ops that make small tensors of them
        self.ops = [op for one in names if (op := tensors.graph.maker_of(one))]
        self.makers = {op.type for op in self.ops}

        rows = analysis.rows
        is_own = rows["tensor"].isin(names)
        is_like = ~rows["category"].isin(PERSISTENT)
        is_like &= rows["requested_bytes"] == self.size
        self.own_rows = rows[is_own]
        self.rows = rows[is_own | is_like]

    def pairs_data(self) -> bool:
        """Say whether a product of them multiplies two tensors of which none is a variable."""
        rows = self.analysis.rows
        weights = {*rows.loc[rows["variable"] != "", "shape"]}
        return any(
            weights.isdisjoint(self.tensors.size_of(one)[0] for one in op.inputs[:2])
            for op in self.ops
            if op.type in MATRICES
        )

    def is_most(self) -> bool:
        """Say whether their buffers are most of the peak."""
        return is_most(self.analysis, self.analysis.at_peak(self.rows))


# id, words, advice, and the part of the bytes that the step can do without; None if unknown
_Cause = tuple[str, str, str, float | None]


def _find_flow(
    analysis: Analysis,
    row: dict[str, Any],
    tensors: Tensors,
) -> Finding | None:
    """Return a finding about large tensors of which a part, a sum or a product is read."""
    flow = _Flow(analysis, row, tensors)
    cause = None if flow.own_rows.empty else _explain_flow(flow)
    if cause is None:
        return None

    name, words, detail, share = cause
    first = flow.own_rows.sort_values(["born", "tensor"]).iloc[0].to_dict()
    words = f"{row['shape']} {words}"
    where = tensors.line_of(first)
    saves = saved_without_rows(analysis, flow.rows, 1.0 if share is None else share)
    finding = report_share(analysis, name, words, detail, flow.rows, where, saves)
    return replace(finding, saves_bytes=None) if share is None else finding


def _explain_flow(flow: _Flow) -> _Cause | None:
    """Return why a step can do without a flow; None if it cannot."""
    if flow.makers & _ENLARGING:
        return _explain_enlarged(flow)
    if not _FUSED.isdisjoint(flow.makers | flow.ends):
        return None  # a loss needs all logits
    if "Softmax" in flow.makers:
        is_attention = flow.ends <= {*MATRICES} and flow.is_most()
        return _SCORES if is_attention else None
    if flow.is_summed:
        return _SUM_OF_PRODUCTS if flow.ends <= {"Sum", "Mean"} else None
    if flow.ends <= _SUMS and flow.pairs_data() and "while/" not in flow.start:
        return _PAIRS_OF_PRODUCT
    if flow.makers | flow.ends <= {*MATRICES}:
        left = flow.tensors.size_in_other_order(flow.start) / flow.size
        return (*_OTHER_ORDER, 1 - left) if left <= 1 / TIMES else None

    return _explain_part(flow)


def _explain_enlarged(flow: _Flow) -> _Cause | None:
    given = [
        size
        for op in flow.ops
        if op.type in _ENLARGING
        for size in flow.tensors.sizes_read(op.name)
    ]
    if not given or not flow.is_most():  # a trace lacks the sizes of some inputs
        return None

    return *_ENLARGED, 1 - max(given) / flow.size


def _explain_part(flow: _Flow) -> _Cause | None:
    """Return why a small part of a flow is enough; None if the step needs the whole.

    Keras' Embedding looks up whole rows, and a variable that is written in place is copied before it is
    read.
    """
    is_of_matrices = not flow.makers.isdisjoint(MATRICES)
    if not flow.ends <= (_PARTS if is_of_matrices else _PARTS | _SUMS):
        return None
    if any(_KERAS_TABLE in one for op in flow.ops for one in (op.name, *op.inputs)):
        return None
    if flow.ends <= _SUMS and "ReadVariableOp" in flow.makers:
        return None  # a penalty of a variable

    words = "is made, but a small part or a sum of it is read"
    takes_rows = "ResourceGather" in flow.makers and not flow.ends <= _PARTS
    if takes_rows or (is_of_matrices and "GatherNd" in flow.ends):
        return "part-read", words, _WITH_ROWS, None

    detail = _PART
    if not flow.makers.isdisjoint(LOOKUPS):
        detail = _PART_OF_SLICES
    elif "MatrixDiagPartV3" in flow.ends:
        detail = _PART_OF_DIAGONAL

    return "part-read", words, detail, 1.0


def _find_resized(
    analysis: Analysis,
    row: dict[str, Any],
    tensors: Tensors,
) -> Finding | None:
    """Return a finding about an input, or a copy of it, that the step resizes to fewer bytes."""
    reader = row["waits_for"]
    _, written = tensors.size_of(f"{reader}:0")
    is_resized = row["waits_for_type"].startswith("Resize") and row["copied_by"]

    if not is_resized or not written or row["requested_bytes"] < TIMES * written:
        return None

    alive = analysis.alive
    is_image = (alive["category"] == "input") | (alive["copied_by"] != "")
    rows = alive[is_image & (alive["requested_bytes"] > written)]
    where = tensors.line_of({"op": reader, **row})
    words = f"Images before the step resizes them to {format_bytes(written)}"
    return report_share(
        analysis,
        "input-resized",
        words,
        "Convert and resize images in the data pipeline, so that the step gets the "
        "resized ones.",
        rows,
        where,
    )


def _find_logits(
    analysis: Analysis,
    large: pd.DataFrame,
    tensors: Tensors,
) -> Iterator[Finding]:
    """Report numbers for each class of a large vocabulary that are held several times at the peak."""
    scored, fused = (
        {
            size
            for op in tensors.graph.ops.values()
            if op.type in kinds
            for size in tensors.sizes_read(op.name)
        }
        for kinds in (_SCORING, _FUSED)
    )

    # a fused loss needs scratch memory in any case
    sizes = large["requested_bytes"]
    is_scratch = sizes.isin(fused) & (large["tensor"] == "")
    large = large[~is_scratch & (large["variable"] == "")]

    for size, rows in large.groupby("requested_bytes", observed=True):
        last = rows["shape"].astype(str).str.extract(_LAST_AXIS, expand=False)
        classes = last.dropna().astype(int).max()
        is_wide = classes >= _MANY_CLASSES

        is_held = len(rows) >= _COPIES_OF_LOGITS or is_most(analysis, rows)
        if not is_wide or size not in scored or not is_held:
            continue

        words = f"Tensors with one number for each of {classes:,} classes"
        same = analysis.of_size(size)
        is_target = same["category"] == "input"
        same = same[~is_target & (same["variable"] == "")]
        # the kernel of a card for targets of all classes has scratch memory
        has_scratch = is_target.any() and analysis.recording.device.kind == "gpu"
        saves = saved_without_rows(analysis, same, added=size * (1 + has_scratch))
        detail = (
            "Use a loss from logits (SparseCategoricalCrossentropy(from_logits=True), "
            "tf.nn.sparse_softmax_cross_entropy_with_logits), which has one op for them."
        )

        if size in fused:
            saves = saved_without_rows(analysis, same, 1 - 1 / _CHUNKS)
            detail = (
                "Compute the loss for parts of the positions inside tf.recompute_grad, "
                "or for some of the classes (tf.nn.sampled_softmax_loss). "
                f"The saving is that of {_CHUNKS} parts."
            )

        where = max(rows["source"])
        yield report_share(analysis, "logits-held", words, detail, rows, where, saves)


def report_share(
    analysis: Analysis,
    name: str,
    words: str,
    detail: str,
    rows: pd.DataFrame,
    where: str = "",
    saves: int | None = None,
) -> Finding:
    """Return a finding about rows that states their share of the peak, and a line.

    Without ``where`` it is that of the largest row, or of one at least half as large, with a known line,
    else that of its layer. Without ``saves`` it saves the rows. Its evidence are those that are alive at
    the peak.
    """
    largest = rows.sort_values("requested_bytes", ascending=False, kind="stable")
    is_large = 2 * largest["requested_bytes"] >= largest["requested_bytes"].max()
    line = where or next(filter(None, largest.loc[is_large, "source"]), "")
    line = line or find_layer_line(analysis, largest)
    at_peak = analysis.at_peak(rows)
    if saves is None:
        saves = saved_without_rows(analysis, rows)

    return Finding(
        id=name,
        severity=analysis.rate(saves),
        title=f"{words}: {analysis.share_words(at_peak)}{in_brackets(line)}",
        detail=detail,
        saves_bytes=saves,
        evidence=describe_largest(at_peak),
    )


def find_layer_line(analysis: Analysis, rows: pd.DataFrame) -> str:
    """Return the layer of the first row with the line that creates it; empty if it is unknown."""
    layer = next(iter(rows["layer"]), "")
    line = analysis.recording.layer_lines.get(layer)
    return f"{layer}, {line}" if line else ""


def is_most(analysis: Analysis, rows: pd.DataFrame) -> bool:
    """Say whether buffers are most of the peak, so that their form is its cause."""
    return sum_requested(rows) >= _MOST_OF_PEAK * analysis.peak.requested_bytes
