"""All names of TensorFlow and Keras beyond their public API, and questions about models that it lacks.

Modules below ``tensorflow.python``, ``tensorflow.core`` and ``keras.src``, and attributes that begin
with an underscore, may change with any release. The rest of the package uses them through this module.

A model of Keras 2 (``tf_keras``) is no target, but a script or a step may use one. It is never imported
here: if the user's code has not imported it, no object belongs to it.
"""

import gc
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf
from keras.src import backend as keras_backend
from keras.src.backend import tensorflow as keras_tensorflow
from keras.src.trainers import trainer as keras_trainer
from keras.src.trainers.data_adapters import py_dataset_adapter
from tensorflow.core.framework import attr_value_pb2 as attr_value_pb2
from tensorflow.core.framework import graph_pb2 as graph_pb2
from tensorflow.core.protobuf import bfc_memory_map_pb2 as bfc_memory_map_pb2
from tensorflow.core.protobuf import config_pb2 as config_pb2
from tensorflow.core.protobuf import device_properties_pb2 as device_properties_pb2
from tensorflow.core.protobuf import meta_graph_pb2 as meta_graph_pb2
from tensorflow.python import pywrap_tfe as pywrap_tfe
from tensorflow.python.autograph.core import ag_ctx as autograph_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import cancellation as cancellation
from tensorflow.python.eager import context as context
from tensorflow.python.eager import record as record
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import auto_control_deps_utils as control_utils
from tensorflow.python.framework import constant_op as constant_op
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.framework import kernels as kernels
from tensorflow.python.framework import op_callbacks as op_callbacks
from tensorflow.python.framework import op_def_registry as op_def_registry
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.framework import tensor_util as tensor_util
from tensorflow.python.framework.func_graph import FuncGraph as FuncGraph
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item
from tensorflow.python.grappler import tf_optimizer as tf_optimizer
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.ops import while_v2 as while_v2
from tensorflow.python.profiler import profiler_v2 as profiler_v2
from tensorflow.python.profiler import trace as python_trace

__all__ = [
    "framework_ops",
    "grappler_cluster",
    "keras_backend",
    "keras_trainer",
]
PyDatasetEnqueuer = py_dataset_adapter.PyDatasetEnqueuer
EagerTensorBase = framework_ops._EagerTensorBase
Function = polymorphic_function.Function
BaseResourceVariable = resource_variable_ops.BaseResourceVariable
ResourceVariable = resource_variable_ops.ResourceVariable
UninitializedVariable = resource_variable_ops.UninitializedVariable
KerasVariable = keras_tensorflow.Variable
function_def_to_graph_def = function_def_to_graph.function_def_to_graph_def
keras_name_scope = keras_tensorflow.name_scope

# The module of convolutions, which Keras 3.16 moved into ``ops``.
keras_nn = getattr(keras_tensorflow, "ops", keras_tensorflow).nn

# The module: ``keras.src.backend.tensorflow`` has a function of that name.
keras_rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")

# The newest supported release of each package, major and minor.
READ_IN: Mapping[str, tuple[int, int]] = {
    "TensorFlow": (2, 21),
    "Keras": (3, 15),
}

# of ``nn.py``: whether a convolution in NCHW must be transposed
CPU_ONLY = "_cpu_only"

# Function of ``backend/tensorflow/rnn.py``: whether an LSTM or GRU may be one cuDNN kernel.
IS_GPU_AVAILABLE = "_is_gpu_available"

# computes the initial value
INITIALIZE_KERAS_VARIABLE = "_initialize_with_initializer"


# They place a replica on each GPU, and on the CPU if there is none (``all_local_devices``).
_STRATEGIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
)


def has_strategy() -> bool:
    """Return whether the process has a strategy that chooses devices itself."""
    return any(issubclass(type(one), _STRATEGIES) for one in gc.get_objects())


def list_newer_versions(versions: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a line for each package (of ``versions``, or installed) that is newer than ``READ_IN``."""
    if versions is None:
        versions = {"TensorFlow": tf.__version__, "Keras": keras.__version__}

    for package, version in versions.items():
        newest = READ_IN[package]
        parts = [int(part) for part in version.split(".")[:2] if part.isdecimal()]

        if tuple(parts) > newest:
            yield (
                f"{package} {version} is newer than {newest[0]}.{newest[1]}, the newest supported "
                "release: the record of a step may be incomplete."
            )


@contextmanager
def collect_executed_graphs(partitions: list[Any] | None) -> Iterator[None]:
    """Set ``partitions``, if any, to the optimised graphs that the executor runs in the block."""
    if partitions is None:
        yield
        return

    runtime = context.context()

    # Not ``enable_run_metadata``: its counterpart leaves the collection on, which grows with each call.
    runtime.enable_graph_collection()

    try:
        yield
    finally:
        with suppress(Exception):  # without them the traced graph is read
            metadata = runtime.export_run_metadata()
            functions = [] if metadata is None else metadata.function_graphs
            partitions[:] = [
                graph for one in functions for graph in one.partition_graphs
            ]

        runtime.disable_graph_collection()  # which drops the graphs


@contextmanager
def build_new_executors(number: int) -> Iterator[None]:
    """Let TensorFlow build an executor for each function that is called, also if it ran before.

    An executor belongs to a function and its options; ``number`` changes one that has no effect.
    """
    runtime = context.context()
    options = runtime.function_call_options
    config = type(runtime.config).FromString(options.config_proto_serialized)
    config.placement_period = number
    runtime.function_call_options = context.FunctionCallOptions(
        options.executor_type, config
    )

    try:
        yield
    finally:
        runtime.function_call_options = options


def is_eager(tensor: Any) -> bool:
    """Say whether a tensor has a value that NumPy can read."""
    return hasattr(tensor, "_numpy_internal")


def count_eager_tensors() -> int:
    """Return a number that rises by at least one with each eager tensor of the process."""
    return int(pywrap_tfe.TFE_Py_UID())


def get_device_limits() -> dict[str, int]:
    """Return the ``memory_limit`` of each GPU of the eager runtime, in bytes, by ``GPU:0``."""
    runtime = context.context()
    runtime.ensure_initialized()
    devices = pywrap_tfe.TFE_ContextListDevices(runtime._context_handle)
    limits = {}

    try:
        for index in range(pywrap_tfe.TF_DeviceListCount(devices)):
            name = str(pywrap_tfe.TF_DeviceListName(devices, index)).rpartition(
                "/device:"
            )[2]
            if name.startswith("GPU:"):
                limits[name] = int(
                    pywrap_tf_session.TF_DeviceListMemoryBytes(devices, index)
                )

        return limits
    finally:
        pywrap_tfe.TF_DeleteDeviceList(devices)


@contextmanager
def disable_python_tracing() -> Iterator[None]:
    """Keep the profiler from writing an event of each conversion to a tensor (60,000 for ResNet50)."""
    off: Any = False  # a value up to TensorFlow 2.20
    if callable(python_trace.enabled):
        off = lambda: False  # noqa: E731

    with patch.object(python_trace, "enabled", off):
        yield


def get_traced_function(run: Any, name: str) -> Any:
    """Return the ``tf.function`` that a ``train_function`` is or calls by ``name``; None if eager."""
    inner = (
        run
        if isinstance(run, Function)
        else inspect.getclosurevars(run).nonlocals.get(name)
    )
    while inner is not None and not isinstance(inner, Function):
        inner = getattr(inner, "__wrapped__", None)

    return inner


def get_function_options(function: Any) -> dict[str, bool]:
    """Return the options of a ``tf.function`` except its signature and ``jit_compile``."""
    return {
        "autograph": getattr(function, "_autograph", True),
        "reduce_retracing": bool(getattr(function, "_reduce_retracing", False)),
    }


class HostVariable(ResourceVariable):  # type: ignore[misc,valid-type]
    """A variable of ours on the host beside a simulated card, which is none of the step."""


def list_concrete_functions(function: Any) -> list[Any]:
    """Return the concrete functions of a ``tf.function``, in order of tracing.

    TensorFlow's own list would trace a function with an ``input_signature`` that was never called.
    """
    cache = getattr(function, "_function_cache", {})
    return list(cache.values())


def get_device_parts(variable: Any) -> tuple[Any, ...]:
    """Return the copies of a distributed variable, one a device; another variable itself."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        return (variable,)

    parts = getattr(variable, "values", ())
    return tuple(part for part in parts if isinstance(part, tf.Variable)) or (variable,)


def set_keras_value(variable: Any, value: Any) -> None:
    """Set the ``tf.Variable`` that holds a Keras variable's value."""
    variable._value = value


def get_layers(model: Any, **options: bool) -> list[Any]:
    """Return a model's layers and their inner layers; none if it is not a Keras model."""
    if hasattr(model, "_flatten_layers"):
        return list(model._flatten_layers(**options))

    return []


def get_compile_arguments(model: Any) -> dict[str, Any]:
    """Return the arguments of ``compile`` of a Keras 3 model."""
    return dict(getattr(getattr(model, "_compile_config", None), "config", None) or {})


def get_last_layer(tensor: Any) -> Any:
    """Return the layer that makes a symbolic output; None if unknown."""
    return (getattr(tensor, "_keras_history", None) or [None])[0]


def has_own_handle(variable: Any) -> bool:
    """Return whether a ``tf.Variable`` wraps no other one."""
    return "_handle" in vars(variable)


def is_jit_compiled(function: Any) -> bool:
    """Say whether a ``tf.function`` has ``jit_compile=True``."""
    return bool(getattr(function, "_jit_compile", False))


def find_assigned_handles(function: Any) -> set[int]:
    """Return the ids of the handles outside that a ``tf.function`` does not only read."""
    assigned = set()
    for one in function._function_cache.values():
        graph = one.graph
        places = control_utils.get_read_only_resource_input_indices_graph(graph)
        read = {id(graph.inputs[place]) for place in places}
        for outside, inside in graph.captures:
            if id(inside) not in read:
                assigned.add(id(outside))

    return assigned


def is_composite_op(function: Any) -> bool:
    """Say whether a ``tf.function`` stands for an op, and so may capture nothing."""
    return "_implements" in (getattr(function, "_attributes", None) or {})


def _make_reader(name: str, default: Any = None) -> Callable[..., Any]:
    """Return a function that reads an attribute; the default if there is none."""

    def read(thing: Any, default: Any = default) -> Any:
        return getattr(thing, name, default)

    return read


get_keras_shape = _make_reader("_shape")  # of a Keras variable under construction
get_keras_dtype = _make_reader("_dtype")

# builds model, metrics and optimizer as ``fit`` does
get_builder = _make_reader("_symbolic_build")

# calls a function with other tensors than its captures
get_flat_call = _make_reader("_call_flat")
get_own_weights = _make_reader("_trainable_variables")  # of a layer alone

# an optimizer's variables
get_gradient_accumulators = _make_reader("_accumulated_gradients")

# the record of a ``GradientTape``, while it holds one
holds_recording = _make_reader("_tape")

# the functions inside a graph, by name
get_functions = _make_reader("_functions", default={})

# whether a tape keeps its record
is_persistent = _make_reader("_persistent", default=False)

# the ``tf.Variable`` that holds a Keras variable's value
get_keras_value = _make_reader("_value")
get_iterator_handle = _make_reader("_iterator_resource")  # of ``iter(dataset)``
get_dataset = _make_reader("_dataset")  # of an iterator
get_input_dataset = _make_reader("_input_dataset")  # the stage before one of a data set
get_batch_size = _make_reader("_batch_size")  # of a stage that makes batches

# the strategy that a model was made under
is_distributed = _make_reader("_distribute_strategy")

# that an optimizer was built for
get_built_variables = _make_reader("_trainable_variables")
get_build_shapes = _make_reader("_build_shapes_dict")  # of a built model, by argument
get_input_structure = _make_reader("_inputs_struct")  # the symbolic inputs
closes_scope = _make_reader("_pop_on_exit")  # False in an inner scope of a layer


def peek_queue(enqueuer: Any) -> Any:
    """Return a batch that waits in the queue of a ``PyDataset``; None if none is ready."""
    for result in list(enqueuer.future_queue.queue):
        if hasattr(result, "ready") and result.ready() and result.successful():
            return result.get()

    return None


def get_eager_device() -> Any:
    """Return the object of the innermost device scope of eager ops; each scope has its own."""
    return context.context().device_spec


def copy_to_device(tensor: Any, device: str) -> Any:
    """Return a copy of an eager tensor; of ``int32``, ``tf.identity`` would stay on the host."""
    return tensor._copy(device_name=device)


@cache
def _list_card_kernels(op_type: str) -> tuple[Any, ...]:
    """Return the kernels of an op type for a card."""
    found = kernels.get_registered_kernels_for_op(op_type).kernel
    return tuple(one for one in found if one.device_type in ("GPU", "DEFAULT"))


def is_host_only(op_type: str) -> bool:
    """Say whether an op type has no kernel for a card."""
    return not _list_card_kernels(op_type)


def has_host_results(op: Any) -> bool:
    """Say whether the kernel of a symbolic op has its results in host memory, also on a card."""
    results = {one.name for one in op.op_def.output_arg}
    attributes = op.node_def.attr
    for kernel in _list_card_kernels(op.type):
        if all(
            attributes[one.name].type in one.allowed_values.list.type
            for one in kernel.constraint
        ):
            return results <= set(kernel.host_memory_arg)

    return True  # there is no kernel for a card


@cache
def find_host_inputs(op_type: str) -> tuple[int, ...]:
    """Return the inputs that a kernel of the card reads in host memory, such as the axes of ``Fill``.

    Kernels that keep all results in host memory do not count, nor inputs after a list of tensors.
    """
    definition = op_def_registry.get(op_type)
    if definition is None:  # a function
        return ()

    results = {one.name for one in definition.output_arg}
    kept = [set(one.host_memory_arg) for one in _list_card_kernels(op_type)]
    wanted = set().union(*(one for one in kept if not results <= one))
    places = []

    for place, argument in enumerate(definition.input_arg):
        if argument.number_attr or argument.type_list_attr:
            break
        if argument.name in wanted:
            places.append(place)

    return tuple(places)


def is_op(name: str) -> bool:
    """Say whether a name is that of an op type; a function's is not."""
    return op_def_registry.get(name) is not None


def count_inputs(op_type: str) -> int:
    """Return the number of inputs of an op type without lists of tensors."""
    return len(op_def_registry.get(op_type).input_arg)


def is_stateful(op: Any) -> bool:
    """Say whether a result of a symbolic op depends on more than its inputs."""
    return bool(op._is_stateful)


def get_branches(op: Any) -> tuple[Any, Any]:
    """Return the graphs of the branches of a ``StatelessIf``."""
    return op._true_graph, op._false_graph


def copy_op(op: Any, inputs: list[Any]) -> Any:
    """Add a copy of an op with other inputs to its graph, on the device of the scope."""
    attributes = {
        name: one for name, one in op.node_def.attr.items() if not name.startswith("_")
    }
    return op.graph._create_op_internal(
        op.type,
        inputs,
        [one.dtype for one in op.outputs],
        None,
        f"{op.name}_on_host".rpartition("/")[2],
        attributes,
        op.op_def,
    )


def infer_op_properties(graph_def: Any) -> Any:
    """Return TensorFlow's inferred properties of all outputs (``TensorProperties``), by node."""
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    results = [node.name for node in graph_def.node if node.op == "_Retval"]
    fetched = results or [graph_def.node[-1].name]
    meta.collection_def["train_op"].node_list.value.extend(fetched)

    return grappler_item.Item(meta).GetOpProperties()


def find_free_name(op: Any) -> str:
    """Return a name for a second op beside one, as ``create_op`` takes it from a name scope."""
    with op.graph.name_scope(None):
        return f"{op.graph.unique_name(op.name)}/"


def keep_op(op: Any) -> None:
    """Let Grappler keep an op that no other op reads (``GrapplerItem::NodesToPreserve``)."""
    op._set_attr("_grappler_do_not_remove", attr_value_pb2.AttrValue(b=True))


def record_identity(result: Any, source: Any) -> None:
    """Let gradient tapes take a tensor for an identity of another."""
    record.record_operation("Identity", [result], [source], lambda gradient: [gradient])


def stop_recording() -> Any:
    """Return a context in which gradient tapes record no op."""
    return record.stop_recording()


def get_handle_spec(handle: Any) -> Any:
    """Return shape and dtype of the variable behind a handle, also a captured one; None if unknown."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type:
        return None

    kept = data.shape_and_type[0]
    return tf.TensorSpec(tf.TensorShape(kept.shape), tf.as_dtype(kept.dtype))


def call_inline(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the Python function of a ``tf.function`` in the current graph."""
    call = function.python_function
    if function._autograph:
        call = autograph.tf_convert(call, autograph_ctx.control_status_ctx())

    return call(*args, **kwargs)


_KERAS_2 = "tf_keras"


def has_own_step(model: Any) -> bool:
    """Say whether a model's code has a training step of its own."""
    return type(model).train_step is not keras.Model.train_step


def get_input_specs(model: Any) -> Any:
    """Return symbolic inputs in the structure that the model takes; None if unknown."""
    structure = get_input_structure(model)
    inputs = getattr(model, "inputs", None)

    if structure is None and inputs:
        structure = inputs if len(inputs) > 1 else inputs[0]

    return structure


def get_classes(path: str) -> tuple[type, ...]:
    """Return the class with a dotted name, such as ``layers.Layer``, in each imported Keras."""
    classes = []
    for package in (keras, sys.modules.get(_KERAS_2)):
        with suppress(AttributeError):
            classes.append(operator.attrgetter(path)(package))

    return tuple(classes)


def get_variables(owner: Any) -> list[Any]:
    """Return the variables of an owner; in Keras 2's legacy optimizers they are a method."""
    variables = owner.variables
    return list(variables() if callable(variables) else variables)


def find_open_optimizers(program: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield unbuilt optimizers that a step is known to apply to all weights of its model, and those."""
    for model in program.models if program.config.mode == "train" else ():
        optimizer = model.optimizer
        is_open = (
            isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built
        )

        if is_open and not has_own_step(model) and not is_distributed(model):
            yield optimizer, list(model.trainable_variables)
