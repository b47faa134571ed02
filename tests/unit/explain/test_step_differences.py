"""A batch that no buffer of the allocator holds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
from builders import sample_folder

from analyzer.explain.analysis import Analysis
from analyzer.explain.running.step_differences import describe_uncounted_batch
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.buffer_sharing import ITERATOR
from analyzer.model.recording.records import Step
from analyzer.model.recording.timeline import timeline
from analyzer.session.opening import open_result

MIB = 1 << 20


def analysis_of(rows: list[tuple[str, int, int, int]], batch: Op | None) -> Analysis:
    """Return an analysis of three steps of 100 instants; rows are op, bytes, birth and death."""
    analysis = open_result(sample_folder("cnn"), search=False).analysis
    ops, sizes, born, dies = zip(*rows, strict=True)
    table = analysis.rows.head(1).loc[[analysis.rows.index[0]] * len(rows)]
    table = table.reset_index(drop=True).assign(
        op=pd.Categorical(ops),
        requested_bytes=sizes,
        allocated_bytes=sizes,
        born=born,
        dies=dies,
        step=[one // 100 for one in born],
        category="activation",
        shape="[32,8]",
        part_of=pd.NA,
        turns_at=pd.NA,
        variable="",
    )
    graph = {name: Op(name=name, type="Relu") for name in set(ops)}
    if batch is not None:
        graph[batch.name] = batch

    steps = tuple(
        Step(index=k, number=None, first=100 * k, last=100 * k + 99) for k in range(3)
    )
    recording = replace(
        analysis.recording, steps=steps, structure=SimpleNamespace(ops=graph)
    )
    return replace(
        analysis,
        recording=recording,
        rows=table,
        line=timeline(table, 300),
        alive=table,
    )


def test_a_batch_in_numpys_memory_is_named_with_its_size() -> None:
    # the sample has batch 16, and a row takes 64 KiB
    batch = Op(
        name="next", type=ITERATOR, outputs=(TensorSpec("float32", (-1, 1024, 16)),)
    )
    rows = [("a", 4 * MIB, 110, 120), ("a", 4 * MIB, 210, 220)]
    (said,) = describe_uncounted_batch(analysis_of(rows, batch))
    assert said.startswith("The batch (1.00 MiB)")
