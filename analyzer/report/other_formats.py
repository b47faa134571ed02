"""Write a result for other tools: the graph, Chrome trace events, CSV and Parquet."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.model.choice import Category
from analyzer.model.errors import InputError
from analyzer.model.graph.networkx_graph import to_node_link
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import category_sums, main_allocator_rows
from analyzer.model.tables import read_table
from analyzer.report.output_files import output_file, write_text
from analyzer.report.untrusted import csv_cell

if TYPE_CHECKING:
    from analyzer.report.result import Result


EXPORTS: Final = read_table("report/labels.toml", dict[str, dict[str, str]])["export"]
"""Ending of an exported file -> its content."""

SLICES: Final = 2_000
"""Buffers drawn as slices: the largest by bytes x lifetime. The counters include all buffers."""

_PROCESS: Final = 1  # number of the only process in the file


def check_export(path: Path) -> None:
    """Refuse a file with an unknown ending, or that needs a package which is not installed."""
    if not path.name.endswith(tuple(EXPORTS)):
        raise InputError(
            f"{path} has an ending without a format.",
            hint=f"Use one of {', '.join(EXPORTS)}.",
        )
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(
            "Parquet needs pyarrow, which is not installed.",
            hint="Run: pip install pyarrow, or write CSV instead.",
        )


def export(result: Result, path: Path) -> None:
    """Write a file in the format of its ending, one of ``EXPORTS``."""
    check_export(path)
    if path.name.endswith(".graph.json"):
        if result.graph is None:
            raise InputError(
                "This trace has no graph.", hint="Capture it: analyze trace MODEL."
            )

        write_text(path, to_node_link(result.graph))
    elif path.name.endswith(".perfetto.json"):
        write_text(path, chrome_trace(result.recording))
    else:
        with output_file(path) as temporary:
            write_parquet(result.recording, temporary)


def chrome_trace(recording: Recording) -> str:
    """Return Chrome trace events as JSON for Perfetto and ``chrome://tracing``.

    There is one counter with a series for each category, one for allocated bytes, and slices for the
    largest buffers. Time is in microseconds; a prediction has no time and uses 1 us per instant.
    """
    table = main_allocator_rows(recording)
    times_us = _times_us(recording, table)
    process = {"name": f"{recording.device.name} {recording.allocator}"}
    events = [{"ph": "M", "name": "process_name", "pid": _PROCESS, "args": process}]
    events += _counters(table, times_us)
    events += _slices(table, times_us)
    for step in recording.steps:
        if step.last >= step.first:
            name = f"step {step.index if step.number is None else step.number}"
            events.append(_span(name, 0, times_us[[step.first + 1, step.last + 1]]))

    content = {"traceEvents": events, "displayTimeUnit": "ms"}
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def _span(
    name: str, row: int, ends_us: npt.NDArray[np.float64], **more: Any
) -> dict[str, Any]:
    start, end = map(float, ends_us)
    place = {"pid": _PROCESS, "tid": row, "ts": start, "dur": end - start}
    return {"ph": "X", "name": name, **place, **more}


def write_csv(analysis: Analysis, path: Path) -> None:
    """Write every allocation of the allocator as CSV, in order of birth.

    ``alive_at_peak`` says whether the buffer is alive at the requested peak. Names in a trace are
    untrusted: a text that a spreadsheet would run as a formula starts with an apostrophe.
    """
    rows = analysis.rows.sort_values("born", kind="stable")
    rows = rows.assign(alive_at_peak=rows.index.isin(analysis.alive.index))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(list(rows.columns))
        for values in rows.astype(object).itertuples(index=False, name=None):
            writer.writerow(map(csv_cell, values))


def write_parquet(recording: Recording, path: Path) -> None:
    """Write each buffer as a row of Parquet; half a surrogate pair becomes a question mark."""
    table = recording.allocations.copy()
    for name in table.columns[table.dtypes == "category"]:
        texts = table[name].astype(object)
        clean = texts.map(lambda text: str(text).encode("utf-8", "replace").decode())
        table[name] = clean.where(texts.notna(), None).astype("category")

    table.to_parquet(path, engine="pyarrow", index=False)


def _times_us(recording: Recording, table: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the time of each state in us, shape (n_events + 2,): before, each event, after."""
    if not recording.kind.ran or recording.events.empty:
        last = max(int(table["dies"].max()) if len(table) else 0, len(recording.events))
        return np.arange(-1, last + 1, dtype=np.float64)

    times = recording.events["time_ps"].to_numpy(dtype=np.float64) / 1e6
    return np.concatenate([times[:1], times, times[-1:]])


def _counters(
    table: pd.DataFrame, times_us: npt.NDArray[np.float64]
) -> Iterator[dict[str, Any]]:
    """Yield counter samples at each change, without categories that are never used."""
    requested, allocated = (
        category_sums(table, name, len(times_us) - 2)
        for name in ("requested_bytes", "allocated_bytes")
    )
    used = np.flatnonzero(requested.any(axis=1))
    shown = [str(list(Category)[code]) for code in used]
    sizes = np.vstack([requested, allocated.sum(axis=0)])

    for state in np.flatnonzero(np.diff(sizes, axis=1, prepend=0).any(axis=0)):
        common = {"ph": "C", "pid": _PROCESS, "ts": float(times_us[state])}
        args = dict(zip(shown, requested[used, state].tolist(), strict=True))
        yield {**common, "name": "requested bytes", "args": args}
        yield {
            **common,
            "name": "allocated bytes",
            "args": {"allocated": int(sizes[-1, state])},
        }


def _slices(
    table: pd.DataFrame, times_us: npt.NDArray[np.float64]
) -> Iterator[dict[str, Any]]:
    """Yield the largest buffers, each in the first row that is free at its birth."""
    weight = table["requested_bytes"] * (table["dies"] - table["born"]).clip(lower=1)
    largest = table.loc[weight.nlargest(SLICES).index].sort_values(
        "born", kind="stable"
    )
    free_from: list[int] = []

    for row in largest.itertuples():
        place = next(
            (i for i, dies in enumerate(free_from) if dies <= row.born), len(free_from)
        )
        free_from[place : place + 1] = [row.dies]
        sizes = {
            name: int(getattr(row, name))
            for name in ("requested_bytes", "allocated_bytes")
        }
        texts = {name: str(getattr(row, name)) for name in ("category", "layer", "op")}
        about = {**sizes, **texts, "shape": f"{row.dtype} {row.shape}".strip()}
        name = str(row.variable or row.tensor or row.op or "(no op)")
        ends_us = times_us[[row.born + 1, row.dies + 1]]
        yield _span(name, place + 1, ends_us, cat=texts["category"], args=about)
