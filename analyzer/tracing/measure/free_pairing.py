"""Events to buffers: put simultaneous events in order and match frees with allocations.

An allocator acts under a lock, but if the clock is coarse, events of several threads have the same
time, and the trace stores each thread's events apart. TensorFlow's bytes in use in each event show their
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, conform, text_category
from analyzer.model.recording.timeline import UNPAIRED, pair_events
from analyzer.model.units import round_up
from analyzer.tracing.parse.xplane import Span

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


def find_steps(events: pd.DataFrame, markers: Sequence[Span]) -> tuple[Step, ...]:
    """Return the steps of the marks, in order of time.

    Marks may be nested (``fit`` inside a user's mark): only the outermost ones count. A mark that ends
    before it begins is ignored.

    Args:
        markers: Spans with a ``step_num`` statistic.
    """
    times = events["time_ps"].to_numpy()
    steps: list[Step] = []
    end_ps = -1
    for marker in sorted(markers, key=lambda span: (span.start_ps, -span.end_ps)):
        if marker.start_ps < end_ps or marker.end_ps < marker.start_ps:
            continue
        end_ps = marker.end_ps
        number = marker.stats.get("step_num")
        steps.append(
            Step(
                index=len(steps),
                number=int(number) if isinstance(number, int | float) else None,
                first=int(np.searchsorted(times, marker.start_ps, side="left")),
                last=int(np.searchsorted(times, marker.end_ps, side="right")) - 1,
                start_ps=marker.start_ps,
                end_ps=marker.end_ps,
            )
        )
    return tuple(steps)


def find_steps_of_births(born: np.ndarray, steps: Sequence[Step]) -> pd.arrays.IntegerArray:
    """Return the index of the step of each birth, missing outside steps.

    Args:
        born: Instants, int64, shape ``(n,)``.
    """
    full = [step for step in steps if step.last >= step.first]
    if not full:
        return pd.arrays.IntegerArray(np.zeros(len(born), np.int64), np.ones(len(born), bool))
    first, last, index = np.array([(s.first, s.last, s.index) for s in full], dtype=np.int64).T
    # An instant that belongs to two steps counts for the later one.
    place = np.searchsorted(first, born, side="right") - 1
    outside = (place < 0) | (born > last[place])
    result = index[place]
    return pd.arrays.IntegerArray(np.where(outside, 0, result), outside)


def find_bytes_before_trace(events: pd.DataFrame) -> dict[str, int]:
    """Return the allocated bytes in use before the first event, by allocator."""
    first = events.drop_duplicates("allocator")
    before = first["in_use_bytes"] - first["kind"] * first["allocated_bytes"]
    return {str(name): int(size) for name, size in zip(first["allocator"], before, strict=True)}


def add_earlier_buffers(
    events: pd.DataFrame, allocations: pd.DataFrame, *known: Mapping[int, int]
) -> pd.DataFrame:
    """Return ``allocations`` with rows for buffers from before the trace.

    Args:
        known: Address -> requested bytes of buffers without events, in groups; a group is added as a
            whole or not at all.
    """
    old = allocations[allocations["born"] < 0]
    freed = old.groupby("allocator", observed=True)["allocated_bytes"].sum()
    rows: list[dict[str, Any]] = []
    waiting = list(known)
    for name, before in find_bytes_before_trace(events).items():
        left = before - int(freed.get(name, 0))
        if left <= 0:
            continue
        for group in tuple(waiting):
            # Values from NumPy are not in the allocator: if not all fit, add none.
            chunks = {a: round_up(size) for a, size in group.items()}
            if sum(chunks.values()) <= left:
                waiting.remove(group)
                for address, size in group.items():
                    rows.append(_row(name, address, size, chunks[address], len(events)))
                    left -= chunks[address]
        if left:
            rows.append(_row(name, pd.NA, left, left, len(events)))
    if not rows:
        return allocations
    more = pd.DataFrame(rows)
    for column in allocations.columns.difference(more.columns):
        more[column] = "" if ALLOCATIONS[column].dtype == "category" else pd.NA
    added = conform(more, ALLOCATIONS)
    return pd.DataFrame(
        {name: _joined(allocations[name], added[name]) for name in allocations}, copy=False
    )


def _joined(column: pd.Series[Any], more: pd.Series[Any]) -> Any:
    """Return a column with the rows of another one of the same dtype appended."""
    if str(column.dtype) == "category":
        return pd.api.types.union_categoricals([column, more], sort_categories=True)
    return pd.concat([column, more], ignore_index=True)


def _row(
    allocator: str, address: Any, requested: int, allocated: int, count: int
) -> dict[str, Any]:
    return {
        "allocator": allocator,
        "address": address,
        "requested_bytes": requested,
        "allocated_bytes": allocated,
        "born": -1,
        "dies": count,
        "run_id": 0,
        "category": "unattributed",
    }
