"""TensorFlow's executor: it runs each node of a graph when its inputs have arrived.

A lowered ``cond`` is ``Switch`` and ``Merge``. TensorFlow marks the tensors of the other branch as
dead; here they are not passed on, so that its nodes never run.

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

from analyzer.simulate.predict.control_flow import ControlFlow
from analyzer.simulate.predict.ledger import Tensor, share
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


@dataclass(eq=False, slots=True)
class Iteration:
    """One iteration of a loop (``IterationState`` in ``propagator_state.h``)."""

    frame: Frame
    number: int
    inputs: dict[int, list[Tensor]] = field(default_factory=dict)
    # for each node that has received an input, the number of inputs it still waits for
    pending: dict[int, int] = field(default_factory=dict)
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
    invariants: list[tuple[int, Tensor]] = field(default_factory=list)

    def add_iteration(self) -> Iteration:
        """Add the next iteration."""
        iteration = self.iterations[self.count] = Iteration(self, self.count)
        return iteration


# A ready node and its iteration.
Task: TypeAlias = tuple[int, Iteration]

# The buffers of a node's outputs, without those in a branch that is not taken.
Outputs: TypeAlias = dict[int, Tensor]

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
            # A merge passes on the first input that arrives.
            count = 1 if kind in MERGES else len(data) + len(waits)
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
        graph = Frame("", None, 0).add_iteration()

        for node in self._edges.roots:
            self._make_ready(node, graph)

        queue: deque[Task] = deque()  # inexpensive nodes, which run at once
        pool: list[Task] = []

        while True:
            for task in self._ready:
                (pool if self._expensive[task[0]] else queue).append(task)

            self._ready.clear()

            if queue:
                self._run_node(*queue.popleft())
            elif pool:
                is_alone = self._threads == 1
                place = -1 if is_alone else self._random.randrange(len(pool))
                self._run_node(*pool.pop(place))
            else:
                self._release_inputs(graph)
                return

    def _run_node(self, node: int, iteration: Iteration) -> None:
        """Run a node, free its inputs and temporaries, and pass its outputs on."""
        inputs = iteration.inputs.pop(node, None) or [None] * len(self._inputs[node])
        computed, in_use = self._ledger.compute(node, inputs, iteration.number)
        for buffer in in_use:
            self._ledger.release(buffer)

        outputs = dict(enumerate(computed))
        if self._types[node] in SWITCHES:
            taken = self._choose_output(node, iteration.number, len(outputs))
            for index, buffer in enumerate(computed):
                if index != taken:
                    self._ledger.release(buffer)
                    del outputs[index]

        self._pass_on(node, iteration, outputs)
        for buffer in outputs.values():
            self._ledger.release(buffer)

        iteration.outstanding -= 1

        if not iteration.outstanding and iteration.frame.parent is not None:
            self._clean_up(iteration.frame, iteration.number)

    def _choose_output(self, node: int, number: int, count: int) -> int:
        """Return the output, of ``count``, to which a switch passes its tensor."""
        condition = self._inputs[node][1][0]
        if self._types[condition] == "LoopCond":
            return int(number < self._control.count_trips(condition))

        return self._control.choose_branch(node, count)

    def _release_inputs(self, iteration: Iteration) -> None:
        """Release the inputs of nodes in branches that are not taken."""
        for inputs in iteration.inputs.values():
            for buffer in inputs:
                self._ledger.release(buffer)

    def _pass_on(self, node: int, iteration: Iteration, outputs: Outputs) -> None:
        """Pass outputs to nodes of the iteration, into a loop, to its next iteration, or out of it."""
        kind = self._types[node]
        frame = iteration.frame

        if kind in ENTERS:
            self._enter(node, iteration, outputs)
        elif kind in EXITS and frame.parent is not None:
            self._activate(node, frame.parent, outputs)
        elif kind in NEXT:
            if iteration.number == frame.count:
                self._start_iteration(frame)

            self._activate(node, frame.iterations[iteration.number + 1], outputs)
        else:
            self._activate(node, iteration, outputs)

    def _enter(self, node: int, iteration: Iteration, outputs: Outputs) -> None:
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
        if attrs.get("is_constant"):
            child.invariants.append((node, share(outputs[0])))
            numbers = sorted(child.iterations)

        for number in numbers:
            self._activate(node, child.iterations[number], outputs)

        child.pending_inputs -= 1

    def _activate(self, node: int, iteration: Iteration, outputs: Outputs) -> None:
        """Pass a node's outputs to the nodes that wait for them."""
        for consumer, output, slot in self._edges.data[node]:
            if output in outputs:
                inputs = iteration.inputs.get(consumer)
                if inputs is None:
                    count = len(self._inputs[consumer])
                    inputs = iteration.inputs[consumer] = [None] * count

                inputs[slot] = share(outputs[output])
                self._arrive(consumer, iteration)

        for consumer in self._edges.control[node]:
            if self._types[consumer] not in MERGES:
                self._arrive(consumer, iteration)

    def _arrive(self, node: int, iteration: Iteration) -> None:
        """Count an input of a node; the last one makes it ready."""
        pending = iteration.pending.get(node, self._waits_for[node]) - 1
        iteration.pending[node] = pending

        if not pending:
            self._make_ready(node, iteration)

    def _make_ready(self, node: int, iteration: Iteration) -> None:
        iteration.outstanding += 1
        self._ready.append((node, iteration))

    def _start_iteration(self, frame: Frame) -> None:
        frame.count += 1
        iteration = frame.add_iteration()

        for node, buffer in frame.invariants:
            self._activate(node, iteration, {0: buffer})

    def _clean_up(self, frame: Frame, number: int) -> None:
        """End finished iterations from ``number`` on, and the loop with its last one."""
        while (finished := frame.iterations.get(number)) is not None:
            is_open: bool | int = frame.pending_inputs
            if number:
                is_open = number - 1 in frame.iterations

            if finished.outstanding or finished.frames or is_open:
                break

            frame.iterations.pop(number)
            self._release_inputs(finished)
            number += 1

        parent = frame.parent
        if frame.pending_inputs or frame.iterations or parent is None:
            return

        for _, buffer in frame.invariants:
            self._ledger.release(buffer)

        frame.invariants.clear()
        parent.frame.children.pop((parent.number, frame.name), None)
        parent.frames -= 1

        is_done = not parent.outstanding and not parent.frames
        if parent.frame.parent is not None and is_done:
            self._clean_up(parent.frame, parent.number)
