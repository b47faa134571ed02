"""A step's graph ready to be executed: edges, kernels, variables and expected durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from analyzer.model.choice import Category
from analyzer.model.contract.fields import COPIED
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, Op
from analyzer.model.graph.reachability import reach
from analyzer.model.recording.timeline import running_sum
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.kernels.shared.op_call import VariableAccess
from analyzer.simulate.predict.buffers.reference_counts import Ledger
from analyzer.simulate.predict.buffers.tensor_lists import Buffers
from analyzer.simulate.predict.executor.control_flow import ControlExecutor
from analyzer.simulate.predict.executor.node_execution import NO_ASSUMPTIONS, Assumptions, Loop
from analyzer.simulate.predict.executor.scalar_values import Value
from analyzer.simulate.predict.executor.threads import Executor, OpTiming, Workers, estimate_timing
from analyzer.simulate.predict.graph.edges import SWITCHES, EdgeOrder, Wiring, wire_all
from analyzer.simulate.predict.graph.kernel_calls import Kernels, fold, plan_kernels
from analyzer.tracing.xla.buffer_plan import BufferPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """One schedule that the executor could take."""

    seed: int = 0
    threads: int = 1  # inter-op threads
    buffers: Buffers
    instants: int
    steps: tuple[tuple[int, int], ...]  # first and last instant of each step
    # requested bytes alive before the last step: variables, constants, arguments, earlier results
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
    prepared: Prepared,
    seed: int = 0,
    *,
    threads: int = 1,
    steps: int | None = None,
    workers: type[Workers[Any]] = Workers,
) -> Schedule:
    """Run one schedule, with ``threads`` inter-op threads (``workers``), and return its buffers.

    ``steps`` are from the process's start; None is one later step, or those until all are the same.
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
    counters: dict[int, Value] = dict.fromkeys(prepared.counters, (0,))
    loops: dict[str, Loop] = {}
    branches: dict[int, int] = {}
    stranded: list[int] = []
    spans: list[tuple[int, int]] = []
    count = steps or prepared.later_steps
    for number in range(count):
        first = ledger.instants
        ledger.begin_step()
        entering = tuple(ledger.values)
        ledger.ran.clear()
        executor: Any = Executor(wiring, edges, ledger)
        if wiring.has_control_flow:
            executor = ControlExecutor(prepared, edges, ledger, counters)
        # The last step has the same seed however many steps precede it.
        step_seed = seed * (prepared.steps + 1) + prepared.steps - count + number
        runner = executor if is_sequential else workers(executor, timing, threads, step_seed)
        runner.run()
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
        held=ledger.held,
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
    """Sum the live bytes at each instant from -1 on; ``sizes_bytes`` replaces the buffers' own."""
    size = np.asarray(buffers.size_bytes if sizes_bytes is None else sizes_bytes, dtype=np.int64)
    born = np.asarray(buffers.born, dtype=np.int64)
    dies = np.asarray(buffers.dies, dtype=np.int64)
    has_bytes = size > 0
    ends = np.where(dies < 0, instants, dies)
    return running_sum(born[has_bytes], ends[has_bytes], size[has_bytes], instants)


STEPS: Final = 3
"""Default number of steps from the start. The second may differ from the first (slots), the third from
the second (chunks). Gradient accumulation needs more: a counter decides a branch."""

REWRITES: Final = 16  # orders of oneDNN rewrites to choose from

LARGE_OPS: Final = 4000
"""Ops above which half as many orders are used: each costs a walk of the graph."""

_HELD: Final = ("Const", "HostConst", "ImmutableConst", *ARGUMENT_TYPES, "Placeholder")
"""Op types whose output lives outside the step: a kernel's constant, or an argument in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A variable that the step uses; op ``op`` brings in its handle."""

    op: str
    path: str
    size_bytes: int
    category: Category = Category.PARAMETER
    is_counter: bool = False  # whether it is an integer that may decide a branch; it starts at 0
    # equal for variables that start with one shared buffer; empty for a buffer of its own
    begins_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A graph ready to be executed."""

    wirings: tuple[Wiring, ...]  # the graph in several orders of creation; nodes keep their numbers
    kernels: Kernels
    owners: tuple[Owner, ...]
    # for each node, the number of the variable behind its first input; -1 for none
    variables: tuple[int, ...]
    # for each compiled function and each op that updates variables, the same for every input
    arguments: Mapping[int, tuple[int, ...]]
    counters: tuple[int, ...]  # nodes that bring in the handle of a counter
    held_bytes: Mapping[int, int]  # bytes of each node's output that lives outside the step
    copied_bytes: Mapping[int, int]  # bytes of each argument that is a copy of a NumPy array
    results: frozenset[int]
    shares: Mapping[int, int]  # variable -> an earlier one whose buffer it shares at first
    has_counted_branches: bool  # whether a counter decides a branch, so that steps differ
    later_steps: int  # number of steps after which each later one is the same
    timing: OpTiming
    device: KernelDevice = CPU
    steps: int = STEPS
    assumed: Assumptions = NO_ASSUMPTIONS

    @property
    def wiring(self) -> Wiring:
        """Nodes and edges in the order in which the graph lists them."""
        return self.wirings[0]


def prepare(
    ops: Sequence[Op],
    owners: Sequence[Owner],
    *,
    threads: int,
    device: KernelDevice = CPU,
    compiled: Mapping[str, BufferPlan] | None = None,
    steps: int = STEPS,
) -> Prepared:
    """Rebuild the graph's edges and look up its kernels."""
    ops = fold(ops)
    rewrites: list[int | None] = [None]
    if not device.is_cheap and any(op.type.startswith("_Mkl") for op in ops):
        rewrites = list(range(REWRITES if len(ops) < LARGE_OPS else REWRITES // 2))
    wirings = tuple(wire_all(ops, rewrites, is_cheap=device.is_cheap))
    wiring = wirings[0]
    kernels = plan_kernels(wiring, threads=threads, device=device, compiled=compiled)
    number = {op.name: node for node, op in enumerate(ops)}
    used = [owner for owner in owners if owner.op in number]
    by_node = {number[owner.op]: position for position, owner in enumerate(used)}
    counters = tuple(number[owner.op] for owner in used if owner.is_counter)
    first: dict[str, int] = {}
    for position, owner in enumerate(used):
        first.setdefault(owner.begins_with, position)
    held = {
        node: size
        for node, op in enumerate(ops)
        if op.type in _HELD and op.outputs and (size := device.held_bytes(op))
    }
    has_counted_branches = wiring.has_branches and _counters_decide(wiring, counters)
    calls = [plan.compiled for plan in kernels.plans if plan.compiled is not None]
    # A step that is compiled again keeps old values, so that each step retains memory.
    is_growing = any(call.holds_constants and call.recompiled for call in calls)
    return Prepared(
        wirings=wirings,
        kernels=kernels,
        owners=tuple(used),
        variables=tuple(by_node.get(handle, -1) for handle in kernels.handles),
        arguments={
            node: tuple(by_node.get(handle, -1) for handle in handles)
            for node, handles in kernels.arguments.items()
        },
        counters=counters,
        held_bytes={node: n for node, n in held.items() if COPIED not in ops[node].attrs},
        copied_bytes={node: n for node, n in held.items() if COPIED in ops[node].attrs},
        results=frozenset(node for node, op in enumerate(ops) if op.type in RESULT_TYPES),
        shares={
            position: first[owner.begins_with]
            for position, owner in enumerate(used)
            if owner.begins_with and first[owner.begins_with] != position
        },
        has_counted_branches=has_counted_branches,
        later_steps=steps
        if has_counted_branches or is_growing
        else 1 + _assigns_constants(wiring, kernels),
        timing=estimate_timing(wiring, kernels.plans, is_on_card=device.is_cheap),
        device=device,
        steps=steps,
    )


def _counters_decide(wiring: Wiring, counters: Sequence[int]) -> bool:
    """Return whether a counter's value may reach the predicate of a branch."""
    reached = reach(counters, lambda node: [reader for reader, _, _ in wiring.data_out[node]])
    return any(
        wiring.ops[reader].type in SWITCHES and slot == 1
        for node in reached
        for reader, _, slot in wiring.data_out[node]
    )


def _assigns_constants(wiring: Wiring, kernels: Kernels) -> bool:
    """Return whether an op assigns a constant, so that the second step starts with other buffers."""
    for node, plan in enumerate(kernels.plans):
        if plan.variable is not VariableAccess.ASSIGN:
            continue
        source = wiring.inputs[node][plan.value or 0][0]
        while wiring.ops[source].type in ("Identity", "Reshape") and wiring.inputs[source]:
            source = wiring.inputs[source][0][0]
        if wiring.ops[source].type in _HELD:
            return True
    return False
