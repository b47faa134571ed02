"""Observations of a watched script, a part of ``run.json``: its steps, and the memory it keeps.

A place is ``file:line`` of the user's code, empty if there is none.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from msgspec import Meta, Struct

from analyzer.model.contract.fields import Address, Bytes, Index, Name, Shape, Text

MOST_ROWS: Final = 4096  # limit of the rows of each kind
_Row = TypeVar("_Row")
_Rows = Annotated[tuple[_Row, ...], Meta(max_length=MOST_ROWS)]


@dataclass(frozen=True, slots=True, kw_only=True)
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


RetraceCause = Literal["shape", "value", "object"]
"""The kind of the argument that changed: a tensor, a Python number or text, or another object."""


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
    nodes: Index = 0  # of the last tracing
    graph_bytes: Bytes = 0  # as TensorFlow saves it, with constants
    constant_bytes: Bytes = 0
    holder: Text = ""  # of the objects, if there are several
    retraces: tuple[Retrace, ...] = ()  # the latest
    is_keras: bool = False  # whether it is Keras' own loop, such as ``model.fit``


@dataclass(frozen=True, slots=True, kw_only=True)
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
    size_bytes: Bytes  # of their variables and their optimizers' variables
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    process_peak_bytes: Bytes = 0  # largest resident memory; 0 if unknown
    whole_run: bool = False  # whether the run counts as one step, as no call repeats
    is_cut: bool = False  # whether the program went on after its trace ended
    # the first step after the traced ones without memory
    failed: FailedStep | None = None
