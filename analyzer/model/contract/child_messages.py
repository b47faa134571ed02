"""Messages between processes: requests to child processes, their answers, figures of their memory."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

from msgspec import Struct, convert, to_builtins

from analyzer.model.contract.fields import (
    Bytes,
    Choice,
    Name,
    ReportRecord,
    Text,
    Total,
)
from analyzer.model.contract.reading import read_table
from analyzer.model.errors import AnalyzerError, FailureKind

# Axes of inputs without the batch, by name; ``""`` is the only input.
Shapes = Mapping[str, tuple[int, ...]]

# ``run``: run the step and trace it. ``static``: take its graph and run nothing. ``sizes``: run it at
# several sizes and answer for each whether it ran.
CaptureKind = Literal["run", "static", "sizes"]

SIZES_PIPE = ".sizes"  # in the run folder: sizes to run, one a line
DEFAULT_STEPS = 3  # traced steps of a model
BATCH_SIZE = 32  # examples in a batch if neither the user nor the target says
# traced; without the first and the last, two pairs of neighbours remain
SCRIPT_STEPS = 5

# Steps of a script before the traced ones: functions are traced, slots made, iterators filled.
SCRIPT_WARMUP_STEPS = 3


class TargetKind(Choice):
    """The kinds of target."""

    APPLICATION = "application"
    PRESET = "preset"
    FILE = "file"
    MODULE = "module"
    KERAS_FILE = "keras-file"
    SAVED_MODEL = "saved-model"
    TRACE = "trace"
    SCRIPT = "script"


class TargetSpec(Struct, frozen=True, kw_only=True):
    """A target that is classified but not loaded."""

    text: str
    kind: TargetKind
    path: str  # the file or folder, or the module's dotted name
    attribute: str = ""  # the name after the colon

    @property
    def is_trace(self) -> bool:
        """Whether it is an existing trace or the folder of a run."""
        return self.kind is TargetKind.TRACE

    @property
    def source(self) -> Path:
        """The file or folder to read; for a module, its file in the working folder."""
        if self.kind is TargetKind.MODULE:
            return Path(*self.path.split(".")).with_suffix(".py")

        return Path(self.path)

    @property
    def name(self) -> str:
        """A short name for folders and headings."""
        stem = Path(self.path).name.split(".")[0]
        return re.sub(r"[^\w.-]+", "_", self.attribute or stem or "model")[:60]


class StepOptions(TypedDict, total=False):
    """How a step is built and run: the options that ``trace``, ``estimate`` and ``fit`` share.

    An omitted option has the default of ``CaptureOptions``.
    """

    steps: int | None  # steps to trace
    batch_size: int | None  # size of an open batch axis
    mode: str  # ``train``, ``infer`` or ``generate``; empty for the target's own
    shapes: Shapes
    optimizer: str  # of Keras; empty for the compiled one
    loss: str  # of Keras; empty for the compiled one, or one that fits the output
    jit: bool | None  # compile with XLA; None for the model's own choice
    dtype_policy: str  # of Keras, for building the model
    inter_op_threads: int | None  # threads that run ops in parallel
    device: str  # ``cpu`` or ``gpu``; empty for a GPU if there is one
    gpu: str  # a simulated card: ``t4``, ``2xt4``
    memory_limit_bytes: int | None  # TensorFlow's memory limit; None for its default
    growth: bool | None  # whether the pool of a simulated card grows on demand
    # values that depend on data, or answers of a simulated card's libraries, by name
    assume: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """How the step is built and run; None or an empty value means the default."""

    steps: int | None = None
    mode: str = ""
    batch_size: int | None = None
    shapes: Shapes = field(default_factory=dict)
    optimizer: str = ""  # default: the compiled one, else ``OPTIMIZER``
    loss: str = ""  # default: the compiled one, else one that fits the output
    jit: bool | None = None  # default: as the model or Keras chooses
    dtype_policy: str = ""
    inter_op_threads: int | None = None
    device: str = ""  # default: ``gpu`` if there is one
    gpu: str = ""  # simulated card; several as ``t4,t4`` or ``2xt4``
    # of a simulated card or a traced CPU (there whole MiB)
    memory_limit_bytes: int | None = None
    growth: bool | None = None  # whether a simulated card's pool grows
    # whether a simulated card's pool may be smaller than its limit
    has_short_pool: bool = False
    is_unlimited: bool = False  # whether a simulated card has room for any step
    # whether XLA chooses algorithms without trials: less time, and the same buffers of the step
    skips_trials: bool = False
    # whether the batch axis stays open, so that one step serves all sizes
    is_open: bool = False
    caution: str = ""  # sentence for the report, to read before any figure
    # trip counts, branches and result sizes by name, or ``ASSUMPTIONS`` of a simulated card
    assume: dict[str, int] = field(default_factory=dict)
    remedy: str = ""  # name in ``model_changes``

    @property
    def step_count(self) -> int:
        """Number of steps to trace or to predict."""
        return DEFAULT_STEPS if self.steps is None else self.steps

    @property
    def open_batch_size(self) -> int:
        """Size of an open batch axis."""
        return BATCH_SIZE if self.batch_size is None else self.batch_size


@dataclass(frozen=True, kw_only=True)
class CaptureRequest:
    """A request to capture one target into a run folder that is made in ``folder``."""

    target: TargetSpec
    options: CaptureOptions
    folder: str
    kind: CaptureKind = "run"


@dataclass(frozen=True, kw_only=True)
class WatchRequest:
    """A request to run a script or a module and trace its own steps, into ``folder``."""

    script: str  # as the user wrote it
    is_module: bool = False  # as by ``python -m``
    folder: str
    arguments: tuple[str, ...] = ()
    steps: int = SCRIPT_STEPS
    warmup: int = SCRIPT_WARMUP_STEPS
    options: CaptureOptions = field(default_factory=CaptureOptions)


class Assumption(ReportRecord, frozen=True):
    """One setting of a simulated card: its largest value, its default and the source of both."""

    name: Name  # for ``--assume NAME=N``
    what: Text
    most: Total  # the largest value that TensorFlow accepts or that is plausible
    source: Text
    usual: Total = 0
    is_bytes: bool = True


ASSUMPTIONS = read_table(
    "model/contract/assumptions.toml",
    dict[str, tuple[Assumption, ...]],
)["assumptions"]
WORKSPACE, PRODUCT_WORKSPACE, RECURRENT_RESERVE, BATCH_NORM_RESERVE, CONTEXT = (
    ASSUMPTIONS
)


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Allocator settings for a replay; None keeps the recording's setting."""

    memory_limit_bytes: int | None = None
    growth: bool | None = None

    @property
    def is_asked(self) -> bool:
        """Whether any setting is given."""
        return self != NOTHING_ASKED


NOTHING_ASKED = WhatIf()


class StageBegun(Struct, frozen=True, tag_field="message", tag="stage"):
    """The child begins a stage."""

    stage: str


class SizeRun(Struct, frozen=True, kw_only=True, tag_field="message", tag="size"):
    """The answer of a run at one size."""

    peak_bytes: int | None = None  # of the card's allocator; None if the run failed
    fixed_bytes: int = 0  # in use between steps
    kind: FailureKind | None = None  # why it failed
    detail: str = ""  # the error
    is_open: bool = False  # whether the same process takes another size


class CaptureDone(Struct, frozen=True, tag_field="message", tag="done"):
    """The run folder is complete. The last message of a successful capture."""


class ChildFailed(Struct, frozen=True, tag_field="message", tag="failed"):
    """The child failed. Its last message."""

    error: str
    hint: str
    exit_code: int
    kind: FailureKind = FailureKind.OTHER


class CopyEnd(Struct, frozen=True, tag_field="message", tag="copy ended"):
    """How a fork of a child ended that made one of several captures."""

    code: int  # exit status, or minus the number of a signal


Message = StageBegun | SizeRun | CaptureDone | ChildFailed | CopyEnd


def encode_message(message: Message) -> bytes:
    """Return a message as a line of JSON."""
    return (json.dumps(to_builtins(message)) + "\n").encode()


def parse_message(line: bytes) -> Message | None:
    """Return the message in a line, or None if it holds none."""
    try:
        message: Message = convert(json.loads(line), Message)
    except (ValueError, RecursionError):
        return None

    return message


_Record = TypeVar("_Record")


def write_message(path: Path, message: object) -> None:
    """Write a record as a JSON file, atomically."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(to_builtins(message)), encoding="utf-8")
    unfinished.replace(path)


def read_message(path: Path, record: type[_Record]) -> _Record:
    """Read a file that ``write_message`` wrote, or raise AnalyzerError."""
    try:
        return convert(json.loads(path.read_bytes()), record)
    except (OSError, ValueError, RecursionError) as error:
        raise AnalyzerError(
            f"The message in {path} cannot be read: {error}.",
            "The command and its child must be of one installation of tf-memory-analyzer.",
        ) from None


class AllocatorFigures(Struct, frozen=True, kw_only=True):
    """One of TensorFlow's GPUs (a logical device) and its allocator."""

    device: Name  # such as ``GPU:0``
    card_uuid: Name
    card_name: Name
    in_use_bytes: Bytes
    peak_in_use_bytes: Bytes
    limit_bytes: Bytes  # of the pool
    grows: bool

    @property
    def pool_bytes(self) -> int:
        """Size of a pool that does not grow: its limit, from the first tensor on."""
        return self.limit_bytes if self.peak_in_use_bytes else 0
