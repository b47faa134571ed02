"""The consumers of a buffer, and the one that runs last."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.host_copies import find_copies_of_inputs
from analyzer.model.recording.records import Step


@dataclass(frozen=True, slots=True)
class BufferUse:
    """The uses of one buffer."""

    waits_for: str = ""  # the consumer that runs last; empty if unknown
    waits_for_type: str = ""
    consumers: int = 0
    copied_by: str = ""  # op type that copied an input of the step into it; empty for none


def find_uses(
    rows: pd.DataFrame,
    structure: GraphIndex | None,
    sharing: Sharing | None,
    op_runs: pd.DataFrame,
    step: Step | None,
) -> dict[int, BufferUse]:
    """Return the uses of the buffers in ``rows``, by their index in the allocations table.

    Args:
        step: The step to look at; None for the whole trace.
    """
    if structure is None or sharing is None:
        return {}
    ends = _last_ends(op_runs, step)
    order = {name: number for number, name in enumerate(structure.ops)}
    copies = find_copies_of_inputs(structure)
    uses = {}
    for index, tensor in rows["tensor"].items():
        if tensor:
            names = list(sharing.consumers(str(tensor)))
            if names:
                use = _use(names, structure, ends, order)
                uses[int(index)] = replace(use, copied_by=copies.get(str(tensor), ""))
    return uses


def _last_ends(op_runs: pd.DataFrame, step: Step | None) -> dict[str, int]:
    runs = op_runs
    if step is not None and step.start_ps is not None and step.end_ps is not None:
        runs = runs[(runs["start_ps"] >= step.start_ps) & (runs["start_ps"] <= step.end_ps)]
    return {
        str(op): int(end) for op, end in runs.groupby("op", observed=True)["end_ps"].max().items()
    }


def _use(
    names: list[str], structure: GraphIndex, ends: dict[str, int], order: dict[str, int]
) -> BufferUse:
    def when(name: str) -> tuple[int, int]:
        return ends.get(name, -1), order[name]

    last = max(names, key=when)
    return BufferUse(last, structure.ops[last].type, len(names))
