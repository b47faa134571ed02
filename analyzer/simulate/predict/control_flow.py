"""The trips of loops and the outcomes of branches.

A loop that counts from one constant to another makes known trips, and its gradient makes as many. A
check of all numbers passes, as in healthy training. Data decide everything else, and it is assumed: a
loop whose condition includes a bound (``while i < limit and not done``) runs as often as the bound
allows, any other loop once. Branches with one predicate have one outcome, also in a gradient, which
takes the predicate from a list or an optional.
"""

from collections.abc import Iterable

from analyzer.model.contract.graph_note import CONSTANTS, op_types
from analyzer.model.graph.graph_index import reach
from analyzer.simulate.predict.prepared_step import (
    ENTERS,
    EXITS,
    MERGES,
    NEXT,
    SWITCHES,
    TYPES,
    Prepared,
)

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
        self._inputs = prepared.inputs
        self._limits: dict[int, int] = {}  # trips by the node of the condition
        self.trips: dict[str, int] = {}
        self.unbounded: set[str] = set()
        self.branches: dict[int, int] = {}

    def choose_branch(self, switch: int, count: int) -> int:
        """Return the output, of ``count``, to which a switch passes its tensor."""
        source = self._find_source(self._inputs[switch][1][0])
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
            return [source for source, _ in self._inputs[part]] if is_join else []

        ignored = _JOINS | CONSTANTS
        parts = reach([node], find_near)

        return [part for part in parts if self._ops[part].type not in ignored]

    def _count(self, node: int) -> int | None:
        """Return the trips that a comparison of a counter allows; None for another part."""
        further = _COUNTS.get(self._ops[node].type)
        if further is None or len(self._inputs[node]) != 2:
            return None

        (left, _), (right, _) = self._inputs[node]
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
        operands = [source for source, _ in self._inputs[adding]]
        steps = [step for step in map(self._find_value, operands) if step]

        if start is None or not steps or self._ops[adding].type not in _ADDS:
            return None

        return start, steps[0]

    def _find_edges(self, node: int) -> list[int]:
        """Return the nodes that enter a loop's variable and that repeat it; none for another node."""
        sources = [source for source, _ in self._inputs[node]]
        is_loop = self._ops[node].type in MERGES and len(sources) == 2

        return sources if is_loop else []

    def _find_value(self, node: int) -> int | None:
        """Return a number that the graph tells: a constant, an argument, or a counter at its end."""
        source = self._find_source(node)
        op = self._ops[source]

        if op.type in EXITS:
            (merge, _), (condition, _) = self._inputs[self._inputs[source][0][0]]
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
            elif kind in _PASSES_ON and self._inputs[node]:
                source = self._inputs[node][0][0]

            if source is None:
                break

            node = source

        return node

    def _find_entry(self, node: int) -> int | None:
        """Return the node whose value enters a loop and stays the same in it; None for others."""
        merge = self._inputs[node][0][0] if self._ops[node].type in SWITCHES else node
        edges = self._find_edges(merge)
        if not edges:
            return None

        entry, back = edges
        while self._ops[back].type in _PASSES_ON and self._inputs[back]:
            back = self._inputs[back][0][0]

        is_same = self._ops[back].type in SWITCHES and self._inputs[back][0][0] == merge

        return entry if is_same else None

    def _find_stored(self, node: int) -> int | None:
        """Return the node of the number that a list or an optional got; None if unknown."""

        def find_near(part: int) -> list[int]:
            is_moved = part == node or self._ops[part].type in _MOVES
            return [source for source, _ in self._inputs[part]] if is_moved else []

        for maker in sorted(reach([node], find_near)):
            place = _STORES.get(self._ops[maker].type)
            if place is not None:
                return self._inputs[maker][place][0]

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
            merge, _ = self._inputs[switch][0]

            for entry, _ in self._inputs[merge]:
                name = self._ops[entry].attrs.get("frame_name")
                if name is not None:
                    return str(name)

        return ""
