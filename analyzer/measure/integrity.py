"""Is a trace whole? What was checked of it, and what of it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analyzer.measure.books import accounts_of, books_of, damages_of
from analyzer.measure.marks import damages_of_marks
from analyzer.measure.variables import AddressIndex, size_of
from analyzer.model import Damage, Integrity, Step
from analyzer.parse.run import RunNote
from analyzer.parse.xplane import MARKER_PREFIX, RawTrace
from analyzer.units import GRANULE_BYTES, times


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
            *_of_variables(raw, allocations, note),
        ),
    )


def _of_variables(
    raw: RawTrace, allocations: pd.DataFrame, note: RunNote | None
) -> Iterator[Damage]:
    """Yield variables whose buffer has not their size.

    A variable may share a larger buffer with what it was cut from, but no smaller one; nor one of other
    bytes in as many granules, which a slice would take only by chance.
    """
    looks = [span for span in raw.markers if span.name == f"{MARKER_PREFIX}snapshot"]
    if note is None or len(looks) != len(note.snapshots):
        return
    clock = raw.events["time_ps"].to_numpy()
    index = AddressIndex(allocations)
    requested = allocations["requested_bytes"].to_numpy()
    wrong = set()
    for look, snapshot in zip(looks, note.snapshots, strict=True):
        instant = int(np.searchsorted(clock, look.start_ps, side="left")) - 1
        for address, variable in zip(snapshot, note.variables, strict=False):
            size_bytes = size_of(variable)
            row = None if address is None or not size_bytes else index.at(address, instant)
            if row is None or size_bytes is None:
                continue
            found = int(requested[row])
            if found < size_bytes or (
                found != size_bytes
                and -(-found // GRANULE_BYTES) == -(-size_bytes // GRANULE_BYTES)
            ):
                wrong.add(variable.path)
    if wrong:
        yield Damage(
            id="variable-of-other-size",
            count=len(wrong),
            message=f"variables lie in buffers of other bytes than they have ({times(len(wrong))}).",
        )
