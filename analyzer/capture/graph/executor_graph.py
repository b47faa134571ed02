"""Get the graph that the executor would run, without running it.

A concrete function is called with a cancelled cancellation manager. TensorFlow then does everything that
precedes a run (grappler, placement, partitioning, oneDNN's rewrites, kernels and executor) and refuses
to start. The run metadata holds the graph, with the same nodes in the same order as for a step that
runs. The call gets handles without variables and empty tensors, so it allocates nothing of their size.
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.graph.data_dependent_sizes import infer_sizes
from analyzer.capture.graph.plain_graphs import find_sources, read_executed_ops
from analyzer.capture.graph.shape_inference import Shape
from analyzer.model.contract.fields import COPIED
from analyzer.model.contract.graph_note import (
    ARGUMENT_TYPES,
    LEAST_SHAPES,
    MERGED_PLACE,
    PLACE,
    Op,
)
from analyzer.model.contract.run_note import DataSize
from analyzer.model.errors import TargetError

_FLUSH: Final = "analyzer_flush"
_FOREIGN: Final = frozenset((_FLUSH, "_EagerConst"))
"""Nodes of graphs other than the step's: our flushing call, and TensorFlow's eager constants."""
_numbers = itertools.count(1)
_Handles: TypeAlias = dict[tuple[Any, Shape], Any]
"""Handles without variables, by element type and shape of the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticStep:
    """The graph of a step that has not run."""

    ops: tuple[Op, ...]
    sizes: tuple[DataSize, ...] = ()


def build_executor_graph(
    function: Any, given: Sequence[Any] = (), assumed: Mapping[str, int] | None = None
) -> StaticStep:
    """Return the graph that a call with ``given`` would run here; ``assumed`` are sizes by op."""
    partitions, places = instantiate(function)
    step = read_step(function, partitions, given, assumed)
    placed = (
        replace(op, attrs={**op.attrs, **places.get(op.name, {})}) for op in step.ops
    )
    return replace(step, ops=tuple(placed))


def read_step(
    function: Any,
    partitions: Sequence[Any],
    given: Sequence[Any],
    assumed: Mapping[str, int] | None,
    *,
    transposed: bool = False,
) -> StaticStep:
    """Return the ops of executed graphs, with the values and least shapes that matter as attributes.

    ``value`` is the value of an argument that is one number, or of a number that enters a loop: it may
    decide the loop. ``LEAST_SHAPES`` are
    the shapes of an op's results if the data leave one element. If ``transposed``, images may have
    another order of axes than in the traced graphs.
    """
    ops = []
    sized = infer_sizes(
        function, partitions, given, assumed or {}, transposed=transposed
    )
    for op in read_executed_ops(
        partitions, sized.outputs, find_sources(function.graph)
    ):
        attrs = {**op.attrs, **_describe_argument(op, given)}
        if (bound := sized.bounds.get(f"{op.name}:0")) is not None:
            attrs["value"] = {
                "dtype": op.outputs[0].dtype,
                "shape": [],
                "values": [bound],
            }
        if op.name in sized.least:
            attrs[LEAST_SHAPES] = [
                s.shape and list(s.shape) for s in sized.least[op.name]
            ]
        ops.append(replace(op, attrs=attrs))
    return StaticStep(ops=tuple(ops), sizes=sized.sizes)


def _describe_argument(op: Op, given: Sequence[Any]) -> dict[str, Any]:
    index = int(op.attrs.get("index", -1)) if op.type in ARGUMENT_TYPES else -1
    tensor: Any = given[index] if 0 <= index < len(given) else None
    described: dict[str, Any] = {COPIED: True} if hasattr(tensor, COPIED) else {}
    if not hasattr(tensor, "numpy") or tensor.shape.num_elements() != 1:
        return described
    if not (
        tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_bool
    ):
        return described
    value = {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}
    return {**described, "value": {**value, "values": [tensor.numpy().item()]}}


def instantiate(function: Any) -> tuple[list[Any], dict[str, dict[str, int]]]:
    """Build the function's executor; return its graphs, one a device, and their nodes' places.

    A place is the position in the graph before oneDNN's pass, which moves the nodes that it rewrites to
    the end. The places of a node are attributes of it (``PLACE``, ``MERGED_PLACE``).
    """
    manager = private.cancellation.CancellationManager()
    manager.start_cancel()
    # Made before the metadata is collected: these are ops too, run by small functions.
    handles: _Handles = {}
    captured = [_make_empty(capture, handles) for capture in function.captured_inputs]
    arguments = function.inputs[: len(function.inputs) - len(captured)]
    feeds = [_make_empty(tensor, handles) for tensor in arguments]
    private.context.enable_run_metadata()
    try:
        _collect()  # drop the metadata of earlier calls
        with contextlib.suppress(tf.errors.CancelledError):
            with private.cancellation.CancellationManagerContext(manager):
                with private.build_executors_anew(next(_numbers)):
                    private.get_flat_call(function)(feeds, captured)
        metadata = _collect()
    except tf.errors.OpError as error:
        raise TargetError(
            f"The step's graph cannot be built: {error.message}"
        ) from None
    finally:
        private.context.disable_run_metadata()
    partitions: list[Any] = []
    places: dict[str, dict[str, int]] = {}
    for collected in metadata.function_graphs:
        own = [
            graph_def
            for graph_def in collected.partition_graphs
            if not any(node.name in _FOREIGN for node in graph_def.node)
        ]
        partitions += own
        nodes = collected.post_optimization_graph.node if own else ()
        for node in nodes:
            places.setdefault(node.name, {PLACE: len(places)})
        biases = {
            node.input[0]: node.name for node in nodes if node.op == "BiasAddGrad"
        }
        for node in (
            nodes
        ):  # a filter gradient has the place of the bias gradient merged into it
            if node.op == "Conv2DBackpropFilter" and node.input[2] in biases:
                places[node.name][MERGED_PLACE] = places[biases[node.input[2]]][PLACE]
    if not partitions:
        raise TargetError("TensorFlow returned no graph for the step.")
    return partitions, places


def _collect() -> Any:
    """Return the run metadata so far; only a successful call writes it, so make one."""
    tf.function(
        lambda: tf.constant(0, name=_FLUSH), autograph=False
    ).get_concrete_function()()
    return private.context.export_run_metadata()


def _make_empty(tensor: Any, handles: _Handles) -> Any:
    """Return an empty tensor, list or handle of this type; similar variables share one handle."""
    if tensor.dtype == tf.variant:
        return tf.raw_ops.EmptyTensorList(
            element_shape=-1, max_num_elements=0, element_dtype=tf.float32
        )
    if tensor.dtype != tf.resource:
        return tf.zeros([0] * (tensor.shape.rank or 0), tensor.dtype)
    dtype, shape = get_handle_type(tensor)
    if (dtype, shape) not in handles:
        handles[dtype, shape] = tf.raw_ops.VarHandleOp(
            dtype=dtype or tf.float32,
            shape=tf.TensorShape(shape),
            shared_name=f"analyzer_{next(_numbers)}",
        )
    return handles[dtype, shape]


def get_handle_type(capture: Any) -> tuple[Any, Shape]:
    """Return dtype and shape of the variable behind a captured handle; None if unknown."""
    data = private.get_handle_data(capture)
    if data is None or not data.is_set or not data.shape_and_type:
        return None, None
    first = data.shape_and_type[0]
    dtype = tf.dtypes.as_dtype(first.dtype)
    return dtype, None if first.shape.unknown_rank else tuple(
        d.size for d in first.shape.dim
    )
