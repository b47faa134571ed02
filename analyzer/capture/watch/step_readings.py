"""Memory of a program after its steps, and TensorFlow's own peaks."""

from __future__ import annotations

import contextlib
import resource
import time
from typing import Final

import tensorflow as tf

from analyzer.model.contract.watch_note import Reading

_ALWAYS_READ: Final = 64
"""First steps that are all read."""
_MAX_READINGS: Final = 1024
"""Number of readings at which every second one is dropped."""
_TIME_SHARE: Final = 0.005
"""Largest share of the run time for readings."""
_HOST_INTERVAL_S: Final = 0.2
"""Time between two readings of the resident memory, a slow system call."""


class StepReadings:
    """Bytes in use after steps, of the allocator and sometimes of the process."""

    def __init__(self) -> None:
        self.rows: list[Reading] = []
        self.peaks: tuple[int, ...] = ()  # TensorFlow's own, of each GPU, else of the CPU
        self._stride = 1
        self._next_s = self._next_host_s = 0.0
        self._devices: tuple[str, ...] = ()

    @property
    def last_bytes(self) -> int:
        """Bytes in use at the last reading."""
        return self.rows[-1].in_use_bytes if self.rows else 0

    def read(self, step: int) -> None:
        """Read the bytes in use after a step, unless readings would take too much time."""
        now_s = time.perf_counter()
        if step % self._stride or (now_s < self._next_s and step > _ALWAYS_READ):
            return
        in_use_bytes = self._read_statistic("current")[0]
        self._next_s = now_s + (time.perf_counter() - now_s) / _TIME_SHARE
        host_bytes = None
        if now_s >= self._next_host_s or step <= _ALWAYS_READ:
            host_bytes = _read_resident_bytes()
            self._next_host_s = now_s + _HOST_INTERVAL_S
        self.rows.append(Reading(step=step, in_use_bytes=in_use_bytes, host_bytes=host_bytes))
        if len(self.rows) >= _MAX_READINGS:
            self.rows = self.rows[::2]
            self._stride *= 2

    def read_peaks(self) -> None:
        """Read TensorFlow's own peaks; those of before a reset count."""
        peaks = self._read_statistic("peak")
        self.peaks = tuple(map(max, peaks, self.peaks or peaks))

    def _read_statistic(self, name: str) -> list[int]:
        """Return a statistic of each GPU's allocator, else of the CPU's; 0 if it keeps none."""
        if not self._devices:
            count = len(tf.config.list_logical_devices("GPU"))
            self._devices = tuple(f"GPU:{number}" for number in range(count)) or ("CPU:0",)
        values = [0] * len(self._devices)
        for index, device in enumerate(self._devices):
            with contextlib.suppress(ValueError, tf.errors.OpError):
                values[index] = tf.config.experimental.get_memory_info(device)[name]
        return values


def _read_resident_bytes() -> int | None:
    """Return the process' resident memory; None if the system has no ``/proc``."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return None
