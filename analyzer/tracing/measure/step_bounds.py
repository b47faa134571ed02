"""Steps from step marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyzer.model.recording.records import Step
from analyzer.tracing.parse.xplane import Span


def find_steps(events: pd.DataFrame, markers: Sequence[Span]) -> tuple[Step, ...]:
    """Return the steps of the marks, in order of time.

    Marks may be nested (``fit`` inside a user's mark): only the outermost ones count. A mark that ends
    before it begins is ignored.

    Args:
        events: Table with the columns of ``EVENTS``.
        markers: Spans with a ``step_num`` statistic.
    """
    times = events["time_ps"].to_numpy()
    steps: list[Step] = []
    end_ps = -1
    for marker in sorted(markers, key=lambda span: (span.start_ps, -span.end_ps)):
        if marker.start_ps < end_ps or marker.end_ps < marker.start_ps:
            continue
        end_ps = marker.end_ps
        number = marker.stats.get("step_num")
        steps.append(
            Step(
                index=len(steps),
                number=int(number) if isinstance(number, int | float) else None,
                first=int(np.searchsorted(times, marker.start_ps, side="left")),
                last=int(np.searchsorted(times, marker.end_ps, side="right")) - 1,
                start_ps=marker.start_ps,
                end_ps=marker.end_ps,
            )
        )
    return tuple(steps)


def find_steps_of_births(born: np.ndarray, steps: Sequence[Step]) -> pd.arrays.IntegerArray:
    """Return the index of the step of each birth, missing outside steps.

    Args:
        born: Instants, int64, shape ``(n,)``.
        steps: The steps in order.
    """
    full = [step for step in steps if step.last >= step.first]
    if not full:
        return pd.arrays.IntegerArray(np.zeros(len(born), np.int64), np.ones(len(born), bool))
    first, last, index = np.array([(s.first, s.last, s.index) for s in full], dtype=np.int64).T
    # An instant that belongs to two steps counts for the later one.
    place = np.searchsorted(first, born, side="right") - 1
    outside = (place < 0) | (born > last[place])
    result = index[place]
    return pd.arrays.IntegerArray(np.where(outside, 0, result), outside)
