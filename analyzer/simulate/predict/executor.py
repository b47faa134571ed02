"""TensorFlow's executor: it runs each node of a graph when its inputs have arrived.

A lowered ``cond`` is ``Switch`` and ``Merge``. TensorFlow marks the tensors of the other branch as
dead; here they are not passed on, so that its nodes never run.

A lowered ``while`` is a frame: ``Enter`` passes a tensor in, each ``NextIteration`` starts the next
iteration's copy of the body, ``Exit`` passes a tensor out (``propagator_state.cc``).

Inexpensive nodes run at once; expensive ones wait in a pool. One thread takes its newest task, several
threads a random one. Nodes run one by one: durations and overlaps are not modelled.

A loop that counts from one constant to another makes known trips, and its gradient makes as many. A
check of all numbers passes, as in healthy training. Data decide everything else, and it is assumed: a
loop whose condition includes a bound (``while i < limit and not done``) runs as often as the bound
allows, any other loop once. Branches with one predicate have one outcome, also in a gradient, which
takes the predicate from a list or an optional.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from analyzer.model.contract.run_note import CONSTANTS, op_types
from analyzer.model.graph.graph_index import reach
from analyzer.simulate.predict.ledger import Ledger, Tensor, share
from analyzer.simulate.predict.prepared_step import (
    ENTERS,
    EXITS,
    MERGES,
    NEXT,
    ORDERED_EDGES,
    SWITCHES,
    TYPES,
    Prepared,
)


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
Task = tuple[int, Iteration]

# The buffers of a node's outputs, without those in a branch that is not taken.
Outputs = dict[int, Tensor]


class EdgeOrder:
    """The out-edges of each node in one possible order.

    Edges in a hash set are shuffled, and those to nodes that oneDNN's pass rewrites: it creates their
    edges in another order (``mkl_layout_pass.cc``).
    """

    def __init__(self, prepared: Prepared, random: Random) -> None:
        roots = [node for node, count in enumerate(prepared.waits_for) if not count]
        self.roots = random.sample(roots, len(roots))
        self.data = list(prepared.data_out)
        self.control = list(prepared.control_out)

        for node in range(len(prepared.ops)):
            data = self.data[node]
            control = self.control[node]
            types = [prepared.ops[consumer].type for consumer, _, _ in data]
            is_rewritten = any(kind.startswith("_Mkl") for kind in types)

            if is_rewritten or len(data) + len(control) > ORDERED_EDGES:
                self.data[node] = random.sample(data, len(data))
                self.control[node] = random.sample(control, len(control))


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

        self._waits_for = prepared.waits_for
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
            is_open = frame.pending_inputs
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


UNBOUNDED_TRIPS = 1  # trips of a loop if its condition has no known bound

_PASSES_ON = TYPES["same_value"]  # op types that pass the value of their first input on

# Op types that combine the parts of a condition; TensorFlow lowers ``and`` to a branch.
_JOINS = _PASSES_ON | SWITCHES | MERGES | op_types("LogicalAnd All Any Pack")

# Op types through which a list or an optional reaches its reader.
_MOVES = SWITCHES | MERGES | ENTERS | EXITS | NEXT | {"Identity"}

# Op types that store a number, and the place of the number among the inputs.
_STORES = {"TensorListPushBack": 1, "OptionalFromValue": 0}
_LOADS = op_types("TensorListPopBack OptionalGetValue")
_ADDS = op_types("Add AddV2")

# Comparisons of a counter with a limit, and the trips beyond the limit.
_COUNTS = {"Less": 0, "LessEqual": 1}

# Op types of checks that pass: numbers are finite, and an iterator has a next batch.
_PASSED = op_types("IsFinite OptionalHasValue")


class ControlFlow:
    """Decides how loops and branches of a step run.

    ``trips`` are the trips of each loop that data decide, ``unbounded`` the loops whose condition has
    no known bound, and ``branches`` the number of branches by the node of an unknown predicate.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._assumed = prepared.assumed
        self._prepared = prepared
        self._ops = prepared.ops

        # For each node, the nodes behind its data inputs
        self._sources = [[node for node, _ in feeds] for feeds in prepared.inputs]
        self._limits: dict[int, int] = {}  # trips by the node of the condition
        self.trips: dict[str, int] = {}
        self.unbounded: set[str] = set()
        self.branches: dict[int, int] = {}

    def choose_branch(self, switch: int, count: int) -> int:
        """Return the output, of ``count``, to which a switch passes its tensor."""
        source = self._find_source(self._sources[switch][1])
        branch = self._find_value(source)

        if branch is None:
            branch = self._find_outcome(source)

        if branch is None:
            self.branches[source] = count
            branch = self._assumed.get(self._ops[source].name, 1)

        # As ``SwitchNOp``; other switches have no such index.
        return branch if 0 <= branch < count else count - 1

    def count_trips(self, condition: int) -> int:
        """Return the trips of the loop with a condition, the node of a ``LoopCond``."""
        if condition not in self._limits:
            self._limits[condition] = 0  # in a cycle
            self._limits[condition] = self._find_limit(condition)

        return self._limits[condition]

    def _find_limit(self, condition: int) -> int:
        limits = [self._count(part) for part in self._list_parts(condition)]
        known = [limit for limit in limits if limit is not None]
        least = min(known, default=UNBOUNDED_TRIPS)

        if None not in limits:
            return least

        name = self._find_name(condition)
        assumed = self._assumed.get(name, least)
        self.trips[name] = min(assumed, least) if known else assumed

        if not known:
            self.unbounded.add(name)

        return self.trips[name]

    def _list_parts(self, node: int) -> Iterable[int]:
        """Return the nodes whose values a condition combines, without constants."""

        def find_near(part: int) -> list[int]:
            is_join = self._ops[part].type in _JOINS
            return self._sources[part] if is_join else []

        ignored = _JOINS | CONSTANTS
        parts = reach([node], find_near)

        return [part for part in parts if self._ops[part].type not in ignored]

    def _count(self, node: int) -> int | None:
        """Return the trips that a comparison of a counter allows; None for another part."""
        further = _COUNTS.get(self._ops[node].type)
        if further is None or len(self._sources[node]) != 2:
            return None

        left, right = self._sources[node]
        counter = self._find_counter(self._find_source(left))
        limit = self._find_value(right)

        if counter is None or limit is None:
            return None

        start, step = counter
        return max(-((start - limit - further) // step), 0)

    def _find_counter(self, merge: int) -> tuple[int, int] | None:
        """Return the first value and the step of a loop's counter; None for another variable."""
        edges = self._find_edges(merge)
        if not edges:
            return None

        entry, back = edges
        start = self._find_value(entry)
        adding = self._find_source(back)
        steps = list(filter(None, map(self._find_value, self._sources[adding])))

        if start is None or not steps or self._ops[adding].type not in _ADDS:
            return None

        return start, steps[0]

    def _find_edges(self, node: int) -> list[int]:
        """Return the nodes that enter a loop's variable and that repeat it; none for another node."""
        sources = self._sources[node]
        is_loop = self._ops[node].type in MERGES and len(sources) == 2

        return sources if is_loop else []

    def _find_value(self, node: int) -> int | None:
        """Return a number that the graph tells: a constant, an argument, or a counter at its end."""
        source = self._find_source(node)
        op = self._ops[source]

        if op.type in EXITS:
            merge, condition = self._sources[self._sources[source][0]]
            counter = self._find_counter(merge)
            if counter is None:
                return None

            start, step = counter

            return start + step * self.count_trips(condition)

        value = op.attrs.get("value")
        if not isinstance(value, dict):
            return None

        numbers = value.get("values") or [value.get("every")]
        first = numbers[0]
        is_one = len(numbers) == 1 and isinstance(first, int | float)

        return int(first) if is_one else None

    def _find_source(self, node: int) -> int:
        """Return the node whose value another one passes on, also through loops and lists."""
        for _ in self._ops:
            kind = self._ops[node].type
            source = None

            if kind in _LOADS:
                source = self._find_stored(node)
            elif kind in SWITCHES | MERGES:
                source = self._find_entry(node)
            elif kind in _PASSES_ON and self._sources[node]:
                source = self._sources[node][0]

            if source is None:
                break

            node = source

        return node

    def _find_entry(self, node: int) -> int | None:
        """Return the node whose value enters a loop and stays the same in it; None for others."""
        merge = self._sources[node][0] if self._ops[node].type in SWITCHES else node
        edges = self._find_edges(merge)
        if not edges:
            return None

        entry, back = edges
        while self._ops[back].type in _PASSES_ON and self._sources[back]:
            back = self._sources[back][0]

        is_same = self._ops[back].type in SWITCHES and self._sources[back][0] == merge

        return entry if is_same else None

    def _find_stored(self, node: int) -> int | None:
        """Return the node of the number that a list or an optional got; None if unknown."""

        def find_near(part: int) -> list[int]:
            is_moved = part == node or self._ops[part].type in _MOVES
            return self._sources[part] if is_moved else []

        for maker in sorted(reach([node], find_near)):
            place = _STORES.get(self._ops[maker].type)
            if place is not None:
                return self._sources[maker][place]

        return None

    def _find_outcome(self, predicate: int) -> int | None:
        """Return the outcome of a check of numbers; None for another predicate."""
        kinds = {self._ops[part].type for part in self._list_parts(predicate)}
        if kinds <= _PASSED:
            return 1

        # Keras makes a sparse gradient dense if any denominator is zero.
        is_any_equal = kinds == {"Equal"} and self._ops[predicate].type == "Any"

        return 0 if is_any_equal else None

    def _find_name(self, condition: int) -> str:
        """Return the name of the loop with a condition."""
        for switch, _, _ in self._prepared.data_out[condition]:
            merge = self._sources[switch][0]

            for entry in self._sources[merge]:
                name = self._ops[entry].attrs.get("frame_name")
                if name is not None:
                    return str(name)

        return ""
