"""What the page's script works on: the document, and the buffers as columns.

The page counts *states*: state 0 is before the first event, state ``i + 1`` is just after event
``i``. A buffer is alive at state ``s`` where ``born <= s < dies``, so every column is a plain
unsigned number and nothing needs a mark for "before the trace".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model import Category, Recording
from analyzer.report.page.columns import StringTable
from analyzer.report.page.neighbours import Neighbours, neighbours
from analyzer.timeline import main_rows

MAX_BUFFERS: Final = 200_000
"""Buffers listed one by one; above it the smallest by bytes x lifetime are kept only as sums."""

_CATEGORIES: Final = [category.value for category in Category]
_TEXT_COLUMNS: Final = (
    "op",
    "op_type",
    "layer",
    "source",
    "dtype",
    "shape",
    "role",
    "region",
    "variable",
)

Columns = dict[str, npt.NDArray[Any]]


def payload(
    document: Mapping[str, Any], recording: Recording, comparison: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Columns]:
    """Return the header and the columns that :func:`analyzer.report.page.columns.pack` takes."""
    strings = StringTable()
    table = main_rows(recording).sort_values("born", kind="stable")
    n_states = len(recording.events) + 1
    if recording.events.empty and len(table):
        # A prediction without events: the last change is the last instant.
        n_states = int(table["dies"].max()) + 1
    listed, folded = _split(table)
    columns = _buffer_columns(listed, strings, document)
    columns.update(_folded_columns(folded, n_states))
    if recording.kind.ran and not recording.events.empty:  # a prediction has no times
        columns["time_ps"] = recording.events["time_ps"].to_numpy(dtype=np.int64)
    around = neighbours(recording.graph, listed)
    columns.update(_neighbour_columns(around, strings))
    header = {
        "document": document,
        "comparison": comparison,
        "categories": _CATEGORIES,
        "states": n_states,
        "address_base": _address_base(listed),
        "buffers": len(listed),
        "folded_buffers": len(folded),
        "steps": [
            {"index": step.index, "number": step.number, "first": step.first, "last": step.last}
            for step in recording.steps
        ],
        "ops": around.ops,
        "strings": strings.texts,
    }
    return header, columns


def requested_at(recording: Recording, instant: int) -> dict[str, int]:
    """Return the requested bytes of each category at ``instant``, as the page will draw them."""
    table = main_rows(recording)
    alive = table[(table["born"] <= instant) & (table["dies"] > instant)]
    categories = alive["category"].astype(str).to_numpy(dtype=object).copy()
    turned = alive["turns_at"].isna() | (alive["turns_at"].fillna(-1) <= instant)
    categories[~turned.to_numpy(dtype=bool)] = Category.TEMPORARY.value
    sums = alive["requested_bytes"].groupby(categories).sum()
    return {category: int(sums.get(category, 0)) for category in _CATEGORIES}


def _split(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    if len(table) <= MAX_BUFFERS:
        return table, table.iloc[:0]
    weight = table["requested_bytes"] * (table["dies"] - table["born"]).clip(lower=1)
    keep = np.zeros(len(table), dtype=bool)
    keep[np.argsort(-weight.to_numpy(), kind="stable")[:MAX_BUFFERS]] = True
    return table[keep], table[~keep]


def _buffer_columns(
    table: pd.DataFrame, strings: StringTable, document: Mapping[str, Any]
) -> Columns:
    born = table["born"].to_numpy(dtype=np.int64) + 1
    turns = table["turns_at"].astype("Int64") + 1
    columns: Columns = {
        "born": born,
        "dies": table["dies"].to_numpy(dtype=np.int64) + 1,
        "turns": turns.fillna(pd.Series(born, index=table.index)).to_numpy(dtype=np.int64),
        "requested": table["requested_bytes"].to_numpy(dtype=np.int64),
        "allocated": table["allocated_bytes"].to_numpy(dtype=np.int64),
        "category": _category_codes(table["category"]),
        "step": (table["step"].astype("Int64") + 1).fillna(0).to_numpy(dtype=np.int64),
        "address": _addresses(table),
    }
    for name in _TEXT_COLUMNS:
        columns[name] = strings.encode(table[name])
    columns["name"] = _names(table, strings)
    columns["tensor"] = strings.encode(table["tensor"])
    columns["why"] = _reasons(table, strings, document)
    return columns


def _category_codes(categories: pd.Series[Any]) -> npt.NDArray[np.int64]:
    known = pd.Categorical(categories.astype(str), categories=_CATEGORIES)
    codes = np.array(known.codes, dtype=np.int64)
    codes[codes < 0] = _CATEGORIES.index(Category.UNATTRIBUTED.value)
    return codes


def _names(table: pd.DataFrame, strings: StringTable) -> npt.NDArray[np.int64]:
    """Name of a buffer: its variable, its tensor, its op, or its role, as the document names it."""
    names = np.zeros(len(table), dtype=np.int64)
    for column in ("variable", "tensor", "op", "role"):
        names = np.where(names > 0, names, strings.encode(table[column]))
    return np.where(names > 0, names, strings.place("unnamed"))


def _reasons(
    table: pd.DataFrame, strings: StringTable, document: Mapping[str, Any]
) -> npt.NDArray[np.int64]:
    """Why each buffer is alive, where a row of the document about the same buffer says so."""
    reasons: dict[tuple[Any, ...], int] = {}
    for row in [*document.get("retained", ()), *document.get("tensors_at_peak", ())]:
        if row.get("why_alive") and row.get("born") is not None:
            key = (row["born"], row.get("dies"), row.get("requested_bytes"))
            reasons[key] = strings.place(str(row["why_alive"]))
    if not reasons:
        return np.zeros(len(table), dtype=np.int64)
    keys = zip(table["born"], table["dies"], table["requested_bytes"], strict=True)
    return np.fromiter((reasons.get(key, 0) for key in keys), dtype=np.int64, count=len(table))


def _address_base(table: pd.DataFrame) -> int:
    known = table["address"].dropna()
    return int(known.min()) if len(known) else 0


def _addresses(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Offset from the lowest address plus one; 0 where the address is not known."""
    offsets = table["address"].astype("Int64") - _address_base(table) + 1
    return np.asarray(offsets.fillna(0), dtype=np.int64)


def _folded_columns(folded: pd.DataFrame, n_states: int) -> Columns:
    """Return bytes of the unlisted buffers, alive at each state where they change, by category."""
    if folded.empty:
        return {}
    codes = _category_codes(folded["category"])
    temporary = _CATEGORIES.index(Category.TEMPORARY.value)
    born = folded["born"].to_numpy(dtype=np.int64) + 1
    dies = folded["dies"].to_numpy(dtype=np.int64) + 1
    turns = (folded["turns_at"].astype("Int64") + 1).fillna(pd.Series(born, index=folded.index))
    turns_at = np.minimum(turns.to_numpy(dtype=np.int64), dies)
    columns: Columns = {}
    for measure in ("requested", "allocated"):
        sizes = folded[f"{measure}_bytes"].to_numpy(dtype=np.int64)
        change = np.zeros((len(_CATEGORIES), n_states + 1), dtype=np.int64)
        np.add.at(change[temporary], born, sizes)
        np.add.at(change[temporary], turns_at, -sizes)
        np.add.at(change, (codes, turns_at), sizes)
        np.add.at(change, (codes, np.minimum(dies, n_states)), -sizes)
        alive = np.cumsum(change, axis=1)[:, :n_states]
        if measure == "allocated":
            columns["folded_allocated"] = alive.sum(axis=0)
            continue
        for code, name in enumerate(_CATEGORIES):
            columns[f"folded_{name}"] = alive[code]
    return columns


def _neighbour_columns(around: Neighbours, strings: StringTable) -> Columns:
    return {
        "graph_tensor": np.array([strings.place(name) for name in around.tensors], dtype=np.int64),
        "graph_producer": np.array(around.producers, dtype=np.int64),
        "graph_offset": np.array(around.consumer_offsets, dtype=np.int64),
        "graph_consumer": np.array(around.consumers, dtype=np.int64),
        "use_offset": np.array(around.use_offsets, dtype=np.int64),
        "use_state": np.array(around.uses, dtype=np.int64),
    }
