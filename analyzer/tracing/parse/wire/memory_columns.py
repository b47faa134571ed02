"""The allocators' events of a trace as columns; texts are stored as numbers."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.schema import EVENTS, TextNumbers, text_category
from analyzer.tracing.parse.protobuf import TEXTS, decode_text
from analyzer.tracing.parse.wire.event_columns import EventBlock
from analyzer.tracing.parse.wire.plane_names import (
    COLUMNS,
    INTEGER_STATS,
    REAL_STATS,
    TEXT_STATS,
    PlaneNames,
    find_places,
)
from analyzer.tracing.parse.wire.wire_fields import Positions

_GROWTH: Final = 1.25
_FIRST_ROWS: Final = 4096


class GrowingTable:
    """Columns of numbers that grow in place.

    Joining pieces at the end would need twice the memory; the system moves arrays without a copy.
    """

    def __init__(self, **kept: Any) -> None:
        """Start without rows; ``kept`` are the NumPy types of the columns."""
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(_FIRST_ROWS, dtype) for name, dtype in kept.items()
        }
        self._count = 0

    def extend(self, count: int, **numbers: Any) -> None:
        """Append rows: arrays of shape ``(count,)``, or a number for all rows."""
        until = self._count + count
        for name, column in self._columns.items():
            if until > len(column):
                column.resize(max(until, int(len(column) * _GROWTH)), refcheck=False)
            column[self._count : until] = numbers[name]
        self._count = until

    def pop(self, name: str) -> npt.NDArray[Any]:
        """Return a column and remove it, so that no copy of it is held."""
        numbers = self._columns.pop(name)
        numbers.resize(self._count, refcheck=False)
        return numbers


_NAMES: Final = TEXTS["tensorflow_types"].split()
DTYPE_NAMES: Final = {**dict(enumerate(_NAMES, 1)), 29: "int4", 30: "uint4"}
"""TensorFlow's number of an element type -> its name."""

_TYPES: Final = {
    "time_ps": np.int64,
    "kind": np.int8,
    "line": np.int32,
    **dict.fromkeys(INTEGER_STATS.values(), np.int64),
    **dict.fromkeys(TEXT_STATS.values(), np.int32),
    **dict.fromkeys(REAL_STATS.values(), np.float64),
}
_STACK_ADDRESS: Final = 1 << 62  # no address of a device
_NULL: Final = "(null)"  # text of TensorFlow 2.18 and 2.19 for an op or a region without annotation


class MemoryColumns:
    """Columns of memory events; times are relative to their line's."""

    def __init__(self, device_kind: str) -> None:
        """Start without rows; devices without an allocator's name are called ``device_kind:0``..."""
        self.texts = TextNumbers("")
        self._device_kind = device_kind
        self._table = GrowingTable(**_TYPES)
        self.unreadable = 0

    def add(
        self, events: EventBlock, kind: npt.NDArray[np.int8], line: int, names: PlaneNames
    ) -> None:
        """Append a block's memory events; ``kind`` is 1 for an allocation, -1 for a free, else 0."""
        rows = np.flatnonzero(kind)
        place = np.zeros(len(kind), np.int64)
        place[rows] = np.arange(len(rows))
        stats = events.stats((kind != 0)[events.stat_event])
        owner = place[stats.event]
        at, refers = (find_places(names.stat_keys, keys) for keys in (stats.name_id, stats.ref))
        column_of, has_ref = names.column[at], stats.ref != 0
        unreadable = events.duration_ps[rows] < 0
        unreadable[owner[~names.has_name[at] | (has_ref & (refers < 0))]] = True
        columns = {name: np.zeros(len(rows), kept) for name, kept in _TYPES.items()}
        columns["time_ps"], columns["kind"] = events.offset_ps[rows], kind[rows]
        columns["line"][:] = line
        texts = np.where(has_ref, names.text[refers], 0)
        is_text = np.isin(column_of, [COLUMNS.index(name) for name in TEXT_STATS.values()])
        for one in np.flatnonzero(is_text & ~has_ref & (stats.text_end > 0)).tolist():
            text = events.block.text(int(stats.text_start[one]), int(stats.text_end[one]))
            texts[one] = self.texts.of(decode_text(text))
        has_address = np.zeros(len(rows), bool)
        for number, name in enumerate(COLUMNS[1:], 1):
            here = np.flatnonzero(column_of == number)
            values: npt.NDArray[Any] = stats.integer[here]
            if name in TEXT_STATS.values():
                values = texts[here]
            elif name in REAL_STATS.values():
                values = np.where(stats.real[here] != 0, stats.real[here], values)
            columns[name][owner[here]] = values + (name == "device")  # 0 is none
            if name == "address":
                has_address[owner[here]] = True
        nameless = np.where(columns["allocator"] == 0, columns["device"], 0)
        for number in np.unique(nameless[nameless > 0]).tolist():
            name = f"{self._device_kind}:{number - 1}"
            columns["allocator"][nameless == number] = self.texts.of(name)
        self.unreadable += int((unreadable | ~has_address).sum())
        chosen = {name: column[has_address] for name, column in columns.items()}
        self._table.extend(int(has_address.sum()), **chosen)

    def table(self, base_ps: Positions) -> pd.DataFrame:
        """Return the events by time, simultaneous ones in the order of the file.

        Each column is released once copied. ``base_ps`` are the times of the lines in picoseconds.
        """
        line, time_ps = self._table.pop("line"), self._table.pop("time_ps")
        time_ps += base_ps[line]
        order = None if (np.diff(time_ps) >= 0).all() else np.argsort(time_ps, kind="stable")

        def sort(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return column if order is None else column[order]

        texts = ["" if text == _NULL else text for text in self.texts.texts]
        columns: dict[str, Any] = {
            "time_ps": sort(time_ps),
            "thread": sort(line).astype(np.int64) + 1,
        }
        for name, column in EVENTS.items():
            if name in columns:
                continue
            numbers = sort(self._table.pop(name))
            if name == "dtype":
                known = [DTYPE_NAMES.get(number, "") for number in range(max(DTYPE_NAMES) + 1)]
                is_known = (numbers >= 0) & (numbers < len(known))
                columns[name] = text_category(np.where(is_known, numbers, 0), known)
            elif name == "shape":  # some writers put spaces between the axes
                columns[name] = text_category(numbers, [text.replace(" ", "") for text in texts])
            else:
                is_text = column.dtype == "category"
                columns[name] = text_category(numbers, texts) if is_text else numbers
        events = pd.DataFrame({name: columns.pop(name) for name in EVENTS}, copy=False)
        reserved = sort(self._table.pop("reserved_bytes"))
        return _with_reserved(events, reserved) if reserved.any() else events


def _with_reserved(events: pd.DataFrame, reserved: Positions) -> pd.DataFrame:
    """Return the events with the memory reserved for programs as buffers of the op ``stack``.

    Like XProf, count it as in use. The events before which it changes get a free and an allocation.
    ``reserved`` are the reserved bytes after each event, shape ``(n,)``.
    """
    in_use = events["in_use_bytes"].to_numpy()
    rows = [events.assign(in_use_bytes=in_use + reserved, at=2.0 * np.arange(len(events)))]
    for number, name in enumerate(events["allocator"].cat.categories):
        own = np.flatnonzero(events["allocator"] == name)
        changed = own[1:][np.diff(reserved[own]) != 0]
        before = own[np.searchsorted(own, changed) - 1]
        for kind, sizes in ((-1, reserved[before]), (1, reserved[changed])):
            some = np.flatnonzero(sizes)
            total = in_use[before] + np.where(kind > 0, sizes, 0)
            rows.append(
                events.iloc[changed[some]].assign(
                    kind=np.int8(kind),
                    address=_STACK_ADDRESS + number,
                    requested_bytes=sizes[some],
                    allocated_bytes=sizes[some],
                    in_use_bytes=total[some],
                    op=pd.Categorical(["stack"] * len(some)),
                    at=2.0 * changed[some] - (1.0 if kind < 0 else 0.5),
                )
            )
    whole = pd.concat(rows).sort_values("at").reset_index(drop=True).drop(columns="at")
    return whole.assign(op=whole["op"].astype("category"))


class KernelColumns:
    """Columns of kernels, launches and executor events; times are relative to their line's."""

    def __init__(self) -> None:
        self._texts = TextNumbers("")
        self._kernels = GrowingTable(number=np.int64, op=np.int32, kernel=np.int32)
        self._launches = GrowingTable(number=np.int64, start=np.int64, line=np.int32)
        self._runs = GrowingTable(run=np.int64, start=np.int64, end=np.int64, line=np.int32)

    def add(self, block: EventBlock, stat_names: Positions, line: int, names: PlaneNames) -> None:
        """Add the events of one block; ``stat_names`` are the keys of its statistics' names."""
        number = names.stat_key("correlation_id")
        if number is None:
            return
        op_keys = [] if names.is_host else [names.stat_key("annotation"), names.stat_key("tf_op")]
        is_wanted = np.isin(stat_names, [number, *(key for key in op_keys if key is not None)])
        if not is_wanted.any():
            return
        stats = block.stats(is_wanted)
        numbered = stats.name_id == number
        events, numbers = stats.event[numbered], stats.integer[numbered]
        if names.is_host:
            start = block.offset_ps[events]
            self._launches.extend(len(events), number=numbers, start=start, line=line)
            return
        ops = np.zeros(len(block.name_id), np.int32)
        for key in reversed(op_keys):  # the annotation is preferred
            here = (stats.name_id == key) & (stats.ref != 0)
            ops[stats.event[here]] = self._number(stats.ref[here], names.stats)
        kernels = self._number(block.name_id[events], names.events)
        self._kernels.extend(len(events), number=numbers, op=ops[events], kernel=kernels)

    def _number(self, keys: Positions, names: Mapping[int, str]) -> npt.NDArray[np.int32]:
        known, places = np.unique(keys, return_inverse=True)
        numbers = [self._texts.of(names.get(key, "")) for key in known.tolist()]
        return np.array(numbers, np.int32)[places]

    def add_runs(
        self, block: EventBlock, rows: npt.NDArray[np.bool_], line: int, names: PlaneNames
    ) -> None:
        """Add the executor's events, a mask of shape ``(n,)``."""
        stats = block.stats(rows[block.stat_event])
        chosen = stats.name_id == names.stat_key("id")
        event = stats.event[chosen]
        start = block.offset_ps[event]
        end = start + block.duration_ps[event]
        self._runs.extend(len(event), run=stats.integer[chosen], start=start, end=end, line=line)

    def kernels(self, base_ps: Positions) -> pd.DataFrame:
        """Return ``annotation``, ``kernel``, ``start_ps`` and ``thread`` of launches, by time.

        The time is that of the call on the host; kernels without a known call have the thread 0.
        """
        called, offset, line = (self._launches.pop(one) for one in ("number", "start", "line"))
        order = np.argsort(called, kind="stable")
        # The last entry is that of no call.
        called = np.append(called[order], np.iinfo(np.int64).max)
        start, thread = np.append((offset + base_ps[line])[order], 0), np.append(line[order] + 1, 0)
        number = self._kernels.pop("number")
        place = np.searchsorted(called[:-1], number)
        place = np.where(called[place] == number, place, len(called) - 1)
        table = pd.DataFrame(
            {
                "annotation": pd.Categorical.from_codes(self._kernels.pop("op"), self._texts.texts),
                "kernel": pd.Categorical.from_codes(self._kernels.pop("kernel"), self._texts.texts),
                "start_ps": start[place],
                "thread": thread[place],
            }
        )
        return table.sort_values("start_ps", kind="stable", ignore_index=True)

    def function_runs(self, base_ps: Positions) -> pd.DataFrame:
        """Return ``run_id``, ``start_ps`` and ``end_ps`` of each function's run, by start."""
        run, start, end, line = (self._runs.pop(one) for one in ("run", "start", "end", "line"))
        base = base_ps[line]
        table = pd.DataFrame({"run_id": run, "start_ps": start + base, "end_ps": end + base})
        runs = table.groupby("run_id", as_index=False).agg({"start_ps": "min", "end_ps": "max"})
        return runs.sort_values("start_ps", kind="stable", ignore_index=True)
