"""The requests of compiled functions that a step calls, which name no op.

A call requests its results and temporaries in the order of XLA's assignment, on one thread. Calls with
equal assignments are in the order of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from analyzer.model.graph.graph_index import GraphIndex, find_inlined
from analyzer.tracing.measure.attribution import match_output
from analyzer.tracing.parse.xplane import RawTrace
from analyzer.tracing.xla.buffer_plan import BufferPlan, ValueUse
from analyzer.tracing.xla.trace_modules import match_requests


def find_calls(
    plans: Mapping[str, BufferPlan], structure: GraphIndex | None
) -> dict[str, BufferPlan]:
    """Return the plans by the op of the executed graph, which may have its caller's name as prefix."""
    ops = structure.ops.values() if structure is not None else ()
    calls = (op.name for op in ops if op.attrs.get("_XlaMustCompile"))
    return {name: plan for name in calls if (plan := find_inlined(name, plans)) is not None}


def name_call_requests(
    table: pd.DataFrame,
    raw: RawTrace,
    calls: Mapping[str, BufferPlan],
    structure: GraphIndex | None,
) -> pd.DataFrame:
    """Return the table with op, region and tensor of the calls' requests; ``calls`` are by op."""
    if structure is None or not calls:
        return table
    names = ("op", "region", "tensor", "dtype", "shape")
    columns = {name: table[name].astype(object).to_numpy().copy() for name in names}
    steps = table["step"].fillna(-1).tolist()
    turns: Counter[tuple[int, str]] = Counter()
    for rows, fits in match_requests(table, raw, calls):
        turn = steps[rows[0]], fits[0][0]
        name, regions = fits[turns[turn] % len(fits)]
        turns[turn] += 1
        used: set[int] = set()
        for row, region in zip(rows, regions, strict=True):
            is_result = region.use is ValueUse.OUTPUT and not region.is_tuple
            size = region.size_bytes
            tensor = match_output(structure.ops[name], used, "", "", size) if is_result else ""
            facts = (name, "output" if tensor else "temp", tensor, region.dtype, "")
            for column, fact in zip(names, facts, strict=True):
                columns[column][row] = fact
    return table.assign(**{name: pd.Categorical(column) for name, column in columns.items()})
