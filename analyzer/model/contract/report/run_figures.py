"""The memory over all steps of a program, and the hosts of one run."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from analyzer.model.contract.fields import Name, ReportRecord, Text, Total

MOST_READINGS: Final = 256
"""Limit of the readings in a report."""

Slope = Annotated[float, Meta(ge=-1e18, le=1e18)]


class TrendFigures(ReportRecord, frozen=True, kw_only=True):
    """The trend of the memory in use after each step, without the warm-up.

    Attributes:
        trend: ``fills``: a bounded container or a stage of tf.data explains the growth.
        per_step_bytes: Slope, bytes a step.
        low_bytes, high_bytes: Range of the slope at 95 %.
    """

    trend: Literal["grows", "fills", "flat", "cannot tell"]
    per_step_bytes: Slope = 0.0
    low_bytes: Slope = 0.0
    high_bytes: Slope = 0.0
    first_step: Total = 0
    last_step: Total = 0
    level_bytes: Total = 0


class HeldReading(ReportRecord, frozen=True, kw_only=True):
    """Memory in use after one step."""

    step: Total
    in_use_bytes: Total
    host_bytes: Total | None = None


class ProgramFigures(ReportRecord, frozen=True, kw_only=True):
    """A program whose own steps were traced.

    Attributes:
        steps, warmup: Number of all steps, and of those before the traced ones.
        own_peak_bytes: TensorFlow's own peak since the program's start.
        whole_run: Whether the run counts as one step, because no call repeats.
    """

    step: Text
    where: Name = ""
    steps: Total
    warmup: Total
    device: TrendFigures
    host: TrendFigures
    readings: Annotated[tuple[HeldReading, ...], Meta(max_length=MOST_READINGS)] = ()
    ended: Text = ""
    own_peak_bytes: Total | None = None
    whole_run: bool = False
    micro_batches: Total = 1


class DevicePeak(ReportRecord, frozen=True, kw_only=True):
    """The peak of one device of a host, in its steady step."""

    allocator: Name
    requested_bytes: Total
    allocated_bytes: Total
    limit_bytes: Total | None = None


class HostRow(ReportRecord, frozen=True, kw_only=True):
    """One host."""

    host: Name
    file: Name
    devices: tuple[DevicePeak, ...] = ()
    events: Total = 0
    steps: Total = 0
    damaged: bool = False
    failed: Text = ""


class DevicePlace(ReportRecord, frozen=True, kw_only=True):
    """One device of one host.

    Attributes:
        differs_bytes: Its peak minus the median of all devices.
    """

    host: Name
    allocator: Name
    allocated_bytes: Total
    differs_bytes: int = 0


class HostsFigures(ReportRecord, frozen=True, kw_only=True):
    """A comparison of the hosts of one run. The rest of the report is about the worst one.

    Attributes:
        worst: The device nearest to its limit; the largest peak if a limit is unknown.
        outliers: Devices far from the median, the farthest first.
    """

    worst: DevicePlace
    devices: Total
    least_bytes: Total
    median_bytes: Total
    most_bytes: Total
    outliers: tuple[DevicePlace, ...] = ()
    rows: tuple[HostRow, ...] = ()
