"""The events of a trace as columns: names of planes, memory events, kernels and runs of functions.

Texts are stored as numbers. Arrays replace the lookup of each event's keys.

A field of a message is a key (its number and wire type) and a value: a varint, 8 or 4 bytes, or a length
and bytes. A line may hold millions of events, so it is read in blocks, many messages with a few array
operations. Field numbers are of ``xspace``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from google.protobuf.message import DecodeError

from analyzer.model.contract.reading import read_table
from analyzer.model.recording.records import EVENTS, TextNumbers, text_category
from analyzer.tracing.parse.protobuf import TEXTS, decode_text

Positions = npt.NDArray[np.int64]
Columns = tuple[Positions, Positions, Positions, Positions]

# Wire types of protobuf; 3 and 4 are obsolete.
_VARINT = 0
_EIGHT_BYTES = 1
_BYTES = 2
_FOUR_BYTES = 5

_BLOCK_EVENTS = 1 << 16
_PADDING = 16
_MOST_BITS = 70  # of a varint, in ten bytes

_STAT_KEY = 4 << 3 | _BYTES
_TEXT_KEY = 5 << 3 | _BYTES
_NUMBER_KEYS = {
    "name_id": 1 << 3 | _VARINT,
    "real": 2 << 3 | _EIGHT_BYTES,
    "unsigned": 3 << 3 | _VARINT,
    "integer": 4 << 3 | _VARINT,
    "ref": 7 << 3 | _VARINT,
}


class EventBlock:
    """Some events of one line, in the order of the file; arrays have the shape ``(n,)``.

    Attributes:
        name_id: Key of each event's name among the plane's event names.
        offset_ps: Its time after the line's, in picoseconds.
        stat_event: The event of each statistic, shape ``(m,)``.
        stat_start, stat_end: Positions of the statistics, shape ``(m,)``.
    """

    def __init__(self, events: Sequence[bytes]) -> None:
        """Read the events; a DecodeError says that one is no message."""
        end = np.cumsum([len(event) for event in events])
        start = np.append(0, end[:-1])

        self.events = events
        self.fields = FieldReader(b"".join(events))
        numbers = np.zeros((3, len(events)), np.int64)
        stats: list[tuple[Positions, Positions, Positions]] = []

        for rows, (key, at, value, until) in self.fields.walk(start, end):
            is_stat = key == _STAT_KEY
            stats.append((rows[is_stat], at[is_stat], until[is_stat]))

            if is_stat.all():
                continue

            for number, column in enumerate(numbers, 1):
                here = key == number << 3 | _VARINT
                column[rows[here]] = value[here]

        none = np.zeros(0, np.int64)
        columns = zip((none, none, none), *stats, strict=True)

        self.name_id, self.offset_ps, self.duration_ps = numbers
        self.stat_event, self.stat_start, self.stat_end = map(np.concatenate, columns)

    def stats(self, chosen: npt.NDArray[np.bool_]) -> dict[str, Positions]:
        """Return columns of the statistics in a mask of shape ``(m,)``.

        ``event`` is the event of the block, ``name_id`` the key of the name; ``integer``, ``real`` (the
        bits of a float) and ``ref`` (key of a text) are the value, 0 for none. A text in the event lies
        from ``text_start`` to ``text_end``.
        """
        event = self.stat_event[chosen]
        names = (*_NUMBER_KEYS, "text_start", "text_end")
        columns = {name: np.zeros(len(event), np.int64) for name in names}
        messages = self.fields.walk(self.stat_start[chosen], self.stat_end[chosen])

        for rows, (key, start, value, end) in messages:
            for name, number in _NUMBER_KEYS.items():
                here = key == number
                if here.any():
                    columns[name][rows[here]] = value[here]

            here = key == _TEXT_KEY
            if here.any():
                columns["text_start"][rows[here]] = start[here]
                columns["text_end"][rows[here]] = end[here]

        columns["integer"] |= columns.pop("unsigned")  # one of them is 0

        return {"event": event, **columns}


def read_blocks(events: Sequence[bytes]) -> Iterator[EventBlock]:
    """Yield the events of a line in blocks; raise a DecodeError if one is no message."""
    for first in range(0, len(events), _BLOCK_EVENTS):
        yield EventBlock(events[first : first + _BLOCK_EVENTS])


class FieldReader:
    """Reads the next field of many messages in one block of bytes."""

    def __init__(self, content: bytes) -> None:
        """Copy ``content`` with padding, so that 8 bytes can be read at each position."""
        self.content = content
        self._bytes = np.zeros(len(content) + _PADDING, np.uint8)
        self._bytes[: len(content)] = np.frombuffer(content, np.uint8)

        words = len(content) + _PADDING - 7
        self._words = np.ndarray((words,), "<u8", buffer=self._bytes, strides=(1,))

    def walk(
        self,
        start: Positions,
        end: Positions,
    ) -> Iterator[tuple[Positions, Columns]]:
        """Yield the next field of each message that has one, with its row, until all are read.

        Columns are key, position of the value, value (the varint, the 8 bytes or the number of bytes)
        and position of the next field.
        """
        rows = np.flatnonzero(start < end)
        at = start[rows]
        until = end[rows]

        while len(rows):
            fields = self._next_fields(at)
            after = fields[3]
            if (after > until).any():
                raise DecodeError

            yield rows, fields

            more = after < until
            rows = rows[more]
            at = after[more]
            until = until[more]

    def _next_fields(self, at: Positions) -> Columns:
        key, start = self._varints(at)
        wire = key & 7
        is_varint = wire == _VARINT
        is_sized = wire == _BYTES
        counted = is_varint | is_sized

        if counted.all():
            value, end = self._varints(start)
        else:
            value = np.zeros(len(at), np.int64)
            end = start.copy()
            value[counted], end[counted] = self._varints(start[counted])

            eight = wire == _EIGHT_BYTES
            four = wire == _FOUR_BYTES

            value[eight] = self._words[start[eight]].view(np.int64)
            end[eight] += 8
            end[four] += 4

            if not (counted | eight | four).all():
                raise DecodeError

        if is_sized.any():
            start = np.where(is_sized, end, start)
            end = np.where(is_sized, end + value, end)

        is_damaged = (key < 8) | (end <= at) | (end > len(self.content))
        if is_damaged.any():
            raise DecodeError

        return key, start, value, end

    def _varints(self, at: Positions) -> tuple[Positions, Positions]:
        """Return the varint at each position, as int64 with its bits, and its end.

        Each byte has seven bits of the number, the lowest first; its high bit says that more follow.
        """
        number = np.zeros(len(at), np.int64)
        end = at.copy()
        rows = np.arange(len(at))  # whose number goes on

        for shift in range(0, _MOST_BITS, 7):
            byte = self._bytes[end[rows]].astype(np.int64)
            number[rows] |= (byte & 127) << shift
            end[rows] += 1
            rows = rows[byte > 127]

            if not len(rows):
                return number, end

        raise DecodeError


# Prefix of the marks that the capture of this package writes into the trace.
MARKER_PREFIX = "analyzer:"

# Name of the capture's step marks in the trace of a watched program, which may mark steps itself.
WATCHED_STEP = "watched_step"

# Statistics of events of compiled modules (``kHloModule`` and ``kHloOp`` in ``xplane_schema.cc``).
XLA_STATS = frozenset({"hlo_module", "hlo_op"})

# Statistic of a memory event -> column of the events table.
INTEGER_STATS, TEXT_STATS, REAL_STATS = read_table(
    "tracing/parse/event_statistics.toml",
    dict[str, dict[str, str]],
).values()
_STATS = {**INTEGER_STATS, **TEXT_STATS, **REAL_STATS}

# The number of a column is its position here; 0 is none.
COLUMNS = ("", *dict.fromkeys(_STATS.values()))

_MARK = MARKER_PREFIX.encode()
_CALL = b"PjitFunction("  # start of the name of a compiled JAX function's call (``pjit.cc``)

# A data set's function, and a call of an iterator, which may be part of a loop in a function
# (``captured_function.cc``, ``dataset.h``).
FUNCTION_SPAN = "InstantiatedCapturedFunction::"
_SPAN = re.compile(f"(?:Reduce)?(Iterator::|{FUNCTION_SPAN})")

MARK = 2
CALL = 3
EXECUTOR = 4
CAPTURED = 5
_KINDS = {
    b"MemoryAllocation": 1,
    b"MemoryDeallocation": -1,
    # Events with the id of a function's run (``executor.cc``)
    b"ExecutorState::Process": EXECUTOR,
    b"ExecutorDoneCallback": EXECUTOR,
}


class PlaneNames:
    """The meaning of the keys of one plane's events and statistics.

    By position among the event keys: ``kind`` (1 an allocation, -1 a free, ``MARK`` of this package's
    capture, ``CALL`` of a compiled JAX function, ``EXECUTOR``, ``CAPTURED`` for a call of a data set's
    function, 0 another event) and ``op`` (number of the op that ran, -1 for another event).
    By position among the statistic keys: ``column`` (position
    in ``COLUMNS``), ``has_name`` and ``text`` (number of the name as a text that an event refers to).
    A last entry is for unknown keys. ``op_types``: op name -> type, of all names in the plane.
    """

    def __init__(self, plane: Any, ops: TextNumbers, texts: TextNumbers) -> None:
        """Read the names of ``plane``; ``ops`` and ``texts`` number those of all planes."""
        self.is_host = not plane.name.startswith(b"/device:")
        names = {entry.key: bytes(entry.value.name) for entry in plane.event_metadata}
        self.stats = {
            entry.key: decode_text(entry.value.name) for entry in plane.stat_metadata
        }
        self.events = {key: decode_text(name) for key, name in names.items()}
        keys = sorted(names)

        self.event_keys = pd.Index(keys, np.int64)
        self.stat_keys = pd.Index(sorted(self.stats), np.int64)

        kinds = [_find_kind(names[key]) for key in keys]
        self.kind = np.array([*kinds, 0], np.int8)

        ran = [split_annotation(self.events[key]) for key in keys]
        numbers = [-1 if found is None else ops.of(found[0]) for found in ran]
        self.op = np.array([*numbers, -1], np.int32)

        named = [self.stats[key] for key in sorted(self.stats)]
        annotations = (*ran, *map(split_annotation, named))
        self.op_types = dict(found for found in annotations if found is not None)

        self.column = np.array(
            [COLUMNS.index(_STATS.get(name, "")) for name in (*named, "")],
            np.int8,
        )

        self.has_name = np.array([*named, ""], object) != ""
        self.text = np.array([*map(texts.of, named), 0], np.int32)

        self._keys = {text: key for key, text in reversed(self.stats.items())}

    def stat_key(self, name: str) -> int | None:
        """Return the key of a statistic, None if the plane has none of this name."""
        return self._keys.get(name)


def _find_kind(name: bytes) -> int:
    if name.startswith(_MARK):
        return MARK
    if name.startswith(_CALL):
        return CALL
    if name.startswith(FUNCTION_SPAN.encode()):
        return CAPTURED

    return _KINDS.get(name, 0)


def split_annotation(text: str) -> tuple[str, str] | None:
    """Return op name and type of an event named ``node:Type``; None for another event.

    Copies between devices have properties behind the type (``node:_Recv#from=...``). A call of an
    iterator or of its function has no type.
    """
    if called := _SPAN.match(text):
        return called[1], ""
    if ":" not in text:
        return None

    op, colon, op_type = text.partition("#")[0].rpartition(":")
    is_type = op_type[:1].isalpha() or op_type[:1] == "_"
    if not colon or not op or op.endswith(":") or not is_type:
        return None

    return op, op_type


_NAMES = TEXTS["tensorflow_types"].split()

# TensorFlow's number of an element type -> its name.
DTYPE_NAMES = {**dict(enumerate(_NAMES, 1)), 29: "int4", 30: "uint4"}

_TYPES = {
    "time_ps": np.int64,
    "kind": np.int8,
    "line": np.int32,
    **dict.fromkeys(INTEGER_STATS.values(), np.int64),
    **dict.fromkeys(TEXT_STATS.values(), np.int32),
    **dict.fromkeys(REAL_STATS.values(), np.float64),
}
_STACK_ADDRESS = 1 << 62  # no address of a device
_NO_SHAPE = "[0]"  # of a request without a tensor; an empty tensor makes none
STACK = "stack"  # op of the memory that a TPU reserves for programs
_NULL = "(null)"  # text of TensorFlow 2.18 and 2.19 for an op or a region without annotation


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

        name_place = names.stat_keys.get_indexer(stats["name_id"])
        text_place = names.stat_keys.get_indexer(stats["ref"])
        column_of = names.column[name_place]

        has_ref = stats["ref"] != 0
        is_unknown = ~names.has_name[name_place] | (has_ref & (text_place < 0))
        unreadable = block.duration_ps[rows] < 0
        unreadable[owner[is_unknown]] = True

        texts = np.where(has_ref, names.text[text_place], 0)
        text_columns = [COLUMNS.index(name) for name in TEXT_STATS.values()]
        is_text = np.isin(column_of, text_columns)
        is_inside = is_text & ~has_ref & (stats["text_end"] > 0)

        for one in np.flatnonzero(is_inside).tolist():
            start = stats["text_start"][one]
            text = block.fields.content[start : stats["text_end"][one]]
            texts[one] = self.texts.of(decode_text(text))

        columns = {name: np.zeros(len(rows), dtype) for name, dtype in _TYPES.items()}
        columns["time_ps"] = block.offset_ps[rows]
        columns["kind"] = kind[rows]
        columns["line"][:] = line
        has_address = np.zeros(len(rows), bool)

        for number, name in enumerate(COLUMNS[1:], 1):
            here = np.flatnonzero(column_of == number)
            values = stats["integer"][here]

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

        is_unreadable = unreadable | ~has_address
        self.unreadable += int(is_unreadable.sum())
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

        columns = {
            "time_ps": time_ps[order],
            "thread": line[order] + np.int64(1),
        }

        for name, dtype in EVENTS.items():
            if name in columns:
                continue

            numbers = self._table.pop(name)[order]

            if name == "dtype":
                known = [DTYPE_NAMES.get(at, "") for at in range(max(DTYPE_NAMES) + 1)]
                is_known = (numbers >= 0) & (numbers < len(known))
                columns[name] = text_category(np.where(is_known, numbers, 0), known)
            elif name == "shape":  # some writers put spaces between the axes
                shapes = [text.replace(" ", "") for text in texts]
                shapes = ["" if text == _NO_SHAPE else text for text in shapes]
                columns[name] = text_category(numbers, shapes)
            elif dtype == "category":
                columns[name] = text_category(numbers, texts)
            else:
                columns[name] = numbers

        events = pd.DataFrame({name: columns.pop(name) for name in EVENTS}, copy=False)

        reserved = self._table.pop("reserved_bytes")[order]
        if reserved.any():
            return _with_reserved(events, reserved)

        return events


def _with_reserved(events: pd.DataFrame, reserved: Positions) -> pd.DataFrame:
    """Return the events with the memory reserved for programs as buffers of the op ``stack``.

    Like XProf, count it as in use. The events before which it changes get a free and an allocation.
    ``reserved`` are the reserved bytes after each event, shape ``(n,)``.
    """
    in_use = events["in_use_bytes"].to_numpy()
    places = 2.0 * np.arange(len(events))
    rows = [events.assign(in_use_bytes=in_use + reserved, at=places)]

    for number, name in enumerate(events["allocator"].cat.categories):
        own = np.flatnonzero(events["allocator"] == name)
        changed = own[1:][np.diff(reserved[own]) != 0]
        before = own[np.searchsorted(own, changed) - 1]

        for kind, sizes in ((-1, reserved[before]), (1, reserved[changed])):
            some = np.flatnonzero(sizes)
            total = in_use[before] + np.where(kind > 0, sizes, 0)
            distance = 1.0 if kind < 0 else 0.5

            stack = events.iloc[changed[some]].assign(
                kind=np.int8(kind),
                address=_STACK_ADDRESS + number,
                requested_bytes=sizes[some],
                allocated_bytes=sizes[some],
                in_use_bytes=total[some],
                op=pd.Categorical([STACK] * len(some)),
                at=2.0 * changed[some] - distance,
            )

            rows.append(stack)

    whole = pd.concat(rows).sort_values("at")
    whole = whole.reset_index(drop=True).drop(columns="at")

    return whole.assign(op=whole["op"].astype("category"))


def read_run_ids(
    block: EventBlock,
    rows: npt.NDArray[np.bool_],
    names: PlaneNames,
) -> tuple[Positions, Positions]:
    """Return the events that have the id of a run, and the ids; ``rows`` is a mask of shape ``(n,)``."""
    stats = block.stats(rows[block.stat_event])
    chosen = stats["name_id"] == names.stat_key("id")

    return stats["event"][chosen], stats["integer"][chosen]


class KernelColumns:
    """Columns of kernels, launches and executor events; times are relative to their line's."""

    def __init__(self, texts: TextNumbers) -> None:
        """Start without rows; ``texts`` are those of all planes' names."""
        self._texts = texts
        self._kernels = ColumnPieces(number=np.int64, op=np.int32)

        self._launches = ColumnPieces(
            number=np.int64,
            start=np.int64,
            line=np.int32,
        )

        self._runs = ColumnPieces(
            run=np.int64,
            start=np.int64,
            end=np.int64,
            line=np.int32,
        )

    def add(
        self,
        block: EventBlock,
        stat_names: Positions,
        line: int,
        names: PlaneNames,
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
        events = stats["event"][numbered]
        numbers = stats["integer"][numbered]

        if names.is_host:
            start = block.offset_ps[events]
            self._launches.extend(
                len(events),
                number=numbers,
                start=start,
                line=line,
            )

            return

        ops = np.zeros(len(block.name_id), np.int32)

        for key in op_keys:
            here = (stats["name_id"] == key) & (stats["ref"] != 0)
            places = names.stat_keys.get_indexer(stats["ref"][here])
            ops[stats["event"][here]] = names.text[places]

        self._kernels.extend(len(events), number=numbers, op=ops[events])

    def add_runs(
        self,
        block: EventBlock,
        rows: npt.NDArray[np.bool_],
        line: int,
        names: PlaneNames,
    ) -> None:
        """Add the executor's events, a mask of shape ``(n,)``."""
        event, run = read_run_ids(block, rows, names)
        start = block.offset_ps[event]
        end = start + block.duration_ps[event]

        self._runs.extend(
            len(event),
            run=run,
            start=start,
            end=end,
            line=line,
        )

    def kernels(self, base_ps: Positions) -> pd.DataFrame:
        """Return ``annotation``, ``start_ps`` and ``thread`` of launches, by time.

        The time is that of the call on the host; kernels without a known call have the thread 0.
        """
        line = self._launches.pop("line")
        start = self._launches.pop("start") + base_ps[line]
        called, first = np.unique(self._launches.pop("number"), return_index=True)
        place = pd.Index(called).get_indexer(self._kernels.pop("number"))

        table = pd.DataFrame(
            {
                "annotation": text_category(self._kernels.pop("op"), self._texts.texts),
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
            {
                "start_ps": "min",
                "end_ps": "max",
            }
        )

        return runs.sort_values("start_ps", kind="stable", ignore_index=True)
