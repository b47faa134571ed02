"""What ``analyze oom --json`` writes: everything that one log says of memory.

Version 1. ``docs/oom.schema.json`` is made of these types.
"""

from __future__ import annotations

from typing import Final, Literal

from analyzer.model.contract.fields import ReportRecord
from analyzer.model.contract.report.writing import build_schema

OOM_VERSION: Final = 1


class AskedFor(ReportRecord, frozen=True):
    """What the request was for.

    ``requested_bytes`` is the tensor's; where ``is_exact`` is false its last digits are not in the
    log, and ``low_bytes`` and ``high_bytes`` hold it. ``rounded_bytes`` is what the allocator
    looked for.
    """

    requested_bytes: int
    rounded_bytes: int
    is_exact: bool
    low_bytes: int
    high_bytes: int
    basis: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class OomHolder(ReportRecord, frozen=True):
    """Who holds a part of the card or of the limit."""

    who: str
    size_bytes: int


class OomSize(ReportRecord, frozen=True):
    """The chunks in use of one size, and the model's tensors that are of it, where one was given."""

    size_bytes: int
    count: int
    total_bytes: int
    is_asked: bool = False
    names: tuple[str, ...] = ()


class OomAdvice(ReportRecord, frozen=True):
    """One thing to do and the figures that support it."""

    action: str
    because: str


class OomVerdict(ReportRecord, frozen=True):
    """Why it failed; ``missing`` are the lines that would have told more."""

    id: str
    title: str
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class OomCard(ReportRecord, frozen=True):
    """The card as the log has it; ``is_from_catalogue`` where its total is known by its name alone."""

    name: str | None
    total_bytes: int | None
    free_at_start_bytes: int | None
    free_bytes: int | None
    is_from_catalogue: bool = False


class OomBuffer(ReportRecord, frozen=True):
    """One of XLA's peak buffers."""

    size_bytes: int
    operator: str
    label: str
    shape: str


class OomPlan(ReportRecord, frozen=True):
    """XLA's list of a compiled module's buffers."""

    sums_bytes: dict[str, int]
    buffers: tuple[OomBuffer, ...]


class OomFailure(ReportRecord, frozen=True, kw_only=True):
    """One request that failed.

    Sizes are None where the log lacks them. Those in ``ranges`` are printed with fewer digits than they
    have: the field holds the middle, the range both ends.
    """

    line: int
    told: int
    process: str
    kind: str
    allocator: str | None
    device: str | None
    op: str | None
    op_type: str | None
    requested_by: str | None
    kernel: str | None
    source: str | None
    asked: AskedFor | None
    limit_bytes: int | None
    in_use_bytes: int | None
    peak_in_use_bytes: int | None
    pool_bytes: int | None
    free_bytes: int | None
    largest_hole_bytes: int | None
    largest_hole_basis: str | None
    holes: int | None
    regions: int | None
    room_bytes: int | None
    left_bytes: int | None
    waste_bytes: int | None
    ranges: dict[str, tuple[int, int]]
    card: OomCard | None
    verdict: OomVerdict
    holders: tuple[OomHolder, ...]
    stories: tuple[str, ...]
    sizes: tuple[OomSize, ...]
    remedies: tuple[OomAdvice, ...]
    compiled: OomPlan | None = None
    tensors_by_node: tuple[OomHolder, ...] = ()
    matched: tuple[str, ...] = ()
    words: str = ""


class OomRefusals(ReportRecord, frozen=True):
    """A run of requests that the driver or the host refused."""

    line: int
    first_bytes: int
    last_bytes: int
    times: int
    code: str
    is_host: bool


class OomSurvived(ReportRecord, frozen=True):
    """Requests that failed and that TensorFlow went on without; at most ten are printed."""

    allocator: str
    times: int
    largest_bytes: int


class OomDocument(ReportRecord, frozen=True, kw_only=True):
    """Everything that one log says of memory."""

    schema_version: int = OOM_VERSION
    kind: Literal["oom"] = "oom"
    log: str
    lines: int
    headline: str
    failures: tuple[OomFailure, ...]
    failures_not_shown: int
    refusals: tuple[OomRefusals, ...]
    survived: tuple[OomSurvived, ...]
    notes: tuple[str, ...]
    matched_with: str | None = None


def oom_schema_text() -> str:
    """Return the JSON Schema of what ``analyze oom --json`` writes, ``docs/oom.schema.json``."""
    return build_schema("What analyze oom writes with --json", OomDocument)
