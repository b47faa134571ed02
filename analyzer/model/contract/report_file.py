"""Documents: the report of one step (``report.json``, ``--json``), and a difference.

New fields have defaults and unknown fields are ignored, so older and newer reports can be read. The name
of a number ends with its unit: ``_bytes``, ``_s``, ``_ps``, ``_ratio`` (0 to 1).
"""

import hashlib
import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Annotated, Any, Literal, SupportsIndex

from msgspec import DecodeError, Meta, Struct, to_builtins
from msgspec.json import encode
from msgspec.json import format as indented
from msgspec.structs import asdict

from analyzer.model import __version__
from analyzer.model.contract.child_messages import Assumption
from analyzer.model.contract.fields import (
    Category,
    Choice,
    EvidenceRow,
    Instant,
    Lengths,
    Name,
    ReportRecord,
    Signed,
    Text,
    Total,
    TwoSizes,
)
from analyzer.model.contract.reading import (
    read_record,
    read_regular_file,
)
from analyzer.model.contract.run_note import (
    Failure,
    Reading,
    StepConfig,
    TargetNote,
    WatchNote,
)
from analyzer.model.errors import AnalyzerError
from analyzer.model.units import BoundedBytes, format_bytes

TotalOrNone = Total | None  # None if unknown
Texts = tuple[Text, ...]


class PeakFigures(TwoSizes, frozen=True, kw_only=True):
    """The peak of the steady step."""

    # size of the allocator's pool; None if the replay failed
    pool_bytes: TotalOrNone = None
    op: Name | None = ""  # of the requested peak; empty if unknown
    layer: Name | None = ""
    source: Name | None = ""
    step: TotalOrNone = None
    instant: Instant
    allocated_instant: Instant


class PeakEver(TwoSizes, frozen=True, kw_only=True):
    """The peak of the whole recording.

    ``since_start_bytes`` is TensorFlow's own peak since the process started, maybe before the trace.
    """

    pool_bytes: TotalOrNone = None
    phase: Name = ""
    since_start_bytes: TotalOrNone = None


class StepPeak(TwoSizes, frozen=True, kw_only=True):
    """The peak of one step; ``last_instant`` is below ``first_instant`` if it has no events."""

    index: Total
    number: Signed | None = None
    duration_s: float | None = None
    first_instant: Instant = 0
    last_instant: Instant = -1


class CategoryBytes(ReportRecord, frozen=True, kw_only=True):
    """Requested bytes of each ``Category``."""

    parameter: Total = 0
    optimizer_state: Total = 0
    gradient: Total = 0
    activation: Total = 0
    kv_cache: Total = 0
    input: Total = 0
    temporary: Total = 0
    workspace: Total = 0
    constant: Total = 0
    unattributed: Total = 0

    def by_category(self) -> dict[str, int]:
        """Return a mapping from category to bytes, in the order of ``Category``."""
        return asdict(self)


class LayerBytes(CategoryBytes, frozen=True, kw_only=True):
    """Requested bytes of one layer at the peak, by category and in total."""

    layer: Name
    total_bytes: Total


class BufferRow(TwoSizes, frozen=True, kw_only=True):
    """A buffer, named by its variable, tensor, op or role. Texts are empty if unknown."""

    name: Name
    op: Name = ""
    op_type: Name = ""
    layer: Name = ""
    source: Name = ""
    category: Category
    role: Text = ""
    instruction: Name = ""
    dtype: Name = ""
    shape: Name = ""


class TensorAtPeak(BufferRow, frozen=True, kw_only=True):
    """A tensor that is alive at the requested peak, its lifetime and the reason."""

    born: Instant
    dies: Instant
    why_alive: Text = ""


class OpBytes(TwoSizes, frozen=True, kw_only=True):
    """The requests of one op, summed over the steady step."""

    name: Name
    type: Name = ""
    layer: Name = ""
    source: Name = ""
    category: Category  # of its largest buffer
    allocations: Total = 0
    temporary_bytes: Total  # scratch memory of the op
    alive_at_peak_bytes: Total  # the requested part that is alive at the peak


class ReplayCheck(ReportRecord, frozen=True, kw_only=True):
    """How many events have the same address, size and counters in a replay of the trace."""

    events: Total
    equal: Total

    @property
    def is_exact(self) -> bool:
        """Whether all events are equal."""
        return self.equal == self.events


class DamageRow(ReportRecord, frozen=True, kw_only=True):
    """A ``DamageReason`` why a trace is incomplete or altered, and how many events show it."""

    id: Name
    count: Total
    allocator: Name = ""
    message: Text


class TrustFigures(ReportRecord, frozen=True, kw_only=True):
    """Whether a trace is complete."""

    is_damaged: bool
    events: Total = 0  # compared with TensorFlow's bytes in use; 0 if it wrote none
    events_disagreeing: Total = 0  # events after which the sum differs
    largest_difference_bytes: Total = 0
    damages: tuple[DamageRow, ...] = ()
    replay: ReplayCheck | None = None
    says: Texts = ()


class StatedRange(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The range of a prediction."""

    limit_high_bytes: TotalOrNone  # every schedule succeeds from this limit on
    low_bytes: TotalOrNone
    high_bytes: TotalOrNone
    allocated_low_bytes: TotalOrNone
    allocated_high_bytes: TotalOrNone
    because: Texts
    unsized: Total  # tensors of unknown size, which count as 0
    workspace_bytes: TotalOrNone = None  # part of the upper bounds due to cuDNN
    limit_low_bytes: TotalOrNone = None  # lower bound of the least memory limit


# whether the step fits; null without a limit or an answer
Fits = bool | Literal["may not"] | None


class Outcome(Choice):
    """The answer to the question whether the step fits."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    CANNOT_TELL = "cannot tell"
    NO_LIMIT = "no limit given"
    FAILED = "failed"


class LimitOf(Choice):
    """The origin of the limit: the card or the user."""

    CARD = "card"
    USER = "user"


class NeedOf(Choice):
    """Basis of the need's part in the pool."""

    LEAST_LIMIT = "least memory limit"
    ALLOCATED = "allocated peak"


class LifePhase(Choice):
    """A part of the process' life, in order."""

    BEFORE_TRACE = "outside the trace"
    BUILDING = "building"
    FIRST_STEP = "first step"
    STEADY_STEP = "steady step"


class Need(ReportRecord, frozen=True, kw_only=True):
    """The largest memory that the process takes in its life, with its parts.

    ``total`` is the largest phase plus ``allocator`` plus ``beside_pool``. An unseen phase is None.
    """

    # TensorFlow's peak since process start, outside the trace
    before_trace: BoundedBytes | None = None
    # until the first step: variables, initializers, inputs
    building: BoundedBytes | None = None
    first_step: BoundedBytes | None = None  # with the trials of algorithms that fit
    steady_step: (
        BoundedBytes  # of the later steps; of the only step; of a trace without steps
    )
    allocator: BoundedBytes  # rounding, unsplit chunks and fragmentation
    # CUDA context, libraries and loaded kernels, expected; None if the limit is for the pool alone,
    # or there is no card
    beside_pool: BoundedBytes | None = None
    # of a program: TensorFlow's own peak (``get_memory_info``); the rest of its pool is fragmentation
    own_peak_bytes: TotalOrNone = None
    # in TensorFlow's pool if no trial of an algorithm fits; None if there is none
    without_trials_bytes: TotalOrNone = None

    @property
    def phases(self) -> dict[LifePhase, BoundedBytes]:
        """The phases that were seen, in order."""
        sizes = (self.before_trace, self.building, self.first_step, self.steady_step)
        return {
            phase: size
            for phase, size in zip(LifePhase, sizes, strict=True)
            if size is not None
        }

    @property
    def largest_phase(self) -> LifePhase:
        """The phase that decides; of equal ones the last."""
        sizes = self.phases
        return max(reversed(sizes), key=lambda phase: sizes[phase].bytes)

    @property
    def pool(self) -> BoundedBytes:
        """The lowest limit of TensorFlow's pool under which the process runs."""
        return BoundedBytes.largest(self.phases.values()) + self.allocator

    @property
    def total(self) -> BoundedBytes:
        """The need."""
        if self.beside_pool is None:
            return self.pool

        return self.pool + self.beside_pool


class PoolChange(ReportRecord, frozen=True, kw_only=True):
    """The size of the pool from an instant on."""

    instant: Instant
    pool_bytes: Total


class VerdictFigures(ReportRecord, frozen=True, kw_only=True):
    """Whether the step fits."""

    outcome: Outcome
    limit_of: LimitOf | None = None
    card: Text | None = None
    # the card's memory, or the user's limit of the pool
    limit_bytes: TotalOrNone = None
    limit_low_bytes: TotalOrNone = None
    limit_high_bytes: TotalOrNone = None
    need_of: NeedOf = NeedOf.ALLOCATED
    need_bytes: TotalOrNone = None
    need_low_bytes: TotalOrNone = None
    need_high_bytes: TotalOrNone = None
    need: Need | None = None
    # limit minus need; negative if the step does not fit
    margin_bytes: Signed | None = None
    headline: Text

    @property
    def pool_limit_bytes(self) -> int | None:
        """The part of the limit that TensorFlow's pool may take; None without a limit."""
        beside = None if self.need is None else self.need.beside_pool
        if self.limit_bytes is None or beside is None:
            return self.limit_bytes

        return self.limit_bytes - beside.bytes


class ReplayFailure(ReportRecord, frozen=True, kw_only=True):
    """The request that failed in a replay under other settings, and the pool's state."""

    instant: Instant
    requested_bytes: Total
    free_bytes: Total
    largest_free_bytes: Total
    in_use_bytes: Total


class OtherSettings(ReportRecord, frozen=True, kw_only=True):
    """A replay under the user's settings of the allocator."""

    memory_limit_bytes: Total
    growth: bool
    fits: bool
    peak_pool_bytes: Total = 0
    pool_timeline: tuple[PoolChange, ...] = ()
    failure: ReplayFailure | None = None


class UnservedRequest(ReportRecord, frozen=True, kw_only=True):
    """The request that failed when the step ran out of memory, after ``instant``; None if unknown."""

    instant: Instant
    requested_bytes: TotalOrNone
    in_use_bytes: Total
    memory_limit_bytes: TotalOrNone
    free_bytes: TotalOrNone

    def describe(self) -> str:
        """Return the failure in one line."""
        request = "a request"
        if self.requested_bytes is not None:
            request += f" for {format_bytes(self.requested_bytes)}"

        in_use = format_bytes(self.in_use_bytes)
        if self.memory_limit_bytes is not None:
            in_use += f" of {format_bytes(self.memory_limit_bytes)}"

        return f"Out of memory: {request} failed with {in_use} in use"


class Kind(Choice):
    """Whether the figures are predicted, measured, or measured on a simulated card."""

    ESTIMATE = "estimate"
    TRACE = "trace"
    SIMULATED_CARD = "simulated_card"

    @property
    def ran(self) -> bool:
        """Whether TensorFlow ran the step, so that there are allocator events."""
        return self is not Kind.ESTIMATE

    @property
    def basis(self) -> str:
        """The kind in a word for users."""
        return _BASES[self]


_BASES = {
    Kind.TRACE: "measured",
    Kind.ESTIMATE: "predicted",
    Kind.SIMULATED_CARD: "simulated",
}


class Device(Struct, frozen=True, kw_only=True):
    """The device whose memory is counted."""

    kind: Name
    name: Name
    memory_limit_bytes: TotalOrNone = None


class AssumedSetting(Assumption, frozen=True, kw_only=True):
    """An assumption about NVIDIA's libraries on a simulated card, and its value in this run."""

    value: Total


class CardUse(TwoSizes, frozen=True, kw_only=True):
    """The memory of one of several cards in the steady step; the report shows ``is_shown``."""

    number: Total
    allocator: Name
    card: Name
    memory_limit_bytes: TotalOrNone
    is_shown: bool


class SimulatedCardNotice(ReportRecord, frozen=True, kw_only=True):
    """A run on simulated cards."""

    cards: tuple[Name, ...] = ()
    assumed: Texts = ()
    settings: tuple[AssumedSetting, ...] = ()


class Severity(Choice):
    """How much a finding matters."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding about a step."""

    id: Name  # stable name, such as ``batch-tensors``
    severity: Severity
    title: Text  # one line with the number of bytes
    detail: Text  # the meaning and what to change
    # bytes that the change would save; None if unknown
    saves_bytes: TotalOrNone = None
    # ``requested`` or ``allocated`` bytes at the peak, or of the least memory ``limit``
    saves_kind: Name = "requested"
    evidence: tuple[EvidenceRow, ...] = ()  # rows that prove it, with values by column


class StepRemedy(ReportRecord, frozen=True, kw_only=True):
    """A change of the step, with a new capture and estimate."""

    id: Name  # such as ``mixed-bfloat16``
    title: Text
    code: Text
    costs: Text = ""
    saves_bytes: Signed | None = None  # of the requested peak
    requested_bytes: TotalOrNone = None
    allocated_bytes: TotalOrNone = None
    fits: bool | None = None
    # whether the outputs have the same shapes; None if they are unknown
    has_same_outputs: bool | None = None
    failed: Text = ""  # why it cannot be applied
    patch: Text = ""  # the file with the change of the target's source
    no_patch: Text = ""  # why there is no patch


MOST_READINGS = 256  # limit of the readings in a report
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

    ``steps`` counts all, ``warmup`` those before the traced ones. ``own_peak_bytes`` is TensorFlow's
    own figure, ``process_peak_bytes`` the largest resident memory (0 if unknown).
    """

    step: Text
    where: Name = ""
    steps: Total
    warmup: Total
    device: TrendFigures
    host: TrendFigures
    readings: Annotated[tuple[Reading, ...], Meta(max_length=MOST_READINGS)] = ()
    ended: Text = ""
    own_peak_bytes: TotalOrNone = None
    process_peak_bytes: Total = 0
    whole_run: bool = False


def limit_of(
    verdict: VerdictFigures,
    device: Device,
    program: WatchNote | ProgramFigures | None,
    peak_bytes: int,
) -> int:
    """Return the limit that savings are compared with, for findings and for saved reports.

    It is that of the verdict or the card, else the process, the need or the allocated peak.
    """
    sizes = (
        verdict.limit_bytes,
        device.memory_limit_bytes if device.kind == "gpu" else None,
        program.process_peak_bytes if program else None,
        verdict.need_bytes,
    )

    return next(filter(None, sizes), max(peak_bytes, 1))


class HostRow(ReportRecord, frozen=True, kw_only=True):
    """The peak of one device of a host in its steady step, or the reason why there is none."""

    host: Name
    file: Name
    allocator: Name = ""
    requested_bytes: TotalOrNone = None
    allocated_bytes: TotalOrNone = None
    limit_bytes: TotalOrNone = None
    damaged: bool = False
    failed: Text = ""


REPORT_VERSION = 1


class ReportFile(ReportRecord, frozen=True, kw_only=True):
    """The report of one step."""

    schema_version: int = REPORT_VERSION
    kind: Kind
    target: TargetNote = TargetNote()
    device: Device
    step: StepConfig = StepConfig()
    allocator: Name = ""  # TensorFlow's name of the allocator of all figures
    peak: PeakFigures  # of the steady step
    peak_ever: PeakEver
    steps: tuple[StepPeak, ...] = ()
    resident: TwoSizes = TwoSizes(requested_bytes=0, allocated_bytes=0)
    categories_at_peak: CategoryBytes  # requested bytes at the requested peak
    layers: tuple[LayerBytes, ...] = ()  # the largest first
    ops: tuple[OpBytes, ...] = ()
    tensors_at_peak: tuple[TensorAtPeak, ...] = ()  # the largest first
    pool_timeline: tuple[PoolChange, ...] = ()
    verdict: VerdictFigures
    fits: Fits = None
    what_if: OtherSettings | None = None
    findings: tuple[Finding, ...] = ()
    remedies: tuple[StepRemedy, ...] = ()  # tried changes, the largest saving first
    uncertainty: StatedRange | None = None
    # whether a trace is complete; None for a prediction
    integrity: TrustFigures | None = None
    warnings: Texts = ()
    notes: Texts = ()
    simulated_card: SimulatedCardNotice | None = None
    cards: tuple[CardUse, ...] = ()
    # devices of all hosts, the one with the least room first: the rest of the report is about it
    hosts: tuple[HostRow, ...] = ()
    error: Failure | None = None
    failure: UnservedRequest | None = None
    program: ProgramFigures | None = None
    answer: Texts = ()  # the verdict, one number, and one thing to do
    next_command: Text = ""  # continues from this report
    # full length of each list that was shortened
    shortened: Lengths = {}
    # of the libraries and of this package
    versions: dict[Name, Name] = {}


DIFF_VERSION = 1

# in the report's order
Number = Literal[
    "needs",
    "requested",
    "allocated",
    "pool",
]
Change = Literal["same", "came", "went", "grew", "shrank"]  # of a layer or an op


class DiffSide(ReportRecord, frozen=True, kw_only=True):
    """One of the two steps: label, kind, batch size and peak."""

    label: Text
    kind: Kind
    batch_size: TotalOrNone
    peak: PeakFigures


class BytesOfBoth(ReportRecord, frozen=True, kw_only=True):
    """Bytes of both sides and the difference (b - a); None if unknown."""

    a_bytes: TotalOrNone
    b_bytes: TotalOrNone
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
    headline: Text  # which side needs more, and by how much
    number: Text  # the needs and the requested peaks
    action: Text  # the category and the layer that changed most
    notes: Texts
    a: DiffSide
    b: DiffSide
    peak: tuple[PeakOfBoth, ...]
    categories: tuple[CategoryOfBoth, ...]
    layers: tuple[LayerOfBoth, ...]
    ops: tuple[OpOfBoth, ...]
    timelines: CurvesOfBoth
    next_command: Text = ""
    # full length of each list that was shortened
    shortened: Lengths = {}


# a value of JSON
Json = bool | int | float | str | None | list["Json"] | dict[str, "Json"]

_HINT = "Write it again from the trace or the estimate."


def plain_report(report: Struct) -> dict[str, Json]:
    """Return a report as JSON values, with null for NaN and infinity."""
    plain: dict[str, Json] = replace_non_finite(to_builtins(report, enc_hook=_number))
    return plain


def _number(value: object) -> int | float:
    if isinstance(value, float):
        return float(value)
    if isinstance(value, SupportsIndex):
        return index(value)

    raise NotImplementedError(f"{type(value)} in a report")


def encode_report(report: Struct) -> str:
    """Return a report as JSON text."""
    text = json.dumps(plain_report(report))

    try:
        return indented(text, indent=1) + "\n"
    except DecodeError:  # half a surrogate pair, from a file name that is not UTF-8
        # Python's encoder accepts it, but indents slowly.
        return json.dumps(json.loads(text), indent=1) + "\n"


def read_report(path: Path) -> ReportFile:
    """Read ``report.json``, or raise a TraceError."""
    return read_record(path, ReportFile, version=REPORT_VERSION, hint=_HINT)


def replace_non_finite(value: Any) -> Any:
    """Return JSON values with null for NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: replace_non_finite(item) for key, item in value.items()}

    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]

    return value


DIGEST_FILE = "kept.json"
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


def encode_digest(folder: Path) -> bytes:
    """Return the content of ``kept.json``: this version, and a digest of the files in the folder."""
    return encode({"analyzer": __version__, "digest": _digest_files(folder)})


def _digest_files(folder: Path) -> str:
    """Return the SHA-256 of the files in a folder with their paths, without the two files about it."""
    digest = hashlib.sha256()

    for file in sorted(folder.rglob("*")):
        is_own = file.name in (DIGEST_FILE, REPORT_HTML)

        if file.is_file() and not file.is_symlink() and not is_own:
            content = read_regular_file(file)
            digest.update(
                os.fsencode(f"{file.relative_to(folder).as_posix()} {len(content)}\n")
            )
            digest.update(content)

    return digest.hexdigest()


def read_saved_report(folder: Path) -> tuple[ReportFile | None, str]:
    """Return the report that is saved in ``folder``, and why it cannot be used (empty without one)."""
    file = folder / DIGEST_FILE
    if not file.is_file():
        return None, ""

    with suppress(AnalyzerError, OSError, ValueError):
        if read_regular_file(file) == encode_digest(folder):
            return read_report(folder / REPORT_JSON), ""

    return None, "another version saved it, or a file has changed or is damaged"
