"""What the steps of a program of the user's own did to memory, over all of them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from analyzer.model.contract.fields import Name, Text
from analyzer.model.contract.report.figures import ReportRecord, Total

MOST_READINGS: Final = 256
"""Readings that a report has."""

Slope = Annotated[float, Meta(ge=-1e18, le=1e18)]


class TrendFigures(ReportRecord, frozen=True, kw_only=True):
    """How what is held after each step goes on after the warm-up.

    Attributes:
        trend: ``grows``, ``flat`` or ``cannot tell``.
        per_step_bytes: Slope, bytes a step.
        low_bytes, high_bytes: Its range at 95 %.
        first_step, last_step: The steps that it was told from.
        level_bytes: What was held at the end.
    """

    trend: Literal["grows", "flat", "cannot tell"]
    per_step_bytes: Slope = 0.0
    low_bytes: Slope = 0.0
    high_bytes: Slope = 0.0
    first_step: Total = 0
    last_step: Total = 0
    level_bytes: Total = 0


class HeldReading(ReportRecord, frozen=True, kw_only=True):
    """What was held after one step.

    Attributes:
        step: How many steps had been made.
        in_use_bytes: In use in the device's allocator.
        host_bytes: Resident memory of the process; null where it was not read then.
    """

    step: Total
    in_use_bytes: Total
    host_bytes: Total | None = None


class ProgramFigures(ReportRecord, frozen=True, kw_only=True):
    """A program whose own steps were traced.

    Attributes:
        step: What a step is, in words.
        where: Where that is defined or called.
        steps, warmup: Steps made, and steps before the traced ones.
        device: What is in use in the device's allocator after each step.
        host: The process' resident memory.
        readings: What was held after steps, in order; thinned out where there were many.
        ended: How the program ended; empty for by itself.
    """

    step: Text
    where: Name = ""
    steps: Total
    warmup: Total
    device: TrendFigures
    host: TrendFigures
    readings: Annotated[tuple[HeldReading, ...], Meta(max_length=MOST_READINGS)] = ()
    ended: Text = ""
