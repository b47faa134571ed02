"""Which event ends which allocation: a free carries no name, only the address.

Within one allocator an address is free again only after its free, so each event ends the allocation that
was made at its address just before:

    + 0x100 a    a is born
    - 0x100      a dies
    + 0x100 b    b is born at the same address
    - 0x200      a free of something that was alive before the first event
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.errors import TraceError

UNPAIRED = -1

Indexes = npt.NDArray[np.int64]


def pair_events(
    kind: Indexes, address: Indexes, allocator: Indexes | None = None
) -> tuple[Indexes, npt.NDArray[np.bool_]]:
    """Return the allocation that each event ends, and whether its address came up before.

    An allocation ends another one at its address too: the free in between was lost. All is done by one
    sort, so that a million events take a fraction of a second.

    Args:
        kind: Above 0 an allocation, else a free; in the order of the events, shape ``(n,)``.
        address: Address of the chunk, int64, shape ``(n,)``.
        allocator: Number of the allocator, shape ``(n,)``; None where there is only one.

    Returns:
        The index of the allocation, ``UNPAIRED`` where there is none, shape ``(n,)``; and the mask,
        shape ``(n,)``.
    """
    if allocator is None:
        allocator = np.zeros(len(kind), np.int64)
    order = np.lexsort((address, allocator))
    again = np.zeros(order.size, bool)
    again[1:] = (np.diff(address[order]) == 0) & (np.diff(allocator[order]) == 0)
    after_birth = again.copy()
    after_birth[1:] &= kind[order][:-1] > 0
    partner = np.full(order.size, UNPAIRED)
    partner[order[1:][after_birth[1:]]] = order[:-1][after_birth[1:]]
    seen = np.empty(order.size, bool)
    seen[order] = again
    return partner, seen


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
