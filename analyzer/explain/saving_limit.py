"""The limit that savings are compared with, for findings and for saved reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analyzer.model.contract.report_file import (
    Device,
    PeakFigures,
    ProgramFigures,
    VerdictFigures,
)
from analyzer.model.contract.run_note import WatchNote

if TYPE_CHECKING:
    from analyzer.model.recording.timeline import Peak


def limit_of(
    verdict: VerdictFigures,
    device: Device,
    program: WatchNote | ProgramFigures | None,
    peak: Peak | PeakFigures,
) -> int:
    """Return the limit of the verdict or the card, else the process, the need or the peak."""
    sizes = (
        verdict.limit_bytes,
        device.memory_limit_bytes if device.kind == "gpu" else None,
        program.process_peak_bytes if program else None,
        verdict.need_bytes,
    )

    return next(filter(None, sizes), max(peak.allocated_bytes, 1))
