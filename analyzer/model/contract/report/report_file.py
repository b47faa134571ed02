"""The report of one step: ``report.json`` and the output of ``--json``. Version 1.

New fields have defaults and unknown fields are ignored, so older and newer reports can be read.
"""

from __future__ import annotations

from typing import Final

from msgspec import field

from analyzer.model.contract.fields import Name, ReportRecord, Text
from analyzer.model.contract.report.limit_figures import (
    CardFit,
    Fits,
    FragmentationFigures,
    OtherSettings,
    PoolChange,
    UnservedRequest,
    VerdictFigures,
)
from analyzer.model.contract.report.peak_figures import (
    CategoryBytes,
    LayerBytes,
    LiveBytes,
    OpBytes,
    PeakEver,
    PeakFigures,
    RetainedTensor,
    StatedRange,
    StepPeak,
    TensorAtPeak,
    TrustFigures,
    UnmodelledType,
)
from analyzer.model.contract.report.subject import (
    CardUse,
    Device,
    Finding,
    HostsFigures,
    Kind,
    PhantomNotice,
    ProgramFigures,
    StepRemedy,
)
from analyzer.model.contract.run_note import Failure, StepConfig, TargetNote

REPORT_VERSION: Final = 1


class ReportFile(ReportRecord, frozen=True, kw_only=True):
    """The report of one step."""

    schema_version: int = REPORT_VERSION
    kind: Kind
    target: TargetNote = TargetNote()
    device: Device
    step: StepConfig = StepConfig()
    allocator: Name = ""  # TensorFlow's name of the allocator of all figures
    peak: PeakFigures  # of the steady step, which is the last one
    peak_ever: PeakEver | None = None
    steps: tuple[StepPeak, ...] = ()
    resident: LiveBytes = LiveBytes()
    categories_at_peak: CategoryBytes  # requested bytes at the requested peak
    layers: tuple[LayerBytes, ...] = ()  # the largest first
    ops: tuple[OpBytes, ...] = ()
    tensors_at_peak: tuple[TensorAtPeak, ...] = ()  # the largest first
    retained: tuple[RetainedTensor, ...] = ()
    fragmentation: FragmentationFigures | None = None
    pool_timeline: tuple[PoolChange, ...] = ()
    verdict: VerdictFigures | None = None
    fits: Fits = None
    fit: CardFit | None = None
    what_if: OtherSettings | None = None
    findings: tuple[Finding, ...] = ()
    remedies: tuple[StepRemedy, ...] = ()  # changes that were tried, the largest saving first
    unmodelled: tuple[UnmodelledType, ...] = ()
    uncertainty: StatedRange | None = None
    integrity: TrustFigures | None = None  # whether a trace is complete; None for a prediction
    warnings: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    phantom: PhantomNotice | None = None
    cards: tuple[CardUse, ...] = ()
    hosts: HostsFigures | None = None
    error: Failure | None = None
    failure: UnservedRequest | None = None
    program: ProgramFigures | None = None
    versions: dict[Name, Name] = field(default_factory=dict)  # of the libraries and of this package
