"""Events to buffers: put simultaneous events in order and match frees with allocations.

An allocator acts under a lock, but if the clock is coarse, events of several threads have the same
time, and the trace stores each thread's events apart. TensorFlow's bytes in use in each event show their
order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.model.recording.schema import ALLOCATIONS, conform, text_category
from analyzer.model.recording.timeline import UNPAIRED, pair_events

_TRIES: Final = 100_000  # limit of the search over all events


def sort_simultaneous_events(events: pd.DataFrame) -> pd.DataFrame:
    """Return ``events``, sorted by time, with simultaneous events sorted by bytes in use.

    If no order explains the bytes in use, the order of the file remains.
    """
    times = events["time_ps"].to_numpy()
    tied = np.diff(times) == 0
    if not tied.any():
        return events
    order = np.arange(len(events))
    codes = events["allocator"].cat.codes.to_numpy()
    threads = events["thread"].to_numpy()
    after = events["in_use_bytes"].to_numpy()
    before = after - events["kind"].to_numpy() * events["allocated_bytes"].to_numpy()
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        wrong = np.flatnonzero(before[rows[1:]] != after[rows[:-1]]) + 1
        for first, last in _find_ties(times[rows], wrong):
            group = rows[first:last]
            start = after[rows[first - 1]] if first else None
            chain = _chain(group.tolist(), before, after, threads, start)
            if chain:
                order[group] = chain
    if (order == np.arange(len(events))).all():
        return events
    return events.iloc[order].reset_index(drop=True)


def _find_ties(times: np.ndarray, wrong: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges of equal times, from first to behind last, that contain a wrong event."""
    first = np.searchsorted(times, times[wrong], side="left").tolist()
    last = np.searchsorted(times, times[wrong], side="right").tolist()
    return sorted({(a, b) for a, b in zip(first, last, strict=True) if b - a > 1})


def _chain(
    group: list[int], before: np.ndarray, after: np.ndarray, threads: np.ndarray, start: int | None
) -> list[int]:
    """Return the group in an order in which each event follows from the one before; empty if none.

    The events of one thread keep their order. A depth-first search tries each thread, for at most
    ``_TRIES`` events.
    """
    lines: dict[int, list[int]] = {}
    for row in group:
        lines.setdefault(int(threads[row]), []).append(row)
    queues = list(lines.values())
    done = [0] * len(queues)
    found: list[int] = []
    taken: list[int] = []  # the queue of each event in `found`
    candidate = 0
    for _ in range(_TRIES):
        if len(found) == len(group):
            return found
        level = int(after[found[-1]]) if found else start
        while candidate < len(queues):
            queue = queues[candidate]
            if done[candidate] < len(queue):
                row = queue[done[candidate]]
                if level is None or before[row] == level:
                    break
            candidate += 1
        if candidate < len(queues):
            found.append(queues[candidate][done[candidate]])
            done[candidate] += 1
            taken.append(candidate)
            candidate = 0
        elif found:  # nothing follows: undo the last choice
            found.pop()
            candidate = taken.pop()
            done[candidate] -= 1
            candidate += 1
        else:
            return []
    return []


def pair_frees(events: pd.DataFrame) -> pd.DataFrame:
    """Return the buffers of ``events`` (columns of ``EVENTS``), without attribution.

    Contradictions are repaired here and reported by ``trace_checks``.
    """
    count = len(events)
    birth = events["kind"].to_numpy() > 0
    partner, _ = pair_events(
        events["kind"].to_numpy(),
        events["address"].to_numpy(),
        events["allocator"].cat.codes.to_numpy(),
    )
    # The event that describes a buffer: its allocation, or its free if it is from before the trace.
    describes = birth | (partner == UNPAIRED)
    origin = np.flatnonzero(describes)
    born = np.where(birth[origin], origin, -1)
    dies = np.where(birth[origin], count, origin)
    ending = np.flatnonzero(partner != UNPAIRED)
    row = np.cumsum(describes) - 1
    dies[row[partner[ending]]] = ending
    return _table(events, origin, born, dies)


def _table(
    events: pd.DataFrame, origin: np.ndarray, born: np.ndarray, dies: np.ndarray
) -> pd.DataFrame:
    count = len(events)
    times = events["time_ps"].to_numpy()
    known_birth, known_death = born >= 0, dies < count
    empty = pd.Categorical.from_codes(np.zeros(len(origin), np.int8), [""])
    none = np.zeros(len(origin), np.int64)
    missing = np.ones(len(origin), bool)
    last = max(count - 1, 0)
    columns: dict[str, Any] = {
        "allocator": events["allocator"].iloc[origin].reset_index(drop=True),
        **{
            name: events[name].to_numpy()[origin]
            for name in ("address", "requested_bytes", "allocated_bytes")
        },
        "born": born,
        "dies": dies,
        **{
            name: _where(times[np.clip(at, 0, last)] if count else none, known)
            for name, at, known in (("born_ps", born, known_birth), ("dies_ps", dies, known_death))
        },
        "step": pd.arrays.IntegerArray(none, missing),
        "run_id": np.where(known_birth, events["run_id"].to_numpy()[origin], 0),
        # A free has the name of the op that was running, which is unrelated to the buffer.
        **{
            name: _text_where(events[name], origin, known_birth)
            for name in ("op", "region", "dtype", "shape")
        },
        **dict.fromkeys(("op_type", "layer", "source", "tensor", "variable", "role"), empty),
        "category": pd.Categorical.from_codes(np.zeros(len(origin), np.int8), ["unattributed"]),
        "turns_at": pd.arrays.IntegerArray(none, missing),
    }
    return conform(pd.DataFrame(columns, copy=False), ALLOCATIONS)


def _where(numbers: np.ndarray, known: np.ndarray) -> pd.arrays.IntegerArray:
    """Return numbers, missing if not known."""
    return pd.arrays.IntegerArray(np.where(known, numbers, 1), ~known)


def _text_where(texts: pd.Series[Any], rows: np.ndarray, known: np.ndarray) -> pd.Categorical:
    """Return the texts of rows, empty if not known."""
    names = [str(name) for name in texts.cat.categories]
    numbers = np.where(known, texts.cat.codes.to_numpy()[rows], len(names))
    return text_category(numbers, [*names, ""])
