"""The order of events that several threads wrote at the same tick of the clock.

An allocator does one thing after the other, under its lock, but where the clock ticks slowly two of
them have the same time, and the trace keeps each thread's events apart. The bytes in use that TensorFlow
wrote into each tell which came first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

_TRIES: Final = 100_000  # places looked at, for all events; then no order is said


def settled(events: pd.DataFrame) -> pd.DataFrame:
    """Return ``events``, sorted by time, with those of equal time in the order of their bytes in use.

    Where no order explains the bytes in use, that of the file stays.
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
        for first, last in _ties(times[rows], wrong):
            group = rows[first:last]
            start = after[rows[first - 1]] if first else None
            found = _chain(group.tolist(), before, after, threads, start)
            if found:
                order[group] = found
    if (order == np.arange(len(events))).all():
        return events
    return events.iloc[order].reset_index(drop=True)


def _ties(times: np.ndarray, wrong: np.ndarray) -> list[tuple[int, int]]:
    """Return the stretches of equal times, from first to behind last, that hold a wrong event."""
    first = np.searchsorted(times, times[wrong], side="left").tolist()
    last = np.searchsorted(times, times[wrong], side="right").tolist()
    return sorted({(a, b) for a, b in zip(first, last, strict=True) if b - a > 1})


def _chain(
    group: list[int], before: np.ndarray, after: np.ndarray, threads: np.ndarray, start: int | None
) -> list[int]:
    """Return the group in an order in which each event follows from the one before; empty if none.

    The events of one thread keep their order. Where several threads might go on, each is tried, for at
    most ``_TRIES`` events in all.
    """
    lines: dict[int, list[int]] = {}
    for row in group:
        lines.setdefault(int(threads[row]), []).append(row)
    queues = list(lines.values())
    done = [0] * len(queues)
    found: list[int] = []
    taken: list[int] = []  # the queue that each event of `found` came from
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
        elif found:  # nothing follows: what was taken last was wrong
            found.pop()
            candidate = taken.pop()
            done[candidate] -= 1
            candidate += 1
        else:
            return []
    return []
