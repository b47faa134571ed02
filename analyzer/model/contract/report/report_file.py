"""Documents: the report of one step (``report.json``, ``--json``), a difference and a sweep.

New fields have defaults and unknown fields are ignored, so older and newer reports can be read.
"""

from typing import Final, Literal

from msgspec import field

from analyzer.model.choice import Category
from analyzer.model.contract.fields import (
    Lengths,
    Name,
    ReportRecord,
    Signed,
    Text,
    Total,
)
from analyzer.model.contract.report import limit_figures as limits
from analyzer.model.contract.report import peak_figures as peaks
from analyzer.model.contract.report import subject
from analyzer.model.contract.run_note import Failure, StepConfig, TargetNote

REPORT_VERSION: Final = 1


class ReportFile(ReportRecord, frozen=True, kw_only=True):
    """The report of one step."""

    schema_version: int = REPORT_VERSION
    kind: subject.Kind
    target: TargetNote = TargetNote()
    device: subject.Device
    step: StepConfig = StepConfig()
    allocator: Name = ""  # TensorFlow's name of the allocator of all figures
    peak: peaks.PeakFigures  # of the steady step
    peak_ever: peaks.PeakEver | None = None
    steps: tuple[peaks.StepPeak, ...] = ()
    resident: peaks.TwoSizes = peaks.TwoSizes(requested_bytes=0, allocated_bytes=0)
    categories_at_peak: peaks.CategoryBytes  # requested bytes at the requested peak
    layers: tuple[peaks.LayerBytes, ...] = ()  # the largest first
    ops: tuple[peaks.OpBytes, ...] = ()
    tensors_at_peak: tuple[peaks.TensorAtPeak, ...] = ()  # the largest first
    fragmentation: limits.FragmentationFigures | None = None
    pool_timeline: tuple[limits.PoolChange, ...] = ()
    verdict: limits.VerdictFigures | None = None
    fits: limits.Fits = None
    what_if: limits.OtherSettings | None = None
    findings: tuple[subject.Finding, ...] = ()
    remedies: tuple[
        subject.StepRemedy, ...
    ] = ()  # tried changes, the largest saving first
    unmodelled: tuple[peaks.UnmodelledType, ...] = ()
    uncertainty: peaks.StatedRange | None = None
    # whether a trace is complete; None for a prediction
    integrity: peaks.TrustFigures | None = None
    warnings: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    simulated_card: subject.SimulatedCardNotice | None = None
    cards: tuple[subject.CardUse, ...] = ()
    hosts: subject.HostsFigures | None = None
    error: Failure | None = None
    failure: limits.UnservedRequest | None = None
    program: subject.ProgramFigures | None = None
    next_command: Text = ""  # continues from this report
    # full length of each list that was shortened
    shortened: Lengths = field(default_factory=dict)
    versions: dict[Name, Name] = field(
        default_factory=dict
    )  # of the libraries and of this package


DIFF_VERSION: Final = 1

Number = Literal[
    "needs", "requested", "allocated", "pool", "process"
]  # in the report's order
Change = Literal["same", "came", "went", "grew", "shrank"]  # of a layer or an op


class DiffSide(ReportRecord, frozen=True, kw_only=True):
    """One of the two steps: label, kind, batch size and peak."""

    label: Text
    kind: subject.Kind
    batch_size: Total | None
    peak: peaks.PeakFigures
    step_s: float | None = None  # duration of the steady step, if one was measured


class BytesOfBoth(ReportRecord, frozen=True, kw_only=True):
    """Bytes of both sides and the difference (b - a); None if unknown."""

    a_bytes: Total | None
    b_bytes: Total | None
    delta_bytes: Signed | None


class PeakOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """One of the peaks of both sides."""

    number: Number


class CategoryOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one category at each side's peak."""

    category: Category


class LayerOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one layer at each side's peak."""

    name: Name
    change: Change


class OpOfBoth(LayerOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one op at each side's peak, with its type and layer."""

    type: Name
    layer: Name


class StepCurve(ReportRecord, frozen=True, kw_only=True):
    """Bytes of the steady step at selected instants; ``progress_ratio`` is 0 for its first event."""

    progress_ratio: tuple[float, ...]
    requested_bytes: tuple[Total, ...]
    allocated_bytes: tuple[Total, ...]


class CurvesOfBoth(ReportRecord, frozen=True, kw_only=True):
    """The curves of the two sides."""

    a: StepCurve
    b: StepCurve


class DiffFile(ReportRecord, frozen=True, kw_only=True):
    """The difference between two steps, an older one or a prediction first; largest rows first."""

    schema_version: int = DIFF_VERSION
    kind: Literal["diff"] = "diff"
    headline: Text
    notes: tuple[Text, ...]
    a: DiffSide
    b: DiffSide
    peak: tuple[PeakOfBoth, ...]
    categories: tuple[CategoryOfBoth, ...]
    layers: tuple[LayerOfBoth, ...]
    ops: tuple[OpOfBoth, ...]
    timelines: CurvesOfBoth
    next_command: Text = ""
    # full length of each list that was shortened
    shortened: Lengths = field(default_factory=dict)


SWEEP_VERSION: Final = 1


class SweepQuestion(ReportRecord, frozen=True, kw_only=True):
    """The parameters of one cell; the card ``cpu`` is this machine's allocator."""

    target: Text
    batch_size: Total
    card: Name
    remedy: Name = ""
    mode: Name = ""
    optimizer: Name = ""
    dtype_policy: Name = ""
    jit: bool | None = None
    limit_bytes: Total | None = None


class SweepCell(ReportRecord, frozen=True, kw_only=True):
    """The peak of the steady step in one cell; ``need_bytes`` is compared with the limit."""

    schema_version: int = SWEEP_VERSION
    question: SweepQuestion
    is_simulated: bool = False  # whether it ran on a simulated card
    requested_bytes: Total | None = None
    allocated_bytes: Total | None = None
    low_bytes: Total | None = None
    high_bytes: Total | None = None
    need_bytes: Total | None = None
    limit_bytes: Total | None = None
    margin_bytes: Signed | None = None
    fits: limits.Fits = None
    op: Text = ""
    failed: Text = ""


class SweepFile(ReportRecord, frozen=True, kw_only=True):
    """A sweep."""

    schema_version: int = SWEEP_VERSION
    name: Text
    cells: tuple[SweepCell, ...]
    next_command: Text = ""
    # full length of each list that was shortened
    shortened: Lengths = field(default_factory=dict)
    versions: dict[Name, Name] = field(default_factory=dict)
