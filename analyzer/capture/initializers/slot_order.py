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

    Of slots that share a buffer at first, the slot of the remaining constant comes first.
    """
    slots = [birth for birth in births if birth.is_slot]
    others = [birth for birth in births if not birth.is_slot]
    try:
        order = _find_order(slots)
    except (TargetError, tf.errors.OpError, ValueError, TypeError, KeyError):
        return births  # the order is unknown
    rest = sorted(set(range(len(slots))) - set(order))
    return [*others, *(slots[position] for position in (*order, *rest))]


def _find_order(slots: list[Birth]) -> list[int]:
    """Return positions in ``slots``, one for each remaining constant."""
    handles: list[tuple[Any, tuple[int, ...]]] = []
    small: dict[Any, tuple[int, ...]] = {}
    for birth in slots:
        dtype, shape = birth.variable.dtype, tuple(birth.variable.shape)
        if math.prod(shape) > _MAX_ELEMENTS:  # one of fewer elements that no other has
            shape = small.setdefault(shape, (_MAX_ELEMENTS + len(small),))
        name = f"analyzer_slot_{next(_numbers)}"
        handles.append((tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name), shape))

    def initialize_variables() -> None:
        for birth, (handle, shape) in zip(slots, handles, strict=True):
            with tf.name_scope(f"{birth.variable.name.split(':')[0]}/Initializer/"):
                value = tf.convert_to_tensor(birth.make(shape, dtype=birth.variable.dtype))
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    function = tf.function(initialize_variables, autograph=False).get_concrete_function()
    positions = {id(handle): number for number, (handle, _) in enumerate(handles)}
    captured = [positions[id(handle)] for handle in function.captured_inputs]
    order = []
    for graph_def in instantiate(function)[0]:
        nodes = graph_def.node
        arguments = {
            node.name: captured[node.attr["index"].i] for node in nodes if node.op == "_Arg"
        }
        users: dict[str, list[int]] = {}  # the slots that each value initializes
        for node in nodes:
            if node.op == "AssignVariableOp":
                handle_name, value_name = map(get_node_name, node.input[:2])
                users.setdefault(value_name, []).append(arguments[handle_name])
        constants = [node.name for node in nodes if node.op == "Const"]
        order += [min(users[name]) for name in constants if name in users]
    return order
