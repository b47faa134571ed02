"""The allocators' events of a trace as columns; texts are stored as numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.records import Damage, DamageReason
from analyzer.model.recording.schema import EVENTS, TextNumbers, text_category
from analyzer.tracing.parse.protobuf import decode_text
from analyzer.tracing.parse.wire.event_columns import EventBlock, StatColumns
from analyzer.tracing.parse.wire.plane_names import (
    COLUMNS,
    INTEGER_STATS,
    REAL_STATS,
    TEXT_STATS,
    PlaneNames,
)
from analyzer.tracing.parse.wire.wire_fields import Positions

_GROWTH: Final = 1.25
_FIRST_ROWS: Final = 4096


class GrowingColumn:
    """A column of numbers that grows in place.

    Joining separate pieces at the end would need twice the memory; the system moves a large array
    without copying it.
    """

    def __init__(self, kept: Any) -> None:
        """Start without rows; ``kept`` is the NumPy type of the numbers."""
        self._numbers: npt.NDArray[Any] = np.zeros(_FIRST_ROWS, kept)
        self._count = 0

    def extend(self, numbers: npt.NDArray[Any]) -> None:
        """Append numbers, shape ``(n,)``."""
        until = self._count + len(numbers)
        if until > len(self._numbers):
            self._numbers.resize(max(until, int(len(self._numbers) * _GROWTH)), refcheck=False)
        self._numbers[self._count : until] = numbers
        self._count = until

    def release(self) -> npt.NDArray[Any]:
        """Return the column and release it."""
        numbers = self._numbers
        numbers.resize(self._count, refcheck=False)
        self._numbers = np.zeros(0, numbers.dtype)
        return numbers


_DTYPES: Final = """
    float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16
    qint16 quint16 uint16 complex128 float16 resource variant uint32 uint64 float8_e5m2 float8_e4m3fn
"""
DTYPE_NAMES: Final = {**dict(enumerate(_DTYPES.split(), 1)), 29: "int4", 30: "uint4"}
"""TensorFlow's number of an element type (``tensorflow/core/framework/types.proto``) -> its name."""


_OWN: Final = {"time_ps": np.int64, "kind": np.int8, "line": np.int32}
_TYPES: Final = {
    **_OWN,
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
        self._columns = {name: GrowingColumn(kept) for name, kept in _TYPES.items()}
        self._without_address = 0
        self._unreadable = 0

    def add(
        self, events: EventBlock, kind: npt.NDArray[np.int8], line: int, names: PlaneNames
    ) -> None:
        """Append the memory events of a block.

        Args:
            kind: 1 for an allocation, -1 for a free, 0 for other events; shape ``(n,)``.

        Raises:
            WireError: A statistic of one of them is no message.
        """
        rows = np.flatnonzero(kind)
        place = np.zeros(len(kind), np.int64)
        place[rows] = np.arange(len(rows))
        stats = events.stats((kind != 0)[events.stat_event])
        owner = place[stats.event]
        at, known = names.stat_places(stats.name_id)
        unreadable = events.duration_ps[rows] < 0
        unreadable[owner[~known | ~names.has_name[at]] if len(names.has_name) else owner] = True
        refers, has_text = names.stat_places(stats.ref)
        unreadable[owner[(stats.ref != 0) & ~has_text]] = True
        columns = {name: np.zeros(len(rows), kept) for name, kept in _TYPES.items()}
        columns["time_ps"], columns["kind"] = events.offset_ps[rows], kind[rows]
        columns["line"][:] = line
        number_of = (
            np.where(known, names.column[at], 0) if len(names.column) else np.zeros(0, np.int8)
        )
        has_address = np.zeros(len(rows), bool)
        for number, name in enumerate(COLUMNS[1:], 1):
            here = np.flatnonzero(number_of == number)
            values: npt.NDArray[Any]
            if name in TEXT_STATS.values():
                values = self._texts(events, stats, here, names, refers, has_text)
            elif name in REAL_STATS.values():
                real, whole = stats.real[here], stats.integer[here]
                values = np.where(real != 0, real, whole)
            else:
                values = stats.integer[here]
            columns[name][owner[here]] = values + (name == "device")  # 0 is none
            if name == "address":
                has_address[owner[here]] = True
        nameless = np.where(columns["allocator"] == 0, columns["device"], 0)
        for number in np.unique(nameless[nameless > 0]).tolist():
            name = f"{self._device_kind}:{number - 1}"
            columns["allocator"][nameless == number] = self.texts.of(name)
        self._without_address += int((~has_address).sum())
        self._unreadable += int((unreadable & has_address).sum())
        for name, column in self._columns.items():
            column.extend(columns[name][has_address])

    def _texts(
        self,
        events: EventBlock,
        stats: StatColumns,
        here: Positions,
        names: PlaneNames,
        refers: Positions,
        has_text: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int32]:
        """Return the numbers of the texts of the statistics ``here``."""
        found = np.zeros(len(here), np.int32)
        by_ref = has_text[here] & (stats.ref[here] != 0)
        found[by_ref] = names.text[refers[here[by_ref]]]
        own = np.flatnonzero((stats.ref[here] == 0) & (stats.text_end[here] > 0))
        for at in own.tolist():
            text = events.block.text(int(stats.text_start[here[at]]), int(stats.text_end[here[at]]))
            found[at] = self.texts.of(decode_text(text))
        return found

    def damages(self, unnamed: int) -> tuple[Damage, ...]:
        """Return the unreadable events; ``unnamed`` is the number of events without a known name."""
        count = self._without_address + self._unreadable + unnamed
        return (Damage(reason=DamageReason.UNREADABLE_EVENTS, count=count),) if count else ()

    def table(self, base_ps: Positions) -> pd.DataFrame:
        """Return the events sorted by time; simultaneous events keep the order of the file.

        Columns are released one by one, so that none is held twice.

        Args:
            base_ps: The time of each line, picoseconds, shape ``(lines,)``.
        """
        line = self._whole("line", None)
        time_ps = self._whole("time_ps", None)
        time_ps += base_ps[line]
        order = None if (np.diff(time_ps) >= 0).all() else np.argsort(time_ps, kind="stable")
        texts = ["" if text == _NULL else text for text in self.texts.texts]
        columns: dict[str, Any] = {}
        for name, column in EVENTS.items():
            if name == "time_ps":
                columns[name] = time_ps if order is None else time_ps[order]
            elif name == "thread":
                numbers = line if order is None else line[order]
                columns[name] = numbers.astype(np.int64) + 1
            elif name == "dtype":
                columns[name] = _dtypes(self._whole(name, order))
            elif name == "shape":  # some writers put spaces between the axes
                shapes = [text.replace(" ", "") for text in texts]
                columns[name] = text_category(self._whole(name, order), shapes)
            elif column.dtype == "category":
                columns[name] = text_category(self._whole(name, order), texts)
            else:
                columns[name] = self._whole(name, order)
        events = pd.DataFrame(columns, copy=False)
        reserved = self._whole("reserved_bytes", order)
        return _with_reserved(events, reserved) if reserved.any() else events

    def _whole(self, name: str, order: Positions | None) -> npt.NDArray[Any]:
        column = self._columns.pop(name).release()
        return column if order is None else column[order]


def _dtypes(numbers: npt.NDArray[np.int64]) -> pd.Categorical:
    known = [DTYPE_NAMES.get(number, "") for number in range(max(DTYPE_NAMES) + 1)]
    inside = (numbers >= 0) & (numbers < len(known))
    return text_category(np.where(inside, numbers, 0).astype(np.int32), known)


def _with_reserved(events: pd.DataFrame, reserved: Positions) -> pd.DataFrame:
    """Return the events with the memory reserved for programs as buffers of the op ``stack``.

    Like XProf, count it as in use. The events before which it changes get a free and an allocation.

    Args:
        reserved: Reserved bytes after each event, shape ``(n,)``.
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
    texts = whole["op"].astype("category")
    return whole.assign(op=texts)


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
