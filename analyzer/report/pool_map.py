"""A text map of the pool at the allocated peak: which category each part of it holds."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.model.choice import Category
from analyzer.model.recording.timeline import alive_at, category_codes
from analyzer.model.units import format_bytes

_COLUMNS: Final = 56
_MOST_LINES: Final = 8
_MOST_REGIONS: Final = 4
_FREE: Final = "."


def draw_pool(analysis: Analysis) -> tuple[str, ...]:
    """Return the lines of the map; empty for a recording without addresses.

    Each character stands for an equal part of the address range that the trace uses, and shows the
    category with the most bytes in it, or a dot if most of it is free. A gap in the addresses begins a
    new region.
    """
    rows = analysis.rows
    if rows.empty or rows["address"].isna().any():
        return ()
    regions = _find_regions(rows)
    total = int((regions[:, 1] - regions[:, 0]).sum())
    cell_bytes = max(-(-total // (_COLUMNS * (_MOST_LINES - _MOST_REGIONS))), 256)
    alive = alive_at(rows, analysis.peak.allocated_instant)
    largest = regions[np.argsort(regions[:, 0] - regions[:, 1], kind="stable")[:_MOST_REGIONS]]
    lines = [
        cells[start : start + _COLUMNS]
        for first, last in largest
        for cells in [_draw_region(alive, int(first), int(last), cell_bytes)]
        for start in range(0, len(cells), _COLUMNS)
    ]
    shown = int((largest[:, 1] - largest[:, 0]).sum())
    used = [one for one in Category if any(_letter(one) in line for line in lines)]
    legend = ", ".join(f"{_letter(one)} {str(one).replace('_', ' ')}" for one in used)
    rest = f"; {format_bytes(total - shown)} in smaller regions" if shown < total else ""
    lines.append(f"{legend}, {_FREE} free; {format_bytes(cell_bytes)} a character{rest}")
    return tuple(lines)


def _letter(category: Category) -> str:
    return str(category)[0].upper()


def _find_regions(rows: pd.DataFrame) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the address ranges that the rows use, shape (n, 2); rows that touch share one."""
    order = np.argsort(rows["address"].to_numpy(dtype=np.int64), kind="stable")
    first = rows["address"].to_numpy(dtype=np.int64)[order]
    last = np.maximum.accumulate(first + rows["allocated_bytes"].to_numpy()[order])
    begins = np.flatnonzero(np.append(True, first[1:] > last[:-1]))
    ends = np.append(begins[1:] - 1, len(first) - 1)
    return np.stack([first[begins], last[ends]], axis=1)


def _draw_region(alive: pd.DataFrame, first: int, last: int, cell_bytes: int) -> str:
    """Return the characters of one region."""
    count = max(-(-(last - first) // cell_bytes), 1)
    names = [category.value for category in Category]
    held = np.zeros((len(names) + 1, count), dtype=np.int64)
    inside = alive[(alive["address"] >= first) & (alive["address"] < last)]
    begin = inside["address"].to_numpy(dtype=np.int64) - first
    end = np.minimum(begin + inside["allocated_bytes"].to_numpy(), last - first)
    # one entry for each buffer and each cell that it touches
    touched = -(-end // cell_bytes) - begin // cell_bytes
    row = np.repeat(np.arange(len(inside)), touched)
    cell = begin[row] // cell_bytes + np.arange(len(row)) - (touched.cumsum() - touched)[row]
    sizes = np.minimum(end[row], (cell + 1) * cell_bytes) - np.maximum(
        begin[row], cell * cell_bytes
    )
    np.add.at(held, (category_codes(inside["category"], names)[row], cell), sizes)
    room = np.full(count, cell_bytes)
    room[-1] = last - first - (count - 1) * cell_bytes
    held[-1] = room - held[:-1].sum(axis=0)
    letters = [*map(_letter, Category), _FREE]
    return "".join(letters[code] for code in held.argmax(axis=0))
