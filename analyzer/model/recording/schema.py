"""The two tables of a recording, measured or predicted; ``columns.csv`` describes each column.

**Events** are the actions of the allocator in order. An *instant* is a row of this table: instant
``i`` is the state just after event ``i``, and instant ``-1`` the state before the first event.
**Allocations** are the buffers. A buffer is alive at instant ``i`` if ``born <= i < dies``; ``born`` is
``-1`` if it is from before the first event, ``dies`` the number of events if it is never freed.
"""

import csv
from importlib.resources import files
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.errors import AccountingError

# region of buffers for trials of algorithms, which a kernel can do without
TRIAL: Final = "trial"
# of all buffers of a convolution for trials
TRIAL_ROLE: Final = "trial of an algorithm"
# of a convolution's copy of an operand or result for cuDNN
COPY_ROLE: Final = "layout copy"
SUMS_ROLE: Final = "partial sums of a bias gradient"
"""Scratch memory as large as the input, for the sums over the points of each channel with channels first
(``BiasGradOp::ComputeWithReduceSum`` in ``bias_op.cc``)."""
DROPPED_ROLE: Final = "unused output: the op returns scratch memory instead"
"""Role of the output of a convolution that returns the memory in which it computed."""
FIXED_ROLES: Final = (
    COPY_ROLE,
    DROPPED_ROLE,
    SUMS_ROLE,
)  # of workspaces that no other algorithm avoids
WORKSPACE: Final = "workspace"
"""Region of a library's workspace, without which TensorFlow uses another algorithm."""
STACK_ROLE: Final = "stack that XLA reserves for its programs"  # on a TPU
IDLE_ROLE: Final = "holds no value: room inside XLA's buffer"
"""Role of the rows for bytes of a compiled step's buffer that hold no value."""


def _read_columns(table: str) -> dict[str, str]:
    """Return the columns of a table, each with its pandas dtype."""
    text = (files("analyzer.model.recording") / "columns.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())

    return {row["column"]: row["dtype"] for row in rows if row["table"] == table}


EVENTS: Final = _read_columns("events")
ALLOCATIONS: Final = _read_columns("allocations")

_OPTIONAL: Final = frozenset({"part_of", "instruction"})
"""Columns that a table may lack if no row is part of another."""


def conform(table: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    """Return ``table`` with exactly these columns and dtypes, in this order."""
    missing = [name for name in columns if name not in table]
    if wrong := set(missing) - _OPTIONAL:
        raise AccountingError(f"the table lacks the columns {', '.join(sorted(wrong))}")

    absent = {name: "" if columns[name] == "category" else pd.NA for name in missing}
    if absent:
        table = table.assign(**absent)

    fits = {name: str(table[name].dtype) == dtype for name, dtype in columns.items()}

    return pd.DataFrame(
        {
            name: table[name] if fits[name] else table[name].astype(dtype)
            for name, dtype in columns.items()
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


def text_category(numbers: npt.NDArray[Any], texts: list[str]) -> pd.Categorical:
    """Return a categorical column of texts by number, with those that occur as sorted categories."""
    seen = np.flatnonzero(np.bincount(numbers, minlength=len(texts))).tolist()
    categories = sorted({texts[number] for number in seen})
    place = {text: at for at, text in enumerate(categories)}
    codes = np.full(len(texts), -1, np.min_scalar_type(-max(len(categories), 1)))
    codes[seen] = [place[texts[number]] for number in seen]

    return pd.Categorical.from_codes(codes[numbers], categories)
