"""Steps with varying shapes, and the effect on the pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import evidence_row, in_brackets
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_SIZES: Final = 3
"""Different sizes of one op's output from which on its shape varies: a last, smaller batch makes two."""

_LEAST_RATIO: Final = 0.1  # difference between the steps' peaks, as a share of the largest peak

_ROWS: Final = 8


def find_varying_shapes(analysis: Analysis) -> Iterator[Finding]:
    """Report steps whose tensor sizes differ from step to step, with the range of their peaks."""
    steps, rows, watch = analysis.full_steps, analysis.rows, analysis.recording.watch
    made = rows.loc[rows["step"].notna() & (rows["op"] != ""), ["op", "step", "requested_bytes"]]
    if len(steps) < _SIZES or made.empty:
        return
    sizes = made.groupby(["op", "step"], observed=True)["requested_bytes"].max().unstack("step")
    is_growing = (sizes.diff(axis=1).iloc[:, 1:] > 0).all(axis=1)  # a tensor made of a growing list
    varied = sizes[(sizes.nunique(axis=1) >= _SIZES) & ~is_growing]
    peaks = [int(analysis.line.allocated[step.first + 1 : step.last + 2].max()) for step in steps]
    if varied.empty or max(peaks) - min(peaks) < _LEAST_RATIO * max(peaks):
        return
    ends = pd.DataFrame({"low": varied.min(axis=1), "high": varied.max(axis=1)}).astype(int)
    widths = (ends["high"] - ends["low"]).nlargest(_ROWS)
    sources = dict(zip(rows["op"].astype(str), rows["source"].astype(str), strict=True))
    where, step = ("", "") if watch is None else (watch.where, f"A step is {watch.step}. ")
    yield Finding(
        id="varying-shapes",
        severity=Severity.MEDIUM,
        title=f"Shapes vary from step to step in {len(varied)} op{'s' * (len(varied) != 1)}: the steps "
        f"peak at {format_bytes(min(peaks))} to {format_bytes(max(peaks))}{in_brackets(where)}",
        detail=f"{step}{_fragmentation_words(analysis)}A chunk freed by a short batch is too small for "
        "a longer one, so the pool grows beyond the need of the largest step, and a tf.function with "
        "fixed shapes is traced again for each shape. Pad to a few lengths (padded_batch, "
        "bucket_by_sequence_length) and drop the last partial batch (drop_remainder=True).",
        evidence=tuple(
            evidence_row(
                f"asks for {format_bytes(ends.low[op])} to {format_bytes(ends.high[op])}",
                name=str(op),
                where=sources[str(op)],
                size=int(size),
            )
            for op, size in widths.items()
        ),
    )


def _fragmentation_words(analysis: Analysis) -> str:
    """Return a sentence on the fragmentation of free memory at the end and at its worst."""
    events = analysis.recording.events
    ratios = events.loc[events["allocator"] == analysis.recording.allocator, "fragmentation"]
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return ""
    return (
        f"{ratios.iloc[-1]:.0%} of the free memory is outside the largest free chunk after the "
        f"traced steps, {ratios.max():.0%} at worst. "
    )
