"""Memory that only the first step requests, for example to try algorithms.

TensorFlow tries cuDNN's algorithms at the first call of a convolution, and XLA tries matrix products
and convolutions during compilation, on guarded copies of their tensors (``redzone_allocator.h``). On a
small card the first step may not fit although the steady step does.
"""

from __future__ import annotations

from analyzer.explain.analysis import Analysis
from analyzer.model.contract.categories import Category
from analyzer.model.recording.timeline import alive_at


def first_step_only_bytes(analysis: Analysis) -> int:
    """Return the requested bytes of temporaries at the highest peak that no later step requests.

    0 if that instant is not in the first step, or there is only one step.
    """
    steps, instant = analysis.recording.steps, analysis.peak_ever.requested_instant
    if len(steps) < 2 or not steps[0].first <= instant <= steps[0].last:
        return 0
    rows = analysis.rows
    last = rows[rows["step"] == steps[-1].index]
    repeated = set(zip(last["op"].astype(str), last["requested_bytes"], strict=True))
    alive = alive_at(rows, instant)
    alive = alive[
        (alive["category"].astype(str) == Category.TEMPORARY.value)
        & (alive["dies"] <= steps[0].last)
        & (alive["born"] >= steps[0].first)
    ]
    asked = zip(alive["op"].astype(str), alive["requested_bytes"], strict=True)
    return sum(int(size) for op, size in asked if (op, size) not in repeated)
