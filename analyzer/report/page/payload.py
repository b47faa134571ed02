"""The data of the page's script: the report, and the buffers as columns.

The page numbers *states*: state 0 is before the first event, state ``i + 1`` is after event ``i``. A
buffer is alive at state ``s`` if ``born <= s < dies``, so all columns are unsigned numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.fields import ReportRecord
from analyzer.model.contract.report.diff_file import DiffFile
from analyzer.model.contract.report.peak_figures import RetainedTensor, TensorAtPeak
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.writing import plain_report
from analyzer.model.recording.records import Recording, Step
from analyzer.model.recording.timeline import (
    category_codes,
    category_sums,
    main_allocator_rows,
    running_sum,
)
from analyzer.report.page.columns import StringTable
from analyzer.report.page.neighbours import Neighbours, neighbours

MAX_BUFFERS: Final = 200_000
"""Limit of the listed buffers; the smallest others by bytes x lifetime are only in the sums."""

_CATEGORIES: Final = [category.value for category in Category]
_FOLDED_COLUMNS: Final = (
    *("born", "dies", "turns_at"),
    *("category", "requested_bytes", "allocated_bytes"),
)
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
    report: ReportFile, recording: Recording, comparison: DiffFile | None
) -> tuple[dict[str, object], Columns]:
    """Return the header and the columns for ``pack``.

    Args:
        report: The report.
        recording: Its tables.
        comparison: The difference to an earlier step; None for the page of one step.
    """
    strings = StringTable()
    table = main_allocator_rows(recording)
    if not table["born"].is_monotonic_increasing:
        table = table.sort_values("born", kind="stable")
    n_states = len(recording.events) + 1
    if recording.events.empty and len(table):
        # A prediction without events: the last change is the last instant.
        n_states = int(table["dies"].max()) + 1
    kept = reduce_states(table, n_states, *_steady(recording))
    listed, folded = _split(table)
    del table
    why = _reasons(listed, strings, report)
    around = neighbours(recording.tensor_links, listed)
    if kept is not None:
        listed, folded, n_states = kept.table(listed), kept.table(folded), len(kept.states)
    columns = _buffer_columns(listed, strings)
    columns["why"] = why
    columns.update(_folded_columns(folded, n_states))
    if recording.kind.ran and not recording.events.empty:  # a prediction has no times
        time_ps = recording.events["time_ps"].to_numpy(dtype=np.int64)
        columns["time_ps"] = time_ps if kept is None else time_ps[kept.states[1:] - 1]
    columns.update(_neighbour_columns(around, strings))
    if kept is not None:
        columns["use_state"] = kept.instants(columns["use_state"] - 1) + 1
    header = {
        "document": _json_of(report) if kept is None else kept.document(_json_of(report)),
        "comparison": None if comparison is None else _json_of(comparison),
        "categories": _CATEGORIES,
        "states": n_states,
        "all_states": len(recording.events) + 1 if kept is not None else n_states,
        "address_base": _address_base(listed),
        "buffers": len(listed),
        "folded_buffers": len(folded),
        "steps": [
            {"index": step.index, "number": step.number, "first": first, "last": last}
            for step, first, last in _steps(recording, kept)
        ],
        "ops": around.ops,
        "strings": strings.texts,
    }
    return header, columns


def _steady(recording: Recording) -> tuple[int, int]:
    """Return the first and last instant of the steady step, or of the recording without steps."""
    steps = [step for step in recording.steps if step.last >= step.first]
    return (steps[-1].first, steps[-1].last) if steps else (0, len(recording.events) - 1)


def _steps(recording: Recording, kept: PageStates | None) -> list[tuple[Step, int, int]]:
    """Return each step with its first and last instant on the page."""
    if kept is None:
        return [(step, step.first, step.last) for step in recording.steps]
    ends = np.array([(step.first, step.last) for step in recording.steps], np.int64).reshape(-1, 2)
    places = kept.instants(ends).tolist()
    return [(step, *place) for step, place in zip(recording.steps, places, strict=True)]


def _json_of(report: ReportRecord) -> object:
    """Return a report as JSON values without U+0000, which HTML cannot contain."""
    return _without_nul(plain_report(report))


def _without_nul(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd") if "\0" in value else value
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    return value


def requested_at(recording: Recording, instant: int) -> dict[str, int]:
    """Return the requested bytes of each category at an instant, as the page draws them."""
    table = main_allocator_rows(recording)
    alive = table[(table["born"] <= instant) & (table["dies"] > instant)]
    categories = alive["category"].astype(str).to_numpy(dtype=object).copy()
    turned = alive["turns_at"].isna() | (alive["turns_at"].fillna(-1) <= instant)
    categories[~turned.to_numpy(dtype=bool)] = Category.TEMPORARY.value
    sums = alive["requested_bytes"].groupby(categories).sum()
    return {category: int(sums.get(category, 0)) for category in _CATEGORIES}


def _split(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    if len(table) <= MAX_BUFFERS:
        return table, table.loc[table.index[:0], list(_FOLDED_COLUMNS)]
    weight = table["requested_bytes"] * (table["dies"] - table["born"]).clip(lower=1)
    keep = np.zeros(len(table), dtype=bool)
    keep[np.argsort(-weight.to_numpy(), kind="stable")[:MAX_BUFFERS]] = True
    return table[keep], table.loc[~keep, list(_FOLDED_COLUMNS)]


def _buffer_columns(table: pd.DataFrame, strings: StringTable) -> Columns:
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
    return columns


def _category_codes(categories: pd.Series[Any]) -> npt.NDArray[np.int64]:
    codes = category_codes(categories, _CATEGORIES).astype(np.int64)
    codes[codes < 0] = _CATEGORIES.index(Category.UNATTRIBUTED.value)
    return codes


def _names(table: pd.DataFrame, strings: StringTable) -> npt.NDArray[np.int64]:
    """Return the place of each buffer's name: its variable, tensor, op or role."""
    names = np.zeros(len(table), dtype=np.int64)
    for column in ("variable", "tensor", "op", "role"):
        names = np.where(names > 0, names, strings.encode(table[column]))
    return np.where(names > 0, names, strings.place("unnamed"))


def _reasons(
    table: pd.DataFrame, strings: StringTable, report: ReportFile
) -> npt.NDArray[np.int64]:
    """Return the place of the text that says why a buffer is alive, from the report's rows."""
    reasons: dict[tuple[Any, ...], int] = {}
    rows: list[RetainedTensor | TensorAtPeak] = [*report.retained, *report.tensors_at_peak]
    for row in rows:
        if row.why_alive:
            key = (row.born, row.dies, row.requested_bytes)
            reasons[key] = strings.place(row.why_alive)
    if not reasons:
        return np.zeros(len(table), dtype=np.int64)
    keys = zip(table["born"], table["dies"], table["requested_bytes"], strict=True)
    return np.fromiter((reasons.get(key, 0) for key in keys), dtype=np.int64, count=len(table))


def _address_base(table: pd.DataFrame) -> int:
    known = table["address"].dropna()
    return int(known.min()) if len(known) else 0


def _addresses(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return offsets from the lowest address, plus one; 0 for an unknown address."""
    offsets = table["address"].astype("Int64") - _address_base(table) + 1
    return np.asarray(offsets.fillna(0), dtype=np.int64)


def _folded_columns(folded: pd.DataFrame, n_states: int) -> Columns:
    """Return the live bytes of unlisted buffers at each state, by category."""
    if folded.empty:
        return {}
    columns: Columns = {
        f"folded_{name}": sums
        for name, sums in zip(
            _CATEGORIES, category_sums(folded, "requested_bytes", n_states - 1), strict=True
        )
    }
    columns["folded_allocated"] = category_sums(folded, "allocated_bytes", n_states - 1).sum(axis=0)
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


MAX_STATES: Final = 500_000
"""Limit of the states: a page with a million states took more than 1 GiB in a browser."""

_INSTANTS: Final = ("instant", "allocated_instant")
_STRETCHES: Final = MAX_STATES // 2

States = npt.NDArray[np.int64]


class PageStates:
    """The states that a page shows.

    Attributes:
        states: Their numbers in the recording, in order, shape ``(n,)``; 0 is before the first event.
    """

    def __init__(self, states: States) -> None:
        self.states = states

    def instants(self, instants: States) -> States:
        """Return the page's instants for instants of the recording."""
        return np.searchsorted(self.states, instants + 1) - 1

    def table(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return rows of the allocations table with the page's instants."""
        moved = {name: self.instants(table[name].to_numpy()) for name in ("born", "dies")}
        turns = table["turns_at"].astype("Int64")
        missing = turns.isna().to_numpy()
        turned = self.instants(turns.fillna(0).to_numpy(dtype=np.int64))
        return table.assign(**moved, turns_at=pd.arrays.IntegerArray(turned, missing))

    def document(self, value: Any) -> Any:
        """Return a document's JSON values with the page's instants."""
        if isinstance(value, dict):
            return {
                key: int(self.instants(np.array([item]))[0])
                if key in _INSTANTS and isinstance(item, int)
                else self.document(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.document(item) for item in value]
        return value


def reduce_states(table: pd.DataFrame, states: int, first: int, last: int) -> PageStates | None:
    """Return the states of a recording that its page shows; None for all.

    Args:
        table: Rows of the allocations table.
        states: Number of states.
        first, last: Instants of the steady step.
    """
    if states <= MAX_STATES:
        return None
    live = running_sum(
        table["born"].to_numpy(),
        table["dies"].to_numpy(),
        table["requested_bytes"].to_numpy(),
        states - 1,
    )
    width = -(-states // _STRETCHES)
    whole = states // width * width
    tops = live[:whole].reshape(-1, width).argmax(axis=1) + np.arange(0, whole, width)
    step = np.arange(max(first, 0), min(last + 2, states))
    if len(step) > MAX_STATES - _STRETCHES:
        top = int(live[step].argmax())
        begin = max(min(top - _STRETCHES // 2, len(step) - _STRETCHES), 0)
        step = step[begin : begin + _STRETCHES]
    return PageStates(np.unique(np.concatenate([[0], tops, step, [states - 1]])))
