"""The buffers that hold variables.

The capture recorded the address of each variable before the first step and after each step. Between two
such snapshots a variable may move (an assignment replaces its buffer, a write copies it while another op
reads it): the old buffer is the variable's until it is freed, then the new one. A failed step has no
snapshot after it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyzer.model.recording.labels import Holding
from analyzer.tracing.parse.run_folder import RunNote


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


def find_holdings(
    allocations: pd.DataFrame, note: RunNote, moments: Sequence[int]
) -> list[Holding]:
    """Return the buffers that hold variables, in order of time for each variable."""
    index = AddressIndex(allocations)
    born, dies = allocations["born"].to_numpy(), allocations["dies"].to_numpy()
    found: dict[int, tuple[int, Holding]] = {}  # by buffer, with its last snapshot

    for number in range(len(note.variables)):
        previous: int | None = None
        since: int | None = None

        for turn, (moment, snapshot) in enumerate(
            zip(moments, note.snapshots, strict=False)
        ):
            address = snapshot[number] if number < len(snapshot) else None
            row = None if address is None else index.at(address, moment)
            if row is None:
                continue

            if row != previous:
                is_move = previous is not None and born[row] < dies[previous] <= moment
                since = int(dies[previous]) if is_move else None
                previous = row

            # Two variables may share a buffer until one of them is written.
            if row not in found or found[row][0] < turn:
                found[row] = turn, (row, number, since)

    # A snapshot of a variable whose reads are copies found a copy.
    reads = set(allocations.index[allocations["op"] == "ReadVariableOp"])
    kept = (row for row in found if row not in reads or dies[row] > moments[-1])
    holdings = [found[row][1] for row in kept]
    holdings += _find_by_size(allocations, note, moments, holdings)

    return sorted(holdings, key=lambda one: (one[1], int(born[one[0]])))


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
    free = allocations[lives & ~allocations.index.isin([row for row, _, _ in known])]
    rows = free.sort_values("born").groupby("requested_bytes").groups
    numbers: dict[int, list[int]] = {}

    for number in sorted(
        {*range(len(note.variables))} - {number for _, number, _ in known}
    ):
        numbers.setdefault(note.variables[number].size_bytes, []).append(number)

    pairs = ((rows.get(size_bytes, ()), same) for size_bytes, same in numbers.items())
    equal = (
        zip(own, same, strict=True) for own, same in pairs if len(own) == len(same)
    )

    return [(int(row), number, None) for one in equal for row, number in one]
