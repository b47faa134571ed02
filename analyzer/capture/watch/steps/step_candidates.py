"""Which of the calls that a program makes again and again is taken for its step.

What trains goes before what takes gradients, and that before what only computes. Needs no TensorFlow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from analyzer.capture.watch.holders.user_lines import find_calling_line

if TYPE_CHECKING:
    from analyzer.capture.watch.function_ledger import FunctionRecord

_LATER: Final = 3
"""Calls more that are waited for where something that trains may follow."""

GRADIENTS: Final = "gradients"
"""Stands for the calls of a program that takes gradients op by op and has no optimizer."""


ASKED_AGAIN: Final = "asked again"
"""Stands for those of a tape that records around the loop: no more like a step than what computes."""


class StepRank(IntEnum):
    """What a call does; the higher, the rather it is the step."""

    COMPUTES = 0
    GRADIENT = 1
    TRAINS = 2


class StepCandidates:
    """The calls that may be steps, each under a key of its own, and the one chosen.

    Args:
        warmup: Calls that are made before one is traced.

    Attributes:
        chosen: The key of the calls that are taken for steps; None while there are none.
        words: What a step is, in words; empty while none is chosen.
        where: The user's line that makes it, or where its function is defined.
    """

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._counts: Counter[Hashable] = Counter()
        self._ranks: dict[Hashable, StepRank] = {}
        self.chosen: Hashable | None = None
        self.words, self.where = "", ""

    def counted(self, key: Hashable, rank: StepRank) -> int:
        """Count a call, and return how many of its key there were."""
        self._counts[key] += 1
        self._ranks[key] = rank
        return self._counts[key]

    def goes_before(self, key: Hashable) -> bool:
        """Say whether a key that was counted is more like a step than the chosen one."""
        return self.chosen is None or self._ranks[key] > self._ranks[self.chosen]

    def is_warm(self, key: Hashable) -> bool:
        """Say whether enough calls of a key were made to trace those that follow."""
        later = 0 if self._ranks[key] is StepRank.TRAINS else _LATER
        return self._counts[key] >= max(self._warmup + later, 1)

    def choose(
        self, key: Hashable, record: FunctionRecord | None, worker: int | None = None
    ) -> None:
        """Take the calls of a key for the steps.

        Args:
            key: The key; of a step that failed at once it may never have been counted.
            record: The function that is called; None where a step runs op by op.
            worker: The worker of a coordinator whose calls are the steps; None without one.
        """
        self.chosen = key
        self._ranks.setdefault(key, StepRank.COMPUTES)
        self.words, self.where = _described(key, record, worker)

    @property
    def trains(self) -> bool:
        """Whether the chosen calls train."""
        return self._ranks.get(self.chosen) is StepRank.TRAINS

    @property
    def steps(self) -> int:
        """How many steps were made; 0 while none is chosen."""
        return self._counts[self.chosen]

    @property
    def most_calls(self) -> int:
        """How many steps were made; while none is chosen, calls of the most frequent key."""
        return max(self._counts.values(), default=0) if self.chosen is None else self.steps


def _described(key: Hashable, record: FunctionRecord | None, worker: int | None) -> tuple[str, str]:
    """Return what a step is, in words, and its line."""
    line = find_calling_line()
    if record is not None and record.is_keras:
        return f"a call of Keras' {record.name}", line
    if record is not None:
        on = "" if worker is None else f" on worker {worker}"
        return f"a call of {record.name}{on}", record.where
    what = "an eager gradient" if key in (GRADIENTS, ASKED_AGAIN) else "an eager update"
    return f"{what}, op by op", line
