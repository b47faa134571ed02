"""The recording: its two tables, which ``columns.csv`` describes, its steps and its context.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.contract.fields import Choice, TwoSizes
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
from analyzer.model.graph.buffer_sharing import NO_SHARING, Sharing
from analyzer.model.graph.graph_index import NO_GRAPH, GraphIndex
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
