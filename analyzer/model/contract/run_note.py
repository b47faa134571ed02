"""``run.json``: what a capture knew and the trace does not say.

Version 1. A field that is added has a default, so that older notes read; what a reader does not know is
stepped over, so that a note of the same version with more fields reads too.
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
from analyzer.model.contract.element_sizes import check_size
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
)
from analyzer.model.contract.reading import read_record
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.errors import ExitCode, FailureKind

RUN_FORMAT: Final = "tf-memory-analyzer-run"
RUN_VERSION: Final = 1  # of the note's layout
MOST_STEPS: Final = 500
"""Steps of an estimate at most: each is played from the start, a few times over."""

DAMAGED: Final = "Capture again, or open the .xplane.pb alone by moving it elsewhere."
"""What to do where a note or its graph cannot be read."""


Mode = Literal["train", "infer", ""]
"""What the step does; empty where it is not known."""

GraphKind = Literal["executed", "traced", ""]
"""The graph that the executor ran, or the one that was traced; empty where there is none."""


@dataclass(frozen=True, slots=True)
class VariableNote:
    """One variable of the step.

    Attributes:
        path: Its name.
        dtype, shape: Of its value; shape None where not known.
        category: Whose it is.
        role: Finer than the category, in words; may be empty.
        trainable: Whether gradients are taken with respect to it.
        argument: Index among the step function's arguments, None where it is not captured.
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
    """One tensor that the step is fed, with the address of its bytes."""

    name: Name
    dtype: Word
    shape: Shape | None
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class BirthNote:
    """How one variable came to be.

    Attributes:
        variable: Index of the variable in the note, None where the step does not know it.
        events: (number of a buffer, its bytes) where it is born, (number, 0) where it dies; the last
            that lives on is the value, others are numbers that TensorFlow keeps on a card.
        traced: Made while the step was traced, as slots are.
        sharing: Equal for variables that begin with the same value.
    """

    variable: Index | None
    events: tuple[tuple[Index, Bytes], ...]
    traced: bool
    sharing: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """A size that depends on data.

    Attributes:
        op: The op whose result has it.
        size: What it is taken as, elements or rows.
        basis: ``inputs`` (worked out from the inputs given), ``told`` by the user, or ``most`` that it
            can be.
    """

    op: Name
    size: Bytes
    basis: Literal["inputs", "told", "most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFunction:
    """A function of the step that XLA compiles, and the files that hold it.

    Attributes:
        ops: Names of the ops that call it.
        function: Its name.
        platform: The device that ``plan`` was compiled for.
        module: File with the module before XLA's passes (gzip, HloModuleProto); None where not kept.
        plan: File with the compiled module and its buffer assignment; None where not kept.
        fixed: The inputs of such an op whose values are compiled in, and the op that needs each.
        compilations: How often it was compiled while it ran; 0 where nothing ran.
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
    """How the step is run; an empty text or None where it is not known.

    Attributes:
        mode: ``train`` or ``infer``.
        jit: The whole step is compiled with XLA.
        batch_size: Size of the first axis of what it is fed.
        optimizer: Class of the optimizer.
        dtype_policy: Keras dtype policy.
        eager: It runs op by op, without a graph.
        own: It is a function of the user's own, no model's training or inference step.
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
    """The device of the step; ``id`` is the catalogue's name of a card that is predicted for."""

    kind: Literal["cpu", "gpu", ""] = ""
    name: Name = ""
    id: Word = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsNote:
    """Threads for one op, for ops side by side, and whether the user fixed the latter number."""

    intra_op: Threads = 1
    inter_op: Threads = 1
    inter_op_fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNote:
    """What was captured: as the user named it, which form of target that is, and a short name."""

    text: Text = ""
    kind: Word = ""
    name: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a step failed.

    Attributes:
        type: Class of the error.
        message: What it says.
        exit_code: The command's exit code for it.
        where: ``file:line`` of the user's code; empty if not known, None if it has no place.
        kind: Why it failed, for decisions.
    """

    type: Name
    message: Text
    exit_code: ExitCode = ExitCode.BAD_INPUT
    where: Name | None = None
    kind: FailureKind = FailureKind.OTHER

    def plain(self) -> dict[str, Any]:
        """Return JSON values; ``where`` is left out where the error has no place."""
        told = {"type": self.type, "message": self.message, "exit_code": int(self.exit_code)}
        return told if self.where is None else {**told, "where": self.where}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomNote:
    """The cards that were not there, and what was assumed of them.

    Attributes:
        cards: Their names in the catalogue, in order.
        assumed: What was taken for what NVIDIA's libraries would say, by the names of
            ``phantom_assumptions``; what is not named is the usual.
        memory_limit_bytes: The limit that the user set on each card; None for TensorFlow's own.
    """

    cards: tuple[Word, ...] = ()
    assumed: Mapping[Name, Bytes] = field(default_factory=dict)
    memory_limit_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What ``run.json`` holds.

    Attributes:
        format, schema_version: What kind of file it is.
        kind: ``static`` for an estimate, empty for a trace.
        step, device, target, versions, environment: What was run, on what and with what.
        from_process_start: The trace sees every allocation of the process.
        steps_wanted, steps_done: Steps to run, or to predict; steps run.
        notes: Sentences for the reader.
        variables: The step's variables.
        snapshots: For each moment (before the first step, after each) the variables' addresses.
        inputs: What the step is fed.
        inputs_after: For each input, how many variables were made before it; None for all.
        gradients: Graph tensors that are gradients of parameters.
        nested_gradients: The same inside functions.
        eager_gradients: Index of the marker -> addresses of gradients.
        scopes: Name scope -> (kind, path) of who opened it.
        graph: File with the graph; None for an eager step.
        graph_kind: ``executed`` or ``traced``; empty for an eager step.
        function: Name of the step's function.
        error: How the step failed; None where it did not.
        births: How the variables came to be, in order; empty where the trace shows it.
        kept_by_tracing, kept_by_slots: Constants that the traced graph and the making of slots keep.
        threads: Of the machine that made the note.
        xla: The functions of the step that XLA compiles.
        sizes: Sizes that depend on data, and what they are taken as.
        assumed: Trips of loops, branches and sizes that the user told, by name.
        phantom: The cards that TensorFlow ran on without their being there; None for none.
        watch: What was seen of a program whose own steps were traced; None where the capture made
            the step.
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
    watch: WatchNote | None = None

    @property
    def is_estimate(self) -> bool:
        """Whether nothing ran: the graph is there to be predicted from."""
        return self.kind == "static"

    @property
    def is_inference(self) -> bool:
        """Whether the step trains nothing."""
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
        TraceError: it is missing or damaged, or a newer version wrote it.
    """
    return read_record(path, RunFile, version=RUN_VERSION, hint=DAMAGED, check=_check)


def _check(run: RunFile) -> None:
    if run.is_estimate and (run.steps_wanted or 0) > MOST_STEPS:
        raise ValueError(f"{run.steps_wanted} steps to predict, more than {MOST_STEPS}")
    for variable in run.variables:
        check_size(variable.dtype, variable.shape)
    for given in run.inputs:
        check_size(given.dtype, given.shape)
    born = Counter(birth.variable for birth in run.births if birth.variable is not None)
    for index, times in born.items():
        if times > 1:
            raise ValueError(f"{times} births of variable {index}")
    for birth in run.births:
        if birth.variable is not None and birth.variable >= len(run.variables):
            raise ValueError(f"a birth of variable {birth.variable}, which is not listed")
        check_requests(birth.events)
        if birth.variable is not None and not _may_hold(run.variables[birth.variable]):
            freed = {number for number, size_bytes in birth.events if not size_bytes}
            if {number for number, _ in birth.events} - freed:
                raise ValueError(f"variable {birth.variable} is empty, and its birth leaves bytes")


def _may_hold(variable: VariableNote) -> bool:
    """Say whether a variable may have bytes: it has no axis of size 0."""
    return variable.shape is None or 0 not in variable.shape


def check_requests(events: tuple[tuple[int, int], ...]) -> None:
    """Check that each buffer is born before it dies.

    Args:
        events: (number of a buffer, its bytes) where it is born, (number, 0) where it dies.

    Raises:
        ValueError: a buffer dies that does not live, or is born while it lives.
    """
    alive: set[int] = set()
    for number, size_bytes in events:
        if bool(size_bytes) == (number in alive):
            raise ValueError(f"buffer {number} is {'born' if size_bytes else 'freed'} twice")
        if size_bytes:
            alive.add(number)
        else:
            alive.discard(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """How the step is run; an empty string or None where it is not known.

    Attributes:
        mode: ``train`` or ``infer``; empty for a step of the user's own, which does what its code says.
        jit: XLA compiles it.
        batch_size: Size of the first axis of what it is fed.
        optimizer: Class of the optimizer.
        dtype_policy: Keras dtype policy.
    """

    mode: str = ""
    jit: bool | None = None
    batch_size: int | None = None
    optimizer: str = ""
    dtype_policy: str = ""
