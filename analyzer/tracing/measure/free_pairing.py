"""Events to buffers: put simultaneous events in order and match frees with allocations.

An allocator acts under a lock, but if the clock is coarse, events of several threads have the same
time, and the trace stores each thread's events apart. The bytes in use in each event show their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analyzer.model.recording.records import ALLOCATIONS, conform, text_category
from analyzer.model.recording.timeline import UNPAIRED, pair_events
from analyzer.model.units import round_up


def pair_frees(events: pd.DataFrame) -> pd.DataFrame:
    """Return the buffers of ``events`` (columns of ``EVENTS``), without attribution.

    Contradictions are repaired here and reported by ``trace_checks``.
    """
    count = len(events)
    birth = events["kind"].to_numpy() > 0

    partner, _ = pair_events(
        events["kind"].to_numpy(),
        events["address"].to_numpy(),
        events["allocator"].cat.codes.to_numpy(),
    )

    # The event that describes a buffer: its allocation, or its free if it is from before the trace.
    describes = birth | (partner == UNPAIRED)
    origin = np.flatnonzero(describes)
    is_born = birth[origin]
    born = np.where(is_born, origin, -1)
    dies = np.where(is_born, count, origin)

    ending = np.flatnonzero(partner != UNPAIRED)
    row = np.cumsum(describes) - 1
    dies[row[partner[ending]]] = ending

    # The last entry is that of no event.
    times = np.append(events["time_ps"].to_numpy(), 1)

    def choose_text(name: str) -> pd.Categorical:
        texts = [*map(str, events[name].cat.categories), ""]
        codes = events[name].cat.codes.to_numpy()[origin]

        return text_category(np.where(is_born, codes, len(texts) - 1), texts)

    nothing = np.zeros(len(origin), np.int8)
    empty = pd.Categorical.from_codes(nothing, [""])
    unattributed = pd.Categorical.from_codes(nothing.copy(), ["unattributed"])

    missing = pd.arrays.IntegerArray(
        np.zeros(len(origin), np.int64),
        np.ones(len(origin), bool),
    )

    run_ids = events["run_id"].to_numpy()[origin]

    numbers = ("address", "requested_bytes", "allocated_bytes")
    from_free = ("op_type", "layer", "source", "tensor", "variable", "role")

    columns: dict[str, Any] = {
        "allocator": events["allocator"].iloc[origin].reset_index(drop=True),
        **{name: events[name].to_numpy()[origin] for name in numbers},
        "born": born,
        "dies": dies,
        "born_ps": pd.arrays.IntegerArray(times[born], ~is_born),
        "dies_ps": pd.arrays.IntegerArray(times[dies], dies == count),
        "step": missing,
        "run_id": np.where(is_born, run_ids, 0),
        # A free has the name of the op that was running, which is unrelated to the buffer.
        **{name: choose_text(name) for name in ("op", "region", "dtype", "shape")},
        **dict.fromkeys(from_free, empty),
        "category": unattributed,
        "turns_at": missing,
    }

    return conform(pd.DataFrame(columns, copy=False), ALLOCATIONS)


def add_earlier_buffers(
    events: pd.DataFrame,
    allocations: pd.DataFrame,
    *known: Mapping[int, int],
) -> pd.DataFrame:
    """Return ``allocations`` with rows for buffers from before the trace.

    ``known`` are groups (address -> requested bytes) without events; each is added whole or not at all.
    """
    old = allocations[allocations["born"] < 0]
    freed = old.groupby("allocator", observed=True)["allocated_bytes"].sum()
    first = events.drop_duplicates("allocator")
    before = first["in_use_bytes"] - first["kind"] * first["allocated_bytes"]
    names = first["allocator"].astype(str)

    rows: list[tuple[str, Any, int, int]] = []
    waiting = list(known)

    for name, size_bytes in zip(names, before.tolist(), strict=True):
        left = size_bytes - int(freed.get(name, 0))

        for group in tuple(waiting) if left > 0 else ():
            # Values from NumPy are not in the allocator: if not all fit, add none.
            chunks = [(name, at, size, round_up(size)) for at, size in group.items()]
            total = sum(chunk for *_, chunk in chunks)

            if total <= left:
                waiting.remove(group)
                rows += chunks
                left -= total

        if left > 0:
            rows.append((name, pd.NA, left, left))

    if not rows:
        return allocations

    columns = ["allocator", "address", "requested_bytes", "allocated_bytes"]
    more = pd.DataFrame(rows, columns=columns).assign(
        born=-1,
        dies=len(events),
        run_id=0,
        category="unattributed",
    )

    for column in allocations.columns.difference(more.columns):
        is_text = ALLOCATIONS[column] == "category"
        more[column] = "" if is_text else pd.NA

    added = conform(more, ALLOCATIONS)

    return pd.DataFrame(
        {name: _join(allocations[name], added[name]) for name in allocations},
        copy=False,
    )


def _join(column: pd.Series[Any], more: pd.Series[Any]) -> Any:
    """Return a column with the rows of another one of the same dtype appended."""
    if str(column.dtype) == "category":
        return pd.api.types.union_categoricals([column, more], sort_categories=True)

    return pd.concat([column, more], ignore_index=True)
