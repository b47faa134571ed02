"""TensorFlow's executor: it runs each node of a graph when its inputs have arrived.

A lowered ``cond`` is ``Switch`` and ``Merge``; the other branch runs *dead*, which costs nothing.
A lowered ``while`` is a frame: ``Enter`` passes a tensor in, each ``NextIteration`` starts the next
iteration's copy of the body, ``Exit`` passes a tensor out (``propagator_state.cc``).

Inexpensive nodes run at once; expensive ones wait in a pool. One thread takes its newest task, several
threads a random one. Nodes run one by one: durations and overlaps are not modelled.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from analyzer.simulate.predict.buffers import Tensor, share
from analyzer.simulate.predict.control_flow import ControlFlow
from analyzer.simulate.predict.prepared_step import (
    ENTERS,
    EXITS,
    MERGES,
    NEXT,
    ORDERED_EDGES,
    SWITCHES,
    TYPES,
)

if TYPE_CHECKING:
    from analyzer.simulate.predict.ledger import Ledger
    from analyzer.simulate.predict.prepared_step import Prepared


_BORDER = ENTERS | EXITS | NEXT

# A live tensor: its buffer. A dead one is None.
Entry: TypeAlias = tuple[Tensor]


@dataclass(eq=False, slots=True)
class Iteration:
    """One iteration of a loop (``IterationState`` in ``propagator_state.h``)."""

    frame: Frame
    number: int
    inputs: dict[int, list[Entry | None]] = field(default_factory=dict)
    # for each node that has received an input, the number of inputs it still waits for
    pending: dict[int, int] = field(default_factory=dict)
    # number of dead inputs of each node
    dead: Counter[int] = field(default_factory=Counter)
    outstanding: int = 0  # number of its ready nodes that have not ended
    frames: int = 0  # number of unfinished loops inside it


@dataclass(eq=False, slots=True)
class Frame:
    """A loop, or the graph itself (``FrameState`` in ``propagator_state.h``)."""

    name: str
    parent: Iteration | None  # the iteration that entered it; None for the graph
    pending_inputs: int  # number of ``Enter`` nodes that have not run
    iterations: dict[int, Iteration] = field(default_factory=dict)
    count: int = 0
    # loops inside it, by iteration and name
    children: dict[tuple[int, str], Frame] = field(default_factory=dict)
    invariants: list[tuple[int, Entry]] = field(default_factory=list)
    dead_exits: list[int] = field(default_factory=list)

    def add_iteration(self) -> Iteration:
        """Add the next iteration."""
        iteration = self.iterations[self.count] = Iteration(self, self.count)
        return iteration


# A ready node, its iteration, and whether it is dead.
Task: TypeAlias = tuple[int, Iteration, bool]

_Item = TypeVar("_Item")


class EdgeOrder:
    """The out-edges of each node in one possible order.

    Edges in a hash set are shuffled, and those to nodes that oneDNN's pass rewrites: it creates their
    edges in another order (``mkl_layout_pass.cc``).
    """

    def __init__(self, prepared: Prepared, random: Random) -> None:
        waits = zip(prepared.inputs, prepared.control, strict=True)
        roots = [
            node for node, (data, control) in enumerate(waits) if not data + control
        ]
        self.roots = _shuffle(roots, random)
        self.data = list(prepared.data_out)
        self.control = list(prepared.control_out)

        for node in range(len(prepared.ops)):
            data = self.data[node]
            control = self.control[node]
            types = [prepared.ops[consumer].type for consumer, _, _ in data]
            is_rewritten = any(kind.startswith("_Mkl") for kind in types)

            if is_rewritten or len(data) + len(control) > ORDERED_EDGES:
                self.data[node] = _shuffle(data, random)
                self.control[node] = _shuffle(control, random)


def _shuffle(items: Sequence[_Item], random: Random) -> list[_Item]:
    return random.sample(items, len(items))


class Executor:
    """Runs one step."""

    def __init__(
        self,
        prepared: Prepared,
        ledger: Ledger,
        edges: EdgeOrder,
        control: ControlFlow,
        random: Random,
    ) -> None:
        self._ledger = ledger
        self._random = random
        self._threads = prepared.threads
        self._ops = prepared.ops
        self._inputs = prepared.inputs
        self._types = [op.type for op in prepared.ops]

        self._waits_for = []
        columns = zip(self._types, prepared.inputs, prepared.control, strict=True)

        for kind, data, waits in columns:
            is_merge = kind in MERGES
            count = 1 + 2 * len(waits) if is_merge else len(data) + len(waits)
            self._waits_for.append(count)

        inexpensive = TYPES["inexpensive"]
        is_cheap = prepared.device.is_cheap
        self._expensive = [
            not is_cheap and kind not in inexpensive for kind in self._types
        ]

        names = (
            str(op.attrs["frame_name"]) for op in prepared.ops if op.type in ENTERS
        )
        self._enters = Counter(names)
        self._edges = edges

        self._control = control
        self._ready: list[Task] = []

    def run(self) -> None:
        """Run the graph."""
        iteration = Frame("", None, 0).add_iteration()

        for node in self._edges.roots:
            self._make_ready(node, iteration, False)

        queue: deque[Task] = deque()  # inexpensive nodes, which run at once
        pool: list[Task] = []

        while True:
            for task in self._ready:
                is_expensive = self._expensive[task[0]] and not task[2]
                (pool if is_expensive else queue).append(task)

            self._ready.clear()

            if queue:
                self._run_node(*queue.popleft())
            elif pool:
                is_alone = self._threads == 1
                place = -1 if is_alone else self._random.randrange(len(pool))
                self._run_node(*pool.pop(place))
            else:
                return

    def _run_node(self, node: int, iteration: Iteration, dead: bool) -> None:
        """Run a node, free its inputs and temporaries, and pass its outputs on."""
        inputs = iteration.inputs.pop(node, None) or [None] * len(self._inputs[node])

        if dead and self._types[node] not in NEXT:
            self._drop(inputs)
            outputs: list[Entry | None] = [None] * len(self._ops[node].outputs)
        else:
            outputs, in_use = self._compute(node, inputs, iteration.number)
            for buffer in in_use:
                self._ledger.release(buffer)

        if self._types[node] in _BORDER:
            self._cross(node, iteration, outputs, dead)
        else:
            self._activate(node, iteration, outputs, dead)

        self._drop(outputs)
        iteration.outstanding -= 1

        if not iteration.outstanding and iteration.frame.parent is not None:
            self._clean_up(iteration.frame, iteration.number)

    def _compute(
        self,
        node: int,
        inputs: list[Entry | None],
        number: int,
    ) -> tuple[list[Entry | None], list[Tensor]]:
        """Compute a node; return its outputs, None for a dead one, and the buffers in use.

        ``number`` is that of the iteration.
        """
        buffers = [None if entry is None else entry[0] for entry in inputs]
        computed, in_use = self._ledger.compute(node, buffers, number)
        outputs: list[Entry | None] = [(buffer,) for buffer in computed]

        if self._types[node] in SWITCHES:
            taken = self._choose_output(node, number, len(outputs))
            for index, buffer in enumerate(computed):
                if index != taken:
                    self._ledger.release(buffer)
                    outputs[index] = None

        return outputs, in_use

    def _choose_output(self, node: int, number: int, count: int) -> int:
        """Return the output, of ``count``, to which a switch passes its tensor."""
        condition = self._inputs[node][1][0]
        if self._types[condition] == "LoopCond":
            return int(number < self._control.count_trips(condition))

        return self._control.choose_branch(node, count)

    def _drop(self, entries: Sequence[Entry | None]) -> None:
        for entry in entries:
            if entry is not None:
                self._ledger.release(entry[0])

    def _cross(
        self,
        node: int,
        iteration: Iteration,
        outputs: list[Entry | None],
        dead: bool,
    ) -> None:
        """Pass outputs into a loop, to its next iteration, or out of it."""
        kind = self._types[node]
        frame = iteration.frame

        if kind in ENTERS:
            self._enter(node, iteration, outputs, dead)
        elif kind in EXITS:
            if not dead and frame.parent is not None:
                self._activate(node, frame.parent, outputs, False)
            elif iteration.number == frame.count:
                frame.dead_exits.append(node)
        elif not dead and outputs and outputs[0] is not None:
            self._continue(node, iteration, outputs[0])

    def _enter(
        self,
        node: int,
        iteration: Iteration,
        outputs: list[Entry | None],
        dead: bool,
    ) -> None:
        attrs = self._ops[node].attrs
        name = str(attrs["frame_name"])
        key = (iteration.number, name)
        child = iteration.frame.children.get(key)

        if child is None:
            child = Frame(name, iteration, self._enters[name])
            child.add_iteration()
            iteration.frame.children[key] = child
            iteration.frames += 1

        numbers = [0]
        entry = outputs[0]
        if attrs.get("is_constant") and entry is not None:
            share(entry[0])
            child.invariants.append((node, entry))
            numbers = sorted(child.iterations)

        for number in numbers:
            self._activate(node, child.iterations[number], outputs, dead)

        child.pending_inputs -= 1

    def _continue(self, node: int, iteration: Iteration, entry: Entry) -> None:
        """Pass a tensor to the next iteration."""
        frame = iteration.frame
        if iteration.number == frame.count:
            self._start_iteration(frame)

        self._activate(node, frame.iterations[iteration.number + 1], [entry], False)

    def _activate(
        self,
        node: int,
        iteration: Iteration,
        outputs: list[Entry | None],
        dead: bool,
    ) -> None:
        """Pass a node's outputs to the nodes that wait for them."""
        count = 0 if dead else len(outputs)

        for consumer, output, slot in self._edges.data[node]:
            entry = outputs[output] if output < count else None
            if self._types[consumer] in MERGES:
                is_entry = self._types[node] in ENTERS
                self._activate_merge(consumer, iteration, slot, entry, is_entry)
                continue

            if entry is not None:
                self._deliver(consumer, iteration, slot, entry)

            self._arrive(consumer, iteration, entry is None)

        for consumer in self._edges.control[node]:
            if self._types[consumer] not in MERGES:
                self._arrive(consumer, iteration, dead)
                continue

            pending = iteration.pending.get(consumer, self._waits_for[consumer]) - 2
            iteration.pending[consumer] = pending
            all_dead = iteration.dead[consumer] == len(self._inputs[consumer])

            if pending == 0 or (pending == 1 and all_dead):
                self._make_ready(consumer, iteration, all_dead)

    def _arrive(self, node: int, iteration: Iteration, dead: bool) -> None:
        """Count an input of a node, which may be dead; the last one makes it ready."""
        if dead:
            iteration.dead[node] += 1

        pending = iteration.pending.get(node, self._waits_for[node]) - 1
        iteration.pending[node] = pending

        if not pending:
            self._make_ready(node, iteration, node in iteration.dead)

    def _activate_merge(
        self,
        node: int,
        iteration: Iteration,
        slot: int,
        entry: Entry | None,
        is_entry: bool,
    ) -> None:
        """Pass an input to a merge, which forwards the first live one; until then bit 0 is set.

        It is dead if all inputs are, or if the loop of which it is the start is entered dead.
        """
        pending = iteration.pending.get(node, self._waits_for[node])

        if entry is not None and pending & 1:
            self._deliver(node, iteration, slot, entry)
            iteration.pending[node] = pending & ~1

            if pending == 1:
                self._make_ready(node, iteration, False)

        if entry is not None:
            return

        iteration.dead[node] += 1
        is_dead = is_entry or iteration.dead[node] == len(self._inputs[node])
        if pending == 1 and is_dead:
            self._make_ready(node, iteration, True)

    def _deliver(
        self,
        node: int,
        iteration: Iteration,
        slot: int,
        entry: Entry,
    ) -> None:
        share(entry[0])
        inputs = iteration.inputs.get(node)
        if inputs is None:
            inputs = iteration.inputs[node] = [None] * len(self._inputs[node])

        inputs[slot] = entry

    def _make_ready(self, node: int, iteration: Iteration, dead: bool) -> None:
        iteration.outstanding += 1
        self._ready.append((node, iteration, dead))

    def _start_iteration(self, frame: Frame) -> None:
        frame.count += 1
        iteration = frame.add_iteration()
        frame.dead_exits.clear()

        for node, entry in frame.invariants:
            self._activate(node, iteration, [entry], False)

    def _clean_up(self, frame: Frame, number: int) -> None:
        """End finished iterations from ``number`` on, and the loop with its last one."""
        while (finished := frame.iterations.get(number)) is not None:
            is_open: bool | int = frame.pending_inputs
            if number:
                is_open = number - 1 in frame.iterations

            if finished.outstanding or finished.frames or is_open:
                break

            frame.iterations.pop(number)
            for inputs in finished.inputs.values():
                self._drop(inputs)

            number += 1

        parent = frame.parent
        if frame.pending_inputs or frame.iterations or parent is None:
            return

        for node in frame.dead_exits:
            self._activate(node, parent, [None], True)

        for _, entry in frame.invariants:
            self._drop([entry])

        frame.invariants.clear()
        parent.frame.children.pop((parent.number, frame.name), None)
        parent.frames -= 1

        is_done = not parent.outstanding and not parent.frames
        if parent.frame.parent is not None and is_done:
            self._clean_up(parent.frame, parent.number)
