"""The order in which TensorFlow's CPU executor runs the nodes of a step.

One inter-op thread, op by op. The executor starts at the source. A node that has run makes its
successors ready; the cheap ones join the thread's own queue and run next, first in first out; of the
expensive ones the last is kept if that queue is empty, and every other is handed to the pool, where
the newest task runs first (the worker pushes to the front of its own deque and pops from there;
Eigen's ``ThreadPoolTempl``). The deque holds 1,024 tasks; with more, a task runs at once in the
middle of the current one. Five hundred or more tasks at once go as chunks, which unfold when they
are popped. (``executor.cc``: ``ScheduleReady``, ``Process``; ``propagator_state.cc``.)

Held against traces of thirteen models the order is the real one, op by op, once the order of the
hash sets (``successor_order``) is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from analyzer.simulate.predict.executor.thread_pool import Workers
from analyzer.simulate.predict.graph.edges import Wiring
from analyzer.simulate.predict.graph.successor_order import FanOut

NO_BUFFER: Final = -1
"""Stands for a buffer where there is none: a dead or missing input, a result not in this memory."""
_DEQUE_CAPACITY: Final = 1024
"""Tasks that a worker's deque holds (Eigen's ``RunQueue<Task, 1024>``)."""
_CHUNK: Final = 500
"""As in ``thread_pool``."""


class NodeRunner(Protocol):
    """What a node's turn does; buffers are numbers, each handed over with one reference.

    Attributes:
        references: How many each buffer has; the last one is dropped by ``release`` alone.
    """

    references: list[int]

    def compute(self, node: int, buffers: list[int], index: int | None = None) -> list[int]:
        """Run the node on these input buffers and return its output buffers.

        ``index`` is the value of its second input where a TensorList's kernel is told it.

        Args:
            node: Number of the node.
            buffers: Number of the buffer on each input.
            index: Value of the second input where a TensorList's kernel is told it; else None.
        """

    def retain(self, buffer: int) -> None:
        """Add a reference."""

    def release(self, buffer: int) -> None:
        """Drop a reference."""


class Pool:
    """The worker's deque: tasks handed over run newest first."""

    def __init__(self, process: Callable[[object], None]) -> None:
        self._tasks: list[tuple[Sequence[object], bool]] = []
        self._process = process

    def dispatch(self, nodes: list[object]) -> None:
        """Hand over expensive nodes, in chunks where there are too many."""
        if len(nodes) < _CHUNK:
            for node in nodes:
                self._push((node,), False)
            return
        for start in range(0, len(nodes), _CHUNK):
            self._push(nodes[start : start + _CHUNK], True)

    def drain(self) -> None:
        """Run what is left, newest first."""
        while self._tasks:
            self._run(*self._tasks.pop())

    def _push(self, nodes: Sequence[object], is_chunk: bool) -> None:
        if len(self._tasks) >= _DEQUE_CAPACITY:
            self._run(nodes, is_chunk)
        else:
            self._tasks.append((nodes, is_chunk))

    def _run(self, nodes: Sequence[object], is_chunk: bool) -> None:
        if not is_chunk:
            self._process(nodes[0])
            return
        for node in nodes:
            self._push((node,), False)


class Executor:
    """Runs a graph without control flow.

    Args:
        wiring: The graph.
        fan_out: The order of successors.
        machine: What each node's turn does.
    """

    def __init__(self, wiring: Wiring, fan_out: FanOut, machine: NodeRunner) -> None:
        self._roots, self._data, self._control = fan_out.roots, fan_out.data, fan_out.control
        self._machine = machine
        self._references = machine.references
        self._expensive = wiring.expensive
        self._pending = list(wiring.pending)
        self._slots = [[NO_BUFFER] * len(data) for data in wiring.inputs]
        self._pool = Pool(self._process)  # type: ignore[arg-type]

    def run(self) -> None:
        """Run every node once."""
        queue: deque[int] = deque()
        self._schedule(self._roots, queue)
        self._follow(queue)
        self._pool.drain()

    def _process(self, node: int) -> None:
        self._follow(deque((node,)))

    def run_on(self, workers: Workers[int]) -> None:
        """Run every node once on several threads; the machine's ops take time there."""
        workers.run(self._roots, self.begin, self.end, lambda node: node)

    def begin(self, node: int) -> list[int]:
        """Start a node and return its output buffers."""
        buffers, self._slots[node] = self._slots[node], []
        return self._machine.compute(node, buffers)

    def end(self, node: int, outputs: list[int]) -> list[int]:
        """Hand a node's outputs on and return the nodes that became ready."""
        slots, pending, references = self._slots, self._pending, self._references
        ready: list[int] = []
        for consumer, output, slot in self._data[node]:
            buffer = outputs[output]
            if buffer >= 0:
                references[buffer] += 1
                slots[consumer][slot] = buffer
            left = pending[consumer] - 1
            pending[consumer] = left
            if not left:
                ready.append(consumer)
        for consumer in self._control[node]:
            left = pending[consumer] - 1
            pending[consumer] = left
            if not left:
                ready.append(consumer)
        for buffer in outputs:
            if buffer >= 0:
                if references[buffer] > 1:
                    references[buffer] -= 1
                else:
                    self._machine.release(buffer)
        return ready

    def _follow(self, queue: deque[int]) -> None:
        compute, end, slots = self._machine.compute, self.end, self._slots
        while queue:
            node = queue.popleft()
            buffers, slots[node] = slots[node], []
            ready = end(node, compute(node, buffers))
            if ready:
                self._schedule(ready, queue)

    def _schedule(self, ready: Sequence[int], queue: deque[int]) -> None:
        expensive: list[object] = []
        is_expensive = self._expensive
        for node in ready:
            if is_expensive[node]:
                expensive.append(node)
            else:
                queue.append(node)
        if expensive and not queue:
            queue.append(expensive.pop())  # type: ignore[arg-type]
        if expensive:
            self._pool.dispatch(expensive)
