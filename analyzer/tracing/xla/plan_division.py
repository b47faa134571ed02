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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.errors import AccountingError
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, IDLE_ROLE, conform
from analyzer.tracing.xla.buffer_plan import PlanRegion, occupied_bytes

MAX_PARTS: Final = 100_000
"""Limit of the added rows: in a long trace only the last steps are divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The attribution of one value."""

    op: str
    op_type: str
    layer: str
    source: str
    tensor: str
    category: Category
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One buffer to divide.

    Attributes:
        row: Its label in the allocations table.
        region: The values in it.
        labels: One for each of the region's holders.
    """

    row: int
    region: PlanRegion
    labels: Sequence[Label]


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
    """Insert moments and parts.

    Args:
        allocations: Columns of ``ALLOCATIONS``, index 0, 1, 2 and so on.
        events: Columns of ``EVENTS``.
        steps: The steps.
        divisions: The buffers to divide; no two have the same instant of birth.

    Raises:
        AccountingError: The parts of a buffer do not add up to it.
    """
    chosen = _limit_divisions(divisions)
    if not chosen:
        return Divided(allocations, events, tuple(steps))
    born = allocations["born"].to_numpy()
    chosen = sorted(chosen, key=lambda division: int(born[division.row]))
    at = np.asarray([born[division.row] for division in chosen], dtype=np.int64)
    count = np.asarray([division.region.moments for division in chosen], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(count)])

    def shift(instants: np.ndarray) -> np.ndarray:
        offset: np.ndarray = before[np.searchsorted(at, instants, side="left")]
        return np.asarray(instants + offset)

    table = allocations.assign(
        born=shift(born),
        dies=shift(allocations["dies"].to_numpy()),
        turns_at=_shift_turns(allocations["turns_at"], shift),
    )
    parts = [
        _parts(table, division, int(shift(np.asarray([instant]))[0]) + 1)
        for division, instant in zip(chosen, at, strict=True)
    ]
    joined = pd.concat([table.astype(object), *parts], ignore_index=True)
    return Divided(
        conform(joined, ALLOCATIONS),
        _insert_moments(events, at, count),
        tuple(
            replace(
                step,
                first=int(shift(np.asarray([step.first]))[0]),
                last=int(shift(np.asarray([step.last]))[0]),
            )
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


def _shift_turns(turns: pd.Series[int], shift: Any) -> pd.Series[int]:
    known = turns.notna().to_numpy()
    values = turns.fillna(0).to_numpy(dtype=np.int64)
    return pd.Series(
        pd.arrays.IntegerArray(np.where(known, shift(values), 0), ~known), index=turns.index
    )


def _parts(table: pd.DataFrame, division: Division, first: int) -> pd.DataFrame:
    """Return the rows inside one buffer; its first moment is instant ``first``."""
    whole = table.loc[division.row]
    region = division.region
    last = int(whole["dies"])
    if last < first + region.moments:
        raise AccountingError(f"a buffer of {region.size_bytes} B is freed before its last moment")
    if int(whole["requested_bytes"]) != region.size_bytes:
        raise AccountingError(
            f"the plan has a buffer of {region.size_bytes} B, the row {whole['requested_bytes']} B"
        )
    address = whole["address"]
    rows = [
        _row(whole, division.row, holder.size_bytes, holder.size_bytes)
        | {
            "born": first + holder.first,
            "dies": last if holder.last >= region.moments else first + holder.last,
            "address": pd.NA if pd.isna(address) else int(address) + holder.offset_bytes,
            "op": label.op,
            "op_type": label.op_type,
            "layer": label.layer,
            "source": label.source,
            "tensor": label.tensor,
            "dtype": holder.dtype,
            "shape": "" if holder.shape is None else f"[{','.join(map(str, holder.shape))}]",
            "category": str(label.category),
            "role": label.role,
            "instruction": holder.instruction,
        }
        for holder, label in zip(region.holders, division.labels, strict=True)
    ]
    surplus = int(whole["allocated_bytes"]) - region.size_bytes
    occupied = [0, *occupied_bytes(region)]  # entry 0: before the module begins
    starts = [0, *(i for i in range(1, len(occupied)) if occupied[i] != occupied[i - 1])]
    ends = [*starts[1:], len(occupied)]
    for start, end in zip(starts, ends, strict=True):
        idle = region.size_bytes - occupied[start]
        if idle < 0:
            raise AccountingError(
                f"values exceed their buffer of {region.size_bytes} B by {-idle} B"
            )
        if idle or surplus > 0:
            rows.append(
                _row(whole, division.row, idle, idle + max(surplus, 0))
                | {
                    "born": first - 1 + start,
                    "dies": last if end == len(occupied) else first - 1 + end,
                    "op": whole["op"],
                    "op_type": whole["op_type"],
                    "category": Category.TEMPORARY.value,
                    "role": IDLE_ROLE,
                }
            )
    return pd.DataFrame(rows, dtype=object)


def _row(
    whole: pd.Series[Any], part_of: int, requested_bytes: int, allocated_bytes: int
) -> dict[str, Any]:
    return {
        **{name: "" for name, column in ALLOCATIONS.items() if column.dtype == "category"},
        "allocator": whole["allocator"],
        "address": pd.NA,
        "requested_bytes": requested_bytes,
        "allocated_bytes": allocated_bytes,
        "born_ps": pd.NA,
        "dies_ps": pd.NA,
        "step": whole["step"],
        "run_id": whole["run_id"],
        "region": "temp",
        "turns_at": pd.NA,
        "part_of": part_of,
    }


def _insert_moments(events: pd.DataFrame, at: np.ndarray, count: np.ndarray) -> pd.DataFrame:
    """Return the events with moments after each row in ``at``, with interpolated times."""
    total = len(events)
    source = np.repeat(np.arange(total), 1 + _counts(total, at, count))
    place = np.arange(len(source)) - np.searchsorted(source, source, side="left")
    grown = events.iloc[source].reset_index(drop=True)
    moment = place > 0
    times = events["time_ps"].to_numpy()
    after = times[np.minimum(source + 1, total - 1)]
    share = place / (1 + _counts(total, at, count)[source])
    between = times[source] + ((after - times[source]) * share).astype(np.int64)
    kinds = grown["kind"].to_numpy().copy()
    kinds[moment] = 0
    grown = grown.assign(kind=kinds, time_ps=np.where(moment, between, times[source]))
    return conform(grown, EVENTS)


def _counts(total: int, at: np.ndarray, count: np.ndarray) -> np.ndarray:
    counts = np.zeros(total, dtype=np.int64)
    counts[at] = count
    return counts
