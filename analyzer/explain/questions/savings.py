"""What the steady step's peak would be if some buffers lived shorter, and what that saves.

The timeline of the requested bytes is drawn again without the buffers' bytes in the stretches in which
they would be gone; what is saved is the difference of the two maxima. So a buffer that is large at the
peak saves little where another instant is nearly as high.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analyzer.explain.analysis import Analysis
from analyzer.model.recording.timeline import running_sum

Instants = npt.NDArray[np.int64]


def saved_without(
    analysis: Analysis,
    sizes: Sequence[int] | Instants,
    gone_from: Sequence[int] | Instants,
    gone_until: Sequence[int] | Instants,
) -> int:
    """Return by how much the steady step's requested peak falls where buffers are gone for a while.

    Inside a compiled step, whose one buffer holds all the while, what counts is what holds a value: the
    compiler lays the buffer out anew.

    Args:
        analysis: Its timeline is drawn again.
        sizes: Requested bytes of each buffer, shape ``(n,)``.
        gone_from, gone_until: The instants between which it is gone, the second one excluded.
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
