"""Containers of the program that collect NumPy arrays, bytes or texts. Needs no TensorFlow."""

import gc
import sys
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from analyzer.capture.watch.holder_search import HolderSearch
from analyzer.model.contract.run_note import HeldTensors

# Of a container's entry: smaller ones take a million steps to matter.
_MIN_ENTRY_BYTES = 4096
_MAX_FILLED = 1 << 16  # entries; C code never fills a longer list entry by entry
_MAX_PARTS = 16  # of an entry that are counted
_MAX_CONTAINERS = 32  # that are reported


def count_host_containers() -> dict[int, int]:
    """Return the length of each container with large entries, by identity."""
    return {id(one): len(one) for one in _list_containers()}


def find_grown_containers(
    before: Mapping[int, int],
    steps: int,
    search: HolderSearch,
) -> list[HeldTensors]:
    """Return the containers that got at least one entry a step, the largest growth first.

    A container that is not in ``before`` was made during the steps, such as a batch.
    """
    grown = []
    for container in _list_containers():
        added = len(container) - before.get(id(container), len(container))
        if added >= max(steps, 2):
            size_bytes = added * _count_entry_bytes(container)
            grown.append((size_bytes, added, container))

    grown.sort(key=lambda row: -row[0])
    del grown[_MAX_CONTAINERS:]

    holders = search.find_all([container for *_, container in grown])
    rows = []

    for size_bytes, added, container in grown:
        names = [one for one in holders.get(id(container), ()) if one.grows]
        for holder in names[:1]:
            rows.append(
                msgspec.structs.replace(holder, count=added, size_bytes=size_bytes)
            )

    return rows


def _list_containers() -> list[Any]:
    """Return the unbounded lists, dictionaries and deques with large entries."""
    found = []
    for one in gc.get_objects():
        is_container = type(one) in (list, dict) or (
            type(one) is deque and one.maxlen is None
        )
        if is_container and one and _count_entry_bytes(one) >= _MIN_ENTRY_BYTES:
            found.append(one)

    return found


def _count_entry_bytes(container: Any) -> int:
    """Return the bytes of the last entry; 0 if there is none."""
    if type(container) is list and len(container) <= _MAX_FILLED:
        # C code may still be filling it, and reading an empty entry crashes the process.
        entries = iter(gc.get_referents(container))
    elif type(container) is dict:
        entries = reversed(container.values())
    else:
        entries = reversed(container)

    try:
        return count_host_bytes(next(entries, None))
    except RuntimeError:  # another thread changes it
        return 0


def count_host_bytes(thing: Any, depth: int = 3) -> int:
    """Return the bytes of the arrays, bytes and texts in an entry of a container."""
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if type(thing) in (bytes, bytearray, str):
        return sys.getsizeof(thing)

    if depth and type(thing) in (tuple, list, dict):
        parts = islice(gc.get_referents(thing), _MAX_PARTS)
        return sum(count_host_bytes(part, depth - 1) for part in parts)

    return 0
