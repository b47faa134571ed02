"""A recording for other people's tools: Chrome trace events, Markdown, Parquet.

Each function returns the text or writes the file; none counts anything anew.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.contract.categories import Category
from analyzer.model.contract.report.diff_file import BytesOfBoth, DiffFile
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.errors import InputError
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import category_sums, main_allocator_rows
from analyzer.model.units import format_bytes
from analyzer.report.page.verdict_words import CATEGORY_LABELS, first_screen
from analyzer.report.report_words import (
    front_findings,
    peak_limit_words,
    remedy_words,
    saving_words,
)
from analyzer.report.untrusted import markdown_code, markdown_text, plain_text

SLICES: Final = 2_000
"""Buffers that become slices: the largest by bytes x lifetime. The counters count all of them."""

_PROCESS: Final = 1  # number of the one process that Perfetto shows
_COUNTER_NAME: Final = "requested bytes"


def chrome_trace(recording: Recording) -> str:
    """Return Chrome trace events as JSON, which Perfetto and ``chrome://tracing`` open.

    One counter with a series for each category, one for the allocated bytes, and the largest buffers
    as slices in as few rows as hold them without overlap. Time is in microseconds; a prediction has
    no time, so one instant is shown as one microsecond.
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


def markdown(
    report: ReportFile,
    comparison: DiffFile | None = None,
    *,
    max_peak_bytes: int | None = None,
) -> str:
    """Return a summary for a pull request: the verdict, the categories, the first findings.

    Args:
        report: What is said of the step.
        comparison: What differs from another step; ``report`` is then that of the second one.
        max_peak_bytes: The allocated peak that is allowed; None for any.
    """
    screen = first_screen(report)
    lines = [f"### {markdown_text(screen.headline)}", ""]
    if report.phantom is not None:
        lines += [f"{markdown_text(report.phantom.says)}.", ""]
    if screen.cautions:
        lines += [f"**Caution:** {'; '.join(map(markdown_text, screen.cautions))}.", ""]
    lines += [" ".join(map(markdown_text, screen.sentences)), ""]
    if max_peak_bytes is not None:
        said = peak_limit_words(report.peak.allocated_bytes, max_peak_bytes)
        lines += [f"**{markdown_text(said)}**", ""]
    if comparison is not None:
        lines += [f"**{markdown_text(comparison.headline)}**", ""]
        lines += [markdown_text(note) for note in comparison.notes]
        lines += _comparison_rows(comparison)
    else:
        lines += ["| category at the peak | requested | share |", "|---|--:|--:|"]
        lines += [
            f"| {share.label} | {format_bytes(share.size_bytes)} | {share.share_ratio:.1%} |"
            for share in screen.shares
            if share.size_bytes
        ]
        lines += [f"| **requested** | **{format_bytes(report.peak.requested_bytes)}** | |"]
    lines += ["", *_finding_rows(report), *_remedy_rows(report)]
    lines += [f"> {markdown_text(warning)}" for warning in report.warnings]
    return "\n".join(lines).rstrip() + "\n"


def write_parquet(recording: Recording, path: Path) -> None:
    """Write the table of allocations, one row for each buffer.

    Raises:
        InputError: pyarrow is not installed.
    """
    require_pyarrow()
    table = recording.allocations
    whole = {name: _whole_texts(table[name]) for name in table if table[name].dtype == "category"}
    table.assign(**whole).to_parquet(path, engine="pyarrow", index=False)


def _whole_texts(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of texts without halves of characters, which no file can hold."""
    names = {str(text): str(text).encode("utf-8", "replace").decode() for text in column.unique()}
    if all(text == name for text, name in names.items()):
        return column
    return column.astype(object).map(lambda text: names[str(text)]).astype("category")


def require_pyarrow() -> None:
    """Refuse Parquet where nothing can write it.

    Raises:
        InputError: pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError(
            "Parquet needs pyarrow, which is not installed.",
            hint="Run: pip install pyarrow, or write CSV instead.",
        )


def _times_us(recording: Recording, table: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the microsecond of each state, shape (n_events + 2,): before, each event, after."""
    if not recording.kind.ran or recording.events.empty:
        last = max(int(table["dies"].max()) if len(table) else 0, len(recording.events))
        return np.arange(-1, last + 1, dtype=np.float64)
    times = recording.events["time_ps"].to_numpy(dtype=np.float64) / 1e6
    return np.concatenate([times[:1], times, times[-1:]])


def _counters(table: pd.DataFrame, times_us: npt.NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Yield a sample of each counter where something changes; categories never used are left out."""
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
    """Yield the largest buffers, each in the first row that is free when it is born."""
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


def _comparison_rows(comparison: DiffFile) -> list[str]:
    first, second = (markdown_text(side.label) for side in (comparison.a, comparison.b))
    rows = ["", f"| | {first} | {second} | difference |", "|---|--:|--:|--:|"]
    for row in comparison.peak:
        rows.append(_comparison_row(f"**{row.number}**", row))
    for each in comparison.categories:
        rows.append(_comparison_row(CATEGORY_LABELS[each.category], each))
    changed = [row for row in comparison.layers if row.delta_bytes][:5]
    return rows + [_comparison_row(markdown_code(row.name or "(no layer)"), row) for row in changed]


def _comparison_row(label: str, row: BytesOfBoth) -> str:
    sizes = (row.a_bytes, row.b_bytes, row.delta_bytes)
    a, b, delta = ("-" if size is None else format_bytes(size) for size in sizes)
    sign = "+" if (row.delta_bytes or 0) > 0 else ""
    return f"| {label} | {a} | {b} | {sign}{delta} |"


def _remedy_rows(report: ReportFile) -> list[str]:
    if not report.remedies:
        return []
    rows = ["Remedies, each captured and estimated anew:", ""]
    for each in report.remedies:
        saves, told = remedy_words(each)
        rows.append(f"- **{markdown_text(each.title)}**: {saves}; {markdown_text(told)}")
        if each.saves_bytes is not None:
            rows += ["", *(f"      {plain_text(line)}" for line in each.code.splitlines()), ""]
    return [*rows, ""]


def _finding_rows(report: ReportFile) -> list[str]:
    found = front_findings(report)
    if not found:
        return []
    rows = []
    for each in found:
        saves = saving_words(each)
        rows.append(
            f"1. **{each.severity}**: {markdown_text(each.title)}{f' ({saves})' if saves else ''}"
        )
    return ["What to change:", "", *rows, ""]
