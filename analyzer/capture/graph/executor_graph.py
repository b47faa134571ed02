"""The graph that the executor would run, without running it.

A concrete function is called with a cancelled cancellation manager. TensorFlow then does everything
that precedes a run (grappler, placement, partitioning, oneDNN's rewrites, kernels and executor) and
refuses to start: *Function was cancelled before it was started*. What it would have run is in the run
metadata, and is the very graph, node for node and in the same order, of a step that does run.

The call gets variable handles without a variable behind them and empty tensors for the arguments, so
that nothing of the model's size is allocated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import tensorflow as tf

from analyzer.capture.graph import plain_graphs as graphs
from analyzer.capture.graph.data_dependent_sizes import infer_sizes
from analyzer.capture.graph.shape_inference import Shape
from analyzer.capture.private_names import call_flat, cancellation, context, get_handle_data
from analyzer.model.contract.element_sizes import ITEM_BYTES
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op, TensorSpec
from analyzer.model.contract.run_note import DataSize
from analyzer.model.errors import TargetError
from analyzer.model.graph.ops import LEAST_SHAPES, MERGED_PLACE, PLACE

_FLUSH: Final = "analyzer_flush"
_FOREIGN: Final = frozenset((_FLUSH, "_EagerConst"))
"""Nodes of graphs that are not the step's: our own small call, and TensorFlow's eager constants."""
_numbers = itertools.count()
_Handles: TypeAlias = dict[tuple[Any, Shape], Any]
"""Handles with no variable behind them, by the type and shape of its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleArgument:
    """A variable that the step uses.

    Attributes:
        op: Name of the op that brings its handle in.
        index: Index of that argument.
        name: Name of the ``tf.Variable`` where the function knows it; empty otherwise.
        dtype: TensorFlow's name of the element type.
        shape: Sizes of the axes; None where they are not known.
    """

    op: str
    index: int
    name: str
    dtype: str
    shape: Shape

    @property
    def size_bytes(self) -> int:
        """Bytes of its value; 0 where the shape is not known."""
        size_bytes = ITEM_BYTES.get(self.dtype, 0)
        if self.shape is None:
            return 0
        for axis in self.shape:
            size_bytes *= axis
        return size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticStep:
    """What a step's executor would run.

    Attributes:
        ops: The graph after all rewrites, nested functions inlined.
        variables: The variables that it uses.
        sizes: Sizes that depend on data, and what they are taken as.
    """

    ops: tuple[Op, ...]
    variables: tuple[HandleArgument, ...]
    sizes: tuple[DataSize, ...] = ()


def build_executor_graph(
    function: Any, given: Sequence[Any] = (), told: Mapping[str, int] | None = None
) -> StaticStep:
    """Return the graph that a call of a concrete function would run on this device.

    Args:
        function: A ``ConcreteFunction``.
        given: The tensors that it would be called with.
        told: Sizes that the user told, by the op whose result has them.

    Raises:
        TargetError: TensorFlow cannot build the function's executor.
    """
    captures = list(function.captured_inputs)
    inputs = list(function.inputs)
    partitions, places = instantiate(function, inputs[: len(inputs) - len(captures)], captures)
    sized = infer_sizes(function, partitions, given, told or {})
    sources = graphs.find_sources(function.graph)
    ops = [
        replace(
            op,
            attrs={
                **op.attrs,
                **places.get(op.name, {}),
                **note_argument_value(op, given),
                **note_least_shapes(op, sized.least),
            },
        )
        for op in graphs.read_executed_ops(partitions, sized.outputs, sources)
    ]
    used = find_used_variables(function, captures, ops)
    return StaticStep(ops=tuple(ops), variables=used, sizes=sized.sizes)


def instantiate(
    function: Any, arguments: list[Any], captures: list[Any]
) -> tuple[list[Any], dict[str, dict[str, int]]]:
    """Build the function's executor; return its graphs, one a device, and the places of their nodes.

    A place is that in the graph before oneDNN's pass, which moves the nodes it rewrites to the end; a
    node's places are attributes of it (``PLACE`` and what follows it).

    Args:
        function: A ``ConcreteFunction``.
        arguments: What stands for its arguments: tensors with dtype and shape.
        captures: What it captures.

    Raises:
        TargetError: TensorFlow cannot build the executor.
    """
    manager = cancellation.CancellationManager()
    manager.start_cancel()
    # Made before the collecting starts: they are ops too, run by small functions of their own.
    made: _Handles = {}
    fed, held = [_empty(tensor, made) for tensor in arguments], [_empty(c, made) for c in captures]
    with _collecting_graphs():
        _collect()  # what was waiting to be collected is not the step's
        try:
            with cancellation.CancellationManagerContext(manager):
                call_flat(function, fed, held)
        except tf.errors.CancelledError:
            pass
        except tf.errors.OpError as error:
            raise TargetError(f"The step's graph cannot be built: {error.message}") from None
        metadata = _collect()
    found: list[Any] = []
    places: dict[str, dict[str, int]] = {}
    for collected in metadata.function_graphs:
        own = [
            graph_def
            for graph_def in collected.partition_graphs
            if not any(node.name in _FOREIGN for node in graph_def.node)
        ]
        found += own
        if own:
            for node in collected.post_optimization_graph.node:
                places.setdefault(node.name, {PLACE: len(places)})
            _add_merged_places(collected.post_optimization_graph, places)
    if not found:
        raise TargetError("TensorFlow returned no graph for the step.")
    return found, places


def note_least_shapes(op: Op, least: Mapping[str, tuple[TensorSpec, ...]]) -> dict[str, Any]:
    """Return, as an attribute, the shapes of an op's results where the data leave one element."""
    if op.name not in least:
        return {}
    return {LEAST_SHAPES: [s.shape and list(s.shape) for s in least[op.name]]}


def note_argument_value(op: Op, given: Sequence[Any]) -> dict[str, Any]:
    """Return, as an attribute, the value of an argument that is one number: it may decide a loop."""
    index = int(op.attrs.get("index", -1)) if op.type in ARGUMENT_TYPES else -1
    if not 0 <= index < len(given) or not hasattr(given[index], "numpy"):
        return {}
    tensor = given[index]
    is_number = tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_bool
    if not is_number or tensor.shape.num_elements() != 1:
        return {}
    value = {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}
    return {"value": {**value, "values": [tensor.numpy().item()]}}


def _add_merged_places(graph_def: Any, places: dict[str, dict[str, int]]) -> None:
    """Note where the bias' gradient stands that oneDNN's pass will merge into a filter's gradient."""
    biases = {
        node.input[0]: places[node.name][PLACE]
        for node in graph_def.node
        if node.op == "BiasAddGrad"
    }
    for node in graph_def.node:
        if node.op == "Conv2DBackpropFilter" and node.input[2] in biases:
            places[node.name][MERGED_PLACE] = biases[node.input[2]]


def _collect() -> Any:
    """Return the metadata so far; it is written only after a call that succeeds, so make one."""
    tf.function(lambda: tf.constant(0, name=_FLUSH), autograph=False).get_concrete_function()()
    return context.export_run_metadata()


@contextmanager
def _collecting_graphs() -> Iterator[None]:
    context.enable_run_metadata()
    try:
        yield
    finally:
        context.disable_run_metadata()


def _stand_in(capture: Any, made: _Handles) -> Any:
    """Return a handle that looks like the variable's, with nothing behind it.

    Nothing reads it but for the value's type and shape: variables that are alike there share one.
    """
    dtype, shape = get_handle_type(capture)
    if (dtype, shape) not in made:
        made[dtype, shape] = tf.raw_ops.VarHandleOp(
            dtype=dtype or tf.float32,
            shape=tf.TensorShape(shape),
            shared_name=f"analyzer_{next(_numbers)}",
        )
    return made[dtype, shape]


def _empty(tensor: Any, made: _Handles) -> Any:
    if tensor.dtype == tf.variant:
        return tf.raw_ops.EmptyTensorList(
            element_shape=-1, max_num_elements=0, element_dtype=tf.float32
        )
    if tensor.dtype == tf.resource:
        return _stand_in(tensor, made)
    return tf.zeros([0] * (tensor.shape.rank or 0), tensor.dtype)


def get_handle_type(capture: Any) -> tuple[Any, Shape]:
    """Return dtype and shape of the variable behind a captured handle; None where not known."""
    data = get_handle_data(capture)
    if data is None or not data.is_set or not data.shape_and_type:
        return None, None
    first = data.shape_and_type[0]
    if first.shape.unknown_rank:
        return tf.dtypes.as_dtype(first.dtype), None
    return tf.dtypes.as_dtype(first.dtype), tuple(dim.size for dim in first.shape.dim)


def find_used_variables(
    function: Any, captures: list[Any], ops: list[Op]
) -> tuple[HandleArgument, ...]:
    """Return the variables that the step's graph uses.

    Args:
        function: The concrete function.
        captures: What it captures, in order.
        ops: The graph that would run.
    """
    count = len(function.inputs)
    names = {id(variable.handle): variable.name for variable in function.graph.variables}
    arguments = {int(op.attrs["index"]): op.name for op in ops if op.type in ARGUMENT_TYPES}
    found = []
    for position, capture in enumerate(captures):
        index = count - len(captures) + position
        dtype, shape = get_handle_type(capture) if capture.dtype == tf.resource else (None, None)
        if dtype is not None and index in arguments:
            found.append(
                HandleArgument(
                    op=arguments[index],
                    index=index,
                    name=names.get(id(capture), ""),
                    dtype=dtype.name,
                    shape=shape,
                )
            )
    return tuple(found)
