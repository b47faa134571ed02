"""Bytes over time: running sums over the allocations, and their peaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.errors import TraceError
from analyzer.model.graph.graph_index import is_in_gradient_scope
from analyzer.model.recording.records import IDLE_ROLE, Recording, Step

Instants = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Timeline:
    """Live bytes of one allocator, shape ``(events + 1,)``: entry ``i + 1`` is instant ``i``."""

    requested: np.ndarray
    allocated: np.ndarray
    # requested bytes inside compiled steps' buffers that hold no value
    idle: np.ndarray

    def at(self, instant: int) -> tuple[int, int]:
        """Return requested and allocated bytes at ``instant``."""
        return int(self.requested[instant + 1]), int(self.allocated[instant + 1])


@dataclass(frozen=True)
class Peak:
    """The maximum of requested and of allocated bytes in a range of instants."""

    requested_bytes: int
    requested_instant: int
    allocated_bytes: int
    allocated_instant: int


def running_sum(
    born: Instants,
    dies: Instants,
    sizes: Instants,
    events: int,
) -> Instants:
    """Return the live bytes at every instant, shape ``(events + 1,)``, entry 0 before the first."""
    change = np.zeros(events + 2, np.int64)
    np.add.at(change, born + 1, sizes)
    np.subtract.at(change, dies + 1, sizes)

    return np.cumsum(change[:-1])


def category_codes(column: pd.Series[Any], names: list[str]) -> np.ndarray:
    """Return the index of each value in ``names``, -1 if absent, shape ``(rows,)``."""
    return np.asarray(column.astype("category").cat.set_categories(names).cat.codes)


def category_sums(table: pd.DataFrame, column: str, events: int) -> np.ndarray:
    """Return the live bytes of each category at every instant, shape ``(categories, events + 1)``.

    A buffer that changes its category later has that of ``earlier_categories`` until then.
    """
    names = [category.value for category in Category]
    codes = category_codes(table["category"], names)
    born, dies, sizes = (
        table[name].to_numpy(np.int64) for name in ("born", "dies", column)
    )

    turns = table["turns_at"].astype("Int64").fillna(table["born"]).to_numpy(np.int64)
    turns = np.clip(turns, born, dies)
    sums = np.zeros((len(names), events + 1), dtype=np.int64)

    for code in range(len(names)):
        own = codes == code
        sums[code] = running_sum(turns[own], dies[own], sizes[own], events)

    earlier = earlier_categories(table)
    for name in set(earlier):
        own = earlier == name
        sums[names.index(name)] += running_sum(
            born[own], turns[own], sizes[own], events
        )

    return sums


def timeline(allocations: pd.DataFrame, events: int) -> Timeline:
    """Return the timeline of one allocator's rows over ``events`` instants."""

    def add(rows: pd.DataFrame, column: str) -> Instants:
        born, dies, sizes = (rows[name].to_numpy() for name in ("born", "dies", column))
        return running_sum(born, dies, sizes, events)

    return Timeline(
        add(allocations, "requested_bytes"),
        add(allocations, "allocated_bytes"),
        add(allocations[allocations["role"] == IDLE_ROLE], "requested_bytes"),
    )


def find_peak(line: Timeline, first: int, last: int) -> Peak:
    """Return the peaks over the instants ``first`` to ``last``, both included.

    Among equal requested peaks, the one with the most allocated bytes is chosen, then the first; among
    equal allocated peaks the first, as in TensorFlow's statistics. Inside a compiled step, whose buffer
    is constant, it is the instant with the fewest idle bytes.
    """
    span = slice(first + 1, last + 2)
    requested = line.requested[span]

    allocated = line.allocated[span]
    idle = line.idle[span]
    at_requested = _pick(-requested, -allocated, idle)
    at_allocated = _pick(-allocated, idle)

    return Peak(
        int(requested[at_requested]),
        first + at_requested,
        int(allocated[at_allocated]),
        first + at_allocated,
    )


def _pick(*keys: np.ndarray) -> int:
    """Return the first index with the smallest first key, then the smallest next key."""
    candidates = np.arange(len(keys[0]))
    for key in keys:
        candidates = candidates[key[candidates] == key[candidates].min()]

    return int(candidates[0])


def alive_at(allocations: pd.DataFrame, instant: int) -> pd.DataFrame:
    """Return the rows alive at ``instant``, with their category at that instant."""
    alive = allocations[
        (allocations["born"] <= instant) & (allocations["dies"] > instant)
    ]
    later = (alive["turns_at"] > instant).fillna(False).astype(bool)

    if not later.any():
        return alive

    categories = alive["category"].astype(object)
    categories = categories.mask(later, earlier_categories(alive))

    return alive.assign(category=categories.astype("category"))


def find_last_runs(events: pd.DataFrame, op_runs: pd.DataFrame) -> pd.DataFrame:
    """Return each event (``op_x``) with the last run of an op that began on its thread (``op_y``)."""
    return pd.merge_asof(
        events,
        op_runs.astype({"thread": "int64"}),
        left_on="time_ps",
        right_on="start_ps",
        by="thread",
    )


def earlier_categories(table: pd.DataFrame) -> np.ndarray:
    """Return the category of each buffer before it holds a variable's value, shape ``(rows,)``.

    The update may take the buffer of a gradient.
    """
    scopes = table["op"].map(is_in_gradient_scope, na_action="ignore")
    is_gradient = scopes.eq(True)
    return np.where(is_gradient, Category.GRADIENT.value, Category.TEMPORARY.value)


def sum_by_category(alive: pd.DataFrame) -> dict[str, int]:
    """Return the requested bytes of each category, in the order of ``Category``."""
    sums = alive.groupby("category", observed=True)["requested_bytes"].sum()
    return {category.value: int(sums.get(category.value, 0)) for category in Category}


def main_allocator_rows(recording: Recording) -> pd.DataFrame:
    """Return the rows of the recording's allocator, with the values inside compiled steps' buffers."""
    table = recording.allocations
    own = (table["allocator"] == recording.allocator).to_numpy(bool)
    return undivided_rows(table if own.all() else table[own])


def undivided_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``table`` without the rows that are divided into parts."""
    divided = table["part_of"].dropna().unique()
    if len(divided):
        return table[~table.index.isin(divided)]

    return table


UNPAIRED = -1


def card_number(allocator: str) -> int | None:
    """Return TensorFlow's number of the card of an allocator; None if it is of no card."""
    match = re.fullmatch(r"GPU_(\d+)_bfc", allocator)
    return None if match is None else int(match[1])


def pair_events(
    kind: Instants,
    address: Instants,
    allocator: Instants | int = 0,
) -> tuple[Instants, npt.NDArray[np.bool_]]:
    """Return the allocation that each event ends or ``UNPAIRED``, and if its address occurred before.

    An allocation also ends an earlier one at its address: the free in between is missing. Arrays have
    shape ``(n,)``; ``kind`` is above 0 for an allocation, ``allocator`` a number if there is only one.
    """
    places = np.arange(len(kind))
    events = pd.DataFrame({"address": address, "allocator": allocator, "at": places})
    same = events.groupby(["address", "allocator"])["at"]
    before = same.shift(fill_value=UNPAIRED).to_numpy()
    partner = np.where(kind[before] > 0, before, UNPAIRED)

    return partner, before != UNPAIRED


# The allocator of the device ``CPU:0`` if it writes events (``ProcessState::GetCPUAllocator``).
CPU_DEVICE = "bfc_cpu_allocator_for_gpu"

# TensorFlow's names of allocators of host memory; ``gpu_host_bfc`` is for pinned memory.
HOST_ALLOCATORS = frozenset(
    {CPU_DEVICE, "mklcpu", "cpu", "xla_gpu_host_bfc", "gpu_host_bfc"}
)


def find_own_peak(recording: Recording) -> int | None:
    """Return TensorFlow's own peak since the program's start, on the recorded device."""
    peaks = () if recording.watch is None else recording.watch.own_peaks
    if recording.allocator in HOST_ALLOCATORS - {CPU_DEVICE}:
        return None

    index = card_number(recording.allocator) or 0

    return peaks[index] or None if index < len(peaks) else None


def is_tpu(allocator: str) -> bool:
    """Say whether an allocator is of a TPU's runtime, which is not TensorFlow's (``TPU:0``)."""
    return allocator.startswith("TPU:")


def device_allocators(events: pd.DataFrame) -> list[str]:
    """Return the names of the devices' allocators; those of cards before that of the CPU.

    Without any it is the one with the most bytes. Beside the CPU's own, ``mklcpu`` serves the data
    pipeline.
    """
    peaks = find_peaks(events)
    cards = [name for name in peaks if name not in HOST_ALLOCATORS]
    if not cards and CPU_DEVICE in peaks:
        return [CPU_DEVICE]

    return cards or [max(peaks, key=lambda name: peaks[name])]


def choose_allocator(events: pd.DataFrame, wanted: str) -> str:
    """Return the wanted allocator or raise a TraceError; without a wish a device's."""
    peaks = find_peaks(events)

    if wanted:
        if wanted not in peaks:
            raise TraceError(
                f"The trace has no allocator {wanted!r}.",
                hint=f"It has {', '.join(peaks)}.",
            )

        return wanted

    return max(device_allocators(events), key=lambda name: peaks[name])


def weigh(table: pd.DataFrame) -> pd.Series[Any]:
    """Return the requested bytes of each buffer times its lifetime."""
    lifetimes = (table["dies"] - table["born"]).clip(lower=1)
    return table["requested_bytes"] * lifetimes


def find_peaks(events: pd.DataFrame) -> dict[str, int]:
    """Return the most bytes in use of each allocator."""
    peaks = events.groupby("allocator", observed=True)["in_use_bytes"].max()
    return {str(name): int(size) for name, size in peaks.items()}


def find_limit(events: pd.DataFrame, allocator: str) -> int | None:
    """Return the limit that an allocator's last event states; None if it has no statistics."""
    own = events.loc[events["allocator"] == allocator]
    in_use, available = own[["in_use_bytes", "available_bytes"]].tail(1).sum()
    return int(in_use + available) if available else None


def find_steps_of_births(
    born: np.ndarray,
    steps: Sequence[Step],
) -> pd.arrays.IntegerArray:
    """Return the index of the step of each birth (an instant), missing outside steps."""
    full = [(s.first, s.last, s.index) for s in steps if s.last >= s.first]

    # The first entry is that of the instants before all steps.
    first, last, index = np.array([(-2, -2, 0), *full], np.int64).T

    # An instant that belongs to two steps counts for the later one.
    place = np.searchsorted(first, born, side="right") - 1
    outside = born > last[place]
    return pd.arrays.IntegerArray(np.where(outside, 0, index[place]), outside)
