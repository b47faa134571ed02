"""The order in which TensorFlow's executor runs the nodes of a step on one thread.

The executor starts at the source. A node that has run makes its successors ready. Inexpensive ones join
the thread's own queue and run next, first in, first out. Of the expensive ones the last joins the queue
if it is empty; every other goes to the pool, which runs the newest task first: the worker pushes to the
front of its deque and pops from there (Eigen's ``ThreadPoolTempl``). The deque holds 1,024 tasks; if it
is full, a task runs at once within the current one. Five hundred or more tasks at once go as chunks,
which unfold when they are popped (``ScheduleReady`` and ``Process`` in ``executor.cc``,
``propagator_state.cc``).

In traces of thirteen models this order is the real one, op by op, given the order of edges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from analyzer.simulate.predict.executor.threads import Workers
from analyzer.simulate.predict.graph.edges import EdgeOrder, Wiring

NO_BUFFER: Final = -1
"""Marks a missing buffer: a dead or missing input, or a result in other memory."""

_DEQUE_CAPACITY: Final = 1024
"""Tasks that a worker's deque holds (Eigen's ``RunQueue<Task, 1024>``)."""

_CHUNK: Final = 500
"""Ready expensive nodes above which the executor hands them over in chunks
(``kInlineScheduleReadyThreshold`` in ``executor.cc``)."""


class NodeRunner(Protocol):
    """Runs nodes. Buffers are numbers; each is passed with one reference.

    Attributes:
        references: References to each buffer. Only ``release`` may drop the last one.
    """

    references: list[int]

    def compute(self, node: int, buffers: list[int], index: int | None = None) -> list[int]:
        """Run a node on its input buffers and return its output buffers.

        ``index`` is the value of the second input of a TensorList's kernel, None if unknown.
        """

    def retain(self, buffer: int) -> None:
        """Add a reference."""

    def release(self, buffer: int) -> None:
        """Drop a reference."""


class Pool:
    """The worker's deque: the newest task runs first."""

    def __init__(self, process: Callable[[object], None]) -> None:
        self._tasks: list[tuple[Sequence[object], bool]] = []
        self._process = process

    def dispatch(self, nodes: list[object]) -> None:
        """Hand over expensive nodes, in chunks if there are many."""
        if len(nodes) < _CHUNK:
            for node in nodes:
                self._push((node,), False)
            return
        for start in range(0, len(nodes), _CHUNK):
            self._push(nodes[start : start + _CHUNK], True)

    def drain(self) -> None:
        """Run all remaining tasks, newest first."""
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
    """Runs a graph without control flow."""

    def __init__(self, wiring: Wiring, edges: EdgeOrder, runner: NodeRunner) -> None:
        self._roots, self._data, self._control = edges.roots, edges.data, edges.control
        self._runner = runner
        self._references = runner.references
        self._expensive = wiring.expensive
        self._pending = list(wiring.pending)
        self._slots = [[NO_BUFFER] * len(data) for data in wiring.inputs]
        self._pool = Pool(self._process)  # type: ignore[arg-type]

    def run(self) -> None:
        """Run every node once, on one thread."""
        queue: deque[int] = deque()
        self._schedule(self._roots, queue)
        self._drain_queue(queue)
        self._pool.drain()

    def run_on(self, workers: Workers[int]) -> None:
        """Run every node once, on several threads in simulated time."""
        workers.run(self._roots, self.begin, self.end, lambda node: node)

    def begin(self, node: int) -> list[int]:
        """Start a node and return its output buffers."""
        buffers, self._slots[node] = self._slots[node], []
        return self._runner.compute(node, buffers)

    def end(self, node: int, outputs: list[int]) -> list[int]:
        """Pass a node's outputs on and return the nodes that became ready."""
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
                    self._runner.release(buffer)
        return ready

    def _process(self, node: int) -> None:
        self._drain_queue(deque((node,)))

    def _drain_queue(self, queue: deque[int]) -> None:
        compute, end, slots = self._runner.compute, self.end, self._slots
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
