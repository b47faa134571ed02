"""Is a trace whole? What was checked of it, and what of it cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analyzer.measure.books import accounts_of, books_of, damages_of
from analyzer.measure.marks import damages_of_marks
from analyzer.model import Integrity, Step
from analyzer.parse.run import RunNote
from analyzer.parse.xplane import RawTrace


def check(
    raw: RawTrace, allocations: pd.DataFrame, steps: Sequence[Step], note: RunNote | None
) -> Integrity:
    """Check a trace against what TensorFlow wrote into it about itself.

    Args:
        raw: The trace.
        allocations: The buffers that were made of its events, those from before it among them.
        steps: The steps that were made of its marks.
        note: The note of our own capture, None for a trace of others.

    Raises:
        TraceError: a size is below 0 or above what any machine has.
    """
    whole = note is not None and note.from_process_start
    accounts = accounts_of(raw.events)
    return Integrity(
        books=tuple(books_of(account, allocations, len(raw.events)) for account in accounts),
        damages=(
            *raw.damages,
            *(
                damage
                for account in accounts
                for damage in damages_of(account, raw.events, from_process_start=whole)
            ),
            *damages_of_marks(raw, steps, note),
        ),
    )
