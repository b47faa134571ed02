"""Sort the slots of an optimizer by the order of their creation.

Slots are made while the step is traced: TensorFlow collects their initial values in one function and
optimises its graph before it runs. The optimiser merges equal values and orders the remaining constants
in its own way. The same function is built here and its graph read; nothing runs.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.executor_graph import instantiate
from analyzer.capture.graph.plain_graphs import get_node_name
from analyzer.capture.initializers.variable_births import Birth
from analyzer.model.errors import TargetError

_MAX_ELEMENTS: Final = 1 << 20
"""A larger slot is replaced by a small one, because the optimiser computes each constant."""

_numbers = itertools.count()


def sort_slots_by_creation(births: list[Birth]) -> list[Birth]:
    """Return the births with the slots last, in the order in which their buffers are made.

    Of slots that share a buffer at first, the slot of the remaining constant comes first. If the order
    is unknown, the births keep theirs.
    """
    slots = [birth for birth in births if birth.traced and birth.make is not None]
    others = [birth for birth in births if not birth.traced or birth.make is None]
    if len(slots) < 2:
        return births
    try:
        order = _find_order(slots)
    except (TargetError, tf.errors.OpError, ValueError, TypeError):
        return births
    rest = sorted(set(range(len(slots))) - set(order))
    return [*others, *(slots[position] for position in (*order, *rest))]


def _find_order(slots: list[Birth]) -> list[int]:
    """Return positions in ``slots``, one for each remaining constant."""
    shapes = _shrink_shapes([tuple(birth.variable.shape) for birth in slots])
    handles = [
        _get_handle(birth.variable, shape) for birth, shape in zip(slots, shapes, strict=True)
    ]

    def initialize_variables() -> None:
        for birth, shape, handle in zip(slots, shapes, handles, strict=True):
            with tf.name_scope(f"{birth.variable.name.split(':')[0]}/Initializer/"):
                value = tf.convert_to_tensor(birth.make(shape, dtype=birth.variable.dtype))
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    function = tf.function(initialize_variables, autograph=False).get_concrete_function()
    captures = list(function.captured_inputs)
    positions = {id(handle): number for number, handle in enumerate(handles)}
    partitions, _ = instantiate(function, [], captures)
    order: list[int] = []
    for graph_def in partitions:
        order += _read_constants(graph_def, [positions[id(handle)] for handle in captures])
    return order


def _get_handle(variable: Any, shape: tuple[int, ...]) -> Any:
    """Return a handle of a variable of that shape: its own or a new one."""
    if tuple(variable.shape) == shape:
        return variable.handle
    return tf.raw_ops.VarHandleOp(
        dtype=variable.dtype,
        shape=tf.TensorShape(shape),
        shared_name=f"analyzer_slot_{next(_numbers)}",
    )


def _read_constants(graph_def: Any, slots: list[int]) -> list[int]:
    """Return, for each constant of the graph, the first slot that it initializes."""
    arguments = {
        node.name: slots[node.attr["index"].i] for node in graph_def.node if node.op == "_Arg"
    }
    users: dict[str, list[int]] = {}
    for node in graph_def.node:
        if node.op == "AssignVariableOp":
            handle, value = map(get_node_name, node.input[:2])
            users.setdefault(value, []).append(arguments[handle])
    constants = [node.name for node in graph_def.node if node.op == "Const"]
    return [min(users[name]) for name in constants if name in users]


def _shrink_shapes(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the shapes with each large one replaced by a unique shape of fewer elements."""
    large: dict[tuple[int, ...], tuple[int, ...]] = {}
    for shape in shapes:
        if math.prod(shape) > _MAX_ELEMENTS:
            large.setdefault(shape, (_MAX_ELEMENTS + len(large),))
    return [large.get(shape, shape) for shape in shapes]
