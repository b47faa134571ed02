"""Which allocators of a trace are devices', and which of them the figures are about."""

from __future__ import annotations

from typing import Final

import pandas as pd

from analyzer.model.errors import TraceError

PINNED: Final = "gpu_host_bfc"
"""TensorFlow's name of the allocator of host memory that a card reads and writes itself."""

HOST_ALLOCATORS: Final = ("bfc_cpu_allocator_for_gpu", "mklcpu", "cpu", PINNED)
"""TensorFlow's names of the allocators of host memory."""


def device_allocators(events: pd.DataFrame) -> list[str]:
    """Return the allocators of the devices, by name; without any, the one that held most.

    Args:
        events: Table with the columns of ``EVENTS``.
    """
    peaks = _peaks(events)
    devices = [name for name in peaks if name not in HOST_ALLOCATORS]
    return devices or [max(peaks, key=lambda name: peaks[name])]


def choose_allocator(events: pd.DataFrame, wanted: str) -> str:
    """Return the allocator to look at: the one asked for, a GPU's, else the one that held most.

    Args:
        events: Table with the columns of ``EVENTS``.
        wanted: The one asked for; empty for none.

    Raises:
        TraceError: the trace has no such allocator.
    """
    peaks = _peaks(events)
    if wanted:
        if wanted not in peaks:
            raise TraceError(
                f"The trace has no allocator {wanted!r}.", hint=f"It has {', '.join(peaks)}."
            )
        return wanted
    return max(device_allocators(events), key=lambda name: peaks[name])


def _peaks(events: pd.DataFrame) -> dict[str, int]:
    peaks = events.groupby("allocator", observed=True)["in_use_bytes"].max()
    return {str(name): int(size) for name, size in peaks.items()}
