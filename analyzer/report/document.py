"""Build the report of an analysis: typed records, which are the JSON, version 1."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis, card_uses
from analyzer.explain.buffer_words import buffer_row, why_alive
from analyzer.explain.need import first_step_only_bytes
from analyzer.explain.questions.out_of_memory import failure_of
from analyzer.explain.questions.peak_owner import peak_op
from analyzer.explain.questions.retained_tensors import retained_rows
from analyzer.explain.running.data_held import program_figures
from analyzer.explain.trace_integrity import find_counter_peak, trace_start_ps, trust_figures
from analyzer.explain.verdict import FITS, stated_range
from analyzer.model.choice import Category
from analyzer.model.contract.report.limit_figures import FragmentationFigures
from analyzer.model.contract.report.peak_figures import (
    CategoryBytes,
    LayerBytes,
    LiveBytes,
    OpBytes,
    PeakEver,
    PeakFigures,
    StepPeak,
    TensorAtPeak,
)
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.recording.records import Step
from analyzer.model.recording.timeline import alive_at, category_codes
from analyzer.model.units import format_bytes

_COLUMNS: Final = 56
_MOST_LINES: Final = 8
_MOST_REGIONS: Final = 4
_FREE: Final = "."


def draw_pool(analysis: Analysis) -> tuple[str, ...]:
    """Return the lines of the map; empty for a recording without addresses.

    Each character stands for an equal part of the address range that the trace uses, and shows the
    category at its middle, or a dot if that is free. A gap in the addresses begins a new region.
    """
    rows = analysis.rows
    if rows.empty or rows["address"].isna().any():
        return ()
    regions = _find_regions(rows)
    sizes = regions[:, 1] - regions[:, 0]
    cell_bytes = max(-(-int(sizes.sum()) // (_COLUMNS * (_MOST_LINES - _MOST_REGIONS))), 256)
    alive = alive_at(rows, analysis.peak.allocated_instant).sort_values("address")
    largest = np.argsort(-sizes, kind="stable")[:_MOST_REGIONS]
    lines = [
        cells[start : start + _COLUMNS]
        for first, last in regions[largest]
        for cells in [_draw_region(alive, np.arange(first + cell_bytes // 2, last, cell_bytes))]
        for start in range(0, len(cells), _COLUMNS)
    ]
    left_bytes = int(sizes.sum() - sizes[largest].sum())
    used = [one for one in Category if any(_letter(one) in line for line in lines)]
    legend = ", ".join(f"{_letter(one)} {str(one).replace('_', ' ')}" for one in used)
    rest = f"; {format_bytes(left_bytes)} in smaller regions" if left_bytes else ""
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


def _draw_region(alive: pd.DataFrame, addresses: np.ndarray) -> str:
    """Return a character for each address; ``alive`` is in order of address."""
    starts = alive["address"].to_numpy(dtype=np.int64)
    place = np.searchsorted(starts, addresses, side="right") - 1
    ends = np.append(starts + alive["allocated_bytes"].to_numpy(), 0)  # the last is for place -1
    codes = np.append(category_codes(alive["category"], [one.value for one in Category]), 0)
    letters = np.array([*map(_letter, Category)])[codes[place]]
    return "".join(np.where(ends[place] > addresses, letters, _FREE))


def build_document(analysis: Analysis) -> ReportFile:
    """Return the report of one analysis."""
    recording = analysis.recording
    requested, allocated = analysis.line.at(analysis.first - 1)
    verdict = analysis.verdict
    return ReportFile(
        kind=recording.kind,
        target=recording.target,
        device=recording.device,
        step=recording.step_config,
        allocator=recording.allocator,
        peak=_peak(analysis),
        peak_ever=_peak_ever(analysis),
        steps=_steps(analysis),
        resident=LiveBytes(requested_bytes=requested, allocated_bytes=allocated),
        categories_at_peak=CategoryBytes.of(analysis.categories),
        layers=layer_rows(analysis),
        ops=op_rows(analysis),
        tensors_at_peak=tensor_rows(analysis),
        retained=tuple(retained_rows(analysis)),
        fragmentation=_fragmentation(analysis),
        pool_timeline=analysis.pool.pool_timeline,
        verdict=verdict,
        fits=None if verdict is None else FITS.get(verdict.outcome),
        fit=analysis.pool.fit,
        what_if=analysis.pool.what_if,
        findings=analysis.findings,
        unmodelled=recording.unmodelled,
        uncertainty=stated_range(analysis),
        integrity=trust_figures(analysis),
        warnings=recording.warnings,
        notes=recording.notes,
        phantom=recording.phantom,
        cards=card_uses(analysis),
        error=recording.error,
        failure=failure_of(analysis),
        program=program_figures(recording),
        versions=recording.versions,
    )


def _peak(analysis: Analysis) -> PeakFigures:
    peak = analysis.peak
    op, layer, source = peak_op(analysis)
    events = analysis.recording.events
    measured = analysis.recording.kind.ran

    def time_of(instant: int) -> int | None:
        return int(events["time_ps"].iloc[instant]) if measured and instant >= 0 else None

    start_ps = trace_start_ps(analysis.recording)
    time_ps, requested_ps = time_of(peak.allocated_instant), time_of(peak.requested_instant)
    return PeakFigures(
        requested_bytes=peak.requested_bytes,
        allocated_bytes=peak.allocated_bytes,
        pool_bytes=analysis.pool.pool_bytes,
        process_bytes=analysis.pool.process_bytes,
        op=op,
        layer=layer,
        source=source,
        step=None if analysis.step is None else analysis.step.index,
        time_s=None if time_ps is None else (time_ps - start_ps) / 1e12,
        time_ps=time_ps,
        requested_time_s=None if requested_ps is None else (requested_ps - start_ps) / 1e12,
        instant=peak.requested_instant,
        allocated_instant=peak.allocated_instant,
    )


def _peak_ever(analysis: Analysis) -> PeakEver:
    ever = analysis.peak_ever
    return PeakEver(
        requested_bytes=ever.requested_bytes,
        allocated_bytes=ever.allocated_bytes,
        pool_bytes=analysis.pool.pool_ever_bytes,
        first_step_only_bytes=first_step_only_bytes(analysis),
        phase=_phase_at(ever.allocated_instant, analysis.recording.steps),
        since_start_bytes=find_counter_peak(analysis.recording),
    )


def _phase_at(instant: int, steps: tuple[Step, ...]) -> str:
    """Return the step or phase of an instant in words."""
    if not steps:
        return "whole trace"
    if instant < steps[0].first:
        return "before the first step"
    inside = [step.index for step in steps if step.first <= instant <= step.last]
    return f"step {inside[-1]}" if inside else "between steps"


def _steps(analysis: Analysis) -> tuple[StepPeak, ...]:
    line = analysis.line
    return tuple(
        StepPeak(
            index=step.index,
            number=step.number,
            requested_bytes=int(line.requested[inside].max()),
            allocated_bytes=int(line.allocated[inside].max()),
            duration_s=step.duration_s,
            first_instant=step.first,
            last_instant=step.last,
        )
        for step in analysis.recording.steps
        for inside in [slice(max(step.first, 0), max(step.last, step.first - 1) + 2)]
    )


def _fragmentation(analysis: Analysis) -> FragmentationFigures:
    waste, pool = analysis.fragmentation, analysis.pool
    ratio = waste.reported_ratio
    share = waste.internal_bytes / max(analysis.peak.allocated_bytes, 1)
    peak, ever = analysis.peak, analysis.peak_ever
    is_steady = ever.requested_bytes == peak.requested_bytes
    steps = analysis.recording.steps
    reached_in = None if is_steady else _phase_at(ever.requested_instant, steps)
    return FragmentationFigures(
        internal_bytes=waste.internal_bytes,
        rounding_bytes=waste.rounding_bytes,
        unsplit_bytes=waste.unsplit_bytes,
        external_bytes=waste.external_bytes,
        free_bytes=waste.free_bytes,
        largest_free_bytes=waste.largest_free_bytes,
        reported_ratio=ratio if ratio is not None and math.isfinite(ratio) else None,
        minimum_limit_bytes=pool.minimum_limit_bytes,
        safe_limit_bytes=pool.safe_limit_bytes,
        minimum_limit_parts=pool.minimum_limit_parts,
        safe_limit_parts=pool.safe_limit_parts,
        limit_reached_in=reached_in,
        replay_equals_trace=pool.replay_equals_trace,
        risk="low" if share < 0.05 else "medium" if share < 0.2 else "high",
        pool_map=draw_pool(analysis),
    )


def tensor_rows(analysis: Analysis) -> tuple[TensorAtPeak, ...]:
    """Return the buffers alive at the requested peak, largest first."""
    alive = analysis.alive.sort_values(
        ["requested_bytes", "born"], ascending=[False, True], kind="stable"
    )
    end = len(analysis.recording.events)
    return tuple(
        buffer_row(
            row,
            TensorAtPeak,
            born=int(row["born"]),
            dies=int(row["dies"]),
            why_alive=why_alive(row, analysis.uses.get(int(index)), end=end),
        )
        for index, row in zip(alive.index, alive.to_dict("records"), strict=True)
    )


def op_rows(analysis: Analysis) -> tuple[OpBytes, ...]:
    """Return the bytes of each op in the steady step, and those alive at the peak."""
    rows = analysis.rows
    inside = rows[(rows["born"] >= analysis.first) & (rows["born"] <= analysis.last)]
    inside = inside[inside["op"] != ""]
    requested = inside["requested_bytes"]
    is_alive = inside.index.isin(analysis.alive.index)
    work = inside[["op", "requested_bytes", "allocated_bytes"]].assign(
        temporary_bytes=requested.where(inside["category"] == "temporary", 0),
        alive_at_peak_bytes=requested.where(is_alive, 0),
        allocations=1,
    )
    sums = work.groupby("op", observed=True).sum()
    sums = sums.sort_values(["alive_at_peak_bytes", "requested_bytes"], ascending=False)
    first = inside.drop_duplicates("op").set_index("op")[["op_type", "layer", "source"]]
    about = first.astype(str).to_dict("index")
    by_category = inside.groupby(["op", "category"], observed=True)["requested_bytes"].sum()
    largest = by_category.sort_values().reset_index().drop_duplicates("op", keep="last")
    category_of = dict(zip(largest["op"], largest["category"], strict=True))
    return tuple(
        OpBytes(
            name=str(op),
            type=about[op]["op_type"],
            layer=about[op]["layer"],
            source=about[op]["source"],
            category=Category(category_of[op]),
            **{name: int(value) for name, value in zip(sums.columns, values, strict=True)},
        )
        for op, values in zip(sums.index, sums.to_numpy(), strict=True)
    )


def layer_rows(analysis: Analysis) -> tuple[LayerBytes, ...]:
    """Return the requested bytes of each layer alive at the peak, by category."""
    kinds = ["layer", "category"]
    sums = analysis.alive.groupby(kinds, observed=True)["requested_bytes"].sum()
    layers: dict[str, dict[str, int]] = {}
    for (layer, category), size_bytes in sums.items():
        layers.setdefault(str(layer), {})[str(category)] = int(size_bytes)
    rows = [
        LayerBytes(layer=layer, **categories, total_bytes=sum(categories.values()))
        for layer, categories in layers.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.total_bytes))
