"""The op of the peak, and findings about its largest tensor and tensors that could be smaller or absent.

Accumulated gradients: unless one micro-batch waits for the previous one, the executor may run all
backward passes first and add up afterwards, so the gradients of all micro-batches are alive together.
The same happens to a weight with several uses, whose partial gradients wait for one ``AddN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import pandas as pd

from analyzer.explain.analysis import (
    LOW,
    MEDIUM,
    PERSISTENT,
    Analysis,
    saved_without,
    severity_of,
)
from analyzer.explain.buffer_words import (
    buffer_row,
    describe_buffer,
    evidence_row,
    in_brackets,
    is_passing,
    is_retained,
    why_alive,
)
from analyzer.explain.running.leaks import tensors_left
from analyzer.model.choice import Category
from analyzer.model.contract.report.peak_figures import BufferRow
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.graph.host_copies import MOVES, SCALES
from analyzer.model.recording.attribution import HOST_COPY_ROLE
from analyzer.model.recording.records import Finding, Severity, Step
from analyzer.model.units import format_bytes

_GRADIENT_ROWS: Final = 20
_LARGE_RATIO: Final = 0.2  # share of the peak from which on a single tensor is reported


def peak_op(analysis: Analysis) -> tuple[str, str, str]:
    """Return op, layer and source line of the allocation at the requested peak."""
    born = analysis.rows[analysis.rows["born"] == analysis.peak.requested_instant]
    if born.empty:
        return "", "", ""

    row = born.iloc[0]
    return str(row["op"]), str(row["layer"]), str(row["source"])


def find_largest(analysis: Analysis) -> Iterator[Finding]:
    """Report a single tensor that is a large share of the peak, and the saving of half of it.

    ``retained_tensors`` reports activations kept for the backward pass.
    """
    alive, peak = analysis.alive, analysis.peak.requested_bytes
    step = analysis.recording.step_config
    is_skipped = alive["category"].isin({*PERSISTENT, Category.WORKSPACE.value})
    if not step.infers:
        is_skipped |= is_retained(alive)

    # The sum of all memory from before the trace is no tensor.
    is_unknown = alive["category"] == Category.UNATTRIBUTED.value
    is_skipped |= is_unknown & alive["address"].isna() & (alive["born"] < 0)
    alive = alive[~is_skipped]
    if alive.empty:
        return

    row = alive.loc[alive["requested_bytes"].idxmax()]
    size = int(row["requested_bytes"])
    saves = saved_without(analysis, [size // 2], [row["born"]], [row["dies"]])
    if not size or size < _LARGE_RATIO * peak or saves < MEDIUM * peak:
        return

    tensor = buffer_row(row, BufferRow)
    first_axis = tensor.shape.strip("[]").split(",")[0]
    half = "Processing it in two halves, one after the other,"
    if step.batch_size and first_axis == str(step.batch_size):
        half = "Its first axis is the batch: half the batch size"

    shape = f"shape {tensor.shape}" if tensor.shape else ""
    known = ", ".join(filter(None, (format_bytes(size), shape, tensor.dtype)))

    yield Finding(
        id="large-tensor",
        severity=severity_of(saves, peak),
        title=f"One tensor is {size / peak:.0%} of the peak: {tensor.name} ({known})",
        detail=f"{half} lowers the peak to {format_bytes(peak - saves)}.",
        saves_bytes=saves,
        evidence=(describe_buffer(row),),
    )


def find_gradient_copies(analysis: Analysis) -> Iterator[Finding]:
    """Report variables with more than one live gradient at the peak."""
    copies = sorted(
        _gradient_copies(analysis), key=lambda rows: -rows["requested_bytes"].sum()
    )
    if not copies:
        return

    table, peak = pd.concat(copies), analysis.peak.requested_bytes
    gone = table.dropna(subset="next")
    saves = saved_without(analysis, gone["requested_bytes"], gone["next"], gone["dies"])
    if saves < LOW * peak:
        return

    total, others, first = (
        int(table["requested_bytes"].sum()),
        len(copies) - 1,
        copies[0].iloc[0],
    )

    size = f"{format_bytes(total)} ({total / peak:.0%} of the peak)"
    if others:
        size = f"with {others} other variable{'s' * (others > 1)} {size}"

    yield Finding(
        id="gradient-copies",
        severity=severity_of(saves, peak),
        title=f"{first['each']} gradients of {first['of']} are alive together: {size}",
        detail=(
            "They come from several micro-batches or several uses of one weight, and "
            "none waits until the previous one is added. Keep one gradient at a time:"
            " put tf.control_dependencies on the last assign_add around the next "
            "micro-batch, use a tf.while_loop with parallel_iterations=1, or call the"
            " tf.function for each micro-batch. The saving assumes that each gradient"
            " is freed at the birth of the next one."
        ),
        saves_bytes=saves,
        evidence=tuple(
            describe_buffer(
                row, of=row["of"], why_alive=why_alive(row, analysis.uses.get(index))
            )
            for index, row in table.head(_GRADIENT_ROWS).iterrows()
        ),
    )


def _gradient_copies(analysis: Analysis) -> Iterator[pd.DataFrame]:
    """Yield the gradients of variables that have several at the peak, in order of birth.

    Variables of one layer with the same shape are one table. The new columns are ``of`` (the
    variables), ``each`` (gradients of each) and ``next`` (birth of the variable's next gradient).
    """
    alive = analysis.alive
    is_variable, category = alive["variable"] != "", alive["category"]
    key = ["layer", "shape", "dtype"]  # which a gradient and its variable share
    parameters = alive[is_variable & (category == Category.PARAMETER.value)]
    owners = parameters.groupby(key, observed=True)["variable"].unique().to_dict()
    gradients = alive[
        ~is_variable & (category == Category.GRADIENT.value) & ~is_passing(alive)
    ]

    for shared, rows in gradients.groupby(key, observed=True, sort=False):
        variables = sorted(map(str, owners.get(shared, ())))
        each = len(rows) // max(len(variables), 1)
        if variables and each > 1:
            rows = rows.sort_values("born", kind="stable")
            later = rows["born"].shift(-len(variables))
            yield rows.assign(of=" and ".join(variables), each=each, next=later)


_LEAST_BYTES: Final = 1 << 20
_LEAST_RATIO: Final = 0.05
"""float64 and dense gradients are reported above both: bytes, and a share of the peak."""

_COPIES_RATIO: Final = 0.1  # share of the peak above which input copies are reported

_TENSORS: Final = 8
_LOADER: Final = "IteratorGetNext"
_ITEM_BYTES: Final = (1, 2, 4, 8)


def find_wide_numbers(analysis: Analysis) -> Iterator[Finding]:
    """Report float64 tensors that are a large part of the peak."""
    rows = analysis.alive[analysis.alive["dtype"].astype(str) == "float64"]
    if not _is_large(rows, analysis, _LEAST_RATIO):
        return

    finding = _report_tensors(rows, "are float64")

    yield replace(
        finding,
        id="float64",
        detail="NumPy's default is float64, and TensorFlow keeps the type. Use "
        "float32, which takes half: array.astype('float32'), tf.constant(x, "
        "tf.float32), or dtype= when the data is read.",
        saves_bytes=_sum_of(rows) // 2,
    )


def find_dense_gradients(analysis: Analysis) -> Iterator[Finding]:
    """Report gradients of embedding tables that are as large as the tables.

    The gradient of a lookup has few rows (``IndexedSlices``). If an op needs it as a tensor, TensorFlow
    sums the rows into a tensor of the table's shape (``UnsortedSegmentSum``,
    ``_indexed_slices_to_tensor`` in ``indexed_slices.py``).
    """
    alive = analysis.alive
    kinds = (
        alive["op_type"]
        .astype(str)
        .where(alive["op_type"] != "", alive["op"].astype(str))
    )

    shapes = alive["shape"].astype(str)
    tables = set(shapes[alive["category"] == "parameter"]) - {""}
    rows = alive[kinds.str.startswith("UnsortedSegmentSum") & shapes.isin(tables)]
    if not _is_large(rows, analysis, _LEAST_RATIO):
        return

    finding = _report_tensors(rows, "are dense gradients of embedding tables")

    yield replace(
        finding,
        id="dense-gradient",
        detail="The gradient of a lookup has few rows, but something converts it to a "
        "tensor of the table's shape: gradient accumulation, clipping by the global "
        "norm, the loss scaling of mixed precision, or an optimizer without a sparse "
        "update. Keep the gradient sparse, or use an optimizer with a sparse update.",
        saves_bytes=_sum_of(rows),
    )


def find_input_copies(analysis: Analysis, watch: WatchNote) -> Iterator[Finding]:
    """Report copies of the step's inputs that are alive at the peak."""
    if analysis.step is None:
        return

    rows = _find_copies(analysis, analysis.step).sort_values(
        "requested_bytes", ascending=False
    )
    if not _is_large(rows, analysis, _COPIES_RATIO):
        return

    makers = dict.fromkeys(
        str(row.op_type or row.op) for row in rows.head(_TENSORS).itertuples()
    )
    left = tensors_left(analysis)
    addresses = set(
        left.loc[left["op"].isin(set(rows["op"])), "address"].astype("int64")
    )
    holders = (one.where for one in watch.held if addresses.intersection(one.addresses))
    where = next(holders, watch.where)
    finding = _report_tensors(
        rows, f"are copies of the input, made by {', '.join(makers)}", where
    )

    yield replace(
        finding,
        id="input-copies",
        detail="Each copy has as many elements as the input. Convert type, order and "
        "scale before the step: in the map of tf.data, which frees the original, or "
        "once for the whole data set.",
    )


def _sum_of(rows: pd.DataFrame) -> int:
    return int(rows["requested_bytes"].sum())


def _is_large(rows: pd.DataFrame, analysis: Analysis, least_ratio: float) -> bool:
    """Return whether tensors are at least 1 MiB and a share of the peak."""
    return _sum_of(rows) >= max(
        _LEAST_BYTES, least_ratio * analysis.peak.requested_bytes
    )


def _report_tensors(tensors: pd.DataFrame, title: str, else_where: str = "") -> Finding:
    """Return a finding without a name and a detail about tensors at the peak.

    ``else_where`` is a line of code if no tensor has a known one.
    """
    largest = tensors.sort_values("requested_bytes", ascending=False).head(_TENSORS)
    where = next((str(one) for one in largest["source"] if str(one)), else_where)

    evidence = tuple(
        evidence_row(
            f"{row['dtype']} {row['shape']}",
            name=str(row["tensor"] or row["op"]),
            where=str(row["source"]),
            size=int(row["requested_bytes"]),
        )
        for row in largest.to_dict("records")
    )

    title = f"{format_bytes(_sum_of(tensors))} of the peak {title}{in_brackets(where)}"
    return Finding(
        id="", severity=Severity.MEDIUM, title=title, detail="", evidence=evidence
    )


def _find_copies(analysis: Analysis, step: Step) -> pd.DataFrame:
    """Return a step's copies at the peak, known by the graph, or by their size and outside layers."""
    least_bytes = _LEAST_BYTES // _TENSORS
    rows = analysis.rows[analysis.rows["requested_bytes"] >= least_bytes]
    is_fed = (rows["role"] == HOST_COPY_ROLE) | (rows["op"] == _LOADER)
    fed = rows.loc[
        is_fed & (rows["step"] == step.index).fillna(False), "requested_bytes"
    ]
    sizes = set()
    for size, item, other in product(fed.unique(), _ITEM_BYTES, _ITEM_BYTES):
        sizes.add(int(size) * item // other)  # the same elements in another type

    alive = analysis.alive[(analysis.alive["step"] == step.index).fillna(False)]
    by_graph = [index for index, use in analysis.uses.items() if use.copied_by]
    is_large = alive["requested_bytes"] >= least_bytes
    is_copying = alive["op"].isin(MOVES | SCALES) & (alive["layer"] == "")
    is_alike = is_large & is_copying & alive["requested_bytes"].isin(sizes)
    return alive[alive.index.isin(by_graph) | is_alike]
