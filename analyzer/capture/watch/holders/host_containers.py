"""Containers of the program that collect NumPy arrays or other host data. Needs no TensorFlow."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import numpy as np

from analyzer.capture.watch.holders.bound_names import find_bound
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.model.contract.watch_note import HeldTensors

_MIN_ENTRY_BYTES: Final = 4096  # smaller entries take a million steps to matter
_MAX_FILLED: Final = 1 << 16  # entries; C code never fills a longer list entry by entry
_MAX_DEPTH: Final = 3  # of containers in containers
_MAX_PARTS: Final = 16  # of a container that are counted
_MAX_CONTAINERS: Final = 32  # that are reported


def count_host_containers() -> dict[int, int]:
    """Return the length of each container with large entries, by identity."""
    return {id(one): len(one) for one in _list_candidates()}


def find_grown_containers(
    before: Mapping[int, int], steps: int, search: HolderSearch
) -> tuple[HeldTensors, ...]:
    """Return the containers that got at least one entry a step, the largest growth first."""
    grown = []
    for one in _list_candidates():
        added = len(one) - before.get(id(one), 0)
        if added >= max(steps, 2):
            grown.append((added * _count_entry_bytes(one), added, one))
    grown.sort(key=lambda row: -row[0])
    holders = search.find_all([(one, None) for *_, one in grown[:_MAX_CONTAINERS]])
    return tuple(
        HeldTensors(
            holder=holder.words,
            where=holder.where,
            count=added,
            size_bytes=size_bytes,
            removes=holder.removes,
        )
        for (size_bytes, added, _), holder in zip(grown, holders, strict=False)
        if holder.words and holder.grows
    )


def _list_candidates() -> list[Any]:
    """Return the unbounded containers with large entries."""
    containers = [one for one in gc.get_objects() if type(one) in (list, dict, set, deque)]
    return [
        one
        for one in containers
        if one and not find_bound(one) and _count_entry_bytes(one) >= _MIN_ENTRY_BYTES
    ]


def _count_entry_bytes(container: Any) -> int:
    """Return the bytes of the last entry, of any entry for a set; 0 if there is none."""
    try:
        if type(container) is list:
            is_filled = len(container) > _MAX_FILLED
            return count_host_bytes((container[-1:] if is_filled else _list_parts(container))[0])
        values = container.values() if type(container) is dict else container
        last = iter(values) if type(container) is set else reversed(values)
        return count_host_bytes(next(last))
    except (IndexError, KeyError, StopIteration, RuntimeError):  # another thread changes it
        return 0


def _list_parts(container: Any) -> list[Any]:
    """Return the objects that a list or tuple refers to, from the last one on.

    C code may still be filling the container, and reading an empty entry crashes the process.
    """
    return gc.get_referents(container)


def count_host_bytes(thing: Any, depth: int = _MAX_DEPTH) -> int:
    """Return the bytes of the arrays, bytes and texts in an entry of a container."""
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if type(thing) in (bytes, bytearray, str):
        return sys.getsizeof(thing)
    if depth and type(thing) in (tuple, list, dict):
        parts = thing.values() if type(thing) is dict else _list_parts(thing)
        return sum(count_host_bytes(part, depth - 1) for part in islice(parts, _MAX_PARTS))
    return 0
