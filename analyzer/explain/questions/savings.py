"""Estimate a saving: how far the peak falls without some buffers, and its severity.

The timeline of requested bytes is computed again without the buffers while they would be gone; the
saving is the difference of the two maxima. So a buffer that is large at the peak saves little if
another instant is nearly as high.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from analyzer.model.recording.records import Severity
from analyzer.model.recording.timeline import running_sum

if TYPE_CHECKING:
    from analyzer.explain.analysis import Analysis  # which imports the findings on fragmentation

Instants = npt.NDArray[np.int64]

HIGH: Final = 0.2
MEDIUM: Final = 0.05
LOW: Final = 0.01
"""Saving, as a share of the peak, from which on a finding has that severity; a note below ``LOW``."""

FLOOR_BYTES: Final = 64 << 10
"""A smaller saving has low severity at most, however small the step is."""


def severity_of(saves_bytes: int, peak_bytes: int) -> Severity:
    """Return the severity of a saving; both sizes are of the same kind of bytes."""
    share = saves_bytes / max(peak_bytes, 1)
    if share < LOW:
        return Severity.INFO
    if share < MEDIUM or saves_bytes < FLOOR_BYTES:
        return Severity.LOW
    return Severity.MEDIUM if share < HIGH else Severity.HIGH


def saved_without(
    analysis: Analysis,
    sizes: Sequence[int] | Instants,
    gone_from: Sequence[int] | Instants,
    gone_until: Sequence[int] | Instants,
) -> int:
    """Return how far the steady step's requested peak falls if buffers are absent for a while.

    Inside a compiled step only bytes that hold a value count: the compiler would use another layout
    of its buffer.

    Args:
        analysis: The analysis with the timeline.
        sizes: Requested bytes of each buffer, shape ``(n,)``.
        gone_from, gone_until: The instants of the absence; the second one is excluded.
    """
    first, last = analysis.first, analysis.last
    window = slice(first + 1, last + 2)
    held = (analysis.line.requested - analysis.line.idle)[window]
    count = len(held)
    start = np.clip(np.asarray(gone_from, dtype=np.int64) - first, 0, count)
    end = np.clip(np.asarray(gone_until, dtype=np.int64) - first, 0, count)
    size = np.where(end > start, np.asarray(sizes, dtype=np.int64), 0)
    gone = running_sum(start - 1, end - 1, size, count - 1)
    return int(held.max()) - int((held - gone).max())
