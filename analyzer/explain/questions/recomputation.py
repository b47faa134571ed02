"""Estimate the saving of recomputing activations in the backward pass.

The forward pass is cut into segments, as ``tf.recompute_grad`` around some layers does. Of each segment
only the first activation, its input, is kept; the others are freed at its end and computed again when
the backward pass needs one of them. The order of the ops stays the same; temporaries of the second
forward pass are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.savings import Instants, saved_without
from analyzer.model.choice import Category

SEGMENTS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of segments to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """The cut of the forward pass that saves most.

    Attributes:
        saves_bytes: Requested bytes by which the peak falls; 0 if no cut lowers it.
        segments: Number of segments of that cut.
        half_saves_bytes: How far the peak falls if the activations are half as large, as with half the
            batch; other tensors that shrink with the batch are not counted.
    """

    saves_bytes: int
    segments: int
    half_saves_bytes: int


def find_recomputation(analysis: Analysis) -> Recomputation:
    """Return the cut of the steady step's forward pass that saves most."""
    kept = _activations(analysis)
    if kept.empty:
        return Recomputation(saves_bytes=0, segments=0, half_saves_bytes=0)
    sizes, born, dies = (
        kept[name].to_numpy(dtype=np.int64) for name in ("requested_bytes", "born", "dies")
    )
    best, segments = 0, 0
    for count in (count for count in SEGMENTS if count <= len(kept)):
        saved = saved_without(analysis, *_absences(sizes, born, dies, count))
        if saved > best:
            best, segments = saved, count
    half = saved_without(analysis, sizes // 2, born, dies)
    return Recomputation(saves_bytes=best, segments=segments, half_saves_bytes=half)


def _activations(analysis: Analysis) -> pd.DataFrame:
    """Return the steady step's activations, in order of birth."""
    rows = analysis.rows
    inside = (rows["born"] >= analysis.first) & (rows["born"] <= analysis.last)
    chosen = inside & (rows["category"] == Category.ACTIVATION.value) & (rows["variable"] == "")
    return rows[chosen].sort_values("born", kind="stable")


def _absences(
    sizes: Instants, born: Instants, dies: Instants, count: int
) -> tuple[Instants, Instants, Instants]:
    """Return sizes and times of absence if the forward pass is cut into ``count`` segments.

    The segments hold about equally many bytes. A segment is back one instant before the first of its
    activations dies, because then the backward pass works on it.
    """
    before = np.cumsum(sizes) - sizes
    segment = before * count // max(int(sizes.sum()), 1)
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    ends = np.append(starts[1:], len(sizes))
    gone_from, gone_until = np.empty_like(born), np.empty_like(born)
    for start, end in zip(starts, ends, strict=True):
        gone_from[start:end] = born[end - 1] + 1
        gone_until[start:end] = dies[start:end].min() - 1
    dropped = sizes.copy()
    dropped[starts] = 0
    return dropped, gone_from, gone_until
