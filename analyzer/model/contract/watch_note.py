"""Observations of a watched script: its steps, and the memory that remains between them.

They are a part of ``run.json``. A place is ``file:line`` of the user's code, empty if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from analyzer.model.contract.fields import Address, Bytes, Index, Name, Shape, Text, Word

MOST_ROWS: Final = 4096
"""Limit of the rows of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Memory in use after one step.

    Attributes:
        step: Number of steps so far.
        in_use_bytes: In use in the device's allocator.
        host_bytes: Resident memory of the process; None if it was not read.
    """

    step: Index
    in_use_bytes: Bytes
    host_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensors:
    """Tensors of the traced steps that one Python object keeps alive after them.

    Attributes:
        holder: The object in words: the list ``kept`` of train.py.
        where: The line that adds them.
        count: Number of tensors.
        size_bytes: Their total size.
        addresses: Their addresses.
        shapes: Their distinct shapes.
        grows: Whether the object is a container, instead of a name that each step assigns again.
        by_traceback: Whether it holds exceptions, whose tracebacks keep local variables alive.
        bound: Most entries of a bounded container; 0 if no bound is known.
        removes: Whether the program's code also removes entries of it.
    """

    holder: Text
    where: Name
    count: Index
    size_bytes: Bytes
    addresses: tuple[Address, ...] = ()
    shapes: tuple[Shape, ...] = ()
    grows: bool = True
    by_traceback: bool = False
    bound: Index = 0
    removes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TapesNote:
    """Gradient tapes of one line that keep recorded tensors alive.

    Attributes:
        where: The line that makes them.
        persistent: Whether they have ``persistent=True``.
        made: Number made in the traced steps.
        alive: Number of all tapes of this line that keep tensors after the traced steps.
        unused: Number of those that never computed a gradient.
        holder: The object that holds them; empty if each step assigns the name again.
    """

    where: Name
    persistent: bool
    made: Index
    alive: Index
    unused: Index = 0
    holder: Text = ""


RetraceCause = Literal["shape", "value", "object"]
"""The kind of the argument that changed: a tensor, a Python number or text, or another object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrace:
    """A retracing of a function.

    Attributes:
        step: Number of steps so far.
        call: Number of the call, from 1.
        changed: The change in the arguments that caused it, in words.
    """

    step: Index
    call: Index
    changed: Text
    cause: RetraceCause = "object"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFunction:
    """A function that TensorFlow traced.

    Attributes:
        where: Where it is defined.
        called_at: Where it was called when it was traced last.
        objects: Number of ``tf.function`` objects made of it.
        alive: Number of those that are alive at the end.
        calls: Number of calls from outside of functions.
        traces: Number of tracings.
        nodes: Nodes in the graphs of the last tracing.
        graph_bytes: Size of that graph as TensorFlow saves it, with constants.
        constant_bytes: Size of its constants.
        holder: The object that holds the ``tf.function`` objects, if there are several.
        retraces: The latest retracings.
        is_keras: Whether it is Keras' own loop, such as ``model.fit``.
    """

    name: Name
    where: Name
    called_at: Name = ""
    objects: Index = 1
    alive: Index = 1
    calls: Index = 0
    traces: Index = 0
    nodes: Index = 0
    graph_bytes: Bytes = 0
    constant_bytes: Bytes = 0
    holder: Text = ""
    retraces: tuple[Retrace, ...] = ()
    is_keras: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeConstant:
    """Data that stays in memory until the program ends.

    Attributes:
        kind: ``graph``: a constant of a traced graph; ``captured``: a tensor that a function captured;
            ``held``: a tensor that Python holds; ``slices``: a data set of arrays in memory.
        where: The line that makes or holds it.
        dtype, shape, size_bytes: Of its value.
        name: The op, or the object that holds it.
        copies: Number of traced graphs that contain it.
    """

    kind: Literal["graph", "captured", "held", "slices"]
    where: Name
    dtype: Word
    shape: Shape | None
    size_bytes: Bytes
    name: Text = ""
    copies: Index = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStage:
    """A stage of a ``tf.data`` pipeline that buffers elements.

    Attributes:
        kind: The kind of stage.
        where: The line that makes it.
        elements: Maximum number of buffered elements; None if unknown.
        element_bytes: Size of one element; None if a shape is open.
    """

    kind: Literal["shuffle", "cache", "prefetch"]
    where: Name
    elements: Index | None = None
    element_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModels:
    """Keras models that one line makes and that are alive at the end.

    Attributes:
        where: The line.
        alive: Number of models.
        size_bytes: Size of their variables and of their optimizers' variables.
        holder: The object that holds them.
    """

    where: Name
    alive: Index
    size_bytes: Bytes
    holder: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchNote:
    """All observations of one program.

    Attributes:
        step: The definition of a step, in words: a call of ``train_step``.
        where: Where the step is defined or called.
        warmup: Number of steps before the traced ones.
        steps: Number of all steps.
        readings: Memory in use after steps, in order; thinned out if there are many.
        held: Tensors of the traced steps that Python holds after them.
        on_host: Containers that grew by NumPy arrays, bytes or texts in each traced step.
        held_later: Containers with tensors from after the traced steps, if the program grew.
        later_step: Number of steps at the time of ``held_later``.
        ended: How the program ended; empty for a normal end.
        step_objects: Number of ``tf.function`` objects that made the steps; several for several models.
        micro_batches: Eager gradients for each update; more than 1 if gradients accumulate.
        own_peaks: TensorFlow's own peak of each GPU since the start (``get_memory_info``); of the CPU
            if there is none.
        whole_run: Whether the whole run counts as one step, because no call repeats.
        is_cut: Whether the program went on after its trace ended.
        misses_gpu: Whether the program asked for a GPU, and TensorFlow sees none.
    """

    step: Text = ""
    where: Name = ""
    warmup: Index = 0
    steps: Index = 0
    readings: Annotated[tuple[Reading, ...], Meta(max_length=MOST_ROWS)] = ()
    held: Annotated[tuple[HeldTensors, ...], Meta(max_length=MOST_ROWS)] = ()
    on_host: Annotated[tuple[HeldTensors, ...], Meta(max_length=MOST_ROWS)] = ()
    held_later: Annotated[tuple[HeldTensors, ...], Meta(max_length=MOST_ROWS)] = ()
    later_step: Index = 0
    tapes: Annotated[tuple[TapesNote, ...], Meta(max_length=MOST_ROWS)] = ()
    functions: Annotated[tuple[TracedFunction, ...], Meta(max_length=MOST_ROWS)] = ()
    constants: Annotated[tuple[LargeConstant, ...], Meta(max_length=MOST_ROWS)] = ()
    stages: Annotated[tuple[DataStage, ...], Meta(max_length=MOST_ROWS)] = ()
    models: Annotated[tuple[LiveModels, ...], Meta(max_length=MOST_ROWS)] = ()
    ended: Text = ""
    step_objects: Index = 1
    micro_batches: Index = 1
    own_peaks: Annotated[tuple[Bytes, ...], Meta(max_length=MOST_ROWS)] = ()
    whole_run: bool = False
    is_cut: bool = False
    misses_gpu: bool = False
