"""Containers of the program that collect NumPy arrays or other data of the host, and how fast.

Needs no TensorFlow.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import numpy as np

from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.model.contract.watch_note import HeldTensors

_KINDS: Final = (list, dict, set, deque)
_ENTRY_BYTES: Final = 4096
"""An entry from this size on is looked at: what is smaller takes a million steps to matter."""

_MOST_FILLED: Final = 1 << 16
"""Entries beyond which no list is one that C is just filling; a copy of it would take memory."""

_DEEP: Final = 3
_PARTS: Final = 16
_MOST: Final = 32
"""Containers that are told of."""


def count_host_containers() -> dict[int, int]:
    """Return how many entries each container has whose entries are data, by its identity."""
    return {id(one): len(one) for one in _candidates()}


def find_grown_containers(
    before: Mapping[int, int], steps: int, search: HolderSearch
) -> tuple[HeldTensors, ...]:
    """Return the containers that got an entry or more in each step, the largest growth first.

    Args:
        before: What ``count_host_containers`` returned then.
        steps: Steps made since.
        search: Names them.
    """
    grown = []
    for one in _candidates():
        added = len(one) - before.get(id(one), 0)
        if added >= max(steps, 2):
            grown.append((added * _entry_bytes(one), added, one))
    grown.sort(key=lambda row: -row[0])
    rows = []
    named = search.of_all([(one, None) for *_, one in grown[:_MOST]])
    for (size_bytes, added, _), found in zip(grown, named, strict=False):
        if found.words and found.grows:
            rows.append(
                HeldTensors(
                    holder=found.words, where=found.where, count=added, size_bytes=size_bytes
                )
            )
    return tuple(rows)


def _candidates() -> list[Any]:
    return [one for one in gc.get_objects() if type(one) in _KINDS and _is_candidate(one)]


def _is_candidate(thing: Any) -> bool:
    if not thing:
        return False
    if type(thing) is deque and thing.maxlen is not None:
        return False  # bounded on purpose
    return _entry_bytes(thing) >= _ENTRY_BYTES


def _entry_bytes(container: Any) -> int:
    """Return the bytes of the entry that was put in last; of a set, of any."""
    try:
        if type(container) is dict:
            return count_host_bytes(next(reversed(container.values())))
        if type(container) is list:
            if len(container) > _MOST_FILLED:
                return count_host_bytes(container[-1])
            return count_host_bytes(_parts(container)[0])  # a list names its last entry first
        return count_host_bytes(next(iter(container)))
    except (IndexError, KeyError, StopIteration, RuntimeError):  # another thread changes it
        return 0


def _parts(container: Any) -> list[Any]:
    """Return what a list or tuple refers to.

    The collector knows those too that C is just filling: to read an empty place ends the process.
    """
    return gc.get_referents(container)


def count_host_bytes(thing: Any, deep: int = _DEEP) -> int:
    """Return the bytes of the arrays, bytes and texts that a thing is made of.

    Args:
        thing: An entry of a container.
        deep: Containers in containers that are looked into.
    """
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if type(thing) in (bytes, bytearray, str):
        return sys.getsizeof(thing)
    if deep and type(thing) in (tuple, list, dict):
        parts = thing.values() if type(thing) is dict else _parts(thing)
        return sum(count_host_bytes(part, deep - 1) for part in islice(parts, _PARTS))
    return 0
