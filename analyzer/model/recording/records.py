"""The recording, its steps and its integrity.

Four numbers describe memory. *requested*: bytes that live tensors requested. *allocated* (in use):
bytes of their chunks. *pool*: bytes that the allocator took from the driver or the system, including
free chunks. *process*: the pool plus the driver's context, library workspaces and loaded kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from analyzer.model.choice import Choice
from analyzer.model.contract.report.finding import Finding as Finding
from analyzer.model.contract.report.finding import Severity as Severity
from analyzer.model.contract.report.peak_figures import UnmodelledType
from analyzer.model.contract.report.subject import Device as Device
from analyzer.model.contract.report.subject import Kind as Kind
from analyzer.model.contract.report.subject import PhantomNotice, ReportTarget
from analyzer.model.contract.report.trust_figures import StatedRange
from analyzer.model.contract.run_note import Failure, PhantomNote, StepConfig
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.units import times

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        index: 0 for the first step of the trace.
        number: The training program's step number; None if it gives none.
        first, last: Its first and last instant; ``last`` is smaller if it has no events.
        start_ps, end_ps: Its time in picoseconds; None in a prediction.
    """

    index: int
    number: int | None
    first: int
    last: int
    start_ps: int | None = None
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
    ALTERED_EVENTS = "altered-events"
    UNREADABLE_EVENTS = "unreadable-events"
    LOST_BEGINNING = "lost-beginning"
    LOST_END = "lost-end"
    STEP_MARKS = "step-marks"
    CAPTURE_MARKS = "capture-marks"
    VARIABLES = "variables"
    FAILURE_FITS = "failure-fits"


_DAMAGE_TEXTS: Final = {
    DamageReason.LOST_EVENTS: "memory events contradict earlier ones, so events are missing or altered",
    DamageReason.ALTERED_EVENTS: "allocations have a size that contradicts their request or shape",
    DamageReason.UNREADABLE_EVENTS: "events cannot be read",
    DamageReason.LOST_BEGINNING: "memory is in use before the first event of the process",
    DamageReason.LOST_END: "steps ran ops after the last memory event",
    DamageReason.STEP_MARKS: "step marks are missing or misplaced",
    DamageReason.CAPTURE_MARKS: "marks of the capture are missing or misplaced",
    DamageReason.VARIABLES: "variables are not in the buffers that the capture saw",
    DamageReason.FAILURE_FITS: "the request that failed would have fitted after the last event",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A reason why a trace is incomplete or altered.

    Attributes:
        reason: The reason.
        count: Number of events, marks or variables that show it.
        allocator: Allocator of the events; empty if it concerns no single allocator.
        time_ps: Time of the first of them on the trace's clock; None if unknown.
    """

    reason: DamageReason
    count: int
    allocator: str = ""
    time_ps: int | None = None

    @property
    def message(self) -> str:
        """The reason and the count in words."""
        return f"{_DAMAGE_TEXTS[self.reason]} ({times(self.count)})."


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterCheck:
    """Comparison of the sum of one allocator's events with TensorFlow's bytes in use.

    Attributes:
        allocator: Its name.
        events: Number of compared events; 0 if TensorFlow recorded no bytes in use.
        disagreeing: Number of events after which the two differ.
        first_time_ps: Time of the first of these; None if there is none.
        largest_difference_bytes: The largest difference.
    """

    allocator: str
    events: int
    disagreeing: int = 0
    first_time_ps: int | None = None
    largest_difference_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    """Whether a trace is complete: one check for each allocator, and the damages."""

    counters: tuple[CounterCheck, ...] = ()
    damages: tuple[Damage, ...] = ()

    def counter_check(self, allocator: str) -> CounterCheck:
        """Return the check of one allocator."""
        checks = (check for check in self.counters if check.allocator == allocator)
        return next(checks, CounterCheck(allocator=allocator, events=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompiledFunction:
    """A function that XLA compiles in every step, because a value that changes is compiled in.

    Attributes:
        op: Name of the op that calls it.
        because: Type and name of the op in it that needs the value.
        variables: Paths of the variables whose values are compiled in and that it updates.
        variable_bytes: Their total size.
        inputs: Inputs of the step whose values are compiled in.
        compilations: Number of compilations in a trace; 0 in a prediction.
    """

    op: str
    because: str
    variables: tuple[str, ...]
    variable_bytes: int
    inputs: tuple[str, ...] = ()
    compilations: int = 0


@dataclass(frozen=True, slots=True)
class TensorLinks:
    """Producer and consumers of each tensor of a step's graph.

    Attributes:
        makers: Tensor -> the op that makes it, if it is in the graph.
        readers: Tensor -> the ops that read it.
        facts: Op -> its type, its layer and its line in the user's code, empty if unknown.
    """

    makers: Mapping[str, str]
    readers: Mapping[str, list[str]]
    facts: Mapping[str, tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A sequence of allocations, measured or predicted.

    Attributes:
        kind: Whether it is predicted or measured.
        target: The target of the command.
        device: The device whose allocator is looked at.
        step_config: How the step is run.
        events: Table with the columns of ``EVENTS``, of every allocator.
        allocations: Table with the columns of ``ALLOCATIONS``, of every allocator; ``born`` and ``dies``
            are rows of ``events``.
        allocator: Name of the allocator that the figures are about.
        steps: The steps, in order; empty if the trace has none.
        make_graph: Makes the graph of ops and tensors; None without a graph.
        make_tensor_links: Makes the links of the graph's tensors; None without a graph.
        warnings: Sentences to read before trusting a figure.
        versions: Versions of tensorflow, keras, python and the analyzer.
        error: How the step failed; None on success.
        recompiled_functions: Functions that are compiled in every step.
        integrity: Whether the trace is complete; None for a prediction.
        notes: Sentences of the capture.
        unmodelled: Op types without a memory rule, in a prediction.
        uncertainty: The range of a prediction; None for a trace.
        phantom: The simulated cards, for the report; None for real devices.
        phantom_run: The simulated cards, as the capture recorded them.
        watch: Observations of a watched script; None if the capture made the steps.
    """

    kind: Kind
    target: ReportTarget
    device: Device
    step_config: StepConfig
    events: pd.DataFrame
    allocations: pd.DataFrame
    allocator: str
    steps: tuple[Step, ...] = ()
    make_graph: Callable[[], nx.MultiDiGraph] | None = None
    make_tensor_links: Callable[[], TensorLinks] | None = None
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    error: Failure | None = None
    recompiled_functions: tuple[RecompiledFunction, ...] = ()
    integrity: Integrity | None = None
    notes: tuple[str, ...] = ()
    unmodelled: tuple[UnmodelledType, ...] = ()
    uncertainty: StatedRange | None = None
    phantom: PhantomNotice | None = None
    phantom_run: PhantomNote | None = None
    watch: WatchNote | None = None

    @cached_property
    def graph(self) -> nx.MultiDiGraph | None:
        """The graph of ops and tensors (see ``networkx_graph``), made on first use."""
        return None if self.make_graph is None else self.make_graph()

    @cached_property
    def tensor_links(self) -> TensorLinks | None:
        """Producer and consumers of each tensor; much faster than ``graph``."""
        return None if self.make_tensor_links is None else self.make_tensor_links()
