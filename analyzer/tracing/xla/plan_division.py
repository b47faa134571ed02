"""Division of a compiled step's buffer into the values inside it.

The allocator sees one request for all temporaries. To show the values, *moments* are inserted between
the events of the buffer's birth and death (rows of kind 0 in the events table), and rows into the
allocations table, each ``part_of`` the buffer's row:

- a row for each value, alive between the moments of the compiler's heap trace;
- rows for idle bytes: gaps between values and the surplus of the chunk.

At every moment the parts add up to the buffer, requested and allocated, so that sums over the table
without divided rows do not change. A replay of the allocator uses the rows that are no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, IDLE_ROLE, conform
from analyzer.tracing.xla.buffer_plan import PlanRegion, occupied_bytes

MAX_PARTS: Final = 100_000
"""Limit of the added rows: in a long trace only the last steps are divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One buffer to divide: its row's label, its values, and the columns of each value."""

    row: int
    region: PlanRegion
    labels: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Divided:
    """The tables and steps with moments and parts."""

    allocations: pd.DataFrame
    events: pd.DataFrame
    steps: tuple[Step, ...]


def divide(
    allocations: pd.DataFrame,
    events: pd.DataFrame,
    steps: Sequence[Step],
    divisions: Sequence[Division],
) -> Divided:
    """Insert moments and parts; no two divisions have the same instant of birth."""
    chosen = _limit_divisions(divisions)
    if not chosen:
        return Divided(allocations, events, tuple(steps))
    born = allocations["born"].to_numpy()
    chosen = sorted(chosen, key=lambda division: int(born[division.row]))
    at = np.asarray([born[division.row] for division in chosen], dtype=np.int64)
    count = np.asarray([division.region.moments for division in chosen], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(count)])

    def shift(instants: Any) -> Any:
        return instants + before[np.searchsorted(at, instants, side="left")]

    turns = allocations["turns_at"].astype("Int64")
    table = allocations.assign(
        born=shift(born),
        dies=shift(allocations["dies"].to_numpy()),
        turns_at=turns + (shift(turns.fillna(0).to_numpy("int64")) - turns.fillna(0)),
    )
    parts = [
        _list_parts(table, division, int(shift(instant)) + 1)
        for division, instant in zip(chosen, at, strict=True)
    ]
    joined = pd.concat([table.astype(object), *parts], ignore_index=True)
    return Divided(
        conform(joined, ALLOCATIONS),
        _insert_moments(events, at, count),
        tuple(
            replace(step, first=int(shift(step.first)), last=int(shift(step.last)))
            for step in steps
        ),
    )


def _limit_divisions(divisions: Sequence[Division]) -> list[Division]:
    chosen: list[Division] = []
    total = 0
    for division in reversed(divisions):
        total += 2 * len(division.region.holders) + division.region.moments
        if chosen and total > MAX_PARTS:
            break
        chosen.append(division)
    return chosen


def _list_parts(table: pd.DataFrame, division: Division, first: int) -> pd.DataFrame:
    """Return the rows inside one buffer; its first moment is instant ``first``."""
    whole = table.loc[division.row]
    region = division.region
    last = int(whole["dies"])
    address = whole["address"]
    common = {
        **{name: "" for name, column in ALLOCATIONS.items() if column.dtype == "category"},
        **{name: whole[name] for name in ("allocator", "step", "run_id")},
        **dict.fromkeys(("address", "born_ps", "dies_ps", "turns_at"), pd.NA),
        "region": "temp",
        "part_of": division.row,
    }
    rows = [
        {
            **common,
            "requested_bytes": holder.size_bytes,
            "allocated_bytes": holder.size_bytes,
            "born": first + holder.first,
            "dies": last if holder.last >= region.moments else first + holder.last,
            "address": pd.NA if pd.isna(address) else int(address) + holder.offset_bytes,
            "dtype": holder.dtype,
            "shape": "" if holder.shape is None else f"[{','.join(map(str, holder.shape))}]",
            "instruction": holder.instruction,
            **label,
        }
        for holder, label in zip(region.holders, division.labels, strict=True)
    ]
    surplus = max(int(whole["allocated_bytes"]) - region.size_bytes, 0)
    occupied = [0, *occupied_bytes(region)]  # entry 0: before the module begins
    starts = [0, *(i for i in range(1, len(occupied)) if occupied[i] != occupied[i - 1])]
    for start, end in zip(starts, [*starts[1:], len(occupied)], strict=True):
        idle = region.size_bytes - occupied[start]
        if idle or surplus:
            rows.append(
                {
                    **common,
                    "requested_bytes": idle,
                    "allocated_bytes": idle + surplus,
                    "born": first - 1 + start,
                    "dies": last if end == len(occupied) else first - 1 + end,
                    "op": whole["op"],
                    "op_type": whole["op_type"],
                    "category": Category.TEMPORARY.value,
                    "role": IDLE_ROLE,
                }
            )
    return pd.DataFrame(rows, dtype=object)


def _insert_moments(events: pd.DataFrame, at: np.ndarray, count: np.ndarray) -> pd.DataFrame:
    """Return the events with moments after each row in ``at``, with interpolated times."""
    total = len(events)
    counts = np.zeros(total, dtype=np.int64)
    counts[at] = count
    source = np.repeat(np.arange(total), 1 + counts)
    place = np.arange(len(source)) - np.searchsorted(source, source, side="left")
    times = events["time_ps"].to_numpy()
    gaps = times[np.minimum(source + 1, total - 1)] - times[source]
    between = times[source] + (gaps * (place / (1 + counts[source]))).astype(np.int64)
    grown = events.iloc[source].reset_index(drop=True)
    kinds = np.where(place > 0, 0, grown["kind"].to_numpy())
    times = np.where(place > 0, between, times[source])
    return conform(grown.assign(kind=kinds, time_ps=times), EVENTS)
