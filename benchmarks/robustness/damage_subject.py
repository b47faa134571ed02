"""A profiler trace to be damaged: its events by name, and a seeded choice of some of them.

Figures: none; tests/unit/tracing/test_damaged_traces.py checks a part of the damages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

MEMORY: Final = (b"MemoryAllocation", b"MemoryDeallocation")
DAMAGES: Final[dict[str, Callable[[Subject], None]]] = {}


def damage(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """Register a damage under its name."""
    DAMAGES[function.__name__.replace("_", " ")] = function
    return function


@dataclass
class Subject:
    """A trace to be damaged."""

    space: Any
    rng: random.Random
    rate: float
    other: Any = None
    kinds: dict[bytes, int] = field(init=False)
    stats: dict[bytes, int] = field(init=False)
    plane: Any = field(init=False)

    def __post_init__(self) -> None:
        self.plane = max(
            self.space.planes, key=lambda plane: sum(len(x.events) for x in plane.lines)
        )
        self.kinds = {
            bytes(entry.value.name): entry.key for entry in self.plane.event_metadata
        }
        self.stats = {
            bytes(entry.value.name): entry.key for entry in self.plane.stat_metadata
        }

    def events(self, *names: bytes) -> list[tuple[Any, Any]]:
        """Return (line, event) of the events of these names, in the order of time."""
        keys = {self.kinds.get(name) for name in names}
        found = [
            (line, event)
            for line in self.plane.lines
            for event in line.events
            if event.metadata_id in keys
        ]
        return sorted(found, key=lambda pair: self.time(*pair))

    def steps(self) -> list[tuple[Any, Any]]:
        number = self.stats.get(b"step_num")
        found = [
            (line, event)
            for line in self.plane.lines
            for event in line.events
            if any(stat.metadata_id == number for stat in event.stats)
        ]
        return sorted(found, key=lambda pair: self.time(*pair))

    @staticmethod
    def time(line: Any, event: Any) -> int:
        return int(line.timestamp_ns * 1000 + event.offset_ps)

    def chosen(self, pool: list[Any]) -> list[Any]:
        """Return a share of ``pool``, at least one."""
        if not pool:
            return []
        return self.rng.sample(
            pool, max(1, min(len(pool), round(self.rate * len(pool))))
        )

    def memory(self, *names: bytes) -> list[tuple[Any, Any]]:
        return self.chosen(self.events(*(names or MEMORY)))

    def stat(self, event: Any, name: bytes) -> Any:
        """Return a statistic of the event, None where it has none of this name."""
        key = self.stats.get(name)
        return next((stat for stat in event.stats if stat.metadata_id == key), None)

    def text(self, text: bytes) -> int:
        """Return the key of a text, which is added where the trace lacks it."""
        if text not in self.stats:
            self.stats[text] = max(self.stats.values()) + 1
            entry = self.plane.stat_metadata.add(key=self.stats[text])
            entry.value.id, entry.value.name = self.stats[text], text
        return self.stats[text]

    def drop(self, pairs: list[tuple[Any, Any]]) -> None:
        gone = {id(event) for _, event in pairs}
        for line in self.plane.lines:
            kept = [event for event in line.events if id(event) not in gone]
            if len(kept) < len(line.events):
                copies = [
                    type(event).FromString(event.SerializeToString()) for event in kept
                ]
                del line.events[:]
                line.events.extend(copies)

    def alter(self, name: bytes, change: Callable[[int], int], *kinds: bytes) -> None:
        """Change a number of some memory events."""
        for _, event in self.memory(*kinds):
            stat = self.stat(event, name)
            if stat is not None:
                which = "uint64_value" if stat.uint64_value else "int64_value"
                setattr(stat, which, within(change(getattr(stat, which)), which))

    def flip(self, lowest: int, highest: int) -> Callable[[int], int]:
        return lambda value: value ^ (1 << self.rng.randint(lowest, highest))

    def factor(self) -> Callable[[int], int]:
        return lambda value: (
            int(value * self.rng.choice([0.1, 0.5, 0.9, 1.1, 2, 10])) + 1
        )

    def middle(self) -> int:
        """Return a time in the middle of the memory events."""
        found = self.events(*MEMORY)
        return self.time(*found[self.rng.randint(len(found) // 4, 3 * len(found) // 4)])


def within(value: int, which: str) -> int:
    """Return ``value`` as the field's type holds it."""
    value &= (1 << 64) - 1
    return value if which == "uint64_value" or value < 1 << 63 else value - (1 << 64)
