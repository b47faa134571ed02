"""A recording as Chrome trace events, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import category_sums, main_allocator_rows

SLICES: Final = 2_000
"""Buffers drawn as slices: the largest by bytes x lifetime. The counters include all buffers."""

_PROCESS: Final = 1  # number of the only process in the file


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
            events.append(_span(name, 0, times_us[[step.first + 1, step.last + 1]]))

    content = {"traceEvents": events, "displayTimeUnit": "ms"}

    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def _span(
    name: str, row: int, ends_us: npt.NDArray[np.float64], **more: Any
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
        last = max(int(table["dies"].max()) if len(table) else 0, len(recording.events))
        return np.arange(-1, last + 1, dtype=np.float64)

    times = recording.events["time_ps"].to_numpy(dtype=np.float64) / 1e6
    return np.concatenate([times[:1], times, times[-1:]])


def _counters(
    table: pd.DataFrame,
    times_us: npt.NDArray[np.float64],
) -> Iterator[dict[str, Any]]:
    """Yield counter samples at each change, without categories that are never used."""
    requested, allocated = (
        category_sums(table, name, len(times_us) - 2)
        for name in ("requested_bytes", "allocated_bytes")
    )

    used = np.flatnonzero(requested.any(axis=1))
    shown = [str(list(Category)[code]) for code in used]
    sizes = np.vstack([requested, allocated.sum(axis=0)])

    for state in np.flatnonzero(np.diff(sizes, axis=1, prepend=0).any(axis=0)):
        common = {"ph": "C", "pid": _PROCESS, "ts": float(times_us[state])}
        args = dict(zip(shown, requested[used, state].tolist(), strict=True))
        yield {**common, "name": "requested bytes", "args": args}

        yield {
            **common,
            "name": "allocated bytes",
            "args": {"allocated": int(sizes[-1, state])},
        }


def _slices(
    table: pd.DataFrame,
    times_us: npt.NDArray[np.float64],
) -> Iterator[dict[str, Any]]:
    """Yield the largest buffers, each in the first row that is free at its birth."""
    weight = table["requested_bytes"] * (table["dies"] - table["born"]).clip(lower=1)
    largest = table.loc[weight.nlargest(SLICES).index].sort_values(
        "born",
        kind="stable",
    )

    free_from: list[int] = []

    for row in largest.itertuples():
        place = next(
            (i for i, dies in enumerate(free_from) if dies <= row.born),
            len(free_from),
        )

        free_from[place : place + 1] = [row.dies]
        sizes = {
            name: int(getattr(row, name))
            for name in ("requested_bytes", "allocated_bytes")
        }

        texts = {name: str(getattr(row, name)) for name in ("category", "layer", "op")}
        about = {**sizes, **texts, "shape": f"{row.dtype} {row.shape}".strip()}
        name = str(row.variable or row.tensor or row.op or "(no op)")
        ends_us = times_us[[row.born + 1, row.dies + 1]]
        yield _span(name, place + 1, ends_us, cat=texts["category"], args=about)
