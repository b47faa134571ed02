"""Match each free to its allocation: events in, lived buffers out."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analyzer.recording.event_pairing import UNPAIRED, partners_of
from analyzer.recording.schema import ALLOCATIONS, conform


def pair(events: pd.DataFrame) -> pd.DataFrame:
    """Return the buffers that ``events`` speak of, with their lives.

    What does not fit is put right here and told by :mod:`analyzer.measure.checks.allocator_books`.

    Args:
        events: Table with the columns of :data:`analyzer.recording.schema.EVENTS`.

    Returns:
        A table with the columns of :data:`analyzer.recording.schema.ALLOCATIONS`; those of the
        attribution are still empty.
    """
    count = len(events)
    birth = events["kind"].to_numpy() > 0
    partner, _ = partners_of(
        events["kind"].to_numpy(),
        events["address"].to_numpy(),
        events["allocator"].cat.codes.to_numpy(),
    )
    # The event that describes a buffer: its birth, or its free where it was alive before the first.
    describes = birth | (partner == UNPAIRED)
    origin = np.flatnonzero(describes)
    born = np.where(birth[origin], origin, -1)
    dies = np.where(birth[origin], count, origin)
    ending = np.flatnonzero(partner != UNPAIRED)
    row = np.cumsum(describes) - 1
    dies[row[partner[ending]]] = ending
    return _table(events, origin, born, dies)


def _table(
    events: pd.DataFrame, origin: np.ndarray, born: np.ndarray, dies: np.ndarray
) -> pd.DataFrame:
    count = len(events)
    times = events["time_ps"].to_numpy()
    rows = events.iloc[origin].reset_index(drop=True)
    known_birth = born >= 0
    known_death = dies < count
    empty = pd.Categorical([""] * len(rows), categories=[""])
    born_ps = pd.array(times[np.maximum(born, 0)], dtype="Int64") if count else []
    dies_ps = pd.array(times[np.minimum(dies, count - 1)], dtype="Int64") if count else []
    table = pd.DataFrame(
        {
            "allocator": rows["allocator"],
            "address": rows["address"],
            "requested_bytes": rows["requested_bytes"],
            "allocated_bytes": rows["allocated_bytes"],
            "born": born,
            "dies": dies,
            "born_ps": pd.Series(born_ps, dtype="Int64").where(known_birth),
            "dies_ps": pd.Series(dies_ps, dtype="Int64").where(known_death),
            "step": pd.array([pd.NA] * len(rows), dtype="Int64"),
            "run_id": rows["run_id"].where(known_birth, 0),
            # A free carries the name of whatever op was running: it says nothing of the buffer.
            **{
                name: rows[name].astype(object).where(known_birth, "")
                for name in ("op", "region", "dtype", "shape")
            },
            **dict.fromkeys(("op_type", "layer", "source", "tensor", "variable", "role"), empty),
            "category": pd.Categorical(["unattributed"] * len(rows)),
            "turns_at": pd.array([pd.NA] * len(rows), dtype="Int64"),
        }
    )
    return conform(table, ALLOCATIONS)
