"""What recomputing activations in the backward pass would save.

The forward pass is cut into stretches, as ``tf.recompute_grad`` around some layers cuts it. Of each
stretch only the first activation is kept, its input; the others die at the end of the stretch and
come back when the backward pass first needs one of them. The lifetimes are those of the table, so that
the order of the ops is taken to stay as it is; scratch of the second forward pass is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.savings import Instants, saved_without
from analyzer.model.contract.categories import Category

STRETCHES: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of stretches that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """The cut of the forward pass that saves most.

    Attributes:
        saves_bytes: Requested bytes by which the peak falls; 0 where no cut lowers it.
        stretches: The number of stretches of that cut.
        half_saves_bytes: By how much it falls where the activations are half as large, as with half
            the batch; what else shrinks with the batch comes on top.
    """

    saves_bytes: int
    stretches: int
    half_saves_bytes: int


def recomputation(analysis: Analysis) -> Recomputation:
    """Try cuts of the steady step's forward pass and return the one that saves most."""
    kept = _kept(analysis)
    if kept.empty:
        return Recomputation(saves_bytes=0, stretches=0, half_saves_bytes=0)
    sizes, born, dies = (
        kept[name].to_numpy(dtype=np.int64) for name in ("requested_bytes", "born", "dies")
    )
    best, stretches = 0, 0
    for count in (count for count in STRETCHES if count <= len(kept)):
        saved = saved_without(analysis, *_gone(sizes, born, dies, count))
        if saved > best:
            best, stretches = saved, count
    half = saved_without(analysis, sizes // 2, born, dies)
    return Recomputation(saves_bytes=best, stretches=stretches, half_saves_bytes=half)


def _kept(analysis: Analysis) -> pd.DataFrame:
    """Return the steady step's activations, in order of birth."""
    rows = analysis.rows
    inside = (rows["born"] >= analysis.first) & (rows["born"] <= analysis.last)
    chosen = inside & (rows["category"] == Category.ACTIVATION.value) & (rows["variable"] == "")
    return rows[chosen].sort_values("born", kind="stable")


def _gone(
    sizes: Instants, born: Instants, dies: Instants, count: int
) -> tuple[Instants, Instants, Instants]:
    """Return sizes and times of absence where the forward pass is cut into ``count`` stretches.

    Each stretch holds about as many bytes as another. It is back one instant before the first of its
    activations dies, which is when the backward pass works on it.
    """
    before = np.cumsum(sizes) - sizes
    stretch = before * count // max(int(sizes.sum()), 1)
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    ends = np.append(starts[1:], len(sizes))
    gone_from, gone_until = np.empty_like(born), np.empty_like(born)
    for start, end in zip(starts, ends, strict=True):
        gone_from[start:end] = born[end - 1] + 1
        gone_until[start:end] = dies[start:end].min() - 1
    dropped = sizes.copy()
    dropped[starts] = 0
    return dropped, gone_from, gone_until
