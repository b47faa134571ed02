"""What a capture saw of a program that ran by itself: its steps, and what stayed from one to the next.

It lies in ``run.json`` beside what is known of the traced steps. Every place is ``file:line`` of the
user's own code, empty where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from analyzer.model.contract.fields import Address, Bytes, Index, Name, Shape, Text, Word

MOST_ROWS: Final = 4096
"""Rows of one kind at most; what writes them keeps fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is held after one step.

    Attributes:
        step: How many steps had been made.
        in_use_bytes: In use in the allocator of the device.
        host_bytes: Resident memory of the process; None where it was not read this time.
    """

    step: Index
    in_use_bytes: Bytes
    host_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensors:
    """Live tensors made in the traced steps that one Python object holds when they have ended.

    Attributes:
        holder: What holds them, in words: the list ``kept`` of train.py.
        where: The line that puts them there.
        count: How many.
        size_bytes: Their bytes.
        addresses: Where each lies.
        shapes: Their shapes, each once.
        grows: The holder is a container, and not a name that is bound anew in each step.
        by_traceback: It holds exceptions, whose tracebacks hold the local names of what raised them.
    """

    holder: Text
    where: Name
    count: Index
    size_bytes: Bytes
    addresses: tuple[Address, ...] = ()
    shapes: tuple[Shape, ...] = ()
    grows: bool = True
    by_traceback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TapesNote:
    """Gradient tapes that one line made and that still hold what they recorded.

    Attributes:
        where: The line that makes them.
        persistent: They were made with ``persistent=True``.
        made: How many were made in the traced steps.
        alive: How many of all that were made there hold what they recorded after the traced steps.
        unused: How many of those were never asked for a gradient.
        holder: What holds them, in words; empty where it is a name bound anew in each step.
    """

    where: Name
    persistent: bool
    made: Index
    alive: Index
    unused: Index = 0
    holder: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrace:
    """One time that a function was traced anew.

    Attributes:
        step: How many steps had been made.
        call: Which call of the function it was, from 1.
        changed: What was new about the call's arguments, in words.
    """

    step: Index
    call: Index
    changed: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFunction:
    """A function that TensorFlow traced, by where it is defined.

    Attributes:
        name: Its name.
        where: Where it is defined.
        called_at: Where it was called when it was traced last.
        objects: How many ``tf.function`` objects were made of it.
        alive: How many of those are alive at the end.
        calls: How often it was called outside another function.
        traces: How often it was traced.
        nodes: Nodes in the graphs of the last trace.
        graph_bytes: Bytes of that graph as TensorFlow saves it, constants included.
        constant_bytes: Bytes of its constants.
        holder: What holds the objects, where there are several.
        retraces: The latest times that it was traced.
        is_keras: It is Keras' own loop, such as ``model.fit``.
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
    """Data that stays whole for as long as the program runs.

    Attributes:
        kind: ``graph`` for a constant of a traced graph, ``captured`` for a tensor that a function
            captured, ``held`` for a live tensor that Python holds, ``slices`` for a data set made of
            arrays in memory.
        where: The line that made it, or that holds it.
        dtype, shape, size_bytes: What it is.
        name: Of the op, or what holds it, in words.
        copies: In how many traced graphs it is.
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
    """A stage of a ``tf.data`` pipeline that holds elements.

    Attributes:
        kind: ``shuffle``, ``cache`` or ``prefetch``.
        where: The line that makes it.
        elements: How many it holds at most; None where not known.
        element_bytes: Bytes of one element; None where a shape is open.
    """

    kind: Literal["shuffle", "cache", "prefetch"]
    where: Name
    elements: Index | None = None
    element_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModels:
    """Keras models that one line made and that are all alive at the end.

    Attributes:
        where: The line that makes them.
        alive: How many.
        size_bytes: Bytes of their variables, their optimizers' included.
        holder: What holds them, in words.
    """

    where: Name
    alive: Index
    size_bytes: Bytes
    holder: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchNote:
    """What was seen of a program.

    Attributes:
        step: What one step is, in words: a call of ``train_step``.
        where: Where that is defined or called.
        warmup: Steps before the traced ones.
        steps: Steps made in all.
        readings: What was held after steps, in order; thinned out where there were many.
        held: What Python holds of what the traced steps made.
        on_host: Containers that got NumPy arrays, bytes or texts in each traced step: ``count`` entries
            of ``size_bytes`` together.
        held_later: Containers with tensors that came since the traced steps, where the program grew.
        later_step: How many steps had been made then.
        tapes, functions, constants, stages, models: See there.
        ended: How the program ended, in words; empty for by itself.
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
