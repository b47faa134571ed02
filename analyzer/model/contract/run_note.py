"""``run.json``: facts about a captured run that the trace does not contain.

Version 1. New fields have defaults, so that older notes can be read; unknown fields are ignored, so
that newer notes of the same version can also be read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import to_builtins

from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import (
    Address,
    Bytes,
    Count,
    Index,
    Name,
    Shape,
    Text,
    Threads,
    Word,
    check_size,
)
from analyzer.model.contract.like_note import LikeNote
from analyzer.model.contract.reading import read_record
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.errors import ExitCode, FailureKind

RUN_FORMAT: Final = "tf-memory-analyzer-run"
RUN_VERSION: Final = 1
MOST_STEPS: Final = 500
"""Limit of the steps of an estimate; each is simulated from the start, several times."""

DAMAGED: Final = "Repeat the capture, or move the .xplane.pb to another folder and open it alone."
"""Hint for a note or graph that cannot be read."""

Mode = Literal["train", "infer", ""]
"""Training or inference; empty if unknown."""

GraphKind = Literal["executed", "traced", ""]
"""Whether the graph is the executor's or the traced one; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """How the step is built and run; empty or None if unknown.

    Attributes:
        mode: ``train`` or ``infer``; empty for a user-defined step.
        jit: Whether XLA compiles the step.
        batch_size: Size of the first axis of its inputs.
        optimizer: Class of the optimizer.
        dtype_policy: Keras dtype policy.
    """

    mode: str = ""
    jit: bool | None = None
    batch_size: int | None = None
    optimizer: str = ""
    dtype_policy: str = ""


@dataclass(frozen=True, slots=True)
class VariableNote:
    """One variable of the step.

    Attributes:
        path: Its name.
        dtype, shape: Of its value; shape None if unknown.
        category: Its category.
        role: More specific than the category; may be empty.
        trainable: Whether gradients are computed for it.
        argument: Index among the arguments of the step's function; None if it is not captured.
    """

    path: Name
    dtype: Word
    shape: Shape | None
    category: Category
    role: Text = ""
    trainable: bool = False
    argument: Index | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """One input tensor of the step; None for an unknown shape or address."""

    name: Name
    dtype: Word
    shape: Shape | None
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class BirthNote:
    """How one variable was created.

    Attributes:
        variable: Index of the variable in the note; None if the step does not use it.
        events: (number of a buffer, its bytes) for an allocation, (number, 0) for a free. The last
            buffer that stays is the value; others are constants that TensorFlow keeps on a card.
        traced: Whether it was created while the step was traced, as optimizer slots are.
        sharing: Equal for variables that have the same initial value.
    """

    variable: Index | None
    events: tuple[tuple[Index, Bytes], ...]
    traced: bool
    sharing: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """A size that depends on data.

    Attributes:
        op: The op whose result has this size.
        size: Assumed number of elements or rows.
        basis: ``inputs`` (computed from the inputs), ``told`` (set by the user) or ``most`` (the upper
            bound).
    """

    op: Name
    size: Bytes
    basis: Literal["inputs", "told", "most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFunction:
    """A function of the step that XLA compiles, and its files.

    Attributes:
        ops: Names of the ops that call it.
        platform: The device that ``plan`` was compiled for.
        module: File with the module before XLA's passes (gzip, HloModuleProto); None if absent.
        plan: File with the compiled module and its buffer assignment; None if absent.
        fixed: Inputs whose values are compiled in, each with the op that needs the value.
        compilations: Number of compilations during the run; 0 if nothing ran.
    """

    ops: tuple[Name, ...]
    function: Name
    platform: Word
    module: Name | None = None
    plan: Name | None = None
    fixed: tuple[tuple[Index, Name], ...] = ()
    compilations: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNote:
    """How the step is built and run; see ``StepConfig``.

    Attributes:
        eager: Whether it runs op by op, without a graph.
        own: Whether it is a user-defined function instead of a model's training or inference step.
    """

    mode: Mode = ""
    jit: bool | None = None
    batch_size: Bytes | None = None
    optimizer: Name = ""
    dtype_policy: Name = ""
    eager: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNote:
    """The device of the step; ``id`` is the name of a simulated card in the card table."""

    kind: Literal["cpu", "gpu", ""] = ""
    name: Name = ""
    id: Word = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsNote:
    """Threads within one op and between ops; whether the user set the latter number."""

    intra_op: Threads = 1
    inter_op: Threads = 1
    inter_op_fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNote:
    """The captured target: the user's text, its kind and a short name."""

    text: Text = ""
    kind: Word = ""
    name: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a step failed.

    Attributes:
        type: Class of the error.
        message: The error message.
        exit_code: The command's exit code.
        where: ``file:line`` of the user's code; empty if unknown, None if the error has no place.
        kind: Why it failed, for decisions.
    """

    type: Name
    message: Text
    exit_code: ExitCode = ExitCode.BAD_INPUT
    where: Name | None = None
    kind: FailureKind = FailureKind.OTHER

    def plain(self) -> dict[str, Any]:
        """Return JSON values; without ``where`` if the error has no place."""
        values = {"type": self.type, "message": self.message, "exit_code": int(self.exit_code)}
        return values if self.where is None else {**values, "where": self.where}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomNote:
    """The simulated cards and the assumptions about them.

    Attributes:
        cards: Names in the card table, in order.
        assumed: Settings of ``phantom_assumptions`` by name; a missing one has its default.
        memory_limit_bytes: The user's limit on each card; None for TensorFlow's own.
    """

    cards: tuple[Word, ...] = ()
    assumed: Mapping[Name, Bytes] = field(default_factory=dict)
    memory_limit_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The content of ``run.json``.

    Attributes:
        kind: ``static`` for an estimate, empty for a trace.
        from_process_start: Whether the trace contains every allocation of the process.
        steps_wanted, steps_done: Steps to run or to predict; steps that ran.
        notes: Sentences for the reader.
        snapshots: Addresses of the variables before the first step and after each step.
        inputs_after: For each input, how many variables were created before it; None for all.
        gradients: Tensors of the graph that are gradients of parameters.
        nested_gradients: The same inside functions.
        eager_gradients: Index of a marker -> addresses of gradients.
        scopes: Name scope -> kind and path of the object that opened it.
        graph: File with the graph; None for an eager step.
        function: Name of the step's function.
        error: How the step failed; None on success.
        births: How the variables were created, in order; empty if the trace shows it.
        kept_by_tracing: Constants that the traced graph keeps.
        kept_by_slots: Constants that the creation of optimizer slots keeps.
        threads: Threads of the machine that made the note.
        xla: The functions of the step that XLA compiles.
        sizes: Sizes that depend on data, with the assumed values.
        assumed: The user's assumptions about trip counts, branches and sizes, by name.
        phantom: The simulated cards; None for real devices.
        like: Figures of the user's own trace that calibrate an estimate; None for none.
        watch: Observations of a watched script; None if the capture made the step.
    """

    format: Word = RUN_FORMAT
    schema_version: int = RUN_VERSION
    kind: Literal["static", ""] = ""
    step: StepNote = StepNote()
    device: DeviceNote = DeviceNote()
    target: TargetNote | None = None
    versions: dict[Word, Word] = field(default_factory=dict)
    environment: dict[Name, Text] = field(default_factory=dict)
    from_process_start: bool = False
    steps_wanted: Count | None = None
    steps_done: Count = 0
    notes: tuple[Text, ...] = ()
    variables: tuple[VariableNote, ...] = ()
    snapshots: tuple[tuple[Address | None, ...], ...] = ()
    inputs: tuple[Input, ...] = ()
    inputs_after: tuple[Index | None, ...] = ()
    gradients: frozenset[Name] = frozenset()
    nested_gradients: frozenset[Name] = frozenset()
    eager_gradients: Mapping[int, tuple[Address, ...]] = field(default_factory=dict)
    scopes: Mapping[Name, tuple[Word, Name]] = field(default_factory=dict)
    graph: Name | None = None
    graph_kind: GraphKind = ""
    function: Name = ""
    error: Failure | None = None
    births: tuple[BirthNote, ...] = ()
    kept_by_tracing: Count = 0
    kept_by_slots: Count = 0
    threads: ThreadsNote = ThreadsNote()
    xla: tuple[CompiledFunction, ...] = ()
    sizes: tuple[DataSize, ...] = ()
    assumed: Mapping[Name, Bytes] = field(default_factory=dict)
    phantom: PhantomNote | None = None
    like: LikeNote | None = None
    watch: WatchNote | None = None

    @property
    def is_estimate(self) -> bool:
        """Whether it is an estimate: nothing ran and the graph is the input of a prediction."""
        return self.kind == "static"

    @property
    def is_inference(self) -> bool:
        """Whether the step is an inference step."""
        return self.step.mode == "infer"


def encode_run(run: RunFile) -> bytes:
    """Return a note as JSON text that ``read_run_file`` reads."""
    plain = to_builtins(run, str_keys=True)
    for name in ("gradients", "nested_gradients"):
        plain[name] = sorted(plain[name])
    return json.dumps(plain, indent=1).encode()


def read_run_file(path: Path) -> RunFile:
    """Read ``run.json``.

    Raises:
        TraceError: It is missing or damaged, or a newer version wrote it.
    """
    return read_record(path, RunFile, version=RUN_VERSION, hint=DAMAGED, check=_check)


def _check(run: RunFile) -> None:
    if run.is_estimate and (run.steps_wanted or 0) > MOST_STEPS:
        raise ValueError(f"{run.steps_wanted} steps to predict, more than {MOST_STEPS}")
    for variable in run.variables:
        check_size(variable.dtype, variable.shape)
    for given in run.inputs:
        check_size(given.dtype, given.shape)
    _check_births(run)


def _check_births(run: RunFile) -> None:
    """Check that each variable is born at most once, with a buffer only if it may have one."""
    born = Counter(birth.variable for birth in run.births if birth.variable is not None)
    for index, times in born.items():
        if times > 1:
            raise ValueError(f"{times} births of variable {index}")
    for birth in run.births:
        if birth.variable is not None and birth.variable >= len(run.variables):
            raise ValueError(f"a birth of the unknown variable {birth.variable}")
        check_requests(birth.events)
        if birth.variable is not None and not _may_hold(run.variables[birth.variable]):
            freed = {number for number, size_bytes in birth.events if not size_bytes}
            if {number for number, _ in birth.events} - freed:
                raise ValueError(f"variable {birth.variable} is empty but has a buffer")


def _may_hold(variable: VariableNote) -> bool:
    """Say whether a variable may have bytes, that is, has no axis of size 0."""
    return variable.shape is None or 0 not in variable.shape


def check_requests(events: tuple[tuple[int, int], ...]) -> None:
    """Check that each buffer is allocated before it is freed.

    Args:
        events: (number of a buffer, its bytes) for an allocation, (number, 0) for a free.

    Raises:
        ValueError: A buffer is freed that is not alive, or allocated while it is alive.
    """
    alive: set[int] = set()
    for number, size_bytes in events:
        if bool(size_bytes) == (number in alive):
            raise ValueError(f"buffer {number} is {'allocated' if size_bytes else 'freed'} twice")
        if size_bytes:
            alive.add(number)
        else:
            alive.discard(number)
