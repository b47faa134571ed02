"""The recording and its steps.

Four numbers describe memory. *requested*: bytes that live tensors requested. *allocated* (in use):
bytes of their chunks. *pool*: bytes that the allocator took from the driver or the system.
*process*: the pool plus the driver's context, library workspaces and loaded kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import TwoSizes
from analyzer.model.contract.report_file import (
    DamageRow,
    StatedRange,
    TrustFigures,
)
from analyzer.model.contract.report_file import Device as Device
from analyzer.model.contract.report_file import Finding as Finding
from analyzer.model.contract.report_file import Kind as Kind
from analyzer.model.contract.report_file import Severity as Severity
from analyzer.model.contract.run_note import (
    Failure,
    SimulatedCardNote,
    StepConfig,
    TargetNote,
)
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.tables import read_table
from analyzer.model.units import times

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

    from analyzer.model.graph.buffer_sharing import Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
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


_DAMAGE_TEXTS: Final = read_table(
    "model/recording/damages.toml",
    dict[DamageReason, str],
)


def describe_damage(reason: DamageReason, count: int, allocator: str = "") -> DamageRow:
    """Return a reason why a trace is damaged; ``count`` events, marks or variables show it."""
    message = f"{_DAMAGE_TEXTS[reason]} ({times(count)})."
    return DamageRow(id=reason, count=count, allocator=allocator, message=message)


REPORTED: Final = (
    "kind",
    "target",
    "device",
    "allocator",
    "warnings",
    "notes",
    "error",
    "versions",
)
"""Fields that the report of a recording has too."""


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
    structure: GraphIndex | None = None  # the graph of the step's ops
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
    sharing: Sharing | None = None  # tensors of ``structure`` that share a buffer
    # runs of ops: ``op``, ``start_ps``, ``end_ps``, ``thread``; None if unknown
    op_runs: pd.DataFrame | None = None

    @property
    def ran_under_limit(self) -> bool:
        """Whether the step ran, with the memory that its device has."""
        simulated_card = self.simulated_run
        return self.kind.ran and not (
            simulated_card is not None and simulated_card.is_unlimited
        )

    @cached_property
    def graph(self) -> nx.MultiDiGraph | None:
        """The graph of ops and tensors (see ``networkx_graph``), made on first use."""
        from analyzer.model.graph.networkx_graph import build_graph

        return None if self.structure is None else build_graph(self.structure)
