"""What is in use after a program's steps, read so seldom that the program does not feel it."""

from __future__ import annotations

import resource
import time
from typing import Final

import tensorflow as tf

from analyzer.model.contract.watch_note import Reading

_ALL_READ: Final = 64
"""Steps at the beginning of which each is read."""

_MOST_READINGS: Final = 1024
"""Readings that are kept; where there are more, every second one goes."""

_SHARE: Final = 0.005
"""Share of the time that readings may take."""

_HOST_EVERY_S: Final = 0.2
"""Seconds between two looks at the resident memory, which the system takes long to tell."""


class StepReadings:
    """Bytes in use after steps: those of the allocator, and now and then those of the process."""

    def __init__(self) -> None:
        self._rows: list[Reading] = []
        self._stride = 1
        self._next_s = self._host_s = 0.0
        self._device = ""

    @property
    def rows(self) -> tuple[Reading, ...]:
        """What was read, in the order of the steps."""
        return tuple(self._rows)

    @property
    def last_bytes(self) -> int:
        """What was in use when it was read last."""
        return self._rows[-1].in_use_bytes if self._rows else 0

    def read(self, step: int) -> None:
        """Read what is in use, not more often than it takes a small share of the time.

        Args:
            step: How many steps have been made.
        """
        now_s = time.perf_counter()
        if step % self._stride or (now_s < self._next_s and step > _ALL_READ):
            return
        if not self._device:
            self._device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
            now_s = time.perf_counter()
        try:
            in_use_bytes = int(tf.config.experimental.get_memory_info(self._device)["current"])
        except (ValueError, tf.errors.OpError):  # this allocator keeps no such books
            in_use_bytes = 0
        self._next_s = now_s + (time.perf_counter() - now_s) / _SHARE
        host_bytes = None
        if now_s >= self._host_s:
            host_bytes = _resident_bytes()
            self._host_s = now_s + _HOST_EVERY_S
        self._rows.append(Reading(step=step, in_use_bytes=in_use_bytes, host_bytes=host_bytes))
        if len(self._rows) >= _MOST_READINGS:
            self._rows = self._rows[::2]
            self._stride *= 2

    def keep_last(self) -> None:
        """Let go of all but the last: other calls are taken for steps from now on."""
        self._rows = self._rows[-1:]


def _resident_bytes() -> int | None:
    """Return the process' resident memory; None where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
