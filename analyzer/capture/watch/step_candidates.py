"""Choose which repeated call of a program is its step. Needs no TensorFlow.

Calls that train take precedence over calls that take gradients, and those over calls that only compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from enum import IntEnum
from typing import TYPE_CHECKING

from analyzer.capture.watch.user_lines import find_calling_line

if TYPE_CHECKING:
    from analyzer.capture.watch.traced_functions import FunctionRecord

# additional calls to wait for, in case a call that trains follows
_EXTRA_CALLS = 3

# Key of the steps of a program that takes gradients eagerly and has no optimizer.
GRADIENTS = "gradients"


class StepRank(IntEnum):
    """Kind of a call; a higher rank is more like a step."""

    COMPUTES = 0
    GRADIENT = 1
    TRAINS = 2


class StepCandidates:
    """The calls that may be steps, counted by key, and the chosen key (None before the choice)."""

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._counts: Counter[Hashable] = Counter()
        self._ranks: dict[Hashable, StepRank] = {}
        self.chosen: Hashable | None = None
        self.words = self.where = ""  # the step in words, and its line

    def count(self, key: Hashable, rank: StepRank) -> int:
        """Count a call, and return the number of calls with its key."""
        self._counts[key] += 1
        self._ranks[key] = rank

        return self._counts[key]

    def outranks_chosen(self, key: Hashable) -> bool:
        """Return whether a counted key is more like a step than the chosen one."""
        return self.chosen is None or self._ranks[key] > self._ranks[self.chosen]

    def is_warm(self, key: Hashable) -> bool:
        """Return whether the warm-up of a key is over."""
        extra = 0 if self._ranks[key] is StepRank.TRAINS else _EXTRA_CALLS
        return self._counts[key] >= max(self._warmup + extra, 1)

    def choose(self, key: Hashable, record: FunctionRecord | None) -> None:
        """Choose the key of the steps, calls of the function of ``record`` if there is one."""
        self.chosen = key
        self.words = "eager code"
        self.where = find_calling_line()

        if record is not None:
            owner = "Keras' " if record.is_keras else ""
            self.words = f"a call of {owner}{record.name}"
            self.where = self.where if record.is_keras else record.where

    @property
    def trains(self) -> bool:
        """Whether the chosen calls train."""
        return self._ranks.get(self.chosen) is StepRank.TRAINS

    @property
    def steps(self) -> int:
        """Number of steps so far; 0 before the choice."""
        return self._counts[self.chosen]

    @property
    def most_calls(self) -> int:
        """Number of steps so far; before the choice, calls of the most frequent key."""
        if self.chosen is None:
            return max(self._counts.values(), default=0)

        return self.steps


class GradientSteps:
    """Finds the ends of steps in a program that takes gradients eagerly.

    A step ends when recording starts again after gradients were taken: a tape is made, entered or reset.
    An update of an optimizer also ends a step; several steps for each update are micro-batches whose
    gradients accumulate.
    """

    def __init__(self) -> None:
        self.pending = False  # whether gradients were taken since the last recording
        self._ended = 0
        self._updates = 0

    def start_recording(self) -> bool:
        """Note a tape that was made, entered or reset; return whether a step ends before it."""
        ends = self.pending
        self.pending = False
        self._ended += ends

        return ends

    def update(self) -> bool:
        """Note an update of an optimizer; return whether it ends a micro-batch."""
        ends = self.start_recording()
        self._updates += 1

        return ends and self.micro_batches > 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches for each update; 1 if gradients do not accumulate."""
        if self._updates:
            return max(self._ended // self._updates, 1)

        return 1
