"""The consumers of a buffer, and the one that runs last."""

from typing import Final

import pandas as pd

from analyzer.model.graph.buffer_sharing import find_copies_of_inputs
from analyzer.model.recording.records import Recording, Step

NO_USE: Final = {"waits_for": "", "waits_for_type": "", "copied_by": ""}
"""Columns of a buffer without a known consumer."""


def with_uses(
    rows: pd.DataFrame,
    recording: Recording,
    step: Step | None,
) -> pd.DataFrame:
    """Return buffers with their columns of ``NO_USE`` filled in.

    They are the consumer that runs last, its op type, and the op type that copied an input of the step
    into the buffer. ``step`` is None for the whole trace.
    """
    structure = recording.structure
    sharing = recording.sharing
    op_runs = recording.op_runs

    if structure is None or sharing is None or op_runs is None:
        return rows

    if step is not None and step.start_ps is not None and step.end_ps is not None:
        op_runs = op_runs[op_runs["start_ps"].between(step.start_ps, step.end_ps)]

    last_ends = op_runs.groupby("op", observed=True)["end_ps"].max()
    ends = dict(zip(last_ends.index, last_ends.astype("int64").tolist(), strict=True))
    order = {name: number for number, name in enumerate(structure.ops)}
    copies = find_copies_of_inputs(structure)

    uses = []

    for tensor in rows["tensor"].astype(str):
        names = list(sharing.consumers(tensor)) if tensor else []
        if not names:
            uses.append(tuple(NO_USE.values()))
            continue

        last = max(names, key=lambda name: (ends.get(name, -1), order[name]))
        kind = structure.ops[last].type
        uses.append((last, kind, copies.get(tensor, "")))

    found = pd.DataFrame(uses, index=rows.index, columns=list(NO_USE))
    return rows.assign(**found)
