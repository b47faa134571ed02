"""Get the graph that the executor would run, without running it.

A concrete function is called with a cancelled cancellation manager. TensorFlow then does everything that
precedes a run (grappler, placement, partitioning, oneDNN's rewrites, kernels and executor) and refuses
to start. The run metadata holds the graph, with the same nodes in the same order as for a step that
runs. The call gets handles without variables and empty tensors, so it allocates nothing of their size.
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.graph.data_sizes import SizedGraph
from analyzer.capture.graph.plain_graphs import find_sources, read_executed_ops
from analyzer.capture.graph.shape_inference import Outputs
from analyzer.model.contract.graph_note import (
    ARGUMENT_TYPES,
    Op,
)
from analyzer.model.contract.run_note import DataSize
from analyzer.model.errors import TargetError

_FLUSH = "analyzer_flush"

# Nodes of graphs other than the step's: our flushing call, and TensorFlow's eager constants.
_FOREIGN = frozenset((_FLUSH, "_EagerConst"))
_numbers = itertools.count(1)

# The ops of a graph, and the sizes in it that data decide.
OpsAndSizes: TypeAlias = tuple[list[Op], list[DataSize]]

# Handles without variables, by element type and shape of the value.
_Handles: TypeAlias = dict[tf.TensorSpec, Any]


def build_executor_graph(
    function: Any,
    given: Sequence[Any] = (),
    assumed: Mapping[str, int] | None = None,
) -> OpsAndSizes:
    """Return the graph that a call with ``given`` would run here, and the sizes that data decide.

    ``assumed`` are sizes by op.
    """
    return read_step(function, instantiate(function), given, assumed)


def read_step(
    function: Any,
    partitions: Sequence[Any],
    given: Sequence[Any],
    assumed: Mapping[str, int] | None,
    *,
    transposed: bool = False,
) -> OpsAndSizes:
    """Return the ops of executed graphs, and the sizes that data decide.

    The attribute ``value`` of an argument is its value if it is one number: it may decide a loop. If
    ``transposed``, images may have another order of axes than in the traced graphs.
    """
    outputs: Outputs = {}
    sizes: list[DataSize] = []

    for graph_def in partitions:
        sized = SizedGraph(
            function,
            graph_def,
            given,
            assumed or {},
            transposed=transposed,
        )

        outputs |= sized.outputs
        sizes += sized.sizes.values()

    ops = read_executed_ops(partitions, outputs, find_sources(function.graph))
    described = [
        replace(op, attrs={**op.attrs, **_describe_argument(op, given)}) for op in ops
    ]

    return described, sizes


def _describe_argument(op: Op, given: Sequence[Any]) -> dict[str, Any]:
    index = -1
    if op.type in ARGUMENT_TYPES:
        index = int(op.attrs.get("index", -1))

    tensor: Any = given[index] if 0 <= index < len(given) else None
    if not hasattr(tensor, "numpy") or tensor.shape.num_elements() != 1:
        return {}

    if not (
        tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_bool
    ):
        return {}

    value = {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}

    return {"value": {**value, "values": [tensor.numpy().item()]}}


def instantiate(function: Any) -> list[Any]:
    """Build the function's executor; return its graphs, one a device."""
    manager = private.cancellation.CancellationManager()
    manager.start_cancel()

    # Made before the metadata is collected: these are ops too, run by small functions.
    handles: _Handles = {}
    captured = [_make_empty(capture, handles) for capture in function.captured_inputs]
    arguments = function.inputs[: len(function.inputs) - len(captured)]
    feeds = [_make_empty(tensor, handles) for tensor in arguments]
    collected: list[Any] = []

    try:
        with private.collect_executed_graphs(collected):
            with (
                contextlib.suppress(tf.errors.CancelledError),
                private.cancellation.CancellationManagerContext(manager),
                private.build_new_executors(next(_numbers)),
            ):
                private.get_flat_call(function)(feeds, captured)

            _write_graphs()
    except tf.errors.OpError as error:
        message = f"The step's graph cannot be built: {error.message}"
        raise TargetError(message) from None

    partitions = [
        graph_def
        for graph_def in collected
        if _FOREIGN.isdisjoint(node.name for node in graph_def.node)
    ]
    if not partitions:
        raise TargetError("TensorFlow returned no graph for the step.")

    return partitions


def _write_graphs() -> None:
    """Make a call that succeeds: only such a call writes the graphs that were collected."""
    tf.function(
        lambda: tf.constant(0, name=_FLUSH),
        autograph=False,
    ).get_concrete_function()()


def _make_empty(tensor: Any, handles: _Handles) -> Any:
    """Return an empty tensor, list or handle of this type; similar variables share one handle."""
    if tensor.dtype == tf.variant:
        return tf.raw_ops.EmptyTensorList(
            element_shape=-1,
            max_num_elements=0,
            element_dtype=tf.float32,
        )

    if tensor.dtype != tf.resource:
        return tf.zeros([0] * (tensor.shape.rank or 0), tensor.dtype)

    spec = private.get_handle_spec(tensor) or tf.TensorSpec(None, tf.float32)
    if spec not in handles:
        handles[spec] = tf.raw_ops.VarHandleOp(
            dtype=spec.dtype,
            shape=spec.shape,
            shared_name=f"analyzer_{next(_numbers)}",
        )

    return handles[spec]
