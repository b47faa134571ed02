"""How much a finding matters: by what it saves, as a share of the peak."""

from __future__ import annotations

from typing import Final

from analyzer.model.recording.records import Severity

HIGH: Final = 0.2  # share of the peak that a finding saves
MEDIUM: Final = 0.05  # share of the peak that a finding saves
LOW: Final = 0.01
"""Shares of the peak from which on what is saved is of that severity; below the last it is a note."""

FLOOR_BYTES: Final = 64 << 10
"""What saves less is of no more than low severity, however small the step is."""


def severity_of(saves_bytes: int, peak_bytes: int) -> Severity:
    """Return how much a saving matters against the peak of the same kind of bytes."""
    share = saves_bytes / max(peak_bytes, 1)
    if share < LOW:
        return Severity.INFO
    if share < MEDIUM or saves_bytes < FLOOR_BYTES:
        return Severity.LOW
    return Severity.MEDIUM if share < HIGH else Severity.HIGH
