"""Choose the states of a long recording for its page.

A page shows all states of the steady step, if they fit, and of each stretch of other states the one with
the most requested bytes, so that no peak is lost. Sums are exact at each state that remains.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.timeline import running_sum

MAX_STATES: Final = 500_000
"""Limit of the states: a page with a million states took more than 1 GiB in a browser."""

_INSTANTS: Final = ("instant", "allocated_instant")
_STRETCHES: Final = MAX_STATES // 2

States = npt.NDArray[np.int64]


class PageStates:
    """The states that a page shows.

    Attributes:
        states: Their numbers in the recording, in order, shape ``(n,)``; 0 is before the first event.
    """

    def __init__(self, states: States) -> None:
        self.states = states

    def instants(self, instants: States) -> States:
        """Return the page's instants for instants of the recording."""
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


def reduce_states(table: pd.DataFrame, states: int, first: int, last: int) -> PageStates | None:
    """Return the states of a recording that its page shows; None for all.

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
    return PageStates(np.unique(np.concatenate([[0], tops, step, [states - 1]])))
