"""``report.json`` and what ``--json`` writes: the report of one step, whole.

Version 1. A field that is added has a default, so that older reports read; what a reader does not know
is stepped over. ``docs/report.schema.json`` is made of these types.
"""

from __future__ import annotations

from typing import Final

from msgspec import field

from analyzer.model.contract.fields import Name, ReportRecord, Text, Word
from analyzer.model.contract.report.finding import Finding, StepRemedy
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
    StepPeak,
    TensorAtPeak,
    UnmodelledType,
)
from analyzer.model.contract.report.run_figures import HostsFigures, ProgramFigures
from analyzer.model.contract.report.subject import (
    CardUse,
    Device,
    Kind,
    PhantomNotice,
    ReportError,
    ReportTarget,
)
from analyzer.model.contract.report.trust_figures import StatedRange, TrustFigures
from analyzer.model.contract.run_note import StepConfig

REPORT_VERSION: Final = 1  # of the document's layout


class ReportFile(ReportRecord, frozen=True, kw_only=True):
    """Everything that is said of one step.

    Attributes:
        schema_version: Which form of report it is.
        kind: ``estimate``, ``trace`` or ``phantom``.
        target, device, step: What was asked for, on what, and how it is run.
        allocator: TensorFlow's name of the allocator that the figures are about.
        peak: The peak of the steady step, the last.
        peak_ever: The peak of the whole recording; None in an early report.
        steps: The peak of each step.
        resident: What is there before the steady step.
        categories_at_peak: Requested bytes at the peak by what they are for.
        layers: The same by layer, the largest first.
        ops: What each op asked for in the steady step.
        tensors_at_peak: What is alive at the requested peak, the largest first.
        retained: The activations among it that wait for the backward pass.
        fragmentation: Waste, and the least memory limits.
        pool_timeline: The pool wherever it changes; empty where it is not known.
        verdict: Whether it fits; None in an early report.
        fits: The verdict's answer in short.
        fit: What lies on the card beside the pool; None without a card.
        what_if: A replay under other settings; None where none was asked for.
        findings: What is worth knowing, the weightiest first.
        remedies: Changes of the step that were tried, the one that saves most first; empty where none
            was asked for.
        unmodelled: Op types without a rule, in a prediction.
        uncertainty: The range that a prediction states; None for a trace.
        integrity: Whether a trace is whole; None for a prediction.
        warnings: What the reader should know before trusting a figure.
        notes: What the capture noted.
        phantom: That the cards were not there; None where they were.
        cards: What each card held, where there were several.
        hosts: The hosts of the run beside each other, where there are several; None for one.
        error: How the step failed; None where it did not.
        failure: The request that ran out of memory; None where none did.
        program: The program whose own steps were traced; None where the capture made the step.
        versions: Of what made it.
    """

    schema_version: int = REPORT_VERSION
    kind: Kind
    target: ReportTarget = ReportTarget()
    device: Device
    step: StepConfig = StepConfig()
    allocator: Name = ""
    peak: PeakFigures
    peak_ever: PeakEver | None = None
    steps: tuple[StepPeak, ...] = ()
    resident: LiveBytes = LiveBytes()
    categories_at_peak: CategoryBytes
    layers: tuple[LayerBytes, ...] = ()
    ops: tuple[OpBytes, ...] = ()
    tensors_at_peak: tuple[TensorAtPeak, ...] = ()
    retained: tuple[RetainedTensor, ...] = ()
    fragmentation: FragmentationFigures | None = None
    pool_timeline: tuple[PoolChange, ...] = ()
    verdict: VerdictFigures | None = None
    fits: Fits = None
    fit: CardFit | None = None
    what_if: OtherSettings | None = None
    findings: tuple[Finding, ...] = ()
    remedies: tuple[StepRemedy, ...] = ()
    unmodelled: tuple[UnmodelledType, ...] = ()
    uncertainty: StatedRange | None = None
    integrity: TrustFigures | None = None
    warnings: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    phantom: PhantomNotice | None = None
    cards: tuple[CardUse, ...] = ()
    hosts: HostsFigures | None = None
    error: ReportError | None = None
    failure: UnservedRequest | None = None
    program: ProgramFigures | None = None
    versions: dict[Word, Word] = field(default_factory=dict)
