"""Write a result for other tools: graphs, Chrome trace events, stacks, CSV and Parquet."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.model.choice import Category
from analyzer.model.errors import InputError
from analyzer.model.graph.networkx_graph import to_graphml, to_node_link
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import category_sums, main_allocator_rows
from analyzer.report.flame_formats import write_pprof, write_speedscope
from analyzer.report.output_files import output_file, write_text
from analyzer.report.untrusted import csv_cell

if TYPE_CHECKING:
    from analyzer.report.result import Result

EXPORTS: Final = {
    ".graphml": "GraphML of ops and tensors",
    ".graph.json": "node-link JSON of ops and tensors",
    ".perfetto.json": "counters and lifetimes for Perfetto",
    ".speedscope.json": "the peak by layer for speedscope",
    ".pb.gz": "the step by layer for pprof",
    ".parquet": "every allocation",
}
"""Ending of an exported file -> its content."""

SLICES: Final = 2_000
"""Buffers drawn as slices: the largest by bytes x lifetime. The counters include all buffers."""

_PROCESS: Final = 1  # number of the only process in the file
_COUNTER_NAME: Final = "requested bytes"


def check_export(path: Path) -> None:
    """Refuse a file that cannot be exported.

    Raises:
        InputError: the ending is unknown, or pyarrow is not installed.
    """
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
    """Write a file in the format of its ending, one of ``EXPORTS``.

    Raises:
        InputError: the ending is unknown, the trace has no graph, or pyarrow is not installed.
    """
    check_export(path)
    is_graphml = path.suffix == ".graphml"
    if is_graphml or path.name.endswith(".graph.json"):
        if result.graph is None:
            raise InputError(
                "This trace has no graph.", hint="Capture it with `analyze trace MODEL`."
            )
        graph = result.graph
        write_text(path, to_graphml(graph) if is_graphml else to_node_link(graph))
    elif path.name.endswith(".perfetto.json"):
        write_text(path, chrome_trace(result.recording))
    elif path.name.endswith(".speedscope.json"):
        write_text(path, write_speedscope(result.analysis, result.report.target.text))
    else:
        with output_file(path) as temporary:
            if path.suffix == ".parquet":
                write_parquet(result.recording, temporary)
            else:
                temporary.write_bytes(write_pprof(result.analysis))


def chrome_trace(recording: Recording) -> str:
    """Return Chrome trace events as JSON for Perfetto and ``chrome://tracing``.

    There is one counter with a series for each category, one for allocated bytes, and slices for the
    largest buffers. Time is in microseconds; a prediction has no time and uses 1 us per instant.
    """
    table = main_allocator_rows(recording)
    times_us = _times_us(recording, table)
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": _PROCESS,
            "args": {"name": f"{recording.device.name} {recording.allocator}"},
        }
    ]
    events += _counters(table, times_us)
    events += _slices(table, times_us)
    events += [
        {
            "ph": "X",
            "name": f"step {step.index if step.number is None else step.number}",
            "pid": _PROCESS,
            "tid": 0,
            "ts": float(times_us[step.first + 1]),
            "dur": float(times_us[step.last + 1] - times_us[step.first + 1]),
        }
        for step in recording.steps
        if step.last >= step.first
    ]
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False, separators=(",", ":")
    )


def write_csv(analysis: Analysis, file: TextIO) -> None:
    """Write every allocation of the allocator as CSV, in order of birth.

    ``alive_at_peak`` says whether the buffer is alive at the requested peak. Names in a trace are
    untrusted: a text that a spreadsheet would run as a formula starts with an apostrophe.
    """
    rows = analysis.rows.sort_values("born", kind="stable")
    rows = rows.assign(alive_at_peak=rows.index.isin(analysis.alive.index))
    writer = csv.writer(file)
    writer.writerow(list(rows.columns))
    for values in rows.astype(object).itertuples(index=False, name=None):
        writer.writerow([csv_cell(value) for value in values])


def write_parquet(recording: Recording, path: Path) -> None:
    """Write the table of allocations as Parquet, one row for each buffer."""
    table = recording.allocations
    whole = {
        name: _replace_surrogates(table[name]) for name in table if table[name].dtype == "category"
    }
    table.assign(**whole).to_parquet(path, engine="pyarrow", index=False)


def _replace_surrogates(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of texts without lone surrogates, which no file can hold."""
    names = {str(text): str(text).encode("utf-8", "replace").decode() for text in column.unique()}
    if all(text == name for text, name in names.items()):
        return column
    return column.astype(object).map(lambda text: names[str(text)]).astype("category")


def _times_us(recording: Recording, table: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the time of each state in us, shape (n_events + 2,): before, each event, after."""
    if not recording.kind.ran or recording.events.empty:
        last = max(int(table["dies"].max()) if len(table) else 0, len(recording.events))
        return np.arange(-1, last + 1, dtype=np.float64)
    times = recording.events["time_ps"].to_numpy(dtype=np.float64) / 1e6
    return np.concatenate([times[:1], times, times[-1:]])


def _counters(table: pd.DataFrame, times_us: npt.NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Yield counter samples at each change, without categories that are never used."""
    n_states = len(times_us)
    names = [category.value for category in Category]
    allocated = category_sums(table, "allocated_bytes", n_states - 2).sum(axis=0)
    alive = np.vstack([category_sums(table, "requested_bytes", n_states - 2), allocated])
    used = np.flatnonzero(alive[:-1].any(axis=1))
    shown = [names[code] for code in used]
    for state in np.flatnonzero(np.diff(alive, axis=1, prepend=0).any(axis=0)):
        sizes = alive[used, state].tolist()
        common = {"ph": "C", "pid": _PROCESS, "ts": float(times_us[state])}
        yield {**common, "name": _COUNTER_NAME, "args": dict(zip(shown, sizes, strict=True))}
        allocated_bytes = int(alive[-1, state])
        yield {**common, "name": "allocated bytes", "args": {"allocated": allocated_bytes}}


def _slices(table: pd.DataFrame, times_us: npt.NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Yield the largest buffers, each in the first row that is free at its birth."""
    weight = table["requested_bytes"] * (table["dies"] - table["born"]).clip(lower=1)
    largest = table.loc[weight.nlargest(SLICES).index].sort_values("born", kind="stable")
    free_from: list[int] = []
    for row in largest.itertuples():
        place = next((i for i, dies in enumerate(free_from) if dies <= row.born), len(free_from))
        free_from[place : place + 1] = [row.dies]
        start, end = times_us[row.born + 1], times_us[row.dies + 1]
        yield {
            "ph": "X",
            "name": str(row.variable or row.tensor or row.op or "(no op)"),
            "cat": str(row.category),
            "pid": _PROCESS,
            "tid": place + 1,
            "ts": float(start),
            "dur": float(end - start),
            "args": {
                "requested_bytes": int(row.requested_bytes),
                "allocated_bytes": int(row.allocated_bytes),
                "category": str(row.category),
                "layer": str(row.layer),
                "op": str(row.op),
                "shape": f"{row.dtype} {row.shape}".strip(),
            },
        }
