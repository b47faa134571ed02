"""The output of ``analyze oom --json``. Version 1, see ``docs/oom.schema.json``."""

from typing import Literal

from msgspec import Struct

from analyzer.model.contract.fields import IntOrNone, Lengths, ReportRecord
from analyzer.model.contract.report_file import StepRemedy

OOM_VERSION = 1

SizeOrNone = IntOrNone  # None if the log lacks it
TextOrNone = str | None


class AskedFor(ReportRecord, frozen=True):
    """The failed request: the tensor's size, and ``rounded_bytes`` of the chunk that it needed.

    If the log rounds the size, it lies from ``low_bytes`` to ``high_bytes``.
    """

    requested_bytes: int
    rounded_bytes: int
    is_exact: bool
    low_bytes: int
    high_bytes: int
    basis: str


class OomSize(ReportRecord, frozen=True):
    """All chunks in use of one size."""

    size_bytes: int
    count: int
    total_bytes: int
    is_asked: bool = False


class OomAdvice(ReportRecord, frozen=True):
    """An action and the figures that support it."""

    action: str
    because: str


class OomVerdict(ReportRecord, frozen=True):
    """Why the request failed; ``missing`` are log lines that would explain more."""

    id: str
    title: str
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class OomCard(ReportRecord, frozen=True):
    """The card in the log; ``is_from_catalogue`` if its total comes from the card table."""

    name: TextOrNone
    total_bytes: SizeOrNone
    free_bytes: SizeOrNone
    is_from_catalogue: bool = False


class OomBuffer(Struct):
    """One of a compiled program's largest buffers; filled in while the log is read."""

    size_bytes: int
    operator: str
    label: str
    shape: str


class OomPlan(ReportRecord, frozen=True):
    """XLA's list of a compiled module's buffers."""

    sums_bytes: dict[str, int]
    buffers: tuple[OomBuffer, ...]


class OomFailure(ReportRecord, frozen=True, kw_only=True):
    """A failed request of ``component``, a program or a library. Sizes are None if the log lacks them.

    A size in ``ranges`` is rounded in the log: the field holds the middle, the range both bounds.
    """

    line: int
    process: str
    kind: str
    allocator: TextOrNone
    device: TextOrNone
    op: TextOrNone
    op_type: TextOrNone
    requested_by: TextOrNone
    source: TextOrNone
    shape: tuple[int, ...] | None
    dtype: TextOrNone
    asked: AskedFor | None
    limit_bytes: SizeOrNone
    in_use_bytes: SizeOrNone
    peak_in_use_bytes: SizeOrNone
    pool_bytes: SizeOrNone
    free_bytes: SizeOrNone
    largest_hole_bytes: SizeOrNone
    regions: SizeOrNone
    room_bytes: SizeOrNone
    waste_bytes: SizeOrNone
    ranges: dict[str, tuple[int, int]]
    card: OomCard | None
    verdict: OomVerdict
    sizes: tuple[OomSize, ...]
    remedies: tuple[OomAdvice, ...]
    compiled: OomPlan | None = None
    words: str = ""
    component: str = "TensorFlow"


class OomRefusals(Struct):
    """Consecutive requests that the driver or the host refused; counted while the log is read."""

    line: int
    first_bytes: int
    last_bytes: int
    times: int
    is_host: bool
    process: str = ""


class Reproduction(ReportRecord, frozen=True, kw_only=True):
    """A run of the step on a simulated card with the limit of the log: its failure, and the changes."""

    fails: bool
    op: TextOrNone = None
    requested_bytes: SizeOrNone = None
    is_same_op: bool = False
    is_same_request: bool = False
    runs: int = 1  # of the step, each in a process of its own
    history_bytes: int = 0  # in use in the log beside the step, taken off the limit
    remedies: tuple[StepRemedy, ...] = ()  # with each of them the step runs


class OomDocument(ReportRecord, frozen=True, kw_only=True):
    """All memory facts in one log; ``next_command`` finds a size that fits, for TARGET."""

    schema_version: int = OOM_VERSION
    kind: Literal["oom"] = "oom"
    log: str
    lines: int
    headline: str
    failures: tuple[OomFailure, ...]
    failures_not_shown: int
    refusals: tuple[OomRefusals, ...]
    notes: tuple[str, ...]
    next_command: TextOrNone = None
    # full length of each list that was shortened
    shortened: Lengths = {}
    reproduction: Reproduction | None = None
