"""The files of a run folder: facts that the trace does not contain, and the graph. Version 1.

``run.json`` has facts about a captured run. New fields have defaults and unknown fields are ignored, so
older and newer notes can be read. A watched script adds its steps and the memory it keeps. A place is
``file:line`` of the user's code, empty if there is none.

``graph.json.gz`` has the executed ops and the traced graph, like TensorFlow's nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, to_builtins

from analyzer.model.contract.fields import (
    Address,
    Bytes,
    Category,
    Count,
    Index,
    Name,
    ReportRecord,
    Shape,
    Text,
    Threads,
    TwoSizes,
    check_size,
    tensor_bytes,
)
from analyzer.model.contract.reading import read_record, read_table
from analyzer.model.errors import ExitCode, FailureKind

MOST_ROWS = 4096  # limit of the rows of each kind
_Row = TypeVar("_Row")
_Rows = Annotated[tuple[_Row, ...], Meta(max_length=MOST_ROWS)]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Memory in use after one step."""

    step: Index  # number of steps so far
    in_use_bytes: Bytes
    host_bytes: Bytes | None = None


class HeldTensors(Struct, frozen=True, kw_only=True):
    """Tensors of the traced steps that one Python object keeps alive after them."""

    holder: Text  # in words: the list ``kept`` of train.py
    where: Name
    count: Index
    size_bytes: Bytes
    addresses: tuple[Address, ...] = ()
    shapes: tuple[Shape, ...] = ()
    grows: bool = True  # False for a name that each step assigns again
    by_traceback: bool = False  # whether tracebacks of exceptions keep them alive
    bound: Index = 0  # most entries of the container; 0 if unknown
    removes: bool = False  # whether the program also removes entries


class TapesNote(Struct, frozen=True, kw_only=True):
    """Gradient tapes of one line that keep recorded tensors alive."""

    where: Name
    persistent: bool
    made: Index  # in the traced steps
    alive: Index  # all tapes of this line that keep tensors after the traced steps
    unused: Index = 0  # those that never computed a gradient
    holder: Text = ""  # empty if each step assigns the name again


# The kind of the argument that changed: a tensor, a Python number or text, or another object.
RetraceCause = Literal["shape", "value", "object"]


class Retrace(Struct, frozen=True, kw_only=True):
    """A retracing of a function."""

    step: Index
    call: Index  # from 1
    changed: Text  # the change in the arguments, in words
    cause: RetraceCause = "object"


class TracedFunction(Struct, frozen=True, kw_only=True):
    """A function that TensorFlow traced."""

    name: Name
    where: Name
    called_at: Name = ""  # at the last tracing
    objects: Index = 1  # ``tf.function`` objects made of it
    alive: Index = 1  # of these objects, at the end
    calls: Index = 0  # from outside of functions
    traces: Index = 0
    holder: Text = ""  # of the objects, if there are several
    retraces: tuple[Retrace, ...] = ()  # the latest
    is_keras: bool = False  # whether it is Keras' own loop, such as ``model.fit``


@dataclass(frozen=True, kw_only=True)
class LargeConstant:
    """Data that stays in memory until the program ends."""

    kind: Literal["graph", "held"]  # in a traced graph, or held by Python
    where: Name
    dtype: Name
    shape: Shape | None
    size_bytes: Bytes
    name: Text = ""  # the op, or the object that holds it
    copies: Index = 1  # number of traced graphs that contain it


class DataStage(Struct, frozen=True, kw_only=True):
    """A stage of a ``tf.data`` pipeline that buffers elements, or the queue of a ``PyDataset``."""

    kind: Literal["shuffle", "cache", "prefetch", "queue"]
    where: Name
    elements: Index | None = None
    element_bytes: Bytes | None = None  # None if a shape is open


class LiveModels(Struct, frozen=True, kw_only=True):
    """Keras models that one line makes."""

    where: Name
    alive: Index  # at the end
    size_bytes: Bytes  # of variables that they do not share, also of their optimizers
    holder: Text = ""
    made: Index = 0


class LiveChunk(Struct, frozen=True, kw_only=True):
    """A chunk of the memory pool at a failed allocation."""

    address: Address
    size_bytes: Bytes
    requested_bytes: Bytes
    variable: Name = ""  # path of the variable that it holds


class FailedStep(Struct, frozen=True, kw_only=True):
    """The live buffers at a failed allocation after the traced steps."""

    step: Index  # number of the failed step
    message: Text
    in_use_bytes: Bytes  # of the pool
    chunks: _Rows[LiveChunk] = ()  # the largest
    held: _Rows[HeldTensors] = ()


@dataclass(frozen=True, kw_only=True)
class WatchNote:
    """All observations of one program."""

    step: Text = ""  # in words: a call of ``train_step``
    where: Name = ""  # where it is defined or called
    warmup: Index = 0  # steps before the traced ones
    steps: Index = 0
    readings: _Rows[Reading] = ()  # thinned out if there are many
    held: _Rows[HeldTensors] = ()  # after the traced steps
    on_host: _Rows[
        HeldTensors
    ] = ()  # NumPy arrays, bytes or texts that each traced step added
    held_later: _Rows[HeldTensors] = ()  # later, if the program grew
    later_step: Index = 0  # number of steps at the time of ``held_later``
    tapes: _Rows[TapesNote] = ()
    functions: _Rows[TracedFunction] = ()
    constants: _Rows[LargeConstant] = ()
    stages: _Rows[DataStage] = ()
    models: _Rows[LiveModels] = ()
    ended: Text = ""  # how the program ended; empty for a normal end
    step_objects: Index = 1  # ``tf.function`` objects that made the steps
    micro_batches: Index = 1  # eager gradients for each update
    own_peaks: _Rows[Bytes] = ()  # ``get_memory_info`` of each GPU, else of the CPU
    first_call_bytes: Bytes = 0  # own peak after the latest function's first call
    peak_call: Name = ""  # line of the call that reached it; empty for a step or none
    process_peak_bytes: Bytes = 0  # largest resident memory; 0 if unknown
    whole_run: bool = False  # whether the run counts as one step, as no call repeats
    is_cut: bool = False  # whether the program went on after its trace ended
    # the first step after the traced ones without memory
    failed: FailedStep | None = None


RUN_FORMAT = "tf-memory-analyzer-run"
RUN_VERSION = 1

# Limit of the steps of an estimate; each is simulated from the start, several times.
MOST_STEPS = 500

DAMAGED = (
    "Repeat the capture, or move the .xplane.pb to another folder and open it alone."
)
Mode = Literal["train", "infer", "generate", ""]  # empty if unknown


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """How the step is built and run; empty or None if unknown."""

    mode: Mode = ""
    jit: bool | None = None  # whether XLA compiles the step
    batch_size: Bytes | None = None  # size of the first axis of its inputs
    optimizer: Name = ""
    dtype_policy: Name = ""
    options: tuple[
        Text,
        ...,
    ] = ()  # the user's further options, as words: ``--loss``, ``mse``
    eager: bool = False  # whether it runs op by op
    # whether it is the user's function, no model's training or inference
    own: bool = False
    is_jax: bool = False  # whether it is JAX's, and not TensorFlow's

    @property
    def infers(self) -> bool:
        """Whether it is a step of inference: one prediction, or the generation of tokens."""
        return self.mode in ("infer", "generate")


@dataclass(frozen=True)
class VariableNote:
    """One variable of the step."""

    path: Name
    dtype: Name
    shape: Shape | None
    category: Category
    role: Text = ""
    argument: Index | None = None  # index among the arguments of the step's function
    device: Name = ""  # its device by TensorFlow's name

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its elements; None if unknown."""
        return tensor_bytes(self.dtype, self.shape)


# Role of plain variables, which no Keras object holds and no gradient was taken of.
STATE_ROLE = "state"
UNUSED_ROLE = "loaded, but not used"  # a second copy in a SavedModel of Keras

# Scope of ``tf.vectorized_map`` and ``tape.jacobian``; in ``source_lines``, the line of a Jacobian.
LOOP_SCOPE = "/pfor/"

LOADED_ROLE = "loaded from a file"  # of the parameters of a pretrained model

# Role of variables to which a step adds gradients.
ACCUMULATOR_ROLE = "gradient accumulator"

# Index of the step on a simulated card in which unknown conditions are taken to be true.
STEP_WITH_ALL = 1


class Input(Struct, frozen=True):
    """One input tensor of the step; None for an unknown shape or address."""

    name: Name
    dtype: Name
    shape: Shape | None
    address: Address | None = None


class DataSize(Struct, frozen=True, kw_only=True):
    """A size that depends on data."""

    op: Name  # the op whose result has this size
    size: Bytes  # elements or rows
    # computed from the inputs, set by the user, or the upper bound
    basis: Literal["inputs", "told", "most"]


@dataclass(frozen=True, kw_only=True)
class CompiledFunction:
    """A function of the step that XLA compiles, and its files."""

    ops: tuple[Name, ...]  # the ops that call it
    function: Name
    platform: Name  # the device that ``plan`` was compiled for
    plan: Name | None = None  # the compiled module with its buffer assignment
    compilations: Count = 0  # in the run; 0 if nothing ran


@dataclass(frozen=True, kw_only=True)
class DeviceNote:
    """The device of the step; ``id`` is the name of a simulated card in the card table."""

    kind: Literal["cpu", "gpu", ""] = ""
    name: Name = ""
    id: Name = ""


@dataclass(frozen=True, kw_only=True)
class ThreadsNote:
    """The number of ops that run at once."""

    inter_op: Threads = 1


class TargetNote(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The target of the command; ``trace`` is the path of the trace file in a report."""

    text: Text = ""
    kind: Name = ""
    name: Name = ""
    trace: Text = ""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a step failed."""

    type: Name
    message: Text
    exit_code: ExitCode = ExitCode.BAD_INPUT
    # ``file:line`` of the user's code; empty if unknown, None if the error has no place
    where: Name | None = None
    kind: FailureKind = FailureKind.OTHER


class SimulatedCardNote(Struct, frozen=True, kw_only=True):
    """The simulated cards and the assumptions about them."""

    cards: tuple[Name, ...] = ()
    assumed: Mapping[
        Name,
        Bytes,
    ] = {}  # settings of ``ASSUMPTIONS`` that are not the default
    memory_limit_bytes: Bytes | None = None  # None for TensorFlow's own
    # whether the step ran with room for any step, not the card's
    is_unlimited: bool = False
    spare_bytes: tuple[
        Bytes,
        ...,
    ] = ()  # of each card's limit, by which its pool was smaller
    # of each convolution: bytes of the chosen workspace, the least and the most likely ones
    workspaces: tuple[tuple[Bytes, Bytes, Bytes], ...] = ()

    def spare_of(self, card: int | None) -> int:
        """Return the bytes by which a card's pool was smaller than its limit, by number."""
        if self.spare_bytes and card is not None:
            return self.spare_bytes[card]

        return 0


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """The content of ``run.json``."""

    format: Name = RUN_FORMAT
    schema_version: int = RUN_VERSION
    kind: Literal["static", ""] = ""  # ``static`` for an estimate
    step: StepConfig = StepConfig()
    device: DeviceNote = DeviceNote()
    target: TargetNote | None = None
    versions: dict[Name, Name] = field(default_factory=dict)
    # whether the trace has every allocation of the process
    from_process_start: bool = False
    steps_wanted: Count | None = None
    steps_done: Count = 0
    notes: tuple[Text, ...] = ()
    caution: Text = ""  # to read before any figure
    variables: tuple[VariableNote, ...] = ()
    # of the variables, before the first step and after each step
    snapshots: tuple[tuple[Address | None, ...], ...] = ()
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Shape | None, ...] = ()  # of the models, else of the step
    gradients: frozenset[Name] = frozenset()  # gradients of parameters in the graph
    # prefix of the names of ops of each function beside the step's
    functions: tuple[Name, ...] = ()
    # index of a marker -> addresses of gradients; name scope -> kind and path of its object
    eager_gradients: Mapping[int, tuple[Address, ...]] = field(default_factory=dict)
    scopes: Mapping[Name, tuple[Name, Name]] = field(default_factory=dict)
    # type, or type and bytes, of an eager op -> the only line of the user that runs it under a tape;
    # path of a layer -> line that creates it
    source_lines: Mapping[Name, Name] = field(default_factory=dict)
    graph: Name | None = None  # its file; None for an eager step
    function: Name = ""
    error: Failure | None = None
    threads: ThreadsNote = ThreadsNote()
    xla: tuple[CompiledFunction, ...] = ()
    sizes: tuple[DataSize, ...] = ()
    # trips, branches, sizes
    assumed: Mapping[Name, Bytes] = field(default_factory=dict)
    simulated_card: SimulatedCardNote | None = None  # None for real devices
    # op whose value is unknown on a simulated card, with its line -> decision; None if not observed
    unknown_values: Mapping[Name, Text] | None = None
    # peaks of further runs of the step after the trace, on a simulated card
    repeats: tuple[TwoSizes, ...] = ()
    watch: WatchNote | None = None

    @property
    def is_estimate(self) -> bool:
        """Whether it is an estimate: nothing ran and the graph is the input of a prediction."""
        return self.kind == "static"


def encode_run(run: RunFile) -> bytes:
    """Return a note as JSON text that ``read_run_file`` reads."""
    plain = to_builtins(run, str_keys=True)
    plain["gradients"] = sorted(plain["gradients"])
    return json.dumps(plain, indent=1).encode()


def read_run_file(path: Path) -> RunFile:
    """Read ``run.json``, or raise a TraceError."""
    return read_record(path, RunFile, version=RUN_VERSION, hint=DAMAGED, check=_check)


def _check(run: RunFile) -> None:
    if run.is_estimate and (run.steps_wanted or 0) > MOST_STEPS:
        raise ValueError(f"{run.steps_wanted} steps to predict, more than {MOST_STEPS}")

    for variable in run.variables:
        check_size(variable.dtype, variable.shape)
    for given in run.inputs:
        check_size(given.dtype, given.shape)


def op_types(text: str) -> frozenset[str]:
    """Return the set of op types in a text, separated by white space."""
    return frozenset(text.split())


@cache
def read_op_types(place: str) -> dict[str, dict[str, frozenset[str]]]:
    """Return the tables of a file of the package, with the op types of each row."""
    found = {}

    for name, rows in read_table(place, dict[str, dict[str, str]]).items():
        found[name] = {key: op_types(text) for key, text in rows.items()}

    return found


GRAPH_VERSION = 1
_MOST_EDGES = 1 << 16  # limit of the inputs or outputs of one op
_Names = Annotated[tuple[Name, ...], Meta(max_length=_MOST_EDGES)]
_MOST_DIGITS = 8  # digits of an output's index in a tensor's name
ARGUMENT_TYPES = op_types("_Arg _DeviceArg")  # op types of a graph's arguments
CONSTANTS = op_types("Const HostConst")
RESULT_TYPES = op_types("_Retval _DeviceRetval")  # op types of a graph's results

_TYPES = read_op_types("model/graph/graph_op_types.toml")["types"]
CONVOLUTIONS = _TYPES["convolutions"]
PARAMETER_GRADIENTS = _TYPES["parameter_gradients"]


class TensorSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One output of an op."""

    dtype: Name  # TensorFlow's name, such as ``float32`` or ``resource``
    shape: Shape | None  # -1 for an unknown axis, None for an unknown rank

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the elements; None if the shape or the element size is unknown."""
        return tensor_bytes(self.dtype, self.shape)

    @property
    def full_shape(self) -> tuple[int, ...] | None:
        """The shape; None unless it is fully known."""
        if self.shape is None or min(self.shape, default=0) < 0:
            return None

        return self.shape

    def of_size(self, size_bytes: int) -> TensorSpec | None:
        """Return the spec of a buffer, which determines one unknown axis; None if its size differs."""
        shape = self.shape or ()
        if shape.count(-1) != 1:
            return self if self.size_bytes == size_bytes else None

        row_bytes = tensor_bytes(self.dtype, tuple(map(abs, shape)))
        if not row_bytes or size_bytes % row_bytes:
            return None

        full = (size_bytes // row_bytes if axis < 0 else axis for axis in shape)
        return TensorSpec(self.dtype, tuple(full))

    @property
    def shape_text(self) -> str:
        """The shape in the allocator's notation, such as ``[32,128]``; empty if unknown."""
        if self.shape is None:
            return ""

        return f"[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Op:
    """One node of the executed graph, in which nested functions are inlined."""

    name: Name  # unique in the graph; the allocator writes it as ``tf_op``
    type: Name
    inputs: _Names = ()  # as ``node:output``, in order
    control_inputs: _Names = ()  # ops that it waits for
    outputs: Annotated[tuple[TensorSpec, ...], Meta(max_length=_MOST_EDGES)] = ()
    device: Name = ""  # empty if not placed
    # dtypes by name, shapes as lists; a tensor has ``dtype``, ``shape`` and flat ``values``, or
    # ``every`` if all are equal
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: Name = ""  # ``file:line`` of the user's code
    phase: Literal["forward", "backward", "update", ""] = ""  # empty if unknown


class GraphFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``graph.json.gz``."""

    schema_version: int = GRAPH_VERSION
    ops: tuple[Op, ...]
    inside: tuple[Op, ...] = ()  # of functions that run as one op


def read_graph_file(path: Path) -> GraphFile:
    """Read the graph of a run folder, or raise a TraceError."""
    return read_record(
        path,
        GraphFile,
        version=GRAPH_VERSION,
        hint=DAMAGED,
    )


def encode_graph(graph: GraphFile) -> bytes:
    """Return a graph as JSON text that ``read_graph_file`` reads."""
    plain = msgspec.to_builtins(graph)

    for op in (*plain["ops"], *plain["inside"]):
        for key in [key for key, value in op.items() if not value]:
            del op[key]

    return json.dumps(plain).encode()


def check_tensor(tensor: str) -> None:
    """Raise a ValueError if a tensor is not named ``node:output`` or ``node``."""
    _, colon, output = tensor.rpartition(":")
    if colon and not (output.isdecimal() and len(output) < _MOST_DIGITS):
        raise ValueError(f"{tensor[:80]!r} is no tensor of an op")


def split_tensor(tensor: str) -> tuple[str, int]:
    """Return op name and output index of a tensor named ``node:output``."""
    name, _, index = tensor.rpartition(":")
    return (name, int(index)) if name else (tensor, 0)
