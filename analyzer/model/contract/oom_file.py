"""The output of ``analyze oom --json``. Version 1, see ``docs/oom.schema.json``."""

from typing import Literal

from msgspec import Struct

from analyzer.model.contract.fields import Lengths, ReportRecord
from analyzer.model.contract.report_file import StepRemedy

OOM_VERSION = 1


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

    name: str | None
    total_bytes: int | None
    free_bytes: int | None
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
    allocator: str | None
    device: str | None
    op: str | None
    op_type: str | None
    requested_by: str | None
    source: str | None
    shape: tuple[int, ...] | None
    dtype: str | None
    asked: AskedFor | None
    limit_bytes: int | None
    in_use_bytes: int | None
    peak_in_use_bytes: int | None
    pool_bytes: int | None
    free_bytes: int | None
    largest_hole_bytes: int | None
    regions: int | None
    room_bytes: int | None
    waste_bytes: int | None
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
    op: str | None = None
    requested_bytes: int | None = None
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
    next_command: str | None = None
    # full length of each list that was shortened
    shortened: Lengths = {}
    reproduction: Reproduction | None = None
