"""Which states of a long recording its page shows: a browser has to hold them all.

At a state that is kept every sum is exact, whatever is left out: a buffer is alive at it or is not. Kept
are all states of the steady step, as far as there is room, and of every stretch of the others the one
at which most is requested, so that no peak is lost.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.timeline import running_sum

MAX_STATES: Final = 500_000
"""States at most; a page of a million took a browser over a gigabyte."""

_INSTANTS: Final = ("instant", "allocated_instant")
_STRETCHES: Final = MAX_STATES // 2

States = npt.NDArray[np.int64]


class KeptStates:
    """The states that a page shows, by their number in the recording, in order.

    Attributes:
        states: The states, shape ``(n,)``; 0 is before the first event.
    """

    def __init__(self, states: States) -> None:
        """Keep ``states``."""
        self.states = states

    def instants(self, instants: States) -> States:
        """Return for each instant of the recording that of the page at which the same is there."""
        return np.searchsorted(self.states, instants + 1) - 1

    def table(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return rows of the allocations table with the page's instants."""
        moved = {name: self.instants(table[name].to_numpy()) for name in ("born", "dies")}
        turns = table["turns_at"].astype("Int64")
        missing = turns.isna().to_numpy()
        turned = self.instants(turns.fillna(0).to_numpy(dtype=np.int64))
        return table.assign(**moved, turns_at=pd.arrays.IntegerArray(turned, missing))

    def document(self, value: Any) -> Any:
        """Return a document's JSON values with the page's instants."""
        if isinstance(value, dict):
            return {
                key: int(self.instants(np.array([item]))[0])
                if key in _INSTANTS and isinstance(item, int)
                else self.document(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.document(item) for item in value]
        return value


def kept_states(table: pd.DataFrame, states: int, first: int, last: int) -> KeptStates | None:
    """Return the states to keep of a recording; None where all are kept.

    Args:
        table: Rows of the allocations table.
        states: Number of states.
        first, last: Instants of the steady step.
    """
    if states <= MAX_STATES:
        return None
    live = running_sum(
        table["born"].to_numpy(),
        table["dies"].to_numpy(),
        table["requested_bytes"].to_numpy(),
        states - 1,
    )
    width = -(-states // _STRETCHES)
    whole = states // width * width
    tops = live[:whole].reshape(-1, width).argmax(axis=1) + np.arange(0, whole, width)
    step = np.arange(max(first, 0), min(last + 2, states))
    if len(step) > MAX_STATES - _STRETCHES:
        top = int(live[step].argmax())
        begin = max(min(top - _STRETCHES // 2, len(step) - _STRETCHES), 0)
        step = step[begin : begin + _STRETCHES]
    return KeptStates(np.unique(np.concatenate([[0], tops, step, [states - 1]])))
