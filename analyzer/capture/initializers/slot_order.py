"""In which order the slots of an optimizer come to be.

Slots are made while the step is traced: TensorFlow gathers their initial values in one function, whose
graph it optimises before it runs it. Equal values are merged, and the constants that are left are made
in an order of the optimiser's own. So the same function is built here, and its graph read; nothing runs.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.executor_graph import instantiate
from analyzer.capture.initializers.variable_births import Birth
from analyzer.model.errors import TargetError

_MOST_ELEMENTS: Final = 1 << 20
"""The optimiser makes each constant in full, so that a larger one is told by a smaller look-alike."""

_numbers = itertools.count()


def sort_slots_by_creation(births: list[Birth]) -> list[Birth]:
    """Return the births with those of the slots in the order in which their buffers are made.

    Of slots that share a buffer at first, the one whose constant is left comes first. Where the order
    cannot be told, the births stay as they are.
    """
    slots = [birth for birth in births if birth.traced and birth.make is not None]
    others = [birth for birth in births if not birth.traced or birth.make is None]
    if len(slots) < 2:
        return births
    try:
        order = _order(slots)
    except (TargetError, tf.errors.OpError, ValueError, TypeError):
        return births
    seen = set(order)
    rest = [position for position in range(len(slots)) if position not in seen]
    return [*others, *(slots[position] for position in (*order, *rest))]


def _order(slots: list[Birth]) -> list[int]:
    """Return positions in ``slots``, one for each constant that is left."""
    shapes = _small_shapes([tuple(birth.variable.shape) for birth in slots])
    handles = [_handle(birth.variable, shape) for birth, shape in zip(slots, shapes, strict=True)]

    def initialize_variables() -> None:
        for birth, shape, handle in zip(slots, shapes, handles, strict=True):
            with tf.name_scope(f"{birth.variable.name.split(':')[0]}/Initializer/"):
                value = tf.convert_to_tensor(birth.make(shape, dtype=birth.variable.dtype))
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    function = tf.function(initialize_variables, autograph=False).get_concrete_function()
    captured = list(function.captured_inputs)
    position = {id(handle): number for number, handle in enumerate(handles)}
    partitions, _ = instantiate(function, [], captured)
    order: list[int] = []
    for graph_def in partitions:
        order += _constants(graph_def, [position[id(handle)] for handle in captured])
    return order


def _handle(variable: Any, shape: tuple[int, ...]) -> Any:
    """Return a handle of a variable of that shape: its own, or that of a look-alike."""
    if tuple(variable.shape) == shape:
        return variable.handle
    return tf.raw_ops.VarHandleOp(
        dtype=variable.dtype,
        shape=tf.TensorShape(shape),
        shared_name=f"analyzer_slot_{next(_numbers)}",
    )


def _constants(graph_def: Any, slots: list[int]) -> list[int]:
    """Return for each constant of the graph a slot that begins with it; ``slots`` by argument."""
    arguments = {
        node.name: slots[node.attr["index"].i] for node in graph_def.node if node.op == "_Arg"
    }
    users: dict[str, list[int]] = {}
    for node in graph_def.node:
        if node.op == "AssignVariableOp":
            value = node.input[1].split(":")[0]
            users.setdefault(value, []).append(arguments[node.input[0].split(":")[0]])
    return [
        min(users[node.name])
        for node in graph_def.node
        if node.op == "Const" and node.name in users
    ]


def _small_shapes(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the shapes with each large one replaced by one of few elements that is its own."""
    large: dict[tuple[int, ...], tuple[int, ...]] = {}
    for shape in shapes:
        if math.prod(shape) > _MOST_ELEMENTS:
            large.setdefault(shape, (_MOST_ELEMENTS + len(large),))
    return [large.get(shape, shape) for shape in shapes]
