"""Where the steps of a program end that takes gradients op by op. Needs no TensorFlow.

A step ends where something is recorded anew after gradients were taken: a tape is made, or one that was
made before is entered or reset. A tape that is entered once, around the loop, records all the time:
there a step ends where the same line asks it for gradients again.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any


class GradientSteps:
    """What tapes were asked for since a step began.

    Attributes:
        pending: Gradients were taken, and nothing was recorded anew since.
    """

    def __init__(self) -> None:
        self.pending = False
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._asked: set[Hashable] = set()

    def began_to_record(self) -> bool:
        """Say whether a step ends before a tape that was made, entered or reset."""
        ends, self.pending = self.pending, False
        self._asked.clear()
        return ends

    def entered(self, tape: Any) -> None:
        """Note a tape whose ``with`` has begun."""
        self._open.add(tape)

    def left(self, tape: Any) -> None:
        """Note a tape whose ``with`` has ended."""
        self._open.discard(tape)

    def taken(self, tape: Any, line: Hashable) -> bool:
        """Note gradients that were taken, and say whether a step ended before.

        Args:
            tape: Who was asked for them.
            line: What tells the place in the program that asked.
        """
        ends = tape in self._open and line in self._asked
        if ends:
            self._asked.clear()
        self._asked.add(line)
        self.pending = True
        return ends
