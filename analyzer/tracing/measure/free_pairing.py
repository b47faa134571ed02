"""Match each free to its allocation: events in, lived buffers out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analyzer.model.recording.allocator_events import UNPAIRED, pair_events
from analyzer.model.recording.schema import ALLOCATIONS, conform, text_category


def pair(events: pd.DataFrame) -> pd.DataFrame:
    """Return the buffers that ``events`` speak of, with their lives.

    What does not fit is put right here and told by ``allocator_books``.

    Args:
        events: Table with the columns of ``EVENTS``.

    Returns:
        A table with the columns of ``ALLOCATIONS``; those of the
        attribution are still empty.
    """
    count = len(events)
    birth = events["kind"].to_numpy() > 0
    partner, _ = pair_events(
        events["kind"].to_numpy(),
        events["address"].to_numpy(),
        events["allocator"].cat.codes.to_numpy(),
    )
    # The event that describes a buffer: its birth, or its free where it was alive before the first.
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
        # A free carries the name of whatever op was running: it says nothing of the buffer.
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
    """Return numbers, missing where they are not known."""
    return pd.arrays.IntegerArray(np.where(known, numbers, 1), ~known)


def _text_where(texts: pd.Series[Any], rows: np.ndarray, known: np.ndarray) -> pd.Categorical:
    """Return the texts of rows, empty where they are not known."""
    names = [str(name) for name in texts.cat.categories]
    numbers = np.where(known, texts.cat.codes.to_numpy()[rows], len(names))
    return text_category(numbers, [*names, ""])
