"""What Python holds long after the traced steps: what is put aside once an epoch, not once a step."""

from __future__ import annotations

import time
import types
from typing import Any, Final

from analyzer.capture.watch.holders.live_holders import (
    find_holders,
    find_live_tensors,
    find_new_tensors,
    references,
)
from analyzer.model.contract.watch_note import HeldTensors

_GROWN_BYTES: Final = 1 << 20
"""What has to be in use more than after the traced steps before it is worth a look."""

_SHARE: Final = 0.005
"""Share of the time that looks may take."""

_MOST: Final = 32
_FEWEST: Final = 3
"""Tensors that a container holds from which on it is told of."""


class LaterLook:
    """Looks at what has come since the traced steps, where more is in use.

    A look is made after twice as many steps each time, for all objects of Python's are gone over.

    Args:
        step: How many steps had been made when the traced ones ended.
        in_use_bytes: What was in use then.

    Attributes:
        held: Containers with tensors that came since, those that hold most first.
        step: How many steps had been made at the latest look.
    """

    def __init__(self, step: int, in_use_bytes: int) -> None:
        self._before: dict[int, Any] = references(find_live_tensors())
        self._base_bytes = in_use_bytes
        self._next_step, self._next_s = 2 * step, 0.0
        self.held: tuple[HeldTensors, ...] = ()
        self.step = step

    def is_due(self, step: int, in_use_bytes: int) -> bool:
        """Say whether to look now.

        Args:
            step: How many steps have been made.
            in_use_bytes: What is in use.
        """
        is_time = step >= self._next_step and time.perf_counter() >= self._next_s
        return is_time and self.has_grown(in_use_bytes)

    def has_grown(self, in_use_bytes: int) -> bool:
        """Say whether more is in use than after the traced steps."""
        return in_use_bytes - self._base_bytes >= _GROWN_BYTES

    def look(self, step: int, frame: types.FrameType | None) -> None:
        """Look at what Python holds now.

        Args:
            step: How many steps have been made.
            frame: The innermost frame of the stack whose local names are looked at.
        """
        began_s = time.perf_counter()
        rows = [
            row
            for row in find_holders(find_new_tensors(self._before), frame)
            if row.grows and row.count >= _FEWEST
        ]
        if rows or not self.held:  # at the program's end functions' names are gone
            self.held, self.step = tuple(rows[:_MOST]), step
        now_s = time.perf_counter()
        self._next_step, self._next_s = 2 * step, now_s + (now_s - began_s) / _SHARE
