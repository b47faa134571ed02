"""The buffers that hold variables.

The capture recorded the address of each variable before the first step and after each step. The buffer
at that address is the variable's. Between two such snapshots a variable may move (an assignment replaces
its buffer, a write copies it while another op reads it): the old buffer is the variable's until it is
freed, then the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import tensor_bytes
from analyzer.model.contract.graph_note import split_tensor
from analyzer.model.contract.run_note import VariableNote
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.tracing.parse.run_folder import RunNote

_ADDS_IN_PLACE: Final = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})


class Holding(NamedTuple):
    """A buffer that holds a variable."""

    row: int
    variable: int
    since: int | None  # instant from which it holds the variable; None for its birth


class AddressIndex:
    """Index of buffers by address."""

    def __init__(self, allocations: pd.DataFrame) -> None:
        """Index ``allocations`` by address."""
        addresses = allocations["address"].to_numpy(dtype=np.int64, na_value=-1)
        self._born = allocations["born"].to_numpy()
        self._dies = allocations["dies"].to_numpy()
        self._order = np.argsort(addresses, kind="stable")
        self._sorted = addresses[self._order]

    def at(self, address: int, instant: int) -> int | None:
        """Return the row that is alive at ``instant`` at ``address``, or None."""
        left = np.searchsorted(self._sorted, address, side="left")
        right = np.searchsorted(self._sorted, address, side="right")
        for row in self._order[left:right]:
            if self._born[row] <= instant < self._dies[row]:
                return int(row)
        return None


def variable_bytes(variable: VariableNote) -> int | None:
    """Return the variable's bytes, None if unknown."""
    return tensor_bytes(variable.dtype, variable.shape)


# Complex: one pass over time for each variable, whose buffer and last move it carries along.
def find_holdings(
    allocations: pd.DataFrame,
    note: RunNote,
    moments: Sequence[int],
    structure: GraphIndex | None,
) -> list[Holding]:
    """Return the buffers that hold variables, in order of time for each variable.

    Args:
        structure: The graph, to follow variables that could not be read; None without one.
    """
    index = AddressIndex(allocations)
    born = allocations["born"].to_numpy()
    dies = allocations["dies"].to_numpy()
    writers = _find_writers(note, structure)
    found: dict[int, tuple[int, Holding]] = {}  # by buffer, with its last snapshot
    for number, variable in enumerate(note.variables):
        own_writers = writers.get(number, frozenset())
        previous: int | None = None
        since: int | None = None
        for turn, (moment, snapshot) in enumerate(zip(moments, note.snapshots, strict=False)):
            row = _find_in_snapshot(index, snapshot, number, moment)
            if row is None and previous is not None:
                row = previous
                if dies[previous] <= moment:
                    row = _find_replacement(allocations, variable, own_writers, moment)
            if row is None:
                continue
            if row != previous:
                since = None
                if previous is not None and born[row] < dies[previous] <= moment:
                    since = int(dies[previous])
                previous = row
            # Two variables may share a buffer until one of them is written.
            if row not in found or found[row][0] < turn:
                found[row] = turn, Holding(row, number, since)
        # A failed step has no snapshot after it: find the last move with the graph.
        last = int(dies.max(initial=0))
        if previous is not None and dies[previous] < last:
            moved = int(dies[previous])
            row = _find_replacement(allocations, variable, own_writers, moved)
            if row is not None and row not in found:
                found[row] = len(moments), Holding(row, number, moved)
    holdings = [holding for _, holding in found.values()]
    holdings += _find_copies(allocations, note, structure, holdings)
    return sorted(holdings, key=lambda holding: (holding.variable, int(born[holding.row])))


def _find_in_snapshot(
    index: AddressIndex, snapshot: Sequence[int | None], number: int, moment: int
) -> int | None:
    """Return the buffer at a variable's address in a snapshot; None if unknown."""
    address = snapshot[number] if number < len(snapshot) else None
    return None if address is None else index.at(address, moment)


def _find_copies(
    allocations: pd.DataFrame,
    note: RunNote,
    structure: GraphIndex | None,
    known: Sequence[Holding],
) -> list[Holding]:
    """Return copies on write between snapshots.

    An op that adds to a variable in place requests scratch memory of the variable's size only for a copy
    (``PrepareToUpdateVariable``): the variable's new value, once the old one is freed.
    """
    if structure is None:
        return []
    seen = {holding.row for holding in known}
    born, dies = allocations["born"].to_numpy(), allocations["dies"].to_numpy()
    ops = allocations["op"].astype(object).to_numpy()
    sizes = allocations["requested_bytes"].to_numpy()
    copies = np.flatnonzero((allocations["region"] == "temp").to_numpy())
    by_op: dict[str, list[int]] = {}
    for row in copies.tolist():
        if row not in seen:
            by_op.setdefault(ops[row], []).append(row)
    holders: dict[int, list[int]] = {}
    for holding in known:
        holders.setdefault(holding.variable, []).append(holding.row)
    handles = _find_handles(structure)
    found = []
    for number, variable in enumerate(note.variables):
        size_bytes = variable_bytes(variable)
        handle = handles.get(variable.argument, "")
        for user in structure.consumers.get(f"{handle}:0", ()):
            if structure.ops[user].type not in _ADDS_IN_PLACE:
                continue
            for row in by_op.get(user, ()):
                if sizes[row] != size_bytes:
                    continue
                before = [other for other in holders.get(number, ()) if born[other] < born[row]]
                old = max(before, key=lambda other: int(born[other]), default=None)
                moved = old is not None and dies[old] > born[row]
                found.append(Holding(row, number, int(dies[old]) if moved else None))
                holders.setdefault(number, []).append(row)
    return found


def _find_handles(structure: GraphIndex) -> dict[object, str]:
    """Return the argument ops by index."""
    return {op.attrs.get("index"): op.name for op in structure.ops.values() if op.type == "_Arg"}


def _find_writers(note: RunNote, structure: GraphIndex | None) -> Mapping[int, frozenset[str]]:
    """Return for each variable the ops whose buffer may become the variable's.

    An in-place update requests a copy while another op reads the variable; an assignment takes the
    buffer of its value, from the op that made it.
    """
    if structure is None:
        return {}
    by_argument = _find_handles(structure)
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


def _find_replacement(
    allocations: pd.DataFrame, variable: VariableNote, writers: frozenset[str], moment: int
) -> int | None:
    """Return the live buffer of the variable's size that an op writing to it made, or None."""
    size_bytes = variable_bytes(variable)
    rows = allocations.index[
        (allocations["born"] <= moment)
        & (allocations["dies"] > moment)
        & (allocations["requested_bytes"] == size_bytes)
        & allocations["op"].isin(list(writers))
    ]
    return int(rows[-1]) if len(rows) else None
