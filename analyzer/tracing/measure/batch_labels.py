"""Labels of the batches that a data set makes for the step."""

from __future__ import annotations

from typing import Final

import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.host_copies import ITERATOR
from analyzer.tracing.measure.attribution import BATCH_ROLE, COPIED_BATCH
from analyzer.tracing.measure.attribution_labels import Labels, Mask

_RECEIVED: Final = "SameWorkerRecvDone"
"""Name that a copy between devices uses for its op (``rendezvous_mgr.cc``)."""


def label_batches(
    labels: Labels, allocations: pd.DataFrame, structure: GraphIndex, by_python: Mask
) -> None:
    """Label the batches of a data set: made in its own threads, or copied to the card in the step.

    A data set is not in the step's graph, and a copy has no name of its own. So the buffers are found by
    type and shape, which are those of the iterator's outputs.

    Args:
        by_python: Buffers requested on the thread that marks the steps, shape ``(n,)``.
    """
    outputs = {
        (spec.dtype, spec.shape_text): f"{op.name}:{index}"
        for op in structure.ops.values()
        if op.type == ITERATOR
        for index, spec in enumerate(op.outputs)
        if spec.shape
    }
    if not outputs:
        return
    columns = (allocations[name].astype(object) for name in ("op", "dtype", "shape"))
    for row, (name, dtype, shape) in enumerate(zip(*columns, strict=True)):
        tensor = outputs.get((dtype, shape)) or outputs.get(
            (dtype, f"[-1{shape[shape.find(',') :]}")
        )
        if not tensor or not name or name in structure.ops or not labels.is_open(row):
            continue
        if name == _RECEIVED:
            labels.set(row, Category.INPUT, role=COPIED_BATCH)
        elif not by_python[row]:
            labels.set(row, Category.INPUT, role=BATCH_ROLE)
        else:
            continue
        labels.tensor[row] = tensor
