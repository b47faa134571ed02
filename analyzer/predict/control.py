"""The executor with branches and loops: frames, iterations and dead tensors.

A lowered ``cond`` is ``Switch`` and ``Merge``: the branch not taken runs *dead*, which costs nothing.
A lowered ``while`` is a frame: ``Enter`` brings a tensor in, each ``NextIteration`` starts the next
iteration's copy of the body, ``Exit`` brings a tensor out. (``propagator_state.cc``.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer.predict.executor import NO_BUFFER, Machine, Pool
from analyzer.predict.fanout import FanOut
from analyzer.predict.values import LISTS, InLists, Value, follow, index_of
from analyzer.predict.wiring import Wiring
from analyzer.predict.workers import Workers

Entry = tuple[int, Value | None]
"""A live tensor: its buffer and, where it is followed, its value."""

_ENTER: Final = frozenset(("Enter", "RefEnter"))
_EXIT: Final = frozenset(("Exit", "RefExit"))
_NEXT: Final = frozenset(("NextIteration", "RefNextIteration"))
_MERGE: Final = frozenset(("Merge", "RefMerge"))
_SWITCH: Final = frozenset(("Switch", "RefSwitch"))


@dataclass(eq=False, slots=True)
class _Iteration:
    frame: _Frame
    number: int
    slots: dict[int, list[Entry | None]] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    outstanding: int = 0
    frames: int = 0


@dataclass(eq=False, slots=True)
class _Frame:
    name: str
    parent: _Iteration | None
    pending_inputs: int
    parallel: int
    iterations: dict[int, _Iteration] = field(default_factory=dict)
    count: int = 0
    children: dict[tuple[int, str], _Frame] = field(default_factory=dict)
    deferred: list[tuple[int, Entry]] = field(default_factory=list)
    invariants: list[tuple[int, Entry]] = field(default_factory=list)
    dead_exits: list[int] = field(default_factory=list)


_Task = tuple[int, _Iteration, bool]


class ControlExecutor:
    """Runs a graph with control flow.

    Args:
        wiring: The graph.
        fan_out: The order of successors.
        machine: What each node's turn does.
        handles: For each node, the node that brings in the handle in its first input; -1 for none.
        variables: Values of the whole-number variables, by that node; changed by the run.
        unknown_iterations: Times that a loop goes round whose condition cannot be followed.
    """

    def __init__(
        self,
        wiring: Wiring,
        fan_out: FanOut,
        machine: Machine,
        handles: Sequence[int],
        variables: dict[int, Value],
        *,
        unknown_iterations: int = 1,
    ) -> None:
        self._wiring = wiring
        self._fan_out = fan_out
        self._machine = machine
        self._handles = handles
        self._variables = variables
        self._unknown_iterations = unknown_iterations
        self._types = [op.type for op in wiring.ops]
        self._pool = Pool(self._process)  # type: ignore[arg-type]
        self._enters: dict[str, int] = {}
        for op in wiring.ops:
            if op.type in _ENTER:
                name = str(op.attrs["frame_name"])
                self._enters[name] = self._enters.get(name, 0) + 1
        self.undecided: dict[int, int] = {}
        self._in_lists = InLists()

    def run(self) -> None:
        """Run the graph once."""
        queue: deque[_Task] = deque()
        self._schedule(self._roots(), queue)
        self._follow(queue)
        self._pool.drain()

    def run_on(self, workers: Workers[_Task]) -> None:
        """Run the graph once on several threads; the machine's ops take time there."""
        workers.run(self._roots(), self._begin, self._end, lambda task: -1 if task[2] else task[0])

    def _roots(self) -> list[_Task]:
        root = _Frame(name="", parent=None, pending_inputs=0, parallel=1)
        iteration = root.iterations[0] = _Iteration(root, 0)
        ready = [(node, iteration, False) for node in self._fan_out.roots]
        iteration.outstanding = len(ready)
        return ready

    def _process(self, task: _Task) -> None:
        self._follow(deque((task,)))

    def _schedule(self, ready: list[_Task], queue: deque[_Task]) -> None:
        expensive: list[Any] = []
        for task in ready:
            if self._wiring.expensive[task[0]] and not task[2]:
                expensive.append(task)
            else:
                queue.append(task)
        if expensive and not queue:
            queue.append(expensive.pop())
        if expensive:
            self._pool.dispatch(expensive)

    def _follow(self, queue: deque[_Task]) -> None:
        while queue:
            task = queue.popleft()
            self._schedule(self._end(task, self._begin(task)), queue)

    def _begin(self, task: _Task) -> list[Entry | None]:
        """Start a node and return its outputs."""
        node, iteration, dead = task
        slots = iteration.slots.pop(node, None)
        if slots is None:
            slots = [None] * len(self._wiring.inputs[node])
        if dead and self._types[node] not in _NEXT:
            self._drop(slots)
            return [None] * len(self._wiring.ops[node].outputs)
        return self._compute(node, slots, iteration)

    def _end(self, task: _Task, outputs: list[Entry | None]) -> list[_Task]:
        """Hand a node's outputs on and return what became ready."""
        node, iteration, dead = task
        ready: list[_Task] = []
        self._propagate(node, iteration, outputs, dead, ready)
        self._drop(outputs)
        self._finish(iteration, ready)
        return ready

    def _compute(
        self, node: int, slots: list[Entry | None], iteration: _Iteration
    ) -> list[Entry | None]:
        op = self._wiring.ops[node]
        values = [None if entry is None else entry[1] for entry in slots]
        buffers = [NO_BUFFER if entry is None else entry[0] for entry in slots]
        if op.type in _MERGE:
            taken = next((k for k, entry in enumerate(slots) if entry is not None), 0)
            made = self._machine.compute(node, buffers)
            return [(made[0], values[taken]), *((b, None) for b in made[1:])]
        if op.type in LISTS:
            return self._compute_list(node, op.type, buffers, values)
        made = self._machine.compute(node, buffers)
        if op.type in _SWITCH:
            return self._switch(node, made, values, iteration)
        specs = [
            self._wiring.ops[source].outputs[output]
            if output < len(self._wiring.ops[source].outputs)
            else None
            for source, output in self._wiring.inputs[node]
        ]
        value = self._variable_value(node, values)
        if value is None and op.outputs:
            value = follow(op, values, specs)
        return [(buffer, value if k == 0 else None) for k, buffer in enumerate(made)]

    def _compute_list(
        self, node: int, kind: str, buffers: list[int], values: list[Value | None]
    ) -> list[Entry | None]:
        self._in_lists.join(kind, buffers, values)
        made = self._machine.compute(node, buffers, index_of(kind, values))
        return [(buffer, self._in_lists.leave(kind, k, buffer)) for k, buffer in enumerate(made)]

    def _variable_value(self, node: int, values: list[Value | None]) -> Value | None:
        handle = self._handles[node]
        if handle not in self._variables:
            return None
        kind, old = self._types[node], self._variables[handle]
        if kind == "ReadVariableOp":
            return old
        change = values[1] if len(values) > 1 else None
        if kind in ("AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"):
            if change is None or len(change) != len(old):
                self._variables.pop(handle)
            elif kind == "AssignVariableOp":
                self._variables[handle] = change
            else:
                sign = 1 if kind == "AssignAddVariableOp" else -1
                self._variables[handle] = tuple(
                    a + sign * b for a, b in zip(old, change, strict=True)
                )
        return None

    def _switch(
        self, node: int, made: list[int], values: list[Value | None], iteration: _Iteration
    ) -> list[Entry | None]:
        predicate = values[1]
        if predicate is None:
            source = self._wiring.inputs[node][1][0]
            self.undecided[source] = self.undecided.get(source, 0) + 1
            is_loop = self._types[source] == "LoopCond"
            predicate = (int(not is_loop or iteration.number < self._unknown_iterations),)
        taken = 1 if predicate[0] else 0
        if made[1 - taken] >= 0:
            self._machine.release(made[1 - taken])
        entries: list[Entry | None] = [None, None]
        entries[taken] = (made[taken], values[0])
        return entries

    def _drop(self, entries: Sequence[Entry | None]) -> None:
        for entry in entries:
            if entry is not None and entry[0] >= 0:
                self._machine.release(entry[0])

    def _propagate(
        self,
        node: int,
        iteration: _Iteration,
        outputs: list[Entry | None],
        dead: bool,
        ready: list[_Task],
    ) -> None:
        kind = self._types[node]
        frame = iteration.frame
        if kind in _ENTER:
            self._enter(node, iteration, outputs, dead, ready)
        elif kind in _EXIT:
            if not dead and frame.parent is not None:
                self._activate(node, frame.parent, outputs, False, ready)
            elif iteration.number == frame.count:
                frame.dead_exits.append(node)
        elif kind in _NEXT:
            entry = outputs[0] if outputs else None
            if dead or entry is None:
                return
            if iteration.number == frame.count:
                if len(frame.iterations) >= frame.parallel:
                    self._hold(entry)
                    frame.deferred.append((node, entry))
                    return
                self._increment(frame, ready)
            self._activate(node, frame.iterations[iteration.number + 1], outputs, False, ready)
        else:
            self._activate(node, iteration, outputs, dead, ready)

    def _enter(
        self,
        node: int,
        iteration: _Iteration,
        outputs: list[Entry | None],
        dead: bool,
        ready: list[_Task],
    ) -> None:
        attrs = self._wiring.ops[node].attrs
        child = self._child(
            iteration, str(attrs["frame_name"]), int(attrs.get("parallel_iterations", 10))
        )
        if attrs.get("is_constant") and outputs[0] is not None:
            self._hold(outputs[0])
            child.invariants.append((node, outputs[0]))
            for number in sorted(child.iterations):
                self._activate(node, child.iterations[number], outputs, dead, ready)
        else:
            self._activate(node, child.iterations[0], outputs, dead, ready)
        child.pending_inputs -= 1

    def _child(self, iteration: _Iteration, name: str, parallel: int) -> _Frame:
        key = (iteration.number, name)
        child = iteration.frame.children.get(key)
        if child is None:
            child = _Frame(name, iteration, self._enters[name], parallel)
            child.iterations[0] = _Iteration(child, 0)
            iteration.frame.children[key] = child
            iteration.frames += 1
        return child

    def _hold(self, entry: Entry) -> None:
        if entry[0] >= 0:
            self._machine.retain(entry[0])

    def _activate(
        self,
        node: int,
        iteration: _Iteration,
        outputs: list[Entry | None],
        dead: bool,
        ready: list[_Task],
    ) -> None:
        for consumer, output, slot in self._fan_out.data[node]:
            entry = None if dead or output >= len(outputs) else outputs[output]
            pending = self._pending(iteration, consumer)
            if self._types[consumer] in _MERGE:
                self._activate_merge(consumer, iteration, slot, entry, pending, ready)
                continue
            if entry is None:
                iteration.dead[consumer] = iteration.dead.get(consumer, 0) + 1
            else:
                self._deliver(consumer, iteration, slot, entry)
            iteration.pending[consumer] = pending - 1
            if pending == 1:
                self._make_ready(consumer, iteration, bool(iteration.dead.get(consumer)), ready)
        for consumer in self._fan_out.control[node]:
            pending = self._pending(iteration, consumer)
            if self._types[consumer] in _MERGE:
                pending -= 2
                iteration.pending[consumer] = pending
                all_dead = iteration.dead.get(consumer, 0) == len(self._wiring.inputs[consumer])
                if pending == 0 or (pending == 1 and all_dead):
                    self._make_ready(consumer, iteration, all_dead, ready)
                continue
            if dead:
                iteration.dead[consumer] = iteration.dead.get(consumer, 0) + 1
            iteration.pending[consumer] = pending - 1
            if pending == 1:
                self._make_ready(consumer, iteration, bool(iteration.dead.get(consumer)), ready)

    def _activate_merge(
        self,
        node: int,
        iteration: _Iteration,
        slot: int,
        entry: Entry | None,
        pending: int,
        ready: list[_Task],
    ) -> None:
        """The first live input counts; bit 0 of the count says that none has come yet."""
        if entry is not None:
            if pending & 1:
                self._deliver(node, iteration, slot, entry)
                iteration.pending[node] = pending & ~1
                if pending == 1:
                    self._make_ready(node, iteration, False, ready)
            return
        iteration.dead[node] = iteration.dead.get(node, 0) + 1
        if pending == 1 and iteration.dead[node] == len(self._wiring.inputs[node]):
            self._make_ready(node, iteration, True, ready)

    def _pending(self, iteration: _Iteration, node: int) -> int:
        known = iteration.pending.get(node)
        if known is not None:
            return known
        control = len(self._wiring.control[node])
        if self._types[node] in _MERGE:
            return 1 + 2 * control
        return len(self._wiring.inputs[node]) + control

    def _deliver(self, node: int, iteration: _Iteration, slot: int, entry: Entry) -> None:
        self._hold(entry)
        slots = iteration.slots.get(node)
        if slots is None:
            slots = iteration.slots[node] = [None] * len(self._wiring.inputs[node])
        slots[slot] = entry

    def _make_ready(self, node: int, iteration: _Iteration, dead: bool, ready: list[_Task]) -> None:
        iteration.outstanding += 1
        ready.append((node, iteration, dead))

    def _increment(self, frame: _Frame, ready: list[_Task]) -> None:
        frame.count += 1
        iteration = frame.iterations[frame.count] = _Iteration(frame, frame.count)
        deferred, frame.deferred = frame.deferred, []
        for node, entry in deferred:
            self._activate(node, iteration, [entry], False, ready)
            self._drop([entry])
        for node, entry in frame.invariants:
            self._activate(node, iteration, [entry], False, ready)

    def _finish(self, iteration: _Iteration, ready: list[_Task]) -> None:
        iteration.outstanding -= 1
        frame = iteration.frame
        if frame.parent is not None and not iteration.outstanding:
            self._clean(frame, iteration.number, ready)

    def _clean(self, frame: _Frame, number: int, ready: list[_Task]) -> None:
        while number in frame.iterations and self._is_done(frame, frame.iterations[number]):
            gone = frame.iterations.pop(number)
            for slots in gone.slots.values():
                self._drop(slots)
            if frame.deferred:
                self._increment(frame, ready)
            number += 1
        if frame.pending_inputs or frame.iterations or frame.parent is None:
            return
        parent = frame.parent
        for node in frame.dead_exits:
            self._activate(node, parent, [None], True, ready)
        for _, entry in frame.invariants:
            self._drop([entry])
        frame.invariants.clear()
        parent.frame.children.pop((parent.number, frame.name), None)
        parent.frames -= 1
        if parent.frame.parent is not None and not parent.outstanding and not parent.frames:
            self._clean(parent.frame, parent.number, ready)

    def _is_done(self, frame: _Frame, iteration: _Iteration) -> bool:
        if iteration.outstanding or iteration.frames:
            return False
        if iteration.number == 0:
            return frame.pending_inputs == 0
        return iteration.number - 1 not in frame.iterations
