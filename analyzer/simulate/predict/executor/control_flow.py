"""The executor for graphs with branches and loops: frames, iterations and dead tensors.

A lowered ``cond`` is ``Switch`` and ``Merge``; the other branch runs *dead*, which costs nothing.
A lowered ``while`` is a frame: ``Enter`` passes a tensor in, each ``NextIteration`` starts the next
iteration's copy of the body, ``Exit`` passes a tensor out (``propagator_state.cc``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from analyzer.simulate.predict.executor.node_execution import (
    MERGES,
    Entry,
    Frame,
    Iteration,
    NodeExecution,
)
from analyzer.simulate.predict.executor.scalar_values import Value
from analyzer.simulate.predict.executor.threads import TaskRunner
from analyzer.simulate.predict.graph.edges import EdgeOrder

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger
    from analyzer.simulate.predict.prepared_step import Prepared

_ENTER: Final = frozenset(("Enter", "RefEnter"))
_EXIT: Final = frozenset(("Exit", "RefExit"))
_NEXT: Final = frozenset(("NextIteration", "RefNextIteration"))
_BORDER: Final = _ENTER | _EXIT | _NEXT

Task = tuple[int, Iteration, bool]  # a ready node, its iteration, and whether it is dead


class ControlExecutor(TaskRunner[Task]):
    """Runs a graph with control flow; changes ``variables``, values of integer variables by node."""

    def __init__(
        self, prepared: Prepared, edges: EdgeOrder, ledger: Ledger, variables: dict[int, Value]
    ) -> None:
        wiring = prepared.wiring
        super().__init__(wiring, ledger)
        self._wiring = wiring
        self._edges = edges
        self._ready: list[Task] = []
        self._types = [op.type for op in wiring.ops]
        self._is_merge = [kind in MERGES for kind in self._types]
        rows = zip(wiring.inputs, wiring.control, self._is_merge, strict=True)
        self._waits_for = [
            1 + 2 * len(waits) if is_merge else len(data) + len(waits)
            for data, waits, is_merge in rows
        ]
        self._references = ledger.references
        self._enters = Counter(
            str(op.attrs["frame_name"]) for op in wiring.ops if op.type in _ENTER
        )
        self._execution = NodeExecution(prepared, ledger, variables)
        self.decisions = self._execution.decisions
        self._reached = [False] * len(wiring.ops)
        root = Frame(name="", parent=None, pending_inputs=0, parallel=1)
        iteration = root.iterations[0] = Iteration(root, 0)
        self.roots = [(node, iteration, False) for node in edges.roots]
        iteration.outstanding = len(self.roots)

    def node_of(self, task: Task) -> int:
        """Return the node that a task runs; -1 for a dead task."""
        return -1 if task[2] else task[0]

    @property
    def stranded(self) -> list[int]:
        """Nodes that neither ran nor were dead; none in a graph that can run."""
        return [node for node, reached in enumerate(self._reached) if not reached]

    def begin(self, task: Task) -> list[Entry | None]:
        """Start a node and return its outputs."""
        node, iteration, dead = task
        self._reached[node] = True
        slots = iteration.slots.pop(node, None) or [None] * len(self._wiring.inputs[node])
        if dead and self._types[node] not in _NEXT:
            self._drop(slots)
            return [None] * len(self._wiring.ops[node].outputs)
        return self._execution.compute(node, slots, iteration)

    def end(self, task: Task, outputs: list[Entry | None]) -> list[Task]:
        """Pass a node's outputs on and return the tasks that became ready."""
        node, iteration, dead = task
        ready = self._ready = []
        if self._types[node] in _BORDER:
            self._cross(node, iteration, outputs, dead)
        else:
            self._activate(node, iteration, outputs, dead)
        self._drop(outputs)
        iteration.outstanding -= 1
        if not iteration.outstanding and iteration.frame.parent is not None:
            self._clean_up(iteration.frame, iteration.number)
        return ready

    def _drop(self, entries: Sequence[Entry | None]) -> None:
        for entry in entries:
            if entry is not None and entry[0] >= 0:
                self.ledger.release(entry[0])

    def _cross(
        self, node: int, iteration: Iteration, outputs: list[Entry | None], dead: bool
    ) -> None:
        """Pass outputs into a loop, to its next iteration, or out of it."""
        kind = self._types[node]
        frame = iteration.frame
        if kind in _ENTER:
            self._enter(node, iteration, outputs, dead)
        elif kind in _EXIT:
            if not dead and frame.parent is not None:
                self._activate(node, frame.parent, outputs, False)
            elif iteration.number == frame.count:
                frame.dead_exits.append(node)
        else:
            entry = outputs[0] if outputs else None
            if dead or entry is None:
                return
            if iteration.number == frame.count:
                if len(frame.iterations) >= frame.parallel:
                    self._hold(entry)
                    frame.deferred.append((node, entry))
                    return
                self._increment(frame)
            self._activate(node, frame.iterations[iteration.number + 1], outputs, False)

    def _enter(
        self, node: int, iteration: Iteration, outputs: list[Entry | None], dead: bool
    ) -> None:
        attrs = self._wiring.ops[node].attrs
        name = str(attrs["frame_name"])
        key = (iteration.number, name)
        child = iteration.frame.children.get(key)
        if child is None:
            parallel = int(attrs.get("parallel_iterations", 10))
            child = Frame(name, iteration, self._enters[name], parallel)
            child.iterations[0] = Iteration(child, 0)
            iteration.frame.children[key] = child
            iteration.frames += 1
        numbers = [0]
        if attrs.get("is_constant") and outputs[0] is not None:
            self._hold(outputs[0])
            child.invariants.append((node, outputs[0]))
            numbers = sorted(child.iterations)
        for number in numbers:
            self._activate(node, child.iterations[number], outputs, dead)
        child.pending_inputs -= 1

    def _hold(self, entry: Entry) -> None:
        if entry[0] >= 0:
            self._references[entry[0]] += 1

    def _activate(
        self, node: int, iteration: Iteration, outputs: list[Entry | None], dead: bool
    ) -> None:
        live = 0 if dead else len(outputs)
        for consumer, output, slot in self._edges.data[node]:
            entry = outputs[output] if output < live else None
            if self._is_merge[consumer]:
                self._activate_merge(consumer, iteration, slot, entry, self._types[node] in _ENTER)
                continue
            if entry is not None:
                self._deliver(consumer, iteration, slot, entry)
            self._arrive(consumer, iteration, entry is None)
        for consumer in self._edges.control[node]:
            if not self._is_merge[consumer]:
                self._arrive(consumer, iteration, dead)
                continue
            pending = iteration.pending.get(consumer, self._waits_for[consumer]) - 2
            iteration.pending[consumer] = pending
            all_dead = iteration.dead.get(consumer, 0) == len(self._wiring.inputs[consumer])
            if pending == 0 or (pending == 1 and all_dead):
                self._make_ready(consumer, iteration, all_dead)

    def _arrive(self, node: int, iteration: Iteration, dead: bool) -> None:
        """Count an input of a node, which may be dead; the last one makes it ready."""
        if dead:
            iteration.dead[node] = iteration.dead.get(node, 0) + 1
        pending = iteration.pending.get(node, self._waits_for[node]) - 1
        iteration.pending[node] = pending
        if not pending:
            self._make_ready(node, iteration, bool(iteration.dead.get(node)))

    def _activate_merge(
        self, node: int, iteration: Iteration, slot: int, entry: Entry | None, from_enter: bool
    ) -> None:
        """Pass an input to a merge, which forwards the first live one; until then bit 0 is set.

        It is dead if all inputs are, or if the loop of which it is the start is entered dead.
        """
        pending = iteration.pending.get(node, self._waits_for[node])
        if entry is not None:
            if pending & 1:
                self._deliver(node, iteration, slot, entry)
                iteration.pending[node] = pending & ~1
                if pending == 1:
                    self._make_ready(node, iteration, False)
            return
        iteration.dead[node] = iteration.dead.get(node, 0) + 1
        is_dead = from_enter or iteration.dead[node] == len(self._wiring.inputs[node])
        if pending == 1 and is_dead:
            self._make_ready(node, iteration, True)

    def _deliver(self, node: int, iteration: Iteration, slot: int, entry: Entry) -> None:
        self._hold(entry)
        slots = iteration.slots.setdefault(node, [None] * len(self._wiring.inputs[node]))
        slots[slot] = entry

    def _make_ready(self, node: int, iteration: Iteration, dead: bool) -> None:
        iteration.outstanding += 1
        self._ready.append((node, iteration, dead))

    def _increment(self, frame: Frame) -> None:
        frame.count += 1
        iteration = frame.iterations[frame.count] = Iteration(frame, frame.count)
        frame.dead_exits.clear()
        deferred, frame.deferred = frame.deferred, []
        for node, entry in deferred:
            self._activate(node, iteration, [entry], False)
            self._drop([entry])
        for node, entry in frame.invariants:
            self._activate(node, iteration, [entry], False)

    def _clean_up(self, frame: Frame, number: int) -> None:
        while (finished := frame.iterations.get(number)) is not None:
            is_open = number - 1 in frame.iterations if number else frame.pending_inputs
            if finished.outstanding or finished.frames or is_open:
                break
            frame.iterations.pop(number)
            for slots in finished.slots.values():
                self._drop(slots)
            if frame.deferred:
                self._increment(frame)
            number += 1
        if frame.pending_inputs or frame.iterations or frame.parent is None:
            return
        parent = frame.parent
        for node in frame.dead_exits:
            self._activate(node, parent, [None], True)
        for _, entry in frame.invariants:
            self._drop([entry])
        frame.invariants.clear()
        parent.frame.children.pop((parent.number, frame.name), None)
        parent.frames -= 1
        if parent.frame.parent is not None and not parent.outstanding and not parent.frames:
            self._clean_up(parent.frame, parent.number)
