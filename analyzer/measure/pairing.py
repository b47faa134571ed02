"""Match each free to its allocation: events in, lived buffers out.

A free carries no op name, only the address. Within one allocator an address is free again only after
its free, so walking the events in order and remembering who holds each address is exact:

    + 0x100 a    a is born
    - 0x100      a dies
    + 0x100 b    b is born at the same address
    - 0x200      a free of something that was alive before the trace began: born = -1
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analyzer.schema import ALLOCATIONS, conform


def pair(events: pd.DataFrame) -> pd.DataFrame:
    """Return the buffers that ``events`` speak of, with their lives.

    What does not fit is put right here and told by :mod:`analyzer.measure.books`.

    Args:
        events: Table with the columns of :data:`analyzer.schema.EVENTS`.

    Returns:
        A table with the columns of :data:`analyzer.schema.ALLOCATIONS`; those of the attribution are
        still empty.
    """
    kinds = events["kind"].to_numpy()
    addresses = events["address"].to_numpy()
    allocators = events["allocator"].cat.codes.to_numpy()
    count = len(events)

    holders: dict[tuple[int, int], int] = {}
    origin: list[int] = []  # the event that describes the buffer: its birth, or the free if born -1
    born: list[int] = []
    dies: list[int] = []
    for instant in range(count):
        key = (int(allocators[instant]), int(addresses[instant]))
        holder = holders.pop(key, None)
        if kinds[instant] > 0:
            if holder is not None:
                # A free was lost (another process's events, a cut trace): close the old buffer here.
                dies[holder] = instant
            holders[key] = len(origin)
            origin.append(instant)
            born.append(instant)
            dies.append(count)
        elif holder is not None:
            dies[holder] = instant
        else:
            origin.append(instant)
            born.append(-1)
            dies.append(instant)
    return _table(events, np.asarray(origin, np.int64), np.asarray(born), np.asarray(dies))


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
