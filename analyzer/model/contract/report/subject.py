"""The subject of a report: kind, target, device, cards and errors."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from analyzer.model.choice import Choice
from analyzer.model.contract.capture_request import Assumption
from analyzer.model.contract.fields import (
    EvidenceRow,
    Name,
    ReportRecord,
    Signed,
    Text,
    Total,
)
from analyzer.model.contract.report.peak_figures import TwoSizes
from analyzer.model.contract.watch_note import Reading


class Kind(Choice):
    """Whether the figures are predicted, measured, or measured on a simulated card."""

    ESTIMATE = "estimate"
    TRACE = "trace"
    SIMULATED_CARD = "simulated_card"

    @property
    def ran(self) -> bool:
        """Whether TensorFlow ran the step, so that there are allocator events."""
        return self is not Kind.ESTIMATE


class Device(Struct, frozen=True, kw_only=True):
    """The device whose memory is counted."""

    kind: Name
    name: Name
    memory_limit_bytes: Total | None = None


class AssumedSetting(Assumption, frozen=True, kw_only=True):
    """An assumption about NVIDIA's libraries on a simulated card, and its value in this run."""

    value: Total


class CardUse(TwoSizes, frozen=True, kw_only=True):
    """The memory of one of several cards in the steady step; the report shows ``is_shown``."""

    number: Total
    allocator: Name
    card: Name
    memory_limit_bytes: Total | None
    is_shown: bool


class SimulatedCardNotice(ReportRecord, frozen=True, kw_only=True):
    """A run on simulated cards."""

    says: Text
    cards: tuple[Name, ...] = ()
    assumed: tuple[Text, ...] = ()
    settings: tuple[AssumedSetting, ...] = ()


class Severity(Choice):
    """How much a finding matters."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding about a step."""

    id: Name  # stable name, such as ``retained-activations``
    severity: Severity
    title: Text  # one line with the number of bytes
    detail: Text  # the meaning and what to change
    saves_bytes: Total | None = (
        None  # bytes that the change would save; None if unknown
    )
    # ``requested`` or ``allocated`` bytes at the peak, or of the least memory ``limit``
    saves_kind: Name = "requested"
    evidence: tuple[EvidenceRow, ...] = ()  # rows that prove it, with values by column


class StepRemedy(ReportRecord, frozen=True, kw_only=True):
    """A change of the step, with a new capture and estimate."""

    id: Name  # such as ``mixed-bfloat16``; a combination joins names with ``+``
    title: Text
    code: Text
    costs: Text = ""
    saves_bytes: Signed | None = None  # of the requested peak
    requested_bytes: Total | None = None
    allocated_bytes: Total | None = None
    fits: bool | None = None
    failed: Text = ""  # why it cannot be applied
    patch: Text = ""  # the file with the change of the target's source
    patch_saves_bytes: Signed | None = None  # of an estimate of the patched source
    no_patch: Text = ""  # why there is no patch


MOST_READINGS: Final = 256  # limit of the readings in a report
Slope = Annotated[float, Meta(ge=-1e18, le=1e18)]


class TrendFigures(ReportRecord, frozen=True, kw_only=True):
    """The slope of the memory in use after each step, without the warm-up, and its range at 95 %.

    A bounded container or a stage of tf.data ``fills``.
    """

    trend: Literal["grows", "fills", "flat", "cannot tell"]
    per_step_bytes: Slope = 0.0
    low_bytes: Slope = 0.0
    high_bytes: Slope = 0.0
    first_step: Total = 0
    last_step: Total = 0
    level_bytes: Total = 0


class ProgramFigures(ReportRecord, frozen=True, kw_only=True):
    """A program whose own steps were traced, or the whole run as one step (``whole_run``).

    ``steps`` counts all, ``warmup`` those before the traced ones; the peak is TensorFlow's own.
    """

    step: Text
    where: Name = ""
    steps: Total
    warmup: Total
    device: TrendFigures
    host: TrendFigures
    readings: Annotated[tuple[Reading, ...], Meta(max_length=MOST_READINGS)] = ()
    ended: Text = ""
    own_peak_bytes: Total | None = None
    whole_run: bool = False
    micro_batches: Total = 1


class DevicePeak(TwoSizes, frozen=True, kw_only=True):
    """The peak of one device of a host, in its steady step."""

    allocator: Name
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
    """One device of one host; ``differs_bytes`` is its peak minus the median of all devices."""

    host: Name
    allocator: Name
    allocated_bytes: Total
    differs_bytes: int = 0


class HostsFigures(ReportRecord, frozen=True, kw_only=True):
    """A comparison of the hosts of one run. The rest of the report is about the worst device.

    It is the nearest to its limit, or has the largest peak if a limit is unknown.
    """

    worst: DevicePlace
    devices: Total
    least_bytes: Total
    median_bytes: Total
    most_bytes: Total
    outliers: tuple[DevicePlace, ...] = ()
    rows: tuple[HostRow, ...] = ()
