"""The names of one plane of a trace, as arrays for the lookup of many keys at once."""

from typing import Any, Final

import numpy as np

from analyzer.model.recording.schema import TextNumbers
from analyzer.model.tables import read_table
from analyzer.tracing.parse.protobuf import decode_text
from analyzer.tracing.parse.wire.event_block import Positions

MARKER_PREFIX: Final = "analyzer:"
"""Prefix of the marks that the capture of this package writes into the trace."""

WATCHED_STEP: Final = "watched_step"
"""Name of the capture's step marks in the trace of a watched program, which may mark steps itself."""

XLA_STATS: Final = frozenset({"hlo_module", "hlo_op"})
"""Statistics of events of compiled modules (``kHloModule`` and ``kHloOp`` in ``xplane_schema.cc``)."""

INTEGER_STATS, TEXT_STATS, REAL_STATS = read_table(
    "tracing/parse/wire/event_statistics.toml", dict[str, dict[str, str]]
).values()
"""Statistic of a memory event -> column of the events table."""
_STATS: Final = {**INTEGER_STATS, **TEXT_STATS, **REAL_STATS}
COLUMNS: Final = ("", *dict.fromkeys(_STATS.values()))
"""The number of a column is its position here; 0 is none."""

_MARK: Final = MARKER_PREFIX.encode()
_CALL: Final = b"PjitFunction("  # start of the name of a compiled JAX function's call (``pjit.cc``)

MARK, CALL, EXECUTOR = 2, 3, 4
_KINDS: Final = {
    b"MemoryAllocation": 1,
    b"MemoryDeallocation": -1,
    # Events with the id of a function's run (``executor.cc``)
    b"ExecutorState::Process": EXECUTOR,
    b"ExecutorDoneCallback": EXECUTOR,
}


class PlaneNames:
    """The meaning of the keys of one plane's events and statistics.

    By position among the event keys: ``kind`` (1 an allocation, -1 a free, ``MARK`` of this package's
    capture, ``CALL`` of a compiled JAX function, ``EXECUTOR``, 0 another event) and ``op`` (number of
    the op that ran, -1 for another event). By position among the statistic keys: ``column`` (position
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
        self.event_keys = np.array(sorted(names), np.int64)
        self.stat_keys = np.array(sorted(self.stats), np.int64)
        self.kind = np.array(
            [*(_find_kind(names[key]) for key in sorted(names)), 0], np.int8
        )
        ran = {key: split_annotation(name) for key, name in self.events.items()}
        numbers = [
            ops.of(found[0]) if (found := ran[key]) else -1 for key in sorted(names)
        ]
        self.op = np.array([*numbers, -1], np.int32)
        named = [self.stats[key] for key in sorted(self.stats)]
        annotations = (*ran.values(), *map(split_annotation, named))
        self.op_types = dict(found for found in annotations if found is not None)
        self.column = np.array(
            [COLUMNS.index(_STATS.get(name, "")) for name in (*named, "")], np.int8
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
    return CALL if name.startswith(_CALL) else _KINDS.get(name, 0)


def find_places(known: Positions, keys: Positions) -> Positions:
    """Return the position of each key among the sorted ``known`` ones, -1 if it does not exist."""
    if not len(known):
        return np.full(len(keys), -1)
    if known[0] >= 0 and known[-1] == len(known) + known[0] - 1:  # keys without a gap
        places = np.clip(keys - known[0], 0, len(known) - 1)
    else:
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)

    return np.where(known[places] == keys, places, -1)


def split_annotation(text: str) -> tuple[str, str] | None:
    """Return op name and type of an event named ``node:Type``; None for another event.

    Copies between devices have properties behind the type (``node:_Recv#from=...``).
    """
    if ":" not in text:
        return None
    op, colon, op_type = text.partition("#")[0].rpartition(":")
    is_type = op_type[:1].isalpha() or op_type[:1] == "_"
    if not colon or not op or op.endswith(":") or not is_type:
        return None

    return op, op_type
