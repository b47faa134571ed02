"""Pairs of allocations and frees, and the choice of the allocator.

A free has no name, only an address. Within one allocator each event ends the allocation at the same
address before it:

    + 0x100 a    a is allocated
    - 0x100      a is freed
    + 0x100 b    b is allocated at the same address
    - 0x200      a free of a buffer from before the first event
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.errors import TraceError

UNPAIRED = -1

_CARD: Final = re.compile(r"GPU_(\d+)_bfc")
"""TensorFlow's name of a card's allocator."""

Indexes = npt.NDArray[np.int64]


def card_number(allocator: str) -> int | None:
    """Return TensorFlow's number of the card of an allocator; None if it is of no card."""
    match = _CARD.fullmatch(allocator)
    return None if match is None else int(match[1])


def pair_events(
    kind: Indexes, address: Indexes, allocator: Indexes | None = None
) -> tuple[Indexes, npt.NDArray[np.bool_]]:
    """Return the allocation that each event ends, and whether its address occurred before.

    An allocation also ends an earlier one at its address: the free in between is missing.

    Args:
        kind: Above 0 for an allocation, else a free; in order, shape ``(n,)``.
        address: Address of the chunk, int64, shape ``(n,)``.
        allocator: Number of the allocator, shape ``(n,)``; None if there is only one.

    Returns:
        Index of the allocation or ``UNPAIRED``, shape ``(n,)``; and a mask, shape ``(n,)``.
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
"""TensorFlow's name of the allocator of pinned host memory."""

HOST_ALLOCATORS: Final = ("bfc_cpu_allocator_for_gpu", "mklcpu", "cpu", "xla_gpu_host_bfc", PINNED)
"""TensorFlow's names of allocators of host memory."""


def device_allocators(events: pd.DataFrame) -> list[str]:
    """Return the names of the devices' allocators; if there is none, the one with the most bytes."""
    peaks = _peaks(events)
    devices = [name for name in peaks if name not in HOST_ALLOCATORS]
    return devices or [max(peaks, key=lambda name: peaks[name])]


def choose_allocator(events: pd.DataFrame, wanted: str) -> str:
    """Return the allocator to look at: the wanted one, a GPU's, else the one with the most bytes.

    Args:
        events: Table with the columns of ``EVENTS``.
        wanted: The user's choice; empty for none.

    Raises:
        TraceError: The trace does not contain the wanted allocator.
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
