"""The recording: its two tables, which ``columns.csv`` describes, its steps, and its bytes over time.

**Events** are the actions of the allocator in order. An *instant* is a row of this table: instant
``i`` is the state just after event ``i``, and instant ``-1`` the state before the first event.
**Allocations** are the buffers. A buffer is alive at instant ``i`` if ``born <= i < dies``; ``born`` is
``-1`` if it is from before the first event, ``dies`` the number of events if it is never freed.

Four numbers describe memory. *requested*: bytes that live tensors requested. *allocated* (in use):
bytes of their chunks. *pool*: bytes that the allocator took from the driver or the system.
*process*: the pool plus the driver's context, library workspaces and loaded kernels.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.contract.fields import Category, Choice, TwoSizes
from analyzer.model.contract.reading import read_table
from analyzer.model.contract.report_file import DamageRow, StatedRange, TrustFigures
from analyzer.model.contract.report_file import Device as Device
from analyzer.model.contract.report_file import Finding as Finding
from analyzer.model.contract.report_file import Kind as Kind
from analyzer.model.contract.report_file import Severity as Severity
from analyzer.model.contract.run_note import (
    Failure,
    SimulatedCardNote,
    StepConfig,
    TargetNote,
    WatchNote,
)
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import NO_SHARING, Sharing
from analyzer.model.graph.graph_index import NO_GRAPH, GraphIndex, is_in_gradient_scope
from analyzer.model.units import times

if TYPE_CHECKING:
    import networkx as nx


# region of buffers for trials of algorithms, which a kernel can do without
TRIAL = "trial"
# of all buffers of a convolution for trials
TRIAL_ROLE = "trial of an algorithm"
# of the buffers with which XLA's compiler tries algorithms, and name of the op that requests them
XLA_TRIAL_ROLE = "a trial of algorithms by XLA, before the first step"
AUTOTUNING = "Autotuning"
TRIAL_ROLES = (TRIAL_ROLE, XLA_TRIAL_ROLE)
# of a convolution's copy of an operand or result for cuDNN
COPY_ROLE = "layout copy"

# Scratch memory as large as the input, for the sums over the points of each channel with channels
# first (``BiasGradOp::ComputeWithReduceSum`` in ``bias_op.cc``).
SUMS_ROLE = "partial sums of a bias gradient"

# Role of the output of a convolution that returns the memory in which it computed.
DROPPED_ROLE = "unused output: the op returns scratch memory instead"

# of workspaces that no other algorithm avoids
FIXED_ROLES = (
    COPY_ROLE,
    DROPPED_ROLE,
    SUMS_ROLE,
)

# Region of a library's workspace, without which TensorFlow uses another algorithm.
WORKSPACE = "workspace"
STACK_ROLE = "stack that XLA reserves for its programs"  # on a TPU

# Role of the rows for bytes of a compiled step's buffer that hold no value.
IDLE_ROLE = "holds no value: room inside XLA's buffer"


def _read_columns(table: str) -> dict[str, str]:
    """Return the columns of a table, each with its pandas dtype."""
    text = (files("analyzer.model.recording") / "columns.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())

    return {row["column"]: row["dtype"] for row in rows if row["table"] == table}


EVENTS = _read_columns("events")
ALLOCATIONS = _read_columns("allocations")


def conform(table: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    """Return ``table`` with exactly these columns and dtypes; missing texts become empty."""
    found = {}

    for name, dtype in columns.items():
        column = table[name] if name in table else pd.Series(pd.NA, table.index)

        if str(column.dtype) != dtype and dtype == "category":
            column = column.astype(object).fillna("")

        found[name] = column.astype(dtype)

    return pd.DataFrame(found, copy=False)


class TextNumbers:
    """Numbers distinct texts from 0."""

    def __init__(self, *first: str) -> None:
        self._numbers = {text: number for number, text in enumerate(first)}

    def of(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """The texts, in the order of their numbers."""
        return list(self._numbers)


def text_category(numbers: npt.NDArray[Any], texts: list[str]) -> pd.Categorical:
    """Return a categorical column of texts by number, with those that occur as sorted categories."""
    labels = np.array(texts, object)
    labels[np.bincount(numbers, minlength=len(texts)) == 0] = None
    return pd.Categorical(labels)[numbers]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step."""

    index: int  # from 0
    number: int | None  # the training program's
    first: int  # instants; ``last`` is smaller if there are no events
    last: int
    start_ps: int | None = None  # None in a prediction
    end_ps: int | None = None

    @property
    def duration_s(self) -> float | None:
        """Duration in seconds; None in a prediction."""
        if self.start_ps is None or self.end_ps is None:
            return None

        return (self.end_ps - self.start_ps) / 1e12


class DamageReason(Choice):
    """Why a trace is incomplete or altered."""

    LOST_EVENTS = "lost-events"
    UNREADABLE_EVENTS = "unreadable-events"
    LOST_BEGINNING = "lost-beginning"
    LOST_END = "lost-end"
    STEP_MARKS = "step-marks"


_DAMAGE_TEXTS = read_table(
    "model/recording/damages.toml",
    dict[DamageReason, str],
)


def describe_damage(reason: DamageReason, count: int, allocator: str = "") -> DamageRow:
    """Return a reason why a trace is damaged; ``count`` events, marks or variables show it."""
    message = f"{_DAMAGE_TEXTS[reason]} ({times(count)})."
    return DamageRow(id=reason, count=count, allocator=allocator, message=message)


# Fields that the report of a recording has too.
REPORTED = (
    "kind",
    "target",
    "device",
    "allocator",
    "warnings",
    "notes",
    "error",
    "versions",
)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A sequence of allocations, measured or predicted."""

    kind: Kind
    target: TargetNote
    device: Device
    step_config: StepConfig
    events: pd.DataFrame  # with the columns of ``EVENTS``, of every allocator
    # with the columns of ``ALLOCATIONS``; ``born`` and ``dies`` are rows of ``events``
    allocations: pd.DataFrame
    allocator: str  # that the figures are about
    steps: tuple[Step, ...] = ()
    structure: GraphIndex = NO_GRAPH  # the graph of the step's ops, empty if unknown
    warnings: tuple[str, ...] = ()  # to read before trusting a figure
    versions: dict[str, str] = field(default_factory=dict)
    error: Failure | None = None
    # op that calls a function -> how often XLA compiled it
    compilations: Mapping[str, int] = field(default_factory=dict)
    # whether a trace is complete, without a replay; None for a prediction
    integrity: TrustFigures | None = None
    notes: tuple[str, ...] = ()
    uncertainty: StatedRange | None = None  # None for a trace
    simulated_run: SimulatedCardNote | None = None  # a run on simulated cards
    repeats: tuple[
        TwoSizes,
        ...,
    ] = ()  # peaks of further runs of the step, on a simulated card
    # whether values decide that a simulated card lacks: step ``STEP_WITH_ALL`` takes them for true
    has_unknown_values: bool = False
    watch: WatchNote | None = None
    # path of a layer -> line of the user's code that creates it
    layer_lines: Mapping[str, str] = field(default_factory=dict)
    sharing: Sharing = NO_SHARING  # tensors of ``structure`` that share a buffer
    # runs of ops: ``op``, ``start_ps``, ``end_ps``, ``thread``
    op_runs: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def ran_under_limit(self) -> bool:
        """Whether the step ran, with the memory that its device has."""
        simulated_card = self.simulated_run
        return self.kind.ran and not (
            simulated_card is not None and simulated_card.is_unlimited
        )

    @cached_property
    def graph(self) -> nx.MultiDiGraph | None:
        """The graph of ops and tensors (see ``networkx_graph``), made on first use; None without ops."""
        from analyzer.model.graph.networkx_graph import build_graph

        if not self.structure.ops:
            return None

        return build_graph(self.structure)


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
    return np.where(scopes.eq(True), Category.GRADIENT.value, Category.TEMPORARY.value)


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
                f"It has {', '.join(peaks)}.",
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
