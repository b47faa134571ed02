"""Kernels and copies of a GPU's planes, with the host's call that launched each.

CUPTI numbers each launch: the event of the kernel on the device and that of the call on the host have
the same ``correlation_id``. The annotation of a kernel names the op that launched it (``name:Type``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.schema import TextNumbers
from analyzer.tracing.parse.wire.event_columns import EventBlock
from analyzer.tracing.parse.wire.memory_columns import GrowingColumn
from analyzer.tracing.parse.wire.plane_names import PlaneNames
from analyzer.tracing.parse.wire.wire_fields import Positions

_OP_STATS: Final = ("annotation", "tf_op")
_NUMBER: Final = "correlation_id"
_RUN: Final = "id"


class KernelColumns:
    """Columns of kernels, launches and executor events; times are relative to their line's."""

    def __init__(self) -> None:
        self._texts = TextNumbers("")
        self._kernels = [GrowingColumn(kind) for kind in (np.int64, np.int32, np.int32)]
        self._launches = [GrowingColumn(kind) for kind in (np.int64, np.int64, np.int32)]
        self._runs = [GrowingColumn(kind) for kind in (np.int64, np.int64, np.int64, np.int32)]

    def add(self, block: EventBlock, stat_names: Positions, line: int, names: PlaneNames) -> None:
        """Add the events of one block; ``stat_names`` are the keys of its statistics' names."""
        number = names.stat_key(_NUMBER)
        if number is None:
            return
        wanted = [number]
        if not names.is_host:
            wanted += [key for name in _OP_STATS if (key := names.stat_key(name)) is not None]
        is_wanted = stat_names == number
        for key in wanted[1:]:
            is_wanted |= stat_names == key
        if not is_wanted.any():
            return
        stats = block.stats(is_wanted)
        numbered = stats.name_id == number
        events, numbers = stats.event[numbered], stats.integer[numbered]
        if names.is_host:
            lines = np.full(len(events), line, np.int32)
            _extend(self._launches, numbers, block.offset_ps[events], lines)
            return
        ops = np.zeros(len(block.name_id), np.int32)
        for key in reversed(wanted[1:]):
            here = (stats.name_id == key) & (stats.ref != 0)
            refs, texts = np.unique(stats.ref[here], return_inverse=True)
            own = [self._texts.of(names.stats.get(ref, "")) for ref in refs.tolist()]
            ops[stats.event[here]] = np.array(own, np.int32)[texts]
        keys, texts = np.unique(block.name_id[events], return_inverse=True)
        own = [self._texts.of(names.events.get(key, "")) for key in keys.tolist()]
        _extend(self._kernels, numbers, ops[events], np.array(own, np.int32)[texts])

    def add_runs(
        self, block: EventBlock, rows: npt.NDArray[np.bool_], line: int, names: PlaneNames
    ) -> None:
        """Add the executor's events, a mask of shape ``(n,)``."""
        run = names.stat_key(_RUN)
        if run is None:
            return
        stats = block.stats(rows[block.stat_event])
        chosen = stats.name_id == run
        event = stats.event[chosen]
        start = block.offset_ps[event]
        lines = np.full(len(event), line, np.int32)
        _extend(self._runs, stats.integer[chosen], start, start + block.duration_ps[event], lines)

    def kernels(self, base_ps: Positions) -> pd.DataFrame:
        """Return the launches of kernels and copies in order of time.

        Returns:
            ``annotation``, ``kernel``, ``start_ps`` of the call on the host, ``thread``. Kernels without
            a known call are at the start with the thread 0.
        """
        number, op, kernel = (column.release() for column in self._kernels)
        called, offset, line = (column.release() for column in self._launches)
        order = np.argsort(called, kind="stable")
        called, start, thread = called[order], (offset + base_ps[line])[order], line[order] + 1
        place = np.minimum(np.searchsorted(called, number), max(len(called) - 1, 0))
        known = called[place] == number if len(called) else np.zeros(len(number), bool)
        start = np.where(known, start[place] if len(called) else 0, 0)
        thread = np.where(known, thread[place] if len(called) else 0, 0)
        table = pd.DataFrame(
            {
                "annotation": pd.Categorical.from_codes(op, self._texts.texts),
                "kernel": pd.Categorical.from_codes(kernel, self._texts.texts),
                "start_ps": start,
                "thread": thread,
            }
        )
        return table.sort_values("start_ps", kind="stable", ignore_index=True)

    def function_runs(self, base_ps: Positions) -> pd.DataFrame:
        """Return ``run_id``, ``start_ps`` and ``end_ps`` of each function's run, by start."""
        run, start, end, line = (column.release() for column in self._runs)
        runs, place = np.unique(run, return_inverse=True)
        first, last = np.full(len(runs), 1 << 62), np.full(len(runs), -(1 << 62))
        np.minimum.at(first, place, start + base_ps[line])
        np.maximum.at(last, place, end + base_ps[line])
        order = np.argsort(first, kind="stable")
        columns = {"run_id": runs, "start_ps": first, "end_ps": last}
        return pd.DataFrame({name: column[order] for name, column in columns.items()})


def _extend(columns: list[GrowingColumn], *values: npt.NDArray[np.integer]) -> None:
    for column, numbers in zip(columns, values, strict=True):
        column.extend(numbers)
