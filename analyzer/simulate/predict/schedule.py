"""One schedule of a step: the executor's order and the kernels' requests give buffer lifetimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analyzer.model.recording.timeline import running_sum
from analyzer.simulate.predict.buffers.reference_counts import Ledger
from analyzer.simulate.predict.buffers.variable_values import Buffers
from analyzer.simulate.predict.executor.control_flow import ControlExecutor
from analyzer.simulate.predict.executor.node_execution import Loop
from analyzer.simulate.predict.executor.scalar_values import Value
from analyzer.simulate.predict.executor.threads import OVERLAPPED, Executor, Workers
from analyzer.simulate.predict.graph.edges import EdgeOrder
from analyzer.simulate.predict.prepared_step import Prepared


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """One schedule that the executor could take."""

    seed: int = 0
    threads: int = 1
    buffers: Buffers
    instants: int
    steps: tuple[tuple[int, int], ...]  # first and last instant of each step
    # requested bytes alive before the last step: variables, constants, arguments, and results of
    # the step before
    resident_bytes: int
    peak_bytes: int  # highest requested bytes of the last step, including resident bytes
    peak_instant: int
    nodes: tuple[int, ...]  # nodes in the order in which the last step ran them
    # name of each loop with an unknown condition -> its outcome
    loops: Mapping[str, Loop] = field(default_factory=dict)
    # node of each unknown predicate -> number of branches
    branches: Mapping[int, int] = field(default_factory=dict)
    stranded: tuple[int, ...] = ()  # nodes that never ran; none in a graph that can run
    values: tuple[int, ...] = ()  # for each variable, its buffer before the first step
    # for each node whose output lives outside the step, the buffer of this output
    held: Mapping[int, int] = field(default_factory=dict)
    entering: tuple[int, ...] = ()  # for each variable, its buffer when the last step begins


def play(
    prepared: Prepared, seed: int = 0, *, threads: int = 1, steps: int | None = None
) -> Schedule:
    """Run one schedule and return its buffers.

    Args:
        threads: Threads that run ops side by side (inter-op); ``OVERLAPPED`` for one per ready op.
        steps: Number of steps from the process's start. None plays one later step, or as many as it
            takes until each later step is the same.
    """
    edges = EdgeOrder(prepared.wirings[seed % len(prepared.wirings)], seed)
    wiring, timing = prepared.wiring, prepared.timing
    is_sequential = threads == 1 and not any(timing.waits)
    ledger = Ledger(
        prepared,
        shares_buffers=bool(steps) or prepared.has_counted_branches,
        has_run=steps is None,
        is_timed=not is_sequential,
    )
    values = entering = tuple(ledger.values)
    held = dict(ledger.held)
    counters: dict[int, Value] = dict.fromkeys(prepared.counters, (0,))
    loops: dict[str, Loop] = {}
    branches: dict[int, int] = {}
    stranded: list[int] = []
    spans: list[tuple[int, int]] = []
    count = steps or prepared.later_steps
    for number in range(count):
        first = ledger.instants
        entering = tuple(ledger.values)
        ledger.ran.clear()
        executor: Any = (
            ControlExecutor(prepared, edges, ledger, counters)
            if wiring.has_control_flow
            else Executor(wiring, edges, ledger)
        )
        if is_sequential:
            executor.run()
        elif threads == OVERLAPPED:
            executor.run_overlapped()
        else:
            # The last step has the same seed however many steps precede it.
            step_seed = seed * (prepared.steps + 1) + prepared.steps - count + number
            Workers(executor, timing, threads, step_seed).run()
        if wiring.has_control_flow:
            loops |= executor.decisions.loops
            branches |= executor.decisions.branches
            stranded = executor.stranded
        ledger.end_step()
        spans.append((first, ledger.instants - 1))
    if steps is None and len(spans) == 1:
        ledger.add_previous_results()
    return summarize(
        ledger,
        spans,
        seed=seed,
        threads=threads,
        loops=loops,
        branches=branches,
        stranded=tuple(stranded),
        values=values,
        held=held,
        entering=entering,
    )


def summarize(ledger: Ledger, spans: list[tuple[int, int]], **others: Any) -> Schedule:
    """Return buffers and peak of the steps with these first and last instants."""
    live = live_bytes(ledger.buffers, ledger.instants)
    first = spans[-1][0]
    top = first + int(live[first:].argmax())
    return Schedule(
        buffers=ledger.buffers,
        instants=ledger.instants,
        steps=tuple(spans),
        resident_bytes=int(live[first]),
        peak_bytes=int(live[top]),
        peak_instant=top - 1,
        nodes=tuple(ledger.ran),
        **others,
    )


def live_bytes(
    buffers: Buffers, instants: int, sizes_bytes: np.ndarray | None = None
) -> np.ndarray:
    """Return requested bytes at every instant from -1 on, shape ``(instants + 1,)``.

    Args:
        sizes_bytes: Sizes in place of the buffers' own; 0 leaves a buffer out.
    """
    size = np.asarray(buffers.size_bytes if sizes_bytes is None else sizes_bytes, dtype=np.int64)
    born = np.asarray(buffers.born, dtype=np.int64)
    dies = np.asarray(buffers.dies, dtype=np.int64)
    has_bytes = size > 0
    ends = np.where(dies < 0, instants, dies)
    return running_sum(born[has_bytes], ends[has_bytes], size[has_bytes], instants)
