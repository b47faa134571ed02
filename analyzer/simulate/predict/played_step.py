"""One step played: the graph, the executor's order and the kernels brought together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from analyzer.model.contract.categories import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, Op
from analyzer.model.recording.timeline import running_sum
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.kernels.shared.memory_plan import VariableAccess
from analyzer.simulate.predict.buffers.reference_counts import Buffers, Ledger, Running
from analyzer.simulate.predict.executor.card_timing import compiled_at_first, launches_of, waits_of
from analyzer.simulate.predict.executor.control_flow import ControlExecutor
from analyzer.simulate.predict.executor.data_decisions import NOTHING_TOLD, Assumptions, Loop
from analyzer.simulate.predict.executor.op_cost import durations_of, first_durations_of
from analyzer.simulate.predict.executor.scalar_values import Value
from analyzer.simulate.predict.executor.sequential import Executor
from analyzer.simulate.predict.executor.thread_pool import Workers
from analyzer.simulate.predict.graph.constant_folding import fold
from analyzer.simulate.predict.graph.edge_addresses import Arena
from analyzer.simulate.predict.graph.edges import SWITCHES, Wiring, wire_all
from analyzer.simulate.predict.graph.kernel_calls import Kernels, plan_kernels
from analyzer.simulate.predict.graph.successor_order import FanOut
from analyzer.tracing.xla.buffer_plan import BufferPlan

STEPS: Final = 3
"""Steps played from the start, unless asked for otherwise: the second may differ from the first (slots),
the third from the second (chunks); more differ where a counter decides a branch (accumulation)."""

REWRITES: Final = 16
"""Orders of oneDNN's rewritten nodes that are drawn from."""

LARGE_OPS: Final = 4000
"""From this size on half as many orders are drawn from: each costs a walk of the graph."""

_HELD: Final = ("Const", "HostConst", "ImmutableConst", *ARGUMENT_TYPES, "Placeholder")
"""Types whose output something outside the step holds: a kernel its constant, Python an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A variable that the step uses.

    Attributes:
        op: Name of the op that brings its handle in.
        path: Path of the variable, as Keras or TensorFlow names it.
        size_bytes: Bytes of its value.
        category: Parameter, optimizer state and so on.
        is_counter: Whether it is a whole number that may decide a branch; it starts at 0.
        begins_with: Equal for variables that begin with one value, and so with one buffer; empty where
            it has a buffer of its own.
    """

    op: str
    path: str
    size_bytes: int
    category: Category = Category.PARAMETER
    is_counter: bool = False
    begins_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A graph ready to be played.

    Attributes:
        wirings: Nodes and edges, in several orders of creation; nodes keep their numbers.
        kernels: What each node's kernel does.
        owners: The variables.
        variables: For each node, the number of the variable behind its first input; -1 for none.
        arguments: For each call of a compiled function, the same for every input.
        counters: Nodes that bring in the handle of a counter.
        held_bytes: For each node whose output something outside the step holds, its bytes.
        results: Nodes that hand a tensor to the caller.
        shares: Variable -> an earlier variable whose buffer it has before the first step.
        settles: Whether the second step begins with other buffers than the first: one that a kernel
            holds as its constant becomes a variable's value (an accumulator set to zero).
        varies: Whether a counter decides a branch, so that each step may be another.
        grows: Whether each step keeps something: one that is compiled anew keeps old values.
        seconds: About how long each node runs.
        first_seconds: The same in a process's first step.
        waits: Whether each node is waited for after its kernel returned.
        compiles: The kernel of each node that a process compiles where it has not run before.
        device: The device that it runs on.
        steps: Steps played from the start.
        assumed: What is taken for branches and loops that the data decide.
    """

    wirings: tuple[Wiring, ...]
    kernels: Kernels
    owners: tuple[Owner, ...]
    variables: tuple[int, ...]
    arguments: Mapping[int, tuple[int, ...]]
    counters: tuple[int, ...]
    held_bytes: Mapping[int, int]
    results: frozenset[int]
    shares: Mapping[int, int]
    settles: bool
    varies: bool
    grows: bool
    seconds: tuple[float, ...]
    first_seconds: tuple[float, ...]
    waits: tuple[bool, ...] = ()
    compiles: tuple[str, ...] = ()
    device: KernelDevice = CPU
    steps: int = STEPS
    assumed: Assumptions = NOTHING_TOLD

    @property
    def wiring(self) -> Wiring:
        """Nodes and edges in the order in which the graph lists them."""
        return self.wirings[0]

    def threads_that_matter(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return for which of these numbers of inter-op threads orders are drawn.

        On a card one thread launches all kernels, unless something is waited for; then a second one runs
        what follows, and the first of the numbers stands for all.
        """
        if not self.device.is_cheap:
            return tuple(dict.fromkeys(numbers))
        return tuple(numbers[:1]) if any(self.waits) else (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One schedule that the executor could take.

    Attributes:
        seed, threads: Which one, and how many threads run it.
        buffers: What lived, with instants of birth and death.
        instants: Number of allocations and frees.
        steps: First and last instant of each step played.
        resident_bytes: Requested bytes alive before the last step: variables, constants, arguments, the
            results of the step before.
        peak_bytes: Highest requested bytes of the last step, what is resident included.
        peak_instant: Where.
        order: Nodes in the order in which the last step ran them.
        loops: Name of a loop whose condition could not be followed -> what became of it.
        branches: Node that brings a predicate that could not be followed -> branches there are.
        stranded: Nodes that the run never came to: none, but in a graph that could not run.
        values: Before the first step, the buffer of each variable.
        held: Node -> the buffer of its output that something outside the step holds.
        entering: When the last step begins, the buffer of each variable.
    """

    seed: int
    threads: int
    buffers: Buffers
    instants: int
    steps: tuple[tuple[int, int], ...]
    resident_bytes: int
    peak_bytes: int
    peak_instant: int
    order: tuple[int, ...]
    loops: Mapping[str, Loop] = field(default_factory=dict)
    branches: Mapping[int, int] = field(default_factory=dict)
    stranded: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    held: Mapping[int, int] = field(default_factory=dict)
    entering: tuple[int, ...] = ()


def prepare(
    ops: Sequence[Op],
    owners: Sequence[Owner],
    *,
    threads: int,
    device: KernelDevice = CPU,
    compiled: Mapping[str, BufferPlan] | None = None,
    steps: int = STEPS,
) -> Prepared:
    """Wire the graph and look up its kernels.

    Args:
        ops: The graph that the executor runs.
        owners: The variables that it uses.
        threads: Intra-op threads of the device.
        device: The device that it runs on.
        compiled: Memory plans of the XLA-compiled functions, by the name of the op that calls one.
        steps: Steps to play from the start.
    """
    unfolded, ops = ops, fold(ops)
    rewrites = _rewrites(ops, device)
    wirings = wire_all(ops, rewrites, is_cheap=device.is_cheap, unfolded=unfolded)
    return _with_kernels(wirings, owners, threads, device, compiled, steps)


def prepare_alike(
    like: Prepared, ops: Sequence[Op], owners: Sequence[Owner], *, threads: int
) -> Prepared | None:
    """Return the same graph with tensors of other sizes; None where it is another graph.

    Its orders and what each node's turn takes are those of the first: what an order asks for is then
    the same, but for the bytes.

    Args:
        like: The graph as it was prepared.
        ops: Its ops with other shapes, in the same order.
        owners: The variables that it uses.
        threads: Intra-op threads of the device.
    """
    ops = fold(ops)
    same = [(op.name, op.inputs) for op in like.wiring.ops]
    if [(op.name, op.inputs) for op in ops] != same:
        return None
    wirings = [replace(wiring, ops=ops) for wiring in like.wirings]
    made = _with_kernels(wirings, owners, threads, like.device, None, like.steps)
    return replace(
        made,
        seconds=like.seconds,
        first_seconds=like.first_seconds,
        waits=like.waits,
        assumed=like.assumed,
    )


def _with_kernels(
    wirings: Sequence[Wiring],
    owners: Sequence[Owner],
    threads: int,
    device: KernelDevice,
    compiled: Mapping[str, BufferPlan] | None,
    steps: int,
) -> Prepared:
    """Look up what the kernels of a wired graph do.

    Args:
        wirings: The graph, in several orders of creation.
        owners, threads, device, compiled, steps: As for ``prepare``.
    """
    wiring = wirings[0]
    ops = wiring.ops
    kernels = plan_kernels(wiring, threads=threads, device=device, compiled=compiled)
    number = {op.name: node for node, op in enumerate(ops)}
    known = [owner for owner in owners if owner.op in number]
    by_node = {number[owner.op]: position for position, owner in enumerate(known)}
    counters = tuple(number[owner.op] for owner in known if owner.is_counter)
    on_card = device.is_cheap
    seconds = (launches_of if on_card else durations_of)(wiring, kernels.plans)
    return Prepared(
        wirings=tuple(wirings),
        kernels=kernels,
        owners=tuple(known),
        variables=tuple(by_node.get(handle, -1) for handle in kernels.handles),
        arguments={
            node: tuple(by_node.get(handle, -1) for handle in handles)
            for node, handles in kernels.arguments.items()
        },
        counters=counters,
        held_bytes={
            node: size
            for node, op in enumerate(ops)
            if op.type in _HELD and op.outputs and (size := device.held_bytes(op))
        },
        results=frozenset(node for node, op in enumerate(ops) if op.type in RESULT_TYPES),
        shares=_shares(known),
        settles=_assigns_constants(wiring, kernels),
        varies=wiring.has_branches and _decide_branches(wiring, counters),
        grows=any(
            plan.compiled is not None and plan.compiled.holds_constants and plan.compiled.recompiled
            for plan in kernels.plans
        ),
        seconds=seconds,
        first_seconds=first_durations_of(wiring, seconds),
        waits=waits_of(wiring) if on_card else (),
        compiles=compiled_at_first(wiring, kernels.plans) if on_card else (),
        device=device,
        steps=steps,
    )


# Long: what it is told and what it returns are half of it; the rest is one loop over the steps.
def play(
    prepared: Prepared,
    seed: int = 0,
    *,
    threads: int = 1,
    steps: int | None = None,
) -> Draw:
    """Run the executor's order and return what lived.

    Args:
        prepared: The graph.
        seed: Which of the possible schedules.
        threads: Threads that run ops side by side (inter-op).
        steps: Steps to run; None runs a graph in which no counter decides a branch once, or twice where
            the first step differs: each later one is the same.
    """
    wiring = prepared.wirings[seed % len(prepared.wirings)]
    # A graph that is played once is in a later step, when every slot has been written.
    begins = bool(steps) or prepared.varies
    ledger = ledger_of(prepared, shares=begins, ran_before=steps is None)
    values = entering = tuple(ledger.values)
    held = dict(ledger.held)
    fan_out = FanOut(wiring, Arena(seed))
    counters: dict[int, Value] = dict.fromkeys(prepared.counters, (0,))
    loops: dict[str, Loop] = {}
    branches: dict[int, int] = {}
    stranded: list[int] = []
    spans: list[tuple[int, int]] = []
    running = Running(ledger)
    in_turn = threads == 1 and not any(prepared.waits)
    machine = ledger if in_turn else running
    count = steps or _steps_to_settle(prepared)
    for number in range(count):
        first = ledger.instants
        entering = tuple(ledger.values)
        ledger.ran.clear()
        chosen = executor_of(prepared, wiring, fan_out, machine, counters)
        if in_turn:
            chosen.run()
        else:
            # The last step has the chances of the last step that a process takes: a draw that is
            # played from the process's start ends in the same order.
            chance = seed * (prepared.steps + 1) + prepared.steps - count + number
            seconds = prepared.first_seconds if begins and not number else prepared.seconds
            compiles = prepared.compiles if begins and not number else ()
            expensive, waits = wiring.expensive, prepared.waits
            chosen.run_on(Workers(threads, running, seconds, expensive, chance, waits, compiles))
        if isinstance(chosen, ControlExecutor):
            loops |= chosen.deciding.loops
            branches |= chosen.deciding.branches
            stranded = chosen.stranded
        ledger.end_step()
        spans.append((first, ledger.instants - 1))
    if steps is None and len(spans) == 1:  # it finds the results of the step before it
        ledger.had_results()
    return replace(
        _lived(ledger, spans),
        seed=seed,
        threads=threads,
        loops=loops,
        branches=branches,
        stranded=tuple(stranded),
        values=values,
        held=held,
        entering=entering,
    )


def _steps_to_settle(prepared: Prepared) -> int:
    """Return how many steps to play until each later one is the same."""
    if prepared.varies or prepared.grows:
        return prepared.steps
    return 2 if prepared.settles else 1


def executor_of(
    prepared: Prepared,
    wiring: Wiring,
    fan_out: FanOut,
    machine: Ledger | Running,
    counters: dict[int, Value],
) -> Executor | ControlExecutor:
    """Return the executor of one step: the plain one where the graph has no branches and loops.

    Args:
        prepared: The graph.
        wiring: Its nodes and edges, in one of their orders.
        fan_out: The order of successors.
        machine: What each node's turn does.
        counters: Values of the variables that decide branches; changed by the run.
    """
    if not wiring.has_control_flow:
        return Executor(wiring, fan_out, machine)
    handles = prepared.kernels.handles
    return ControlExecutor(wiring, fan_out, machine, handles, counters, assumed=prepared.assumed)


def _lived(ledger: Ledger, spans: list[tuple[int, int]]) -> Draw:
    """Return what lived in the steps that were played, without what decided their order."""
    live = live_bytes(ledger.buffers, ledger.instants)
    first = spans[-1][0]
    top = first + int(live[first:].argmax())
    return Draw(
        seed=0,
        threads=1,
        buffers=ledger.buffers,
        instants=ledger.instants,
        steps=tuple(spans),
        resident_bytes=int(live[first]),
        peak_bytes=int(live[top]),
        peak_instant=top - 1,
        order=tuple(ledger.ran),
    )


def ledger_of(prepared: Prepared, *, shares: bool, ran_before: bool) -> Ledger:
    """Return the buffers as they are before a step.

    Args:
        prepared: The graph.
        shares: Whether variables that begin with one value still share its buffer.
        ran_before: Whether a step has run.
    """
    return Ledger(
        prepared.kernels.plans,
        prepared.variables,
        [owner.size_bytes for owner in prepared.owners],
        prepared.held_bytes,
        prepared.results,
        prepared.shares if shares else None,
        prepared.arguments,
        ran_before=ran_before,
    )


def _shares(owners: Sequence[Owner]) -> dict[int, int]:
    """Return, for each variable that begins with the buffer of an earlier one, that one."""
    first: dict[str, int] = {}
    shares = {}
    for position, owner in enumerate(owners):
        if owner.begins_with:
            earliest = first.setdefault(owner.begins_with, position)
            if earliest != position:
                shares[position] = earliest
    return shares


def _rewrites(ops: Sequence[Op], device: KernelDevice) -> list[int | None]:
    """Return the orders of oneDNN's rewrites to draw from; one where it rewrote nothing."""
    if device.is_cheap or not any(op.type.startswith("_Mkl") for op in ops):
        return [None]
    return list(range(REWRITES if len(ops) < LARGE_OPS else REWRITES // 2))


def _decide_branches(wiring: Wiring, counters: Sequence[int]) -> bool:
    """Say whether a branch may be taken by what is computed from one of these variables.

    Args:
        wiring: The graph.
        counters: The nodes that bring in the variables' handles.
    """
    reached = set(counters)
    queue = list(counters)
    while queue:
        for consumer, _, slot in wiring.data_out[queue.pop()]:
            if wiring.ops[consumer].type in SWITCHES and slot == 1:
                return True
            if consumer not in reached:
                reached.add(consumer)
                queue.append(consumer)
    return False


def _assigns_constants(wiring: Wiring, kernels: Kernels) -> bool:
    """Say whether an op sets a variable to a constant, as it is or handed on."""
    for node, plan in enumerate(kernels.plans):
        if plan.variable is not VariableAccess.ASSIGN:
            continue
        source = wiring.inputs[node][plan.value or 0][0]
        while wiring.ops[source].type in ("Identity", "Reshape") and wiring.inputs[source]:
            source = wiring.inputs[source][0][0]
        if wiring.ops[source].type in _HELD:
            return True
    return False


def live_bytes(buffers: Buffers, instants: int) -> np.ndarray:
    """Return requested bytes at every instant from -1 on, shape ``(instants + 1,)``."""
    size = np.asarray(buffers.size_bytes, dtype=np.int64)
    born = np.asarray(buffers.born, dtype=np.int64)
    dies = np.asarray(buffers.dies, dtype=np.int64)
    held = size > 0
    return running_sum(born[held], np.where(dies < 0, instants, dies)[held], size[held], instants)
