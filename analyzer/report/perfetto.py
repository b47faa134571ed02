"""A recording as Chrome trace events, for Perfetto and ``chrome://tracing``."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import category_sums, main_allocator_rows, weigh

# Buffers drawn as slices: the largest by bytes x lifetime. The counters include all buffers.
SLICES = 2_000

_PROCESS = 1  # number of the only process in the file


def chrome_trace(recording: Recording) -> str:
    """Return Chrome trace events as JSON for Perfetto and ``chrome://tracing``.

    There is one counter with a series for each category, one for allocated bytes, and slices for the
    largest buffers. Time is in microseconds; a prediction has no time and uses 1 us per instant.
    """
    table = main_allocator_rows(recording)
    times_us = state_times_us(recording, table)

    process = {"name": f"{recording.device.name} {recording.allocator}"}
    events = [{"ph": "M", "name": "process_name", "pid": _PROCESS, "args": process}]
    events += _counters(table, times_us)
    events += _slices(table, times_us)

    for step in recording.steps:
        if step.last >= step.first:
            name = f"step {step.index if step.number is None else step.number}"
            ends_us = times_us[[step.first + 1, step.last + 1]]
            events.append(_span(name, 0, ends_us))

    content = {"traceEvents": events, "displayTimeUnit": "ms"}

    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def _span(
    name: str,
    row: int,
    ends_us: npt.NDArray[np.float64],
    **more: Any,
) -> dict[str, Any]:
    start, end = map(float, ends_us)
    place = {"pid": _PROCESS, "tid": row, "ts": start, "dur": end - start}

    return {"ph": "X", "name": name, **place, **more}


def state_times_us(
    recording: Recording,
    table: pd.DataFrame,
) -> npt.NDArray[np.float64]:
    """Return the time of each state in us, shape (n_events + 2,): before, each event, after."""
    if not recording.kind.ran or recording.events.empty:
        last = max([len(recording.events), *table["dies"]])
        return np.arange(-1, last + 1, dtype=np.float64)

    times = recording.events["time_ps"].to_numpy(dtype=np.float64) / 1e6
    return np.concatenate([times[:1], times, times[-1:]])


def _counters(
    table: pd.DataFrame,
    times_us: npt.NDArray[np.float64],
) -> Iterator[dict[str, Any]]:
    """Yield counter samples at each change, without categories that are never used."""
    last = len(times_us) - 2
    requested = category_sums(table, "requested_bytes", last)
    allocated = category_sums(table, "allocated_bytes", last)

    used = np.flatnonzero(requested.any(axis=1))
    shown = [str(list(Category)[code]) for code in used]
    sizes = np.vstack([requested, allocated.sum(axis=0)])

    is_change = np.diff(sizes, axis=1, prepend=0).any(axis=0)

    for state in np.flatnonzero(is_change):
        common = {"ph": "C", "pid": _PROCESS, "ts": float(times_us[state])}
        by_category = dict(zip(shown, requested[used, state].tolist(), strict=True))
        total = {"allocated": int(sizes[-1, state])}

        yield {**common, "name": "requested bytes", "args": by_category}
        yield {**common, "name": "allocated bytes", "args": total}


def _slices(
    table: pd.DataFrame,
    times_us: npt.NDArray[np.float64],
) -> Iterator[dict[str, Any]]:
    """Yield the largest buffers, each in the first row that is free at its birth."""
    largest = table.loc[weigh(table).nlargest(SLICES).index]
    largest = largest.sort_values("born", kind="stable")
    free_from: list[int] = []

    for row in largest.itertuples():
        free = (place for place, dies in enumerate(free_from) if dies <= row.born)
        place = next(free, len(free_from))
        free_from[place : place + 1] = [row.dies]

        about = {
            "requested_bytes": int(row.requested_bytes),
            "allocated_bytes": int(row.allocated_bytes),
            "category": str(row.category),
            "layer": str(row.layer),
            "op": str(row.op),
            "shape": f"{row.dtype} {row.shape}".strip(),
        }

        name = str(row.variable or row.tensor or row.op or "(no op)")
        ends_us = times_us[[row.born + 1, row.dies + 1]]

        yield _span(name, place + 1, ends_us, cat=str(row.category), args=about)
