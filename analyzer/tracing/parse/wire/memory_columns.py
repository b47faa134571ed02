"""The allocators' events of a trace as columns; texts are stored as numbers."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.schema import EVENTS, TextNumbers, text_category
from analyzer.tracing.parse.protobuf import TEXTS, decode_text
from analyzer.tracing.parse.wire.event_block import EventBlock, Positions
from analyzer.tracing.parse.wire.plane_names import (
    COLUMNS,
    INTEGER_STATS,
    REAL_STATS,
    TEXT_STATS,
    PlaneNames,
    find_places,
)

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
STACK: Final = "stack"  # op of the memory that a TPU reserves for programs
_NULL: Final = "(null)"  # text of TensorFlow 2.18 and 2.19 for an op or a region without annotation


class ColumnPieces:
    """Columns of numbers that are collected block by block."""

    def __init__(self, **types: Any) -> None:
        """Start without rows; ``types`` are the NumPy types of the columns."""
        self._pieces = {name: [np.zeros(0, dtype)] for name, dtype in types.items()}

    def extend(self, count: int, **numbers: Any) -> None:
        """Append rows: arrays of shape ``(count,)``, or a number for all rows."""
        for name, pieces in self._pieces.items():
            column = np.empty(count, pieces[0].dtype)
            column[:] = numbers[name]
            pieces.append(column)

    def pop(self, name: str) -> npt.NDArray[Any]:
        """Return a column and drop its pieces."""
        return np.concatenate(self._pieces.pop(name))


class MemoryColumns:
    """Columns of memory events; times are relative to their line's."""

    def __init__(self, device_kind: str) -> None:
        """Start without rows; devices without an allocator's name are called ``device_kind:0``..."""
        self.texts = TextNumbers("")
        self._device_kind = device_kind
        self._table = ColumnPieces(**_TYPES)
        self.unreadable = 0

    def add(
        self,
        block: EventBlock,
        kind: npt.NDArray[np.int8],
        line: int,
        names: PlaneNames,
    ) -> None:
        """Append a block's memory events; ``kind`` is 1 for an allocation, -1 for a free, else 0."""
        rows = np.flatnonzero(kind)
        place = np.zeros(len(kind), np.int64)
        place[rows] = np.arange(len(rows))
        stats = block.stats((kind != 0)[block.stat_event])
        owner = place[stats["event"]]
        name_place = find_places(names.stat_keys, stats["name_id"])
        text_place = find_places(names.stat_keys, stats["ref"])
        column_of = names.column[name_place]

        has_ref = stats["ref"] != 0
        is_unknown = ~names.has_name[name_place] | (has_ref & (text_place < 0))
        unreadable = block.duration_ps[rows] < 0
        unreadable[owner[is_unknown]] = True

        texts = np.where(has_ref, names.text[text_place], 0)
        is_text = np.isin(
            column_of, [COLUMNS.index(name) for name in TEXT_STATS.values()]
        )

        for one in np.flatnonzero(
            is_text & ~has_ref & (stats["text_end"] > 0)
        ).tolist():
            text = block.fields.content[
                stats["text_start"][one] : stats["text_end"][one]
            ]
            texts[one] = self.texts.of(decode_text(text))

        columns = {name: np.zeros(len(rows), dtype) for name, dtype in _TYPES.items()}
        columns["time_ps"] = block.offset_ps[rows]
        columns["kind"] = kind[rows]
        columns["line"][:] = line
        has_address = np.zeros(len(rows), bool)

        for number, name in enumerate(COLUMNS[1:], 1):
            here = np.flatnonzero(column_of == number)
            values: npt.NDArray[Any] = stats["integer"][here]

            if name in TEXT_STATS.values():
                values = texts[here]
            elif name in REAL_STATS.values():
                real = stats["real"][here].view(np.float64)
                values = np.where(real != 0, real, values)
            elif name == "device":
                values = values + 1  # 0 is none
            elif name == "address":
                has_address[owner[here]] = True

            columns[name][owner[here]] = values

        nameless = np.where(columns["allocator"] == 0, columns["device"], 0)
        for number in np.unique(nameless[nameless > 0]).tolist():
            name = f"{self._device_kind}:{number - 1}"
            columns["allocator"][nameless == number] = self.texts.of(name)

        self.unreadable += int((unreadable | ~has_address).sum())
        chosen = {name: column[has_address] for name, column in columns.items()}
        self._table.extend(int(has_address.sum()), **chosen)

    def table(self, base_ps: Positions) -> pd.DataFrame:
        """Return the events by time, simultaneous ones in the order of the file.

        ``base_ps`` are the times of the lines in picoseconds.
        """
        line = self._table.pop("line")
        time_ps = self._table.pop("time_ps") + base_ps[line]
        order = np.argsort(time_ps, kind="stable")
        texts = ["" if text == _NULL else text for text in self.texts.texts]
        columns: dict[str, Any] = {
            "time_ps": time_ps[order],
            "thread": line[order] + np.int64(1),
        }

        for name, column in EVENTS.items():
            if name in columns:
                continue
            numbers = self._table.pop(name)[order]

            if name == "dtype":
                known = [
                    DTYPE_NAMES.get(number, "")
                    for number in range(max(DTYPE_NAMES) + 1)
                ]
                is_known = (numbers >= 0) & (numbers < len(known))
                columns[name] = text_category(np.where(is_known, numbers, 0), known)
            elif name == "shape":  # some writers put spaces between the axes
                columns[name] = text_category(
                    numbers, [text.replace(" ", "") for text in texts]
                )
            elif column.dtype == "category":
                columns[name] = text_category(numbers, texts)
            else:
                columns[name] = numbers

        events = pd.DataFrame({name: columns.pop(name) for name in EVENTS}, copy=False)
        reserved = self._table.pop("reserved_bytes")[order]
        return _with_reserved(events, reserved) if reserved.any() else events


def _with_reserved(events: pd.DataFrame, reserved: Positions) -> pd.DataFrame:
    """Return the events with the memory reserved for programs as buffers of the op ``stack``.

    Like XProf, count it as in use. The events before which it changes get a free and an allocation.
    ``reserved`` are the reserved bytes after each event, shape ``(n,)``.
    """
    in_use = events["in_use_bytes"].to_numpy()
    rows = [
        events.assign(in_use_bytes=in_use + reserved, at=2.0 * np.arange(len(events)))
    ]

    for number, name in enumerate(events["allocator"].cat.categories):
        own = np.flatnonzero(events["allocator"] == name)
        changed = own[1:][np.diff(reserved[own]) != 0]
        before = own[np.searchsorted(own, changed) - 1]

        for kind, sizes in ((-1, reserved[before]), (1, reserved[changed])):
            some = np.flatnonzero(sizes)
            total = in_use[before] + np.where(kind > 0, sizes, 0)
            stack = events.iloc[changed[some]].assign(
                kind=np.int8(kind),
                address=_STACK_ADDRESS + number,
                requested_bytes=sizes[some],
                allocated_bytes=sizes[some],
                in_use_bytes=total[some],
                op=pd.Categorical([STACK] * len(some)),
                at=2.0 * changed[some] - (1.0 if kind < 0 else 0.5),
            )
            rows.append(stack)

    whole = pd.concat(rows).sort_values("at").reset_index(drop=True).drop(columns="at")
    return whole.assign(op=whole["op"].astype("category"))
