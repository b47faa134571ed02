"""What is said of the hosts of one run together: the part ``hosts`` of a report."""

from __future__ import annotations

from analyzer.model.contract.fields import Name, Text
from analyzer.model.contract.report.figures import ReportRecord, Total


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
