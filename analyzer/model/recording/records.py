"""The words the whole package shares.

*requested*: bytes the live tensors asked for. *allocated* (in use): bytes of the chunks that hold
them. *pool*: bytes the allocator took from the driver or the system, free chunks included.
*process*: pool plus context, library workspaces and loaded kernels. A number is never shown without
saying which of these it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from analyzer.model.contract.report.finding import Finding as Finding
from analyzer.model.contract.report.finding import Severity as Severity
from analyzer.model.contract.report.peak_figures import UnmodelledType
from analyzer.model.contract.report.subject import Device as Device
from analyzer.model.contract.report.subject import Kind as Kind
from analyzer.model.contract.report.subject import PhantomNotice, ReportTarget
from analyzer.model.contract.report.trust_figures import StatedRange
from analyzer.model.contract.run_note import Failure, PhantomNote, StepConfig
from analyzer.model.contract.watch_note import WatchNote

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: the instants and the time it spans.

    Attributes:
        index: 0 for the first step of the trace.
        number: The step number that the training program gave, where it gave one.
        first: First instant of the step.
        last: Last instant of the step (inclusive); less than ``first`` where it has no events.
        start_ps, end_ps: Its time in picoseconds, missing in a prediction.
    """

    index: int
    number: int | None
    first: int
    last: int
    start_ps: int | None = None
    end_ps: int | None = None

    @property
    def duration_s(self) -> float | None:
        """Seconds the step took, missing in a prediction."""
        if self.start_ps is None or self.end_ps is None:
            return None
        return (self.end_ps - self.start_ps) / 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One kind of thing in a trace that an undamaged trace cannot hold.

    Attributes:
        id: Stable name, such as ``double-free``.
        count: How many events, marks or notes are so.
        message: One sentence with the count in it.
        allocator: The allocator whose events they are; empty where they are of none.
        time_ps: Time of the first of them on the trace's clock; None where it has none.
    """

    id: str
    count: int
    message: str
    allocator: str = ""
    time_ps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksCheck:
    """The sum of one allocator's events beside the bytes in use that TensorFlow wrote into each.

    Attributes:
        allocator: Its name.
        events: Events that were compared; 0 where TensorFlow wrote no bytes in use.
        disagreeing: Events after which the two differ.
        first_time_ps: Time of the first of them; None where there is none.
        largest_difference_bytes: The largest difference, in allocated bytes.
    """

    allocator: str
    events: int
    disagreeing: int = 0
    first_time_ps: int | None = None
    largest_difference_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    """What was checked of a trace, and what of it cannot be.

    Attributes:
        books: One for each allocator of the trace.
        damages: What an undamaged trace cannot hold; empty for a trace that is whole.
    """

    books: tuple[BooksCheck, ...] = ()
    damages: tuple[Damage, ...] = ()

    def of(self, allocator: str) -> BooksCheck:
        """Return the books of ``allocator``."""
        found = (books for books in self.books if books.allocator == allocator)
        return next(found, BooksCheck(allocator=allocator, events=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompiledFunction:
    """A function that XLA compiles again whenever a value changes that is compiled into it.

    Attributes:
        op: Name of the op that calls it.
        because: Type and name of the op in it that has to know a value.
        variables: Paths of the variables whose values are compiled in and that it updates itself.
        variable_bytes: Their bytes together.
        inputs: What the step is fed of which the same is true.
        compilations: How often it was compiled in a trace; 0 in a prediction.
    """

    op: str
    because: str
    variables: tuple[str, ...]
    variable_bytes: int
    inputs: tuple[str, ...] = ()
    compilations: int = 0


@dataclass(frozen=True, slots=True)
class TensorLinks:
    """Who makes and who reads each tensor of a step's graph.

    Attributes:
        makers: Tensor -> the op that makes it; one that only is read is missing.
        readers: Tensor -> the ops that read it, each once.
        facts: Op -> its type, its layer and its line in the user's code, empty where not known.
    """

    makers: Mapping[str, str]
    readers: Mapping[str, list[str]]
    facts: Mapping[str, tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A sequence of allocations, measured or predicted, and what is known about it.

    Attributes:
        kind: Predicted or measured.
        target: What was asked for, and how it was resolved.
        device: The device whose allocator is looked at.
        step_config: How the step is run.
        events: Table with the columns of ``EVENTS``, of every allocator.
        allocations: Table with the columns of ``ALLOCATIONS``, of every
            allocator; ``born`` and ``dies`` count the rows of ``events``.
        allocator: Name of the allocator that the peak is about.
        steps: The steps, in order; empty where the trace has none.
        make_graph: Makes the graph of ops and tensors; None where there is none.
        make_tensor_links: Links of the same graph's tensors; None without a graph.
        warnings: What the reader should know before trusting a figure; plain sentences.
        versions: Versions of what made it: tensorflow, keras, python, analyzer.
        error: How the step ended where it failed.
        recompiled_functions: Functions that are compiled again in every step.
        integrity: Whether the trace is whole; None for a prediction.
        notes: What the capture noted; plain sentences.
        unmodelled: Op types without a rule, in a prediction.
        uncertainty: The range that a prediction states; None for a trace.
        phantom: That the cards were not there; None where they were.
        phantom_run: Which cards, their limit and what was assumed of them, as the capture noted it.
        watch: What was seen of the program that made the steps; None where the capture made them.
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
        """Ops and tensors (see ``networkx_graph``), made when first asked for."""
        return None if self.make_graph is None else self.make_graph()

    @cached_property
    def tensor_links(self) -> TensorLinks | None:
        """Who makes and who reads each tensor; making the graph takes half a second, this does not."""
        return None if self.make_tensor_links is None else self.make_tensor_links()
