"""The order in which TensorFlow's executor runs the nodes of a step on one thread.

The executor starts at the source. A node that has run makes its successors ready. Inexpensive ones join
the thread's own queue and run next, first in, first out. Of the expensive ones the last joins the queue
if it is empty; every other goes to the pool, which runs the newest task first: the worker pushes to the
front of its deque and pops from there (Eigen's ``ThreadPoolTempl``; ``ScheduleReady`` and ``Process`` in
``executor.cc``). Not modelled: a full deque (1,024 tasks) runs a task at once, and 500 or more tasks at
once go as chunks. Steps of up to 5,000 ops peak alike with both.

In traces of thirteen models this order is the real one, op by op, given the order of edges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from analyzer.simulate.predict.graph.edges import EdgeOrder, Wiring

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger

NO_BUFFER: Final = -1
"""Marks a missing buffer: a dead or missing input, or a result in other memory."""


class Executor:
    """Runs a graph without control flow; a task is a node."""

    def __init__(self, wiring: Wiring, edges: EdgeOrder, ledger: Ledger) -> None:
        self._roots, self._data, self._control = edges.roots, edges.data, edges.control
        self._ledger = ledger
        self._expensive = wiring.expensive
        self._pending = list(wiring.pending)
        self._slots = [[NO_BUFFER] * len(data) for data in wiring.inputs]
        self._pool: list[int] = []

    def run(self) -> None:
        """Run every node once, on one thread."""
        queue: deque[int] = deque()
        self._queue(self._roots, queue)
        self._drain_queue(queue)
        while self._pool:
            self._drain_queue(deque((self._pool.pop(),)))

    def roots(self) -> Sequence[int]:
        """Return the nodes that are ready at the start."""
        return self._roots

    def node_of(self, task: int) -> int:
        """Return the task itself."""
        return task

    def begin(self, node: int) -> list[int]:
        """Start a node and return its output buffers."""
        buffers, self._slots[node] = self._slots[node], []
        return self._ledger.compute(node, buffers)

    def end(self, node: int, outputs: list[int]) -> list[int]:
        """Pass a node's outputs on and return the nodes that became ready."""
        slots, pending, references = self._slots, self._pending, self._ledger.references
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
                    self._ledger.release(buffer)
        return ready

    def _drain_queue(self, queue: deque[int]) -> None:
        compute, end, slots = self._ledger.compute, self.end, self._slots
        while queue:
            node = queue.popleft()
            buffers, slots[node] = slots[node], []
            ready = end(node, compute(node, buffers))
            if ready:
                self._queue(ready, queue)

    def _queue(self, ready: Sequence[int], queue: deque[int]) -> None:
        """Queue inexpensive nodes, and hand expensive ones over to the pool."""
        expensive: list[int] = []
        is_expensive = self._expensive
        for node in ready:
            if is_expensive[node]:
                expensive.append(node)
            else:
                queue.append(node)
        if expensive and not queue:
            queue.append(expensive.pop())
        self._pool += expensive
