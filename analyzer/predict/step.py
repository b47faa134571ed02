"""One step played: the graph, the executor's order and the kernels brought together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analyzer.errors import InputError
from analyzer.graph.ops import Op
from analyzer.kernels.device import CPU, KernelDevice
from analyzer.kernels.plan import Variable
from analyzer.model import Category
from analyzer.predict.arena import Arena
from analyzer.predict.calls import Kernels, plan_kernels
from analyzer.predict.control import ControlExecutor
from analyzer.predict.deciding import NOTHING_TOLD, Assumptions, Loop
from analyzer.predict.durations import durations_of, first_durations_of
from analyzer.predict.executor import Executor
from analyzer.predict.fanout import FanOut
from analyzer.predict.folding import fold
from analyzer.predict.following import Follower
from analyzer.predict.ledger import Buffers, Ledger, Running
from analyzer.predict.values import Value
from analyzer.predict.wiring import Wiring, wire_all
from analyzer.predict.workers import Workers
from analyzer.xla.plan import Plan as XlaPlan

STEPS: Final = 3
"""Steps played from the start, unless asked for otherwise: the second may differ from the first (slots),
the third from the second (chunks); more differ where a counter decides a branch (accumulation)."""

REWRITES: Final = 16
"""Orders of oneDNN's rewritten nodes that are drawn from."""

LARGE_OPS: Final = 4000
"""From this size on half as many orders are drawn from: each costs a walk of the graph."""

_HELD: Final = ("Const", "HostConst", "ImmutableConst", "_Arg", "_DeviceArg", "Placeholder")
_RESULTS: Final = ("_Retval", "_DeviceRetval")


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
        grows: Whether each step keeps something: one that is compiled anew keeps old values.
        seconds: About how long each node runs.
        first_seconds: The same in a process's first step.
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
    grows: bool
    seconds: tuple[float, ...]
    first_seconds: tuple[float, ...]
    device: KernelDevice = CPU
    steps: int = STEPS
    assumed: Assumptions = NOTHING_TOLD

    @property
    def wiring(self) -> Wiring:
        """Nodes and edges in the order in which the graph lists them."""
        return self.wirings[0]


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
        loops: Name of a loop whose condition could not be followed -> what became of it.
        branches: Node that brings a predicate that could not be followed -> branches there are.
        stranded: Nodes that the run never came to: none, but in a graph that could not run.
        values: Before the first step, the buffer of each variable.
        held: Node -> the buffer of its output that something outside the step holds.
        order: Nodes in the order in which the last step ran them.
    """

    seed: int
    threads: int
    buffers: Buffers
    instants: int
    steps: tuple[tuple[int, int], ...]
    resident_bytes: int
    peak_bytes: int
    peak_instant: int
    loops: Mapping[str, Loop]
    branches: Mapping[int, int]
    stranded: tuple[int, ...]
    values: tuple[int, ...]
    held: Mapping[int, int]
    order: tuple[int, ...]


def prepare(
    ops: Sequence[Op],
    owners: Sequence[Owner],
    *,
    threads: int,
    device: KernelDevice = CPU,
    compiled: Mapping[str, XlaPlan] | None = None,
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
    wiring = wirings[0]
    kernels = plan_kernels(wiring, threads=threads, device=device, compiled=compiled)
    number = {op.name: node for node, op in enumerate(ops)}
    known = [owner for owner in owners if owner.op in number]
    by_node = {number[owner.op]: position for position, owner in enumerate(known)}
    seconds = durations_of(wiring, kernels.plans)
    return Prepared(
        wirings=tuple(wirings),
        kernels=kernels,
        owners=tuple(known),
        variables=tuple(by_node.get(handle, -1) for handle in kernels.handles),
        arguments={
            node: tuple(by_node.get(handle, -1) for handle in handles)
            for node, handles in kernels.arguments.items()
        },
        counters=tuple(number[owner.op] for owner in known if owner.is_counter),
        held_bytes={
            node: size
            for node, op in enumerate(ops)
            if op.type in _HELD and op.outputs and (size := device.held_bytes(op))
        },
        results=frozenset(node for node, op in enumerate(ops) if op.type in _RESULTS),
        shares=_shares(known),
        settles=_assigns_constants(wiring, kernels),
        grows=any(
            plan.compiled is not None and plan.compiled.keeps and plan.compiled.anew
            for plan in kernels.plans
        ),
        seconds=seconds,
        first_seconds=first_durations_of(wiring, seconds),
        device=device,
        steps=steps,
    )


def play(
    prepared: Prepared,
    seed: int = 0,
    *,
    threads: int = 1,
    steps: int | None = None,
    order: Sequence[str] | None = None,
) -> Draw:
    """Run the executor's order and return what lived.

    Args:
        prepared: The graph.
        seed: Which of the possible schedules.
        threads: Threads that run ops side by side (inter-op).
        steps: Steps to run; None runs a graph without branches once, or twice where the first step
            differs: each later one is the same.
        order: Ops in the order in which a real step ran them; None for the drawn schedule's.

    Raises:
        InputError: the graph cannot run in the order given, or has branches or loops.
    """
    wiring = prepared.wirings[seed % len(prepared.wirings)]
    # A graph that is played once is in a later step, when every slot has been written.
    begins = bool(steps) or wiring.has_branches
    ledger = _ledger_of(prepared, shares=begins, ran_before=steps is None)
    values, held = tuple(ledger.values), dict(ledger.held)
    fan_out = FanOut(wiring, Arena(seed))
    counters: dict[int, Value] = dict.fromkeys(prepared.counters, (0,))
    loops: dict[str, Loop] = {}
    branches: dict[int, int] = {}
    stranded: list[int] = []
    spans: list[tuple[int, int]] = []
    settling = prepared.steps if prepared.grows else 2 if prepared.settles else 1
    running = Running(ledger)
    machine = ledger if threads == 1 else running

    def workers(step: int) -> Workers[Any]:
        chance = seed * (prepared.steps + 1) + step
        seconds = prepared.first_seconds if begins and not step else prepared.seconds
        return Workers(threads, running, seconds, wiring.expensive, chance)

    def executor() -> Executor | ControlExecutor:
        if wiring.has_control_flow:
            handles = prepared.kernels.handles
            return ControlExecutor(
                wiring, fan_out, machine, handles, counters, assumed=prepared.assumed
            )
        return Executor(wiring, fan_out, machine)

    for number in range(steps or (prepared.steps if wiring.has_branches else settling)):
        first = ledger.instants
        ledger.ran.clear()
        if order is not None:
            _follow(prepared, ledger, order)
        else:
            chosen = executor()
            if threads == 1:
                chosen.run()
            else:
                chosen.run_on(workers(number))
            if isinstance(chosen, ControlExecutor):
                loops |= chosen.deciding.loops
                branches |= chosen.deciding.branches
                stranded = chosen.stranded
        ledger.end_step()
        spans.append((first, ledger.instants - 1))
    if steps is None and len(spans) == 1:  # it finds the results of the step before it
        ledger.had_results()
    live = live_bytes(ledger.buffers, ledger.instants)
    first = spans[-1][0]
    top = first + int(live[first:].argmax())
    return Draw(
        seed=seed,
        threads=threads,
        buffers=ledger.buffers,
        instants=ledger.instants,
        steps=tuple(spans),
        resident_bytes=int(live[first]),
        peak_bytes=int(live[top]),
        peak_instant=top - 1,
        loops=loops,
        branches=branches,
        stranded=tuple(stranded),
        values=values,
        held=held,
        order=tuple(ledger.ran),
    )


def _ledger_of(prepared: Prepared, *, shares: bool, ran_before: bool) -> Ledger:
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


def _assigns_constants(wiring: Wiring, kernels: Kernels) -> bool:
    """Say whether an op sets a variable to a constant, as it is or handed on."""
    for node, plan in enumerate(kernels.plans):
        if plan.variable is not Variable.ASSIGN:
            continue
        source = wiring.inputs[node][plan.value or 0][0]
        while wiring.ops[source].type in ("Identity", "Reshape") and wiring.inputs[source]:
            source = wiring.inputs[source][0][0]
        if wiring.ops[source].type in _HELD:
            return True
    return False


def _follow(prepared: Prepared, ledger: Ledger, order: Sequence[str]) -> None:
    wiring = prepared.wiring
    if wiring.has_control_flow:
        raise InputError("A graph with branches or loops cannot follow a given order.")
    number = {op.name: node for node, op in enumerate(wiring.ops)}
    Follower(wiring, ledger, [number[name] for name in order if name in number]).run()


def live_bytes(buffers: Buffers, instants: int) -> np.ndarray:
    """Return requested bytes at every instant from -1 on, shape ``(instants + 1,)``."""
    size = np.asarray(buffers.size_bytes, dtype=np.int64)
    born = np.asarray(buffers.born, dtype=np.int64)
    dies = np.asarray(buffers.dies, dtype=np.int64)
    change = np.zeros(instants + 1, dtype=np.int64)
    lasting = size > 0
    np.add.at(change, born[lasting] + 1, size[lasting])
    ended = lasting & (dies >= 0)
    np.add.at(change, dies[ended] + 1, -size[ended])
    return np.cumsum(change)
