"""A step in an order that was seen, to tell errors of the kernels' rules from those of the order.

A trace shows the order in which the ops ran, but for the cheap ones, which hand buffers on and ask for
none: when they run makes no difference to what lives. They, and what the trace does not show, run here
as soon as they can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from analyzer.model.errors import InputError
from analyzer.simulate.predict.buffers.reference_counts import Ledger
from analyzer.simulate.predict.executor.threads import NO_BUFFER
from analyzer.simulate.predict.graph.edges import Wiring
from analyzer.simulate.predict.prepared_step import Prepared, Schedule, summarize


def play_in_order(prepared: Prepared, order: Sequence[str]) -> Schedule:
    """Return what lives in a later step that runs its ops in the order in which a real one did.

    Args:
        prepared: The graph, without branches and loops.
        order: Ops in the order in which a real step ran them.

    Raises:
        InputError: the graph cannot run in that order.
    """
    wiring = prepared.wiring
    number = {op.name: node for node, op in enumerate(wiring.ops)}
    ledger = Ledger(prepared, has_run=True)
    Follower(wiring, ledger, [number[name] for name in order if name in number]).run()
    ledger.end_step()
    ledger.add_previous_results()
    return summarize(ledger, [(0, ledger.instants - 1)])


class Follower:
    """Runs a graph without control flow in a given order.

    Args:
        wiring: The graph.
        machine: What each node's turn does.
        order: Nodes in the order in which they ran; those that are missing run when they can.
    """

    def __init__(self, wiring: Wiring, machine: Ledger, order: Sequence[int]) -> None:
        self._wiring = wiring
        self._machine = machine
        self._order = order
        self._shown = frozenset(order)
        self._pending = list(wiring.pending)
        self._slots = [[NO_BUFFER] * len(data) for data in wiring.inputs]

    def run(self) -> None:
        """Run every node once.

        Raises:
            InputError: the order runs a node before one that it waits for.
        """
        self._follow([node for node in self._wiring.roots if node not in self._shown])
        for node in self._order:
            if self._pending[node]:
                name = self._wiring.ops[node].name
                raise InputError(f"The order runs {name} before what it waits for.")
            self._follow([node])

    def _follow(self, nodes: Sequence[int]) -> None:
        queue = deque(nodes)
        while queue:
            node = queue.popleft()
            outputs = self._machine.compute(node, self._slots[node])
            self._slots[node] = []
            for consumer, output, slot in self._wiring.data_out[node]:
                buffer = outputs[output]
                if buffer >= 0:
                    self._machine.references[buffer] += 1
                    self._slots[consumer][slot] = buffer
                self._arrive(consumer, queue)
            for consumer in self._wiring.control_out[node]:
                self._arrive(consumer, queue)
            for buffer in outputs:
                if buffer >= 0:
                    self._machine.release(buffer)

    def _arrive(self, consumer: int, queue: deque[int]) -> None:
        self._pending[consumer] -= 1
        if not self._pending[consumer] and consumer not in self._shown:
            queue.append(consumer)
