"""Which buffers hold variables, and since when.

The capture noted where each variable's bytes lie before the first step and after each. The buffer at
that address then is the variable's. Between two notes a variable may move to a new buffer (an
assignment replaces it, a write while someone still reads copies it): the old buffer is the variable's
until it dies, the new one from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.graph.ops import ITEM_BYTES, split_tensor
from analyzer.graph.structure import Structure
from analyzer.parse.run import RunNote, Variable


@dataclass(frozen=True, slots=True)
class Holding:
    """A buffer that holds a variable.

    Attributes:
        row: Position of the buffer in the allocations table.
        variable: Index of the variable in the note.
        since: Instant from which it does; None for from birth.
    """

    row: int
    variable: int
    since: int | None


class AddressIndex:
    """Finds the buffer at an address at an instant."""

    def __init__(self, allocations: pd.DataFrame) -> None:
        """Index ``allocations`` by address."""
        addresses = allocations["address"].to_numpy(dtype=np.int64, na_value=-1)
        self._born = allocations["born"].to_numpy()
        self._dies = allocations["dies"].to_numpy()
        self._order = np.argsort(addresses, kind="stable")
        self._sorted = addresses[self._order]

    def at(self, address: int, instant: int) -> int | None:
        """Return the row alive at ``instant`` that starts at ``address``, None if there is none."""
        left = np.searchsorted(self._sorted, address, side="left")
        right = np.searchsorted(self._sorted, address, side="right")
        for row in self._order[left:right]:
            if self._born[row] <= instant < self._dies[row]:
                return int(row)
        return None


def size_of(variable: Variable) -> int | None:
    """Return the variable's bytes, None where they are not known."""
    item = ITEM_BYTES.get(variable.dtype)
    if item is None or variable.shape is None:
        return None
    return item * int(np.prod(variable.shape, dtype=np.int64))


def find_holdings(
    allocations: pd.DataFrame,
    note: RunNote,
    moments: Sequence[int],
    structure: Structure | None,
) -> list[Holding]:
    """Return the buffers that hold variables, in the order of time for each variable.

    Args:
        allocations: Table with the columns of :data:`analyzer.schema.ALLOCATIONS`.
        note: The capture's note.
        moments: The instant of each snapshot.
        structure: The graph, to follow variables that could not be read; None if there is none.
    """
    index = AddressIndex(allocations)
    born = allocations["born"].to_numpy()
    dies = allocations["dies"].to_numpy()
    writers = _writers(note, structure)
    found: dict[int, tuple[int, Holding]] = {}  # by buffer, with the last snapshot that saw it so
    for number, variable in enumerate(note.variables):
        previous: int | None = None
        since: int | None = None
        for turn, (moment, snapshot) in enumerate(zip(moments, note.snapshots, strict=False)):
            address = snapshot[number] if number < len(snapshot) else None
            row = index.at(address, moment) if address is not None else None
            if row is None and previous is not None:
                row = (
                    previous
                    if dies[previous] > moment
                    else _replacement(
                        allocations, variable, writers.get(number, frozenset()), moment
                    )
                )
            if row is None:
                continue
            if row != previous:
                since = None
                if previous is not None and born[row] < dies[previous] <= moment:
                    since = int(dies[previous])
                previous = row
            # Two variables may share one buffer until one of them is written: it is the other's.
            if row not in found or found[row][0] < turn:
                found[row] = turn, Holding(row, number, since)
        # A step that failed left no snapshot after it: the last move is told from the graph.
        last = int(dies.max(initial=0))
        if previous is not None and dies[previous] < last:
            moved = int(dies[previous])
            row = _replacement(allocations, variable, writers.get(number, frozenset()), moved)
            if row is not None and row not in found:
                found[row] = len(moments), Holding(row, number, moved)
    holdings = [holding for _, holding in found.values()]
    return sorted(holdings, key=lambda holding: (holding.variable, int(born[holding.row])))


def _writers(note: RunNote, structure: Structure | None) -> Mapping[int, frozenset[str]]:
    """Return for each variable the ops whose buffer may become its own.

    An op that writes in place asks for a copy where someone still reads; a plain assignment takes
    the buffer of the value that it is given, from whatever op made that.
    """
    if structure is None:
        return {}
    by_argument = {
        op.attrs.get("index"): op.name for op in structure.ops.values() if op.type == "_Arg"
    }
    writers = {}
    for number, variable in enumerate(note.variables):
        name = by_argument.get(variable.argument)
        if name is None or variable.argument is None:
            continue
        users = structure.consumers.get(f"{name}:0", ())
        values = (
            split_tensor(structure.ops[user].inputs[1])[0]
            for user in users
            if structure.ops[user].type == "AssignVariableOp"
            and len(structure.ops[user].inputs) > 1
        )
        writers[number] = frozenset((*users, *values))
    return writers


def _replacement(
    allocations: pd.DataFrame, variable: Variable, writers: frozenset[str], moment: int
) -> int | None:
    """Return the buffer of the variable's size that an op writing to it made and that is alive."""
    size_bytes = size_of(variable)
    rows = allocations.index[
        (allocations["born"] <= moment)
        & (allocations["dies"] > moment)
        & (allocations["requested_bytes"] == size_bytes)
        & allocations["op"].isin(list(writers))
    ]
    return int(rows[-1]) if len(rows) else None
