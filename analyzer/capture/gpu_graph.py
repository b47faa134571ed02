"""The graph that a GPU's executor would run, on a machine without one.

TensorFlow optimises a function's graph for a *virtual cluster* that describes the devices by their
properties alone (``grappler::VirtualCluster``; ``OptimizeGraph`` in ``optimize_function_graph_utils``
makes one from the real devices' properties). Here the same optimiser gets a cluster with the named
card: layouts become NCHW or NHWC as the card's architecture asks, convolutions are fused as for cuDNN,
nested functions are inlined and branches and loops lowered. Nothing runs.

What differs from a real run: ops without a GPU kernel are told by a list of our own
(:mod:`analyzer.kernels.gpu_memory`), because the CPU's build of TensorFlow does not register GPU
kernels; and the copies between host and card are put in by us.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import tf_optimizer

from analyzer.capture import graphs
from analyzer.capture.shapes import Shape, infer_outputs
from analyzer.capture.static import StaticStep, handle_type, used_variables
from analyzer.errors import TargetError
from analyzer.gpus import Gpu
from analyzer.kernels.gpu_memory import add_copies

_HOST: Final = "/job:localhost/replica:0/task:0/device:CPU:0"
_CARD: Final = "/job:localhost/replica:0/task:0/device:GPU:0"
_CUDA: Final = "12050"
_CUDNN: Final = "90300"
"""CUDA 12.5 and cuDNN 9.3, what TensorFlow 2.21's GPU wheels are built with; the optimiser asks for
them only to tell very old ones."""


def gpu_step(function: Any, gpu: Gpu) -> StaticStep:
    """Return the graph that a call of a concrete function would run on a card, op by op.

    Args:
        function: A ``ConcreteFunction``.
        gpu: The card.

    Raises:
        TargetError: TensorFlow cannot optimise the function's graph.
    """
    captures = list(function.captured_inputs)
    inputs = list(function.inputs)
    given = len(inputs) - len(captures)
    handles = {
        tensor.op.name: handle_type(capture)
        for tensor, capture in zip(inputs[given:], captures, strict=True)
        if capture.dtype == tf.resource
    }
    try:
        optimised = _optimised(function, handles, gpu)
    except (tf.errors.OpError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        raise TargetError(f"The step's graph cannot be optimised for a GPU: {message}") from None
    graph_def = _as_executed(optimised, inputs, list(function.outputs))
    shapes: dict[int, Shape] = {
        index: None
        if tensor.shape.rank is None
        else tuple(-1 if axis is None else axis for axis in tensor.shape)
        for index, tensor in enumerate(inputs)
        if tensor.dtype != tf.resource
    }
    outputs = infer_outputs(graph_def, shapes)
    sources = graphs.sources_of(function.graph)
    ops = add_copies(graphs.executed_ops([graph_def], outputs, sources))
    return StaticStep(ops=tuple(ops), variables=used_variables(function, captures, ops))


def _optimised(function: Any, handles: dict[str, tuple[Any, Shape]], gpu: Gpu) -> Any:
    """Return the function's graph as grappler leaves it for the card."""
    graph_def = function.graph.as_graph_def()
    for node in graph_def.node:
        if node.name in handles:
            _as_handle(node, *handles[node.name])
        _place(node)
    for called in graph_def.library.function:
        for node in called.node_def:
            _place(node)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph.as_graph_def(add_shapes=True))
    wanted = meta.collection_def["train_op"].node_list.value
    wanted.extend(tensor.name for tensor in function.graph.outputs)
    wanted.extend(op.name for op in function.graph.control_outputs)
    if not wanted:
        raise ValueError("it returns nothing and changes nothing")
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    cluster = grappler_cluster.Cluster(devices=_devices(gpu))
    return tf_optimizer.OptimizeGraph(config, meta, cluster=cluster)


def _as_handle(node: Any, dtype: Any, shape: Shape) -> None:
    """Turn the placeholder of a variable's handle into one that says what the variable is.

    Without it the shape of what is read is not known, and the optimiser does far less.
    """
    if dtype is None:
        return
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    node.attr["shared_name"].s = node.name.encode()


def _place(node: Any) -> None:
    """Put a node on the card unless the user's code put it on the host."""
    node.device = _HOST if "cpu" in node.device.lower() else _CARD


def _devices(gpu: Gpu) -> list[Any]:
    card = device_properties_pb2.NamedDevice(name=_CARD)
    properties = card.properties
    properties.type = "GPU"
    properties.vendor = "NVIDIA"
    properties.model = gpu.name
    properties.memory_size = gpu.memory_bytes
    major, minor = gpu.compute_capability
    properties.environment["architecture"] = f"{major}.{minor}"
    properties.environment["cuda"] = _CUDA
    properties.environment["cudnn"] = _CUDNN
    host = device_properties_pb2.NamedDevice(name=_HOST)
    host.properties.type = "CPU"
    host.properties.num_cores = 1
    host.properties.frequency = 1000
    return [card, host]


def _as_executed(optimised: Any, inputs: list[Any], outputs: list[Any]) -> Any:
    """Return the graph with arguments and results as the executor has them."""
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(optimised)
    index_of = {tensor.op.name: index for index, tensor in enumerate(inputs)}
    for node in graph_def.node:
        if node.name not in index_of or node.op not in ("Placeholder", "VarHandleOp"):
            continue
        is_handle, old = node.op == "VarHandleOp", graph_pb2.GraphDef().node.add()
        old.CopyFrom(node)
        node.op = "_Arg"
        node.attr.clear()
        node.attr["index"].i = index_of[node.name]
        if is_handle:
            node.attr["T"].type = tf.resource.as_datatype_enum
            node.attr["_handle_dtypes"].list.type.append(old.attr["dtype"].type)
            node.attr["_handle_shapes"].list.shape.append(old.attr["shape"].shape)
        else:
            node.attr["T"].type = old.attr["dtype"].type
    names = {node.name for node in graph_def.node}
    for index, tensor in enumerate(outputs):
        if tensor.op.name not in names:
            continue
        node = graph_def.node.add()
        node.name, node.op = f"analyzer_result_{index}", "_Retval"
        node.input.append(tensor.name)
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        node.attr["index"].i = index
        node.device = _CARD
    return graph_def
