"""Bytes over time: running sums over the allocations, and the instants where they peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.model import Category, Recording


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes at every instant of one allocator.

    Every array has shape ``(n + 1,)`` for ``n`` events: entry ``i + 1`` is instant ``i`` and entry
    0 is instant -1, before the first event. Bytes, int64.

    Attributes:
        requested: Bytes that the live tensors asked for.
        allocated: Bytes of the chunks that hold them.
    """

    requested: np.ndarray
    allocated: np.ndarray

    def at(self, instant: int) -> tuple[int, int]:
        """Return requested and allocated bytes at ``instant``."""
        return int(self.requested[instant + 1]), int(self.allocated[instant + 1])


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest requested and allocated bytes in a stretch of instants, each with its instant."""

    requested_bytes: int
    requested_instant: int
    allocated_bytes: int
    allocated_instant: int


def running_sum(born: np.ndarray, dies: np.ndarray, sizes: np.ndarray, events: int) -> np.ndarray:
    """Return the live bytes at every instant, shape ``(events + 1,)``, entry 0 before the first.

    Args:
        born, dies: Instants of birth and death, int64, shape ``(n,)``.
        sizes: Bytes, int64, shape ``(n,)``.
        events: Number of events.
    """
    change = np.zeros(events + 2, dtype=np.int64)
    np.add.at(change, born + 1, sizes)
    np.subtract.at(change, dies + 1, sizes)
    return np.cumsum(change[:-1])


def timeline(allocations: pd.DataFrame, events: int) -> Timeline:
    """Return the timeline of ``allocations`` (one allocator's rows) over ``events`` instants."""
    born = allocations["born"].to_numpy()
    dies = allocations["dies"].to_numpy()
    return Timeline(
        running_sum(born, dies, allocations["requested_bytes"].to_numpy(), events),
        running_sum(born, dies, allocations["allocated_bytes"].to_numpy(), events),
    )


def peak_between(line: Timeline, first: int, last: int) -> Peak:
    """Return the peaks over the instants ``first`` to ``last``, both included.

    The two peaks may fall on different instants. Among equal requested peaks the one with the
    most allocated bytes is taken, then the first; for allocated peaks the first, as TensorFlow's
    own statistics do.
    """
    requested = line.requested[first + 1 : last + 2]
    allocated = line.allocated[first + 1 : last + 2]
    top = int(requested.max())
    candidates = np.flatnonzero(requested == top)
    at_requested = int(candidates[np.argmax(allocated[candidates])])
    at_allocated = int(np.argmax(allocated))
    return Peak(top, first + at_requested, int(allocated[at_allocated]), first + at_allocated)


def alive_at(allocations: pd.DataFrame, instant: int) -> pd.DataFrame:
    """Return the rows alive at ``instant``, with the category they have at that instant."""
    alive = allocations[(allocations["born"] <= instant) & (allocations["dies"] > instant)]
    later = (alive["turns_at"] > instant).fillna(False).to_numpy(dtype=bool)
    if not later.any():
        return alive
    categories = alive["category"].astype(object).to_numpy().copy()
    categories[later] = Category.TEMPORARY.value
    return alive.assign(category=pd.Categorical(categories))


def by_category(alive: pd.DataFrame, column: str = "requested_bytes") -> dict[str, int]:
    """Return bytes per category, every category present, in the order of :class:`Category`."""
    sums = alive.groupby("category", observed=True)[column].sum()
    return {category.value: int(sums.get(category.value, 0)) for category in Category}


def main_rows(recording: Recording) -> pd.DataFrame:
    """Return the allocations of the allocator that the recording is about."""
    table = recording.allocations
    return table[table["allocator"] == recording.allocator]
