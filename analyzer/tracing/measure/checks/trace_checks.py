"""Is a trace whole? What was checked of it, and what of it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analyzer.model.recording.records import Damage, Integrity, Step
from analyzer.model.units import GRANULE_BYTES, times
from analyzer.tracing.measure.checks.allocator_books import accounts_of, books_of, damages_of
from analyzer.tracing.measure.checks.step_marks import damages_of_marks
from analyzer.tracing.measure.variable_buffers import AddressIndex, size_of
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import MARKER_PREFIX, RawTrace


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
            *_of_variables(raw, allocations, steps, note),
        ),
    )


def _of_variables(
    raw: RawTrace, allocations: pd.DataFrame, steps: Sequence[Step], note: RunNote | None
) -> Iterator[Damage]:
    """Yield variables whose buffer has not their size, or is another one when the next step begins."""
    looks = [span for span in raw.markers if span.name == f"{MARKER_PREFIX}snapshot"]
    if note is None or len(looks) != len(note.snapshots):
        return
    clock = raw.events["time_ps"].to_numpy()
    index = AddressIndex(allocations)
    requested = allocations["requested_bytes"].to_numpy()
    resized, moved = set(), set()
    for turn, (look, snapshot) in enumerate(zip(looks, note.snapshots, strict=True)):
        instant = int(np.searchsorted(clock, look.start_ps, side="left")) - 1
        # A program's own steps are looked at before the first and after the last alone.
        follows = turn < len(steps) and (note.watch is None or not turn)
        begins = steps[turn].first - 1 if follows else instant
        for address, variable in zip(snapshot, note.variables, strict=False):
            size_bytes = size_of(variable)
            if address is None or not size_bytes:
                continue
            row = index.at(address, instant)
            if row is not None and not _may_hold(int(requested[row]), size_bytes):
                resized.add(variable.path)
            if row != index.at(address, begins):
                moved.add(variable.path)
    for name, found, text in (
        (
            "variable-of-other-size",
            resized,
            "variables lie in buffers of other bytes than they have",
        ),
        (
            "variable-moved",
            moved,
            "variables move between a note of their place and the step after",
        ),
    ):
        if found:
            yield Damage(id=name, count=len(found), message=f"{text} ({times(len(found))}).")


def _may_hold(buffer_bytes: int, size_bytes: int) -> bool:
    """Say whether a variable of ``size_bytes`` may lie in a buffer.

    It may share a larger one with what it was cut from, but no smaller one; nor one of other bytes in as
    many granules, which a slice would take only by chance.
    """
    granules = [-(-size // GRANULE_BYTES) for size in (buffer_bytes, size_bytes)]
    return buffer_bytes == size_bytes or granules[0] > granules[1]
