"""What the child that captures is asked: the target, the options, and where to leave its folder.

Version 1 of the request, a JSON file in the folder that the capture makes. The process that reads it may
be of another installation of this package than the one that wrote it, so that it says its version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from analyzer.model.choice import Choice

REQUEST_VERSION: Final = 1

CaptureKind: TypeAlias = Literal["run", "static", "trial"]
"""``run`` to run the step and trace it, ``static`` to take its graph and run nothing, ``trial`` to run
it and note no more than whether it came to its end."""

DEFAULT_STEPS: Final = 3  # traced where the user names no number
BATCH_SIZE: Final = 32  # examples, where neither the user nor the target names a number


class TargetKind(Choice):
    """The kinds of target."""

    APPLICATION = "application"
    FILE = "file"
    MODULE = "module"
    KERAS_FILE = "keras-file"
    SAVED_MODEL = "saved-model"
    TRACE = "trace"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """A target, told apart but not yet loaded.

    Attributes:
        text: What the user wrote.
        kind: Which form it is.
        path: The file or folder, or the module's dotted name.
        attribute: The name after the colon; empty where there is none.
    """

    text: str
    kind: TargetKind
    path: str
    attribute: str = ""

    @property
    def source(self) -> Path:
        """The file or folder that is read; of a module, where it lies in the working folder."""
        if self.kind is TargetKind.MODULE:
            return Path(*self.path.split(".")).with_suffix(".py")
        return Path(self.path)

    @property
    def name(self) -> str:
        """A short name for folders and headings."""
        stem = Path(self.path).name.split(".")[0] if self.path else ""
        return re.sub(r"[^\w.-]+", "_", self.attribute or stem or "model")[:60]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How the step is built and run; None or empty where the user left it open.

    Attributes:
        steps: Steps to trace; None means ``DEFAULT_STEPS``.
        mode: ``train`` or ``infer``; empty means what the target is made for.
        batch_size: Size of the first axis where a spec leaves it open; None means
            ``BATCH_SIZE``.
        shapes: Axes of inputs by name; the key ``""`` stands for the only input.
        optimizer: Keras optimizer; empty means the compiled one, or ``OPTIMIZER``.
        loss: Keras loss; empty means the compiled one, or one that fits the output.
        jit: Compile with XLA; None means what the model or Keras chooses.
        dtype_policy: Keras dtype policy to build with; empty means Keras' own.
        inter_op_threads: Threads that run ops side by side; None means TensorFlow's choice.
        device: ``cpu``, ``gpu`` or empty for a GPU where there is one.
        gpu: The catalogue's name of a card that is not there: to predict for, or to trace on, where it
            may be several (``t4,t4`` or ``2xt4``); empty for the machine's own device.
        memory_limit_bytes: On such a card, or for a trace on a CPU: TensorFlow's limit, on a CPU in
            whole MiB; None for its own. The graph of an estimate is optimised for it.
        growth: The same: whether the pool grows as it is needed; None for no.
        cpu_plan: For an estimate with XLA for a card: compile for the CPU too, even where the card's
            own compiler is installed.
        assume: For an estimate: what is taken for what the data decide, by name: trips of a loop, the
            size of an op's result, the number of a branch. For a trace on a card that is not there: what
            is taken for what its libraries would say (``phantom_assumptions``).
        remedy: A change of the model that lowers its memory
            (``model_changes``); empty for none.
    """

    steps: int | None = None
    mode: str = ""
    batch_size: int | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    optimizer: str = ""
    loss: str = ""
    jit: bool | None = None
    dtype_policy: str = ""
    inter_op_threads: int | None = None
    device: str = ""
    gpu: str = ""
    memory_limit_bytes: int | None = None
    growth: bool | None = None
    cpu_plan: bool = False
    assume: dict[str, int] = field(default_factory=dict)
    remedy: str = ""

    @property
    def step_count(self) -> int:
        """Steps to trace or to predict."""
        return DEFAULT_STEPS if self.steps is None else self.steps

    @property
    def open_batch_size(self) -> int:
        """Size of a batch axis that is open."""
        return BATCH_SIZE if self.batch_size is None else self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What the child that captures is told.

    Attributes:
        target: What to capture.
        options: How.
        folder: Where the run folder is made.
        kind: What to do with it.
        schema_version: Of this record.
    """

    target: TargetSpec
    options: CaptureOptions
    folder: str
    kind: CaptureKind = "run"
    schema_version: int = REQUEST_VERSION


WATCH_VERSION: Final = 1

SCRIPT_STEPS: Final = 5
"""Steps that are traced: two pairs of neighbours stay when the first and the last are left out."""

SCRIPT_WARMUP_STEPS: Final = 3
"""Steps before them: functions are traced, slots made, iterators filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """What the child that runs a script is told.

    Attributes:
        script: The script as the user wrote it.
        arguments: Its own arguments.
        folder: Where the run folder is made.
        steps, warmup: Steps to trace, and steps before them.
        options: The cards and threads.
        schema_version: Of this record.
    """

    script: str
    folder: str
    arguments: tuple[str, ...] = ()
    steps: int = SCRIPT_STEPS
    warmup: int = SCRIPT_WARMUP_STEPS
    options: CaptureOptions = field(default_factory=CaptureOptions)
    schema_version: int = WATCH_VERSION
