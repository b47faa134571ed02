"""What a run of a graph with branches and loops holds of each loop (``propagator_state.h``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.simulate.predict.executor.scalar_values import Value

Entry = tuple[int, Value | None]
"""A live tensor: its buffer and, where it is followed, its value."""


@dataclass(eq=False, slots=True)
class Iteration:
    """One round of a loop.

    Attributes:
        frame: The loop.
        number: 0 for the first.
        slots: For each node that has got an input, its inputs; None for one that is missing or dead.
        pending: For each node that has got an input, what it waits for still.
        dead: For each node, how many of its inputs are dead.
        outstanding: Nodes that are ready or run.
        frames: Loops inside it that are not over.
        bounded: Whether a condition of several that lets the loop go on was not known and another was.
    """

    frame: Frame
    number: int
    slots: dict[int, list[Entry | None]] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    outstanding: int = 0
    frames: int = 0
    bounded: bool = False


@dataclass(eq=False, slots=True)
class Frame:
    """A loop, or the graph itself.

    Attributes:
        name: Its name.
        parent: The iteration that entered it; None for the graph.
        pending_inputs: ``Enter`` nodes that have not run.
        parallel: How many iterations may run at once.
        iterations: Those that are not over, by number.
        count: Number of the last one.
        children: Loops inside it, by iteration and name.
        deferred: Inputs of an iteration that has to wait.
        invariants: Inputs of every iteration.
        dead_exits: ``Exit`` nodes that brought nothing out.
    """

    name: str
    parent: Iteration | None
    pending_inputs: int
    parallel: int
    iterations: dict[int, Iteration] = field(default_factory=dict)
    count: int = 0
    children: dict[tuple[int, str], Frame] = field(default_factory=dict)
    deferred: list[tuple[int, Entry]] = field(default_factory=list)
    invariants: list[tuple[int, Entry]] = field(default_factory=list)
    dead_exits: list[int] = field(default_factory=list)


Task = tuple[int, Iteration, bool]
"""A node that is ready in an iteration, and whether it is dead."""
