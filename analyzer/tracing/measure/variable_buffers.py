"""The buffers that hold variables.

The capture recorded the address of each variable before the first step and after each step. Between two
such snapshots a variable may move (an assignment replaces its buffer, a write copies it while another op
reads it): the old buffer is the variable's until it is freed, then the new one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.contract.graph_note import split_tensor
from analyzer.model.contract.run_note import VariableNote
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.recording.labels import Holding
from analyzer.model.recording.state_roles import find_handles
from analyzer.tracing.parse.run_folder import RunNote

_ADDS_IN_PLACE: Final = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})


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
        rows = self._order[left:right].tolist()

        return next(
            (row for row in rows if self._born[row] <= instant < self._dies[row]), None
        )


# Complex: one pass over time for each variable, whose buffer and last move it carries along.
def find_holdings(
    allocations: pd.DataFrame,
    note: RunNote,
    moments: Sequence[int],
    structure: GraphIndex | None,
) -> list[Holding]:
    """Return the buffers that hold variables, in order of time for each variable.

    ``structure`` is the graph, to follow variables that could not be read; None without one.
    """
    index = AddressIndex(allocations)
    born, dies = allocations["born"].to_numpy(), allocations["dies"].to_numpy()
    last = int(dies.max(initial=0))
    handles = find_handles(structure) if structure is not None else {}
    found: dict[int, tuple[int, Holding]] = {}  # by buffer, with its last snapshot

    for number, variable in enumerate(note.variables):
        own_writers = _find_writers(structure, handles.get(variable.argument, ""))
        previous: int | None = None
        since: int | None = None

        for turn, (moment, snapshot) in enumerate(
            zip(moments, note.snapshots, strict=False)
        ):
            address = snapshot[number] if number < len(snapshot) else None
            row = None if address is None else index.at(address, moment)

            if row is None and previous is not None:
                row = previous
                if dies[previous] <= moment:
                    row = _find_replacement(allocations, variable, own_writers, moment)

            if row is None:
                continue
            if row != previous:
                is_move = previous is not None and born[row] < dies[previous] <= moment
                since = int(dies[previous]) if is_move else None
                previous = row

            # Two variables may share a buffer until one of them is written.
            if row not in found or found[row][0] < turn:
                found[row] = turn, Holding(row, number, since)

        # A failed step has no snapshot after it: find the last move with the graph.
        if previous is not None and dies[previous] < last:
            moved = int(dies[previous])
            row = _find_replacement(allocations, variable, own_writers, moved)
            if row is not None and row not in found:
                found[row] = len(moments), Holding(row, number, moved)

    reads = set(
        allocations.index[allocations["op"] == "ReadVariableOp"]
    )  # copies by a snapshot
    kept = (row for row in found if row not in reads or dies[row] > moments[-1])
    holdings = [found[row][1] for row in kept]
    holdings += _find_by_size(allocations, note, moments, holdings)
    if structure is not None:
        holdings += _find_copies(allocations, note, structure, handles, holdings)

    return sorted(
        holdings, key=lambda holding: (holding.variable, int(born[holding.row]))
    )


def _find_by_size(
    allocations: pd.DataFrame,
    note: RunNote,
    moments: Sequence[int],
    known: Sequence[Holding],
) -> list[Holding]:
    """Return the buffers of variables whose reads are copies, in the order of creation.

    A look-up before the first snapshot, as in a model's first call, switches a variable to copy-on-read
    (``EnsureSparseVariableAccess``). Its buffer lives through all snapshots, has its size and no other
    owner. If another number of buffers does, none is chosen.
    """
    since, until = (moments[0], moments[-1]) if moments else (-1, -1)
    lives = (allocations["born"] <= since) & (allocations["dies"] > until)
    free = allocations[lives & ~allocations.index.isin([one.row for one in known])]
    rows = free.sort_values("born").groupby("requested_bytes").groups
    numbers: dict[int, list[int]] = {}
    for number in sorted(
        {*range(len(note.variables))} - {one.variable for one in known}
    ):
        numbers.setdefault(note.variables[number].size_bytes, []).append(number)
    pairs = ((rows.get(size_bytes, ()), same) for size_bytes, same in numbers.items())
    equal = (
        zip(own, same, strict=True) for own, same in pairs if len(own) == len(same)
    )

    return [Holding(int(row), number, None) for one in equal for row, number in one]


def _find_writers(structure: GraphIndex | None, handle: str) -> list[str]:
    """Return the ops whose buffer may become a variable's.

    An in-place update requests a copy while another op reads the variable; an assignment takes the
    buffer of its value, from the op that made it.
    """
    if structure is None:
        return []
    users = [structure.ops[user] for user in structure.consumers.get(f"{handle}:0", ())]
    values = (
        split_tensor(user.inputs[1])[0]
        for user in users
        if user.type == "AssignVariableOp" and len(user.inputs) > 1
    )

    return [*(user.name for user in users), *values]


def _find_replacement(
    allocations: pd.DataFrame, variable: VariableNote, writers: list[str], moment: int
) -> int | None:
    """Return the live buffer of the variable's size that an op writing to it made, or None."""
    rows = allocations.index[
        (allocations["born"] <= moment)
        & (allocations["dies"] > moment)
        & (allocations["requested_bytes"] == variable.size_bytes)
        & allocations["op"].isin(writers)
    ]
    return int(rows[-1]) if len(rows) else None


def _find_copies(
    allocations: pd.DataFrame,
    note: RunNote,
    structure: GraphIndex,
    handles: Mapping[object, str],
    known: Sequence[Holding],
) -> list[Holding]:
    """Return copies on write between snapshots.

    An op that adds to a variable in place requests scratch memory of the variable's size only for a copy
    (``PrepareToUpdateVariable``): the variable's new value, once the old one is freed.
    """
    holders: dict[int, list[int]] = {}
    for holding in known:
        holders.setdefault(holding.variable, []).append(holding.row)
    is_free = ~allocations.index.isin([holding.row for holding in known])
    scratch = allocations[is_free & (allocations["region"] == "temp")]
    by_op = scratch.groupby(scratch["op"].astype(str)).groups
    born, dies = allocations["born"].to_numpy(), allocations["dies"].to_numpy()
    sizes = allocations["requested_bytes"].to_numpy()
    found = []

    for number, variable in enumerate(note.variables):
        size_bytes = variable.size_bytes
        for user in structure.consumers.get(
            f"{handles.get(variable.argument, '')}:0", ()
        ):
            if structure.ops[user].type not in _ADDS_IN_PLACE:
                continue
            for row in by_op.get(user, ()):
                if sizes[row] != size_bytes:
                    continue
                before = [
                    other
                    for other in holders.get(number, ())
                    if born[other] < born[row]
                ]
                old = max(before, key=lambda other: int(born[other]), default=None)
                is_move = old is not None and dies[old] > born[row]
                found.append(
                    Holding(int(row), number, int(dies[old]) if is_move else None)
                )
                holders.setdefault(number, []).append(int(row))

    return found
