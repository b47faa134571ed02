"""What the steps of a program of the user's own did to memory, over all of them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from analyzer.model.contract.fields import Name, ReportRecord, Text, Total

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


class DevicePeak(ReportRecord, frozen=True, kw_only=True):
    """The peak of one device of a host, in its steady step.

    Attributes:
        allocator: TensorFlow's name of its allocator.
        requested_bytes, allocated_bytes: The peaks.
        limit_bytes: What the allocator may use; None where the trace does not say.
    """

    allocator: Name
    requested_bytes: Total
    allocated_bytes: Total
    limit_bytes: Total | None = None


class HostRow(ReportRecord, frozen=True, kw_only=True):
    """One host.

    Attributes:
        host: Its name, as its trace is named.
        file: Name of its trace file.
        devices: Its devices; empty where its trace could not be read.
        events: Memory events of the trace.
        steps: Steps of the trace.
        damaged: The trace holds what an undamaged one cannot.
        failed: Why it could not be read; empty where it was.
    """

    host: Name
    file: Name
    devices: tuple[DevicePeak, ...] = ()
    events: Total = 0
    steps: Total = 0
    damaged: bool = False
    failed: Text = ""


class DevicePlace(ReportRecord, frozen=True, kw_only=True):
    """A device among those of all hosts.

    Attributes:
        host: Its host.
        allocator: Its allocator.
        allocated_bytes: Its peak.
        differs_bytes: By how much that lies above the median of all devices; below it is negative.
    """

    host: Name
    allocator: Name
    allocated_bytes: Total
    differs_bytes: int = 0


class HostsFigures(ReportRecord, frozen=True, kw_only=True):
    """The hosts of one run, beside each other. The rest of the report is about the worst of them.

    Attributes:
        worst: The device that comes closest to its limit, or with the largest peak where a limit is not
            known.
        devices: Number of devices whose peak is known.
        least_bytes, median_bytes, most_bytes: Their allocated peaks.
        outliers: The devices that lie far from the median, the furthest first.
        rows: All hosts, in the order of their names.
    """

    worst: DevicePlace
    devices: Total
    least_bytes: Total
    median_bytes: Total
    most_bytes: Total
    outliers: tuple[DevicePlace, ...] = ()
    rows: tuple[HostRow, ...] = ()
