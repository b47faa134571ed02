"""The two tables of a recording, measured or predicted, column by column.

**Events** are the actions of the allocator in order. An *instant* is a row of this table: instant
``i`` is the state just after event ``i``, and instant ``-1`` the state before the first event.

**Allocations** are the buffers. A buffer is alive at instant ``i`` if ``born <= i < dies``; ``born`` is
``-1`` if it is from before the first event, ``dies`` the number of events if it is never freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.errors import AccountingError

TRIAL: Final = "trial"  # region of buffers for trials of algorithms, which a kernel can do without
TRIAL_ROLE: Final = "trial of an algorithm"  # of all buffers of a convolution for trials
COPY_ROLE: Final = "layout copy"  # of a convolution's copy of an operand or result for cuDNN
WORKSPACE: Final = "workspace"
"""Region of a library's workspace, without which TensorFlow uses another algorithm."""
IDLE_ROLE: Final = "holds no value: room inside XLA's buffer"
"""Role of the rows for bytes of a compiled step's buffer that hold no value."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its pandas dtype, and its meaning with the unit."""

    dtype: str
    meaning: str


EVENTS: Final[dict[str, Column]] = {
    "time_ps": Column("int64", "picoseconds since the start of the trace"),
    "kind": Column(
        "int8",
        "+1 for an allocation, -1 for a free, 0 for a moment inside a compiled step without an "
        "allocator event; its time is interpolated, other values are copied from the event before",
    ),
    "allocator": Column("category", "TensorFlow's name of the allocator"),
    "address": Column("int64", "address of the chunk"),
    "requested_bytes": Column("int64", "bytes that the tensor requested"),
    "allocated_bytes": Column("int64", "bytes of the chunk that holds it"),
    "in_use_bytes": Column(
        "int64", "allocated bytes in use after the event, as TensorFlow recorded it"
    ),
    "available_bytes": Column("int64", "limit minus in use, as TensorFlow recorded it"),
    "peak_in_use_bytes": Column(
        "int64", "maximum of in_use_bytes so far, as TensorFlow recorded it"
    ),
    "fragmentation": Column("float64", "(free - largest free) / free, as TensorFlow recorded it"),
    "op": Column(
        "category", "node name (graph) or op type (eager) of the requester; empty if none"
    ),
    "run_id": Column("int64", "TensorFlow's step id of the function run; 0 outside one"),
    "region": Column("category", "output, temp, dynamic, trial, workspace or empty"),
    "dtype": Column("category", "element type, empty if unknown"),
    "shape": Column("category", "shape as text, such as [32,128]; empty if unknown"),
    "thread": Column("int64", "line of the trace that contains the event"),
}

ALLOCATIONS: Final[dict[str, Column]] = {
    "allocator": Column("category", "TensorFlow's name of the allocator"),
    "address": Column("Int64", "address of the chunk, missing if unknown"),
    "requested_bytes": Column("int64", "bytes that the tensor requested"),
    "allocated_bytes": Column("int64", "bytes of the chunk that holds it"),
    "born": Column("int64", "instant of birth; -1 if alive before the first event"),
    "dies": Column("int64", "instant of death; the number of events if alive after the last"),
    "born_ps": Column("Int64", "time of birth in picoseconds, missing if unknown"),
    "dies_ps": Column("Int64", "time of death in picoseconds, missing if unknown"),
    "step": Column("Int64", "index of the step it is born in, missing outside steps"),
    "run_id": Column("int64", "TensorFlow's step id of the function run; 0 outside one"),
    "op": Column("category", "op that requested it, in the allocator's notation"),
    "op_type": Column("category", "type of that op, such as Conv2D; empty if unknown"),
    "layer": Column("category", "path of the layer it belongs to; empty if none"),
    "source": Column("category", "file:line of the user's code that made the op; empty if none"),
    "region": Column("category", "output, temp, dynamic, trial, workspace or empty"),
    "dtype": Column("category", "element type, empty if unknown"),
    "shape": Column("category", "shape as text; empty if unknown"),
    "tensor": Column("category", "tensor of the graph that the buffer holds, such as conv/Relu:0"),
    "variable": Column("category", "path of the variable it holds; empty if it holds none"),
    "category": Column("category", "a Category"),
    "role": Column("category", "more specific than the category; may be empty"),
    "turns_at": Column(
        "Int64",
        "instant from which `category` is valid; before it the buffer is a temporary (a new value "
        "that becomes a variable's); missing if it is valid from birth",
    ),
    "part_of": Column(
        "Int64",
        "row of the allocation that contains it, for a value inside a compiled step's buffer or the "
        "idle rest of that buffer; missing for a real allocation",
    ),
    "instruction": Column(
        "category", "HLO instruction that makes it; empty outside compiled steps"
    ),
}

_OPTIONAL: Final = frozenset({"part_of", "instruction"})
"""Columns that a table may lack if no row is part of another."""


def empty(columns: dict[str, Column]) -> pd.DataFrame:
    """Return a table with these columns and no rows."""
    return pd.DataFrame({name: pd.Series([], dtype=col.dtype) for name, col in columns.items()})


def conform(table: pd.DataFrame, columns: dict[str, Column]) -> pd.DataFrame:
    """Return ``table`` with exactly these columns and dtypes, in this order."""
    missing = [name for name in columns if name not in table]
    if wrong := set(missing) - _OPTIONAL:
        raise AccountingError(f"the table lacks the columns {', '.join(sorted(wrong))}")
    absent = {name: "" if columns[name].dtype == "category" else pd.NA for name in missing}
    if absent:
        table = table.assign(**absent)
    fits = {name: str(table[name].dtype) == column.dtype for name, column in columns.items()}
    return pd.DataFrame(
        {
            name: table[name] if fits[name] else table[name].astype(column.dtype)
            for name, column in columns.items()
        },
        copy=False,
    )


class TextNumbers:
    """Numbers distinct texts from 0."""

    def __init__(self, *first: str) -> None:
        self._numbers = {text: number for number, text in enumerate(first)}

    def of(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """The texts, in the order of their numbers."""
        return list(self._numbers)


class TextColumn:
    """A column of texts; its cells are read and written like those of a list."""

    def __init__(self, count: int, text: str = "") -> None:
        """Start with the same text in all rows."""
        self._texts = np.full(count, text, object)

    def __getitem__(self, row: int) -> str:
        return str(self._texts[row])

    def __setitem__(self, row: int, text: str) -> None:
        self._texts[row] = text

    def fill(self, rows: npt.NDArray[np.bool_], text: str) -> None:
        """Write a text into the rows of a mask, shape ``(n,)``."""
        self._texts[rows] = text

    def equal(self, text: str) -> npt.NDArray[np.bool_]:
        """Return which rows contain a text, shape ``(n,)``."""
        return np.asarray(self._texts == text, bool)

    def category(self) -> pd.Categorical:
        """Return the column for a table."""
        return pd.Categorical(self._texts)


def text_category(numbers: npt.NDArray[Any], texts: list[str]) -> pd.Categorical:
    """Return a categorical column of texts by number, with those that occur as sorted categories."""
    seen = np.flatnonzero(np.bincount(numbers, minlength=len(texts))).tolist()
    categories = sorted({texts[number] for number in seen})
    place = {text: at for at, text in enumerate(categories)}
    codes = np.full(len(texts), -1, np.min_scalar_type(-max(len(categories), 1)))
    codes[seen] = [place[texts[number]] for number in seen]
    return pd.Categorical.from_codes(codes[numbers], categories)
