"""The consumers of a buffer, and the one that runs last."""

from dataclasses import dataclass

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
    last_use_ps: int | None = None  # end of that consumer; None if unknown
    consumers: int = 0
    copied_by: str = (
        ""  # op type that copied an input of the step into it; empty for none
    )


def find_uses(
    rows: pd.DataFrame,
    structure: GraphIndex | None,
    sharing: Sharing | None,
    op_runs: pd.DataFrame,
    step: Step | None,
) -> dict[int, BufferUse]:
    """Return the uses of the buffers in ``rows``, by their index in the allocations table.

    ``step`` is None for the whole trace.
    """
    if structure is None or sharing is None:
        return {}
    if step is not None and step.start_ps is not None and step.end_ps is not None:
        op_runs = op_runs[op_runs["start_ps"].between(step.start_ps, step.end_ps)]
    ends = {
        op: int(end)
        for op, end in op_runs.groupby("op", observed=True)["end_ps"].max().items()
    }
    order = {name: number for number, name in enumerate(structure.ops)}
    copies = find_copies_of_inputs(structure)
    uses = {}
    for index, tensor in rows["tensor"].items():
        names = list(sharing.consumers(str(tensor))) if tensor else []
        if names:
            last = max(names, key=lambda name: (ends.get(name, -1), order[name]))
            uses[int(index)] = BufferUse(
                waits_for=last,
                waits_for_type=structure.ops[last].type,
                last_use_ps=ends.get(last),
                consumers=len(names),
                copied_by=copies.get(str(tensor), ""),
            )
    return uses
