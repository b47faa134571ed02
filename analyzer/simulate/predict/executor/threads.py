"""Executors: one thread, or several that run a step's ops side by side in simulated time.

Of several threads, each has a deque of its own and steals from the back of another's when it is idle
(Eigen's ``ThreadPoolTempl``), and a kernel takes time: its inputs and temporaries live while other
threads allocate. Only ratios of durations count, within a factor of a few: each schedule scales every
kind of op and every run by chance. The rates are of two cores with AVX-512 and stand for any machine.
Other programs stop a thread in some runs: the buffers of its op live on while other threads run ops.

No drawn schedule runs all ops one by one or in lockstep: in 16 traced steps on two cores, each thread
took 40 to 60 % of the kernels' time, and two kernels ran during 36 to 93 % of it. These two orders bound
what a busy machine may do, and are played beside the draws.

A kernel on a card only launches its computation: it is inexpensive (``OpKernel::OpKernel`` in
``op_kernel.cc``), and one thread launches all. A copy between the memories is asynchronous (``RecvOp``
is an ``AsyncOpKernel``) and frees its thread at once. One thread outside the pool notices its end and
hands its successors to the pool (``EventMgr`` in ``device_event_mgr.cc``: one polls, one calls back).
Nodes that end while it sleeps or is busy continue one after the other, from the front of the calling
thread's deque or the back of the polling thread's. Not modelled: a full deque, and chunks of tasks.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.model.tables import read_table
from analyzer.simulate.kernels.shared.op_call import MemoryPlan, VariableAccess
from analyzer.simulate.predict.graph.edges import INEXPENSIVE, TYPES, EdgeOrder, Wiring

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger


_MEASURED: Final = read_table("simulate/predict/executor/durations.toml", dict[str, float])
INLINE_SECONDS, BYTES_PER_SECOND = _MEASURED["inline_seconds"], _MEASURED["bytes_per_second"]
FLOPS, CALL_BACK_SECONDS = _MEASURED["flops"], _MEASURED["call_back_seconds"]

_ASYNCHRONOUS: Final = TYPES["counting"] | TYPES["solvers"] | {COPY, COPY_BACK}
"""Op types whose kernel on a card is an ``AsyncOpKernel``: ``sendrecv_ops.h``, ``unique_op_gpu.cu.h``,
``segment_reduction_ops_impl.h``, ``where_op.cc``, ``dynamic_partition_op_gpu.cu.cc``, ``linalg``."""


@dataclass(frozen=True, slots=True)
class OpTiming:
    """Durations of the ops of a step."""

    seconds: tuple[float, ...]  # expected seconds that each node keeps its thread
    # for each node, whether the executor waits for it after its kernel returned; empty on a CPU
    waits: tuple[bool, ...] = ()


def estimate_timing(wiring: Wiring, plans: Sequence[MemoryPlan], *, is_on_card: bool) -> OpTiming:
    """Return the expected durations of a step's ops."""
    if is_on_card:
        launches = [
            INLINE_SECONDS
            if op.type in INEXPENSIVE or plan.variable is VariableAccess.READ
            else _MEASURED["convolution_launch_seconds"]
            if "Conv" in op.type
            else _MEASURED["launch_seconds"]
            for op, plan in zip(wiring.ops, plans, strict=True)
        ]
        return OpTiming(tuple(launches), tuple(op.type in _ASYNCHRONOUS for op in wiring.ops))
    durations = [INLINE_SECONDS] * len(wiring.ops)
    for node, (op, plan) in enumerate(zip(wiring.ops, plans, strict=True)):
        # A read passes the variable's buffer on.
        if wiring.expensive[node] and plan.variable is not VariableAccess.READ:
            specs = [*op.outputs, *wiring.specs(node)]
            touched_bytes = sum(spec.size_bytes or 0 for spec in specs if spec is not None)
            durations[node] = _MEASURED["call_seconds"] + touched_bytes / BYTES_PER_SECOND
            durations[node] += count_operations(wiring, node) / FLOPS
    return OpTiming(tuple(durations))


def count_operations(wiring: Wiring, node: int) -> float:
    """Return the floating-point operations of a product or convolution; 0 for other ops."""
    op = wiring.ops[node]
    if not any(kind in op.type for kind in ("Conv", "MatMul", "Einsum")):
        return 0.0
    inputs = [spec.known_shape if spec else None for spec in wiring.specs(node)]
    result = op.outputs[0].known_shape if op.outputs else None
    first, second, third = [*inputs, None, None, None][:3]
    if "Conv" not in op.type:
        if not first or not second or not result:
            return 0.0
        # Each of a batch of m x k by k x n products takes 2 m k n: the root of the sizes' product.
        batch = math.prod(result[:-2]) if "MatMul" in op.type else 1
        sizes = math.prod(first) * math.prod(second) * math.prod(result)
        return 2.0 * math.sqrt(sizes / max(batch, 1))
    # Each element of the forward result takes two operations for each number in the filter of one
    # output channel. The gradients read the forward result's gradient as their third input.
    forward = third if "Backprop" in op.type else result
    filters = result if "BackpropFilter" in op.type else second
    if not forward or not filters:
        return 0.0
    # The last two axes of a depthwise filter are channels and results for each channel.
    per_element = math.prod(filters[:-2] if "Depthwise" in op.type else filters[:-1])
    return 2.0 * math.prod(forward) * per_element


Task = TypeVar("Task")

_Running = tuple[Task, Any, list[int]]
"""A task that has begun, its outputs, and the buffers that it uses until it ends."""

_OUTSIDE: Final = -1  # stands for the callback thread, which is not one of the pool's

_CHANCES: Final = 4096
"""Random factors for runs of ops; they are used in turn and repeat in longer steps."""


class TaskRunner(ABC, Generic[Task]):
    """An executor: starts and ends tasks, from ``roots`` on, and runs them on one thread."""

    roots: Sequence[Task]

    def __init__(self, wiring: Wiring, ledger: Ledger) -> None:
        self.ledger = ledger
        self.expensive = [*wiring.expensive, False]  # for each node, and for a dead task

    @abstractmethod
    def begin(self, task: Task) -> Any:
        """Start a task and return its outputs."""

    @abstractmethod
    def end(self, task: Task, outputs: Any) -> Sequence[Task]:
        """Pass a task's outputs on and return the tasks that became ready."""

    @abstractmethod
    def node_of(self, task: Task) -> int:
        """Return the node that a task runs; -1 for a dead task."""

    def finish(self, task: Task, outputs: Any, in_use: list[int]) -> Sequence[Task]:
        """Release the buffers that a task used, and end it."""
        for buffer in in_use:
            self.ledger.release(buffer)
        return self.end(task, outputs)

    def divide(self, ready: Sequence[Task], queue: deque[Task]) -> list[Task]:
        """Queue inexpensive tasks; return the others, but queue one if the queue is empty."""
        expensive: list[Task] = []
        for task in ready:
            (expensive if self.expensive[self.node_of(task)] else queue).append(task)
        if expensive and not queue:
            queue.append(expensive.pop())
        return expensive

    def run(self) -> None:
        """Run every task on one thread; expensive ones wait in a pool, the last first."""
        queue: deque[Task] = deque()
        pool = self.divide(self.roots, queue)
        while queue:
            task = queue.popleft()
            ready = self.end(task, self.begin(task))
            pool += self.divide(ready, queue)
            if pool and not queue:
                queue.append(pool.pop())


class Workers(Generic[Task]):
    """Threads of one executor, whose ledger is a timed one."""

    def __init__(self, executor: TaskRunner[Task], timing: OpTiming, count: int, seed: int) -> None:
        self._executor = executor
        self._waits = timing.waits or [False] * len(timing.seconds)
        self._random = Random(seed)
        chances = np.random.default_rng(seed)
        expected = np.asarray(timing.seconds, dtype=np.float64)
        # Equal durations are of one kind of kernel and share their error.
        kinds, kind = np.unique(expected, return_inverse=True)
        factors = chances.lognormal(0.0, _MEASURED["kind_spread"], len(kinds))
        self._seconds = (expected * factors[kind]).tolist()
        factors = chances.lognormal(0.0, _MEASURED["run_spread"], _CHANCES)
        stalls = chances.exponential(_MEASURED["stall_factor"], _CHANCES)
        is_stalled = chances.random(_CHANCES) < _MEASURED["stall_share"]
        self._chances = cycle(np.where(is_stalled, factors * (1 + stalls), factors).tolist())
        self._inline: list[deque[Task]] = [deque() for _ in range(count)]
        self._own: list[deque[Task]] = [deque() for _ in range(count)]
        self._idle = set(range(1, count))
        self._over: tuple[deque[_Running[Task]], ...] = (deque(), deque())
        self._caller_sleeps = True
        self._events: list[tuple[float, int, int, _Running[Task] | None]] = []
        self._number = 0

    def run(self) -> None:
        """Run the roots, which the first thread takes, and everything that becomes ready."""
        self._queue(0, 0.0, self._executor.roots)
        self._work(0, 0.0)
        while self._events:
            now, _, worker, running = heapq.heappop(self._events)
            ready = [] if running is None else self._executor.finish(*running)
            if worker == _OUTSIDE:
                for task in ready:
                    self._random.choice(self._own).append(task)
                    self._wake(now)
                self._call_back(now)
            else:
                self._queue(worker, now, ready)
                self._work(worker, now)

    def _work(self, worker: int, now: float) -> None:
        """Run a thread's tasks until another thread has an event, or no task is left."""
        events, inline, executor = self._events, self._inline[worker], self._executor
        ledger, begin, node_of = executor.ledger, executor.begin, executor.node_of
        seconds, chances = self._seconds, self._chances
        while True:
            if not inline:
                # The newest task of the thread's own deque, else the oldest of another's.
                others = [waiting for waiting in self._own if waiting]
                if self._own[worker]:
                    inline.append(self._own[worker].popleft())
                elif others:
                    inline.append(self._random.choice(others).pop())
                else:
                    self._idle.add(worker)
                    return
            task = inline.popleft()
            trials = ledger.trials
            running = (task, begin(task), ledger.take())
            node = node_of(task)
            if node >= 0:
                now += seconds[node] * next(chances)
                if ledger.trials > trials:
                    now += _MEASURED["trial_seconds"] * next(chances)
                if self._waits[node]:
                    self._random.choice(self._over).append(running)
                    if self._caller_sleeps:
                        self._caller_sleeps = False
                        delay = self._draw_delay(_MEASURED["caller_seconds"])
                        self._push(now + delay, _OUTSIDE, None)
                    if events and events[0][0] <= now:
                        self._push(now, worker, None)
                        return
                    continue
            if events and events[0][0] <= now:
                self._push(now, worker, running)
                return
            self._queue(worker, now, executor.finish(*running))

    def _queue(self, worker: int, now: float, ready: Sequence[Task]) -> None:
        """Queue inexpensive tasks on the thread, and hand expensive ones over to the pool."""
        for task in self._executor.divide(ready, self._inline[worker]):
            self._own[worker].appendleft(task)
            self._wake(now)

    def _call_back(self, now: float) -> None:
        """End the next waiting node; without one the callback thread goes to sleep."""
        own, other = self._over
        self._caller_sleeps = not own and not other
        if not self._caller_sleeps:
            following = own.popleft() if own else other.pop()
            self._push(now + CALL_BACK_SECONDS, _OUTSIDE, following)

    def _wake(self, now: float) -> None:
        if self._idle:
            worker = self._random.choice(sorted(self._idle))
            self._idle.remove(worker)
            self._push(now + self._draw_delay(_MEASURED["wake_seconds"]), worker, None)

    def _draw_delay(self, median_seconds: float) -> float:
        return self._random.lognormvariate(0.0, _MEASURED["delay_spread"]) * median_seconds

    def _push(self, time: float, worker: int, running: _Running[Task] | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, worker, running))


class LockstepWorkers(Workers[Task]):
    """Threads that wake at once, and on which all expensive ops take equally long.

    As many ops as threads begin and end together. No more can overlap, because a kernel keeps its
    thread until it returns (``ProcessSync`` in ``executor.cc``).
    """

    def __init__(self, executor: TaskRunner[Task], timing: OpTiming, count: int, seed: int) -> None:
        super().__init__(executor, timing, count, seed)
        self._seconds = [float(is_expensive) for is_expensive in executor.expensive]
        self._chances = cycle([1.0])

    def _draw_delay(self, median_seconds: float) -> float:
        return 0.0


NO_BUFFER: Final = -1
"""Marks a missing buffer: a dead or missing input, or a result in other memory."""


class Executor(TaskRunner[int]):
    """Runs a graph without control flow; a task is a node."""

    def __init__(self, wiring: Wiring, edges: EdgeOrder, ledger: Ledger) -> None:
        super().__init__(wiring, ledger)
        self.roots, self._data, self._control = edges.roots, edges.data, edges.control
        self._pending = list(wiring.pending)
        self._slots = [[NO_BUFFER] * len(data) for data in wiring.inputs]

    def node_of(self, task: int) -> int:
        """Return the task itself."""
        return task

    def begin(self, node: int) -> list[int]:
        """Start a node and return its output buffers."""
        buffers, self._slots[node] = self._slots[node], []
        return self.ledger.compute(node, buffers)

    def end(self, node: int, outputs: list[int]) -> list[int]:
        """Pass a node's outputs on and return the nodes that became ready."""
        slots, pending, references = self._slots, self._pending, self.ledger.references
        ready: list[int] = []
        for consumer, output, slot in self._data[node]:
            buffer = outputs[output]
            if buffer >= 0:
                references[buffer] += 1
                slots[consumer][slot] = buffer
            pending[consumer] -= 1
            if not pending[consumer]:
                ready.append(consumer)
        for consumer in self._control[node]:
            pending[consumer] -= 1
            if not pending[consumer]:
                ready.append(consumer)
        for buffer in outputs:
            if buffer >= 0:
                self.ledger.release(buffer)
        return ready
