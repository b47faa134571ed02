"""Kernels, their launches and the runs of functions of a trace as columns."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.schema import TextNumbers
from analyzer.tracing.parse.wire.event_block import EventBlock, Positions
from analyzer.tracing.parse.wire.memory_columns import ColumnPieces
from analyzer.tracing.parse.wire.plane_names import PlaneNames


class KernelColumns:
    """Columns of kernels, launches and executor events; times are relative to their line's."""

    def __init__(self) -> None:
        self._texts = TextNumbers("")
        self._kernels = ColumnPieces(number=np.int64, op=np.int32, kernel=np.int32)
        self._launches = ColumnPieces(number=np.int64, start=np.int64, line=np.int32)
        self._runs = ColumnPieces(
            run=np.int64, start=np.int64, end=np.int64, line=np.int32
        )

    def add(
        self, block: EventBlock, stat_names: Positions, line: int, names: PlaneNames
    ) -> None:
        """Add the events of one block; ``stat_names`` are the keys of its statistics' names."""
        number = names.stat_key("correlation_id")
        if number is None:
            return
        # The annotation is preferred, so it comes last.
        op_names = [] if names.is_host else ["tf_op", "annotation"]
        op_keys = [key for key in map(names.stat_key, op_names) if key is not None]
        is_wanted = np.isin(stat_names, [number, *op_keys])
        if not is_wanted.any():
            return

        stats = block.stats(is_wanted)
        numbered = stats["name_id"] == number
        events, numbers = stats["event"][numbered], stats["integer"][numbered]

        if names.is_host:
            start = block.offset_ps[events]
            self._launches.extend(len(events), number=numbers, start=start, line=line)
            return

        ops = np.zeros(len(block.name_id), np.int32)
        for key in op_keys:
            here = (stats["name_id"] == key) & (stats["ref"] != 0)
            ops[stats["event"][here]] = self._number(stats["ref"][here], names.stats)

        kernels = self._number(block.name_id[events], names.events)
        self._kernels.extend(
            len(events), number=numbers, op=ops[events], kernel=kernels
        )

    def _number(
        self, keys: Positions, names: Mapping[int, str]
    ) -> npt.NDArray[np.int32]:
        known, places = np.unique(keys, return_inverse=True)
        numbers = [self._texts.of(names.get(key, "")) for key in known.tolist()]
        return np.array(numbers, np.int32)[places]

    def add_runs(
        self,
        block: EventBlock,
        rows: npt.NDArray[np.bool_],
        line: int,
        names: PlaneNames,
    ) -> None:
        """Add the executor's events, a mask of shape ``(n,)``."""
        stats = block.stats(rows[block.stat_event])
        chosen = stats["name_id"] == names.stat_key("id")
        event, run = stats["event"][chosen], stats["integer"][chosen]
        start = block.offset_ps[event]
        end = start + block.duration_ps[event]
        self._runs.extend(len(event), run=run, start=start, end=end, line=line)

    def kernels(self, base_ps: Positions) -> pd.DataFrame:
        """Return ``annotation``, ``kernel``, ``start_ps`` and ``thread`` of launches, by time.

        The time is that of the call on the host; kernels without a known call have the thread 0.
        """
        line = self._launches.pop("line")
        start = self._launches.pop("start") + base_ps[line]
        called, first = np.unique(self._launches.pop("number"), return_index=True)
        place = pd.Index(called).get_indexer(self._kernels.pop("number"))

        texts = self._texts.texts
        table = pd.DataFrame(
            {
                "annotation": pd.Categorical.from_codes(self._kernels.pop("op"), texts),
                "kernel": pd.Categorical.from_codes(self._kernels.pop("kernel"), texts),
                # The last entry is that of no call.
                "start_ps": np.append(start[first], 0)[place],
                "thread": np.append(line[first] + 1, 0)[place],
            }
        )
        return table.sort_values("start_ps", kind="stable", ignore_index=True)

    def function_runs(self, base_ps: Positions) -> pd.DataFrame:
        """Return ``run_id``, ``start_ps`` and ``end_ps`` of each function's run, by start."""
        base = base_ps[self._runs.pop("line")]
        table = pd.DataFrame(
            {
                "run_id": self._runs.pop("run"),
                "start_ps": self._runs.pop("start") + base,
                "end_ps": self._runs.pop("end") + base,
            }
        )
        runs = table.groupby("run_id", as_index=False).agg(
            {"start_ps": "min", "end_ps": "max"}
        )

        return runs.sort_values("start_ps", kind="stable", ignore_index=True)
