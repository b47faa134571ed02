"""A column that grows: one piece of memory, which is lengthened in place."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_GROWTH: Final = 1.25
_FIRST_ROWS: Final = 4096


class GrowingColumn:
    """Numbers that are appended some at a time.

    Pieces kept apart and joined at the end would be held twice, and what they leave behind in the heap
    goes back to no one; a large array is moved by the system without being copied.
    """

    def __init__(self, kept: Any) -> None:
        """Begin without rows; ``kept`` is NumPy's type of a number."""
        self._numbers: npt.NDArray[Any] = np.zeros(_FIRST_ROWS, kept)
        self._count = 0

    def extend(self, numbers: npt.NDArray[Any]) -> None:
        """Append numbers, shape ``(n,)``."""
        until = self._count + len(numbers)
        if until > len(self._numbers):
            self._numbers.resize(max(until, int(len(self._numbers) * _GROWTH)), refcheck=False)
        self._numbers[self._count : until] = numbers
        self._count = until

    def taken(self) -> npt.NDArray[Any]:
        """Return the column and give it up."""
        numbers = self._numbers
        numbers.resize(self._count, refcheck=False)
        self._numbers = np.zeros(0, numbers.dtype)
        return numbers
