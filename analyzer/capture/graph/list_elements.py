"""What a list of tensors gives back, told by what was put into it.

A loop's backward pass takes from lists what its forward pass put there, tensors as well as their shapes
(``TensorListPushBack``, ``TensorListPopBack``; ``while_v2.py``). No shape function looks into a list, so
where a batch is open when a function is traced, all that the backward pass makes of an element would be
of no known size. Each element of a list has the shape of what is put in wherever the list goes by; a
shape that is the same each time it is put in is the one that comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.value_evaluation import Outputs, is_open, look_up_spec

_PUT: Final = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Ops that put an element into a list, and which input that is."""

_TAKEN: Final = {"TensorListPopBack": 1, "TensorListGetItem": 0}
"""Ops that take an element from a list, and which output that is."""

_STACKED: Final = "TensorListStack"

_RESERVED: Final = "TensorListReserve"

_EMPTY: Final = ("EmptyTensorList", _RESERVED)

_HANDING: Final = frozenset(
    (
        *("Identity", "Enter", "Exit", "NextIteration", "Switch", "Merge", "RefSwitch", "RefMerge"),
        *("TensorListPopBack", *_PUT, *_EMPTY),
    )
)
"""Ops that make a list or hand it on."""


@dataclass(frozen=True, slots=True)
class Element:
    """What is known of an element that is taken from a list.

    Attributes:
        tensor: Its name (``node:output``).
        shape: Its shape; None where that is not known.
        value: Its value, where it is a shape itself; None where that is not known.
    """

    tensor: str
    shape: tuple[int, ...] | None
    value: Any


def infer_list_elements(graph_def: Any, graph: Any, outputs: Outputs) -> Iterator[Element]:
    """Yield what is known of each element that an executed graph takes from a list.

    Args:
        graph_def: The executed graph.
        graph: The copy of it that told the shapes, in which shapes that are known have a value.
        outputs: The output specs so far.
    """
    nodes = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        if node.op in _TAKEN or node.op == _STACKED:
            put, made = _put_into(nodes, node.input[0])
            if put:
                element = _element(f"{node.name}:{_TAKEN.get(node.op, 0)}", put, graph, outputs)
                yield element if node.op in _TAKEN else _stacked(element, made, graph)


def _put_into(nodes: dict[str, Any], source: str) -> tuple[set[str], list[Any]]:
    """Return the tensors that are put into a list, and the nodes that make it.

    No tensors where it comes from elsewhere, too.

    Args:
        nodes: The graph's nodes by name.
        source: The list, as an input names it.
    """
    put: set[str] = set()
    made: list[Any] = []
    seen: set[str] = set()
    left = [source]
    while left:
        name = left.pop().partition(":")[0]
        if name in seen:
            continue
        seen.add(name)
        node = nodes.get(name)
        if node is None or node.op not in _HANDING:
            return set(), []
        if node.op in _EMPTY:
            made.append(node)
            continue
        if node.op in _PUT:
            put.add(node.input[_PUT[node.op]])
        handed = node.input if node.op in ("Merge", "RefMerge") else node.input[:1]
        left += [name for name in handed if name[0] != "^"]
    return put, made


def _element(tensor: str, put: set[str], graph: Any, outputs: Outputs) -> Element:
    """Return what those that are put into a list say of one that is taken.

    Args:
        tensor: The one that is taken.
        put: Those that are put in.
        graph: The copy of the graph that told the shapes.
        outputs: The output specs so far.
    """
    specs = [look_up_spec(outputs, source) for source in put]
    shapes = {None if spec is None or is_open(spec) else spec.shape for spec in specs}
    shape = shapes.pop() if len(shapes) == 1 else None
    value = None
    if shape is not None and len(shape) < 2 and all(one and one.dtype == "int32" for one in specs):
        values = [tf.get_static_value(_tensor(graph, source)) for source in put]
        if all(one is not None and np.array_equal(one, values[0]) for one in values):
            value = values[0]
    return Element(tensor=tensor, shape=shape, value=value)


def _stacked(element: Element, made: list[Any], graph: Any) -> Element:
    """Return what is known of a list's elements put together (``TensorListStack``).

    Args:
        element: One of them.
        made: The nodes that make the list.
        graph: The copy of the graph that told the shapes.
    """
    counts = {
        None if node.op != _RESERVED else _number(_tensor(graph, node.input[1])) for node in made
    }
    count = counts.pop() if len(counts) == 1 else None
    shape = None if count is None or element.shape is None else (count, *element.shape)
    return Element(tensor=element.tensor, shape=shape, value=None)


def _number(tensor: Any) -> int | None:
    value = tf.get_static_value(tensor)
    return None if value is None or value.size != 1 else int(value)


def _tensor(graph: Any, source: str) -> Any:
    return graph.get_tensor_by_name(source if ":" in source else f"{source}:0")
