"""Names of TensorFlow and Keras that are not part of their public API: all of them, here alone.

A name with ``tensorflow.python``, ``tensorflow.core`` or ``keras.src`` in it, and an attribute that
begins with an underscore, may change with any release. The rest of the package imports them from here
or calls a function that reads them; each says what it is for. They were read in the versions of
``READ_IN``; a newer one gets a line in every result (``list_newer_versions``).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import keras
import tensorflow as tf

# Which GPU's defaults a Keras model takes: cuDNN's conditions, XLA's.
from keras.src import backend as keras_backend
from keras.src.backend.tensorflow.core import Variable as KerasVariable
from keras.src.trainers import trainer as keras_trainer

# Messages of graphs, optimiser settings and devices, as grappler takes them.
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, meta_graph_pb2

# The limits of the runtime's devices.
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session

# What a coordinator hands to a worker: a call that it makes on a thread of its own.
from tensorflow.python.distribute.coordinator.cluster_coordinator import Closure

# A call that is cancelled before it begins; the graphs that the runtime built for it; XLA's modules.
from tensorflow.python.eager import cancellation, context

# What tf.function returns, whose calls are a program's steps; the makers of variables, wrapped while an
# estimate's model is built.
from tensorflow.python.eager.polymorphic_function.polymorphic_function import (
    Function,
    UnliftedInitializerVariable,
)

# Ops' definitions, constants' values, what Python runs op by op.
from tensorflow.python.framework import op_callbacks, op_def_registry, tensor_util
from tensorflow.python.framework.func_graph import FuncGraph

# Grappler with a card that is not there.
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.ops.resource_variable_ops import (
    BaseResourceVariable,
    ResourceVariable,
    UninitializedVariable,
)

# Whoever starts a profile, by whatever name: only one can run.
from tensorflow.python.profiler import profiler_v2

# What writes an event of each of some Python functions' calls while the profiler runs.
from tensorflow.python.profiler import trace as python_trace
from tensorflow.python.trackable.base import CheckpointInitialValueCallable

__all__ = [
    "BaseResourceVariable",
    "CheckpointInitialValueCallable",
    "Closure",
    "FuncGraph",
    "Function",
    "KerasVariable",
    "ResourceVariable",
    "UninitializedVariable",
    "UnliftedInitializerVariable",
    "cancellation",
    "config_pb2",
    "context",
    "device_properties_pb2",
    "graph_pb2",
    "grappler_cluster",
    "keras_backend",
    "keras_trainer",
    "meta_graph_pb2",
    "op_callbacks",
    "op_def_registry",
    "profiler_v2",
    "tensor_util",
    "tf_optimizer",
]

READ_IN: Final[Mapping[str, tuple[int, int]]] = {"TensorFlow": (2, 21), "Keras": (3, 15)}
"""The newest release of each, major and minor, that these names were read in."""

RESOLVE_JIT: Final = "_resolve_auto_jit_compile"
"""Method of Keras' ``Trainer``: what ``jit_compile="auto"`` means on this machine."""
CPU_ONLY: Final = "_cpu_only"
"""Function of ``backend/tensorflow/nn.py``: whether a convolution in NCHW has to be turned round."""
IS_GPU_AVAILABLE: Final = "_is_gpu_available"
"""Function of ``backend/tensorflow/rnn.py``: whether an LSTM or GRU may be one cuDNN kernel."""
INITIALIZE_KERAS_VARIABLE: Final = "_initialize_with_initializer"
"""Method of ``KerasVariable`` that computes its first value."""
CONVERT_TO_TENSOR: Final = "_convert_to_tensor"
"""Method of ``KerasVariable`` that makes a tensor of what a variable is given."""
INITIALIZE_VARIABLE: Final = "_init_from_args"
"""Method of ``ResourceVariable`` that computes its first value."""


def list_newer_versions(found: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a line for each package that is newer than those that its private names were read in.

    Args:
        found: Package -> version; None for those that are installed.
    """
    if found is None:
        found = {"TensorFlow": tf.__version__, "Keras": keras.__version__}
    for package, version in found.items():
        newest = READ_IN[package]
        major, minor, *_ = version.split(".")
        if major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) > newest:
            yield (
                f"{package} {version} is newer than {newest[0]}.{newest[1]}, the newest whose insides "
                f"this package knows: what it records of a step may be incomplete."
            )


# TensorFlow's graphs and functions


def get_functions(graph: Any) -> Mapping[Any, Any]:
    """Return the functions that a graph holds, by name (``Graph._functions``)."""
    functions: Mapping[Any, Any] = getattr(graph, "_functions", {})
    return functions


def get_handle_data(tensor: Any) -> Any:
    """Return dtype and shape behind a resource handle; None where not known."""
    return getattr(tensor, "_handle_data", None)


def get_closure_function(closure: Any) -> Any:
    """Return the concrete function that a coordinator's call runs; None where it runs another thing."""
    return getattr(closure, "_concrete_function", None)


def call_flat(function: Any, arguments: list[Any], captures: list[Any]) -> None:
    """Call a ``ConcreteFunction`` on other tensors than those that it captured.

    Args:
        function: The function.
        arguments: Tensors for its arguments.
        captures: Tensors in the place of those captured.
    """
    function._call_flat(arguments, captures)


def is_eager(tensor: Any) -> bool:
    """Say whether a tensor has a value: only eager ones can be seen by NumPy."""
    return hasattr(tensor, "_numpy_internal")


def get_device_limits() -> dict[str, int]:
    """Return the ``memory_limit`` of each of the eager runtime's GPUs, in bytes, by ``GPU:0``."""
    runtime = context.context()
    runtime.ensure_initialized()
    devices = pywrap_tfe.TFE_ContextListDevices(runtime._context_handle)
    try:
        rows = (
            (
                str(pywrap_tfe.TF_DeviceListName(devices, index)).rpartition("/device:")[2],
                int(pywrap_tf_session.TF_DeviceListMemoryBytes(devices, index)),
            )
            for index in range(pywrap_tfe.TF_DeviceListCount(devices))
        )
        return {name: limit for name, limit in rows if name.startswith("GPU:")}
    finally:
        pywrap_tfe.TF_DeleteDeviceList(devices)


def get_gpu_options() -> dict[str, str]:
    """Return what the program set of ``GPUOptions``, by field; what is left alone is not in it."""
    found = {}
    options = context.context().config.gpu_options
    for field, value in options.ListFields():
        found[str(field.name)] = " ".join(str(value).split())
    return found


def is_jit_compiled(function: Any) -> bool:
    """Say whether a ``tf.function`` was made with ``jit_compile=True``."""
    return bool(getattr(function, "_jit_compile", False))


@contextlib.contextmanager
def disable_python_tracing() -> Iterator[None]:
    """Keep the profiler from writing an event of each conversion to a tensor in the block.

    TensorFlow's Python asks ``trace.enabled`` before it writes one, some 60,000 times while ResNet50 is
    traced. Events of the runtime, those of memory among them, are written all the same;
    ``tf.profiler.experimental.Trace`` writes none.
    """
    asked = python_trace.enabled
    python_trace.enabled = lambda: False
    try:
        yield
    finally:
        python_trace.enabled = asked


def get_function_options(function: Any) -> dict[str, bool]:
    """Return what a ``tf.function`` was made with, but for its signature and ``jit_compile``."""
    return {
        "autograph": getattr(function, "_autograph", True),
        "reduce_retracing": bool(getattr(function, "_reduce_retracing", False)),
    }


def list_concrete_functions(function: Any) -> list[Any]:
    """Return what a ``tf.function`` was traced to, in order."""
    listing = getattr(function, "_list_all_concrete_functions", None)
    return [] if listing is None else list(listing())


def is_persistent(tape: Any) -> bool:
    """Say whether a ``GradientTape`` keeps what it recorded after it was asked for a gradient."""
    return bool(getattr(tape, "_persistent", False))


def holds_recording(tape: Any) -> bool:
    """Say whether a ``GradientTape`` still holds what it recorded."""
    return getattr(tape, "_tape", None) is not None


def import_autograph_loader() -> Any:
    """Return the module that writes autograph's generated code to temporary files."""
    return importlib.import_module("tensorflow.python.autograph.pyct.loader")


# Keras' variables


def get_keras_spec(variable: Any) -> tuple[Any, str]:
    """Return shape and dtype of a Keras variable that is being made."""
    return variable._shape, variable._dtype


def get_keras_value(variable: Any, otherwise: Any = None) -> Any:
    """Return what holds a Keras variable's value, a ``tf.Variable``."""
    return getattr(variable, "_value", otherwise)


def get_device_parts(variable: Any) -> tuple[Any, ...]:
    """Return what a strategy keeps of a variable on each of several devices; none elsewhere."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        return ()
    parts = getattr(variable, "values", None)
    if not isinstance(parts, tuple):
        return ()
    return tuple(part for part in parts if isinstance(part, tf.Variable))


def set_keras_value(variable: Any, value: Any) -> None:
    """Give a Keras variable the ``tf.Variable`` that holds its value."""
    variable._value = value


def get_uncast_variable(variable: Any) -> Any:
    """Return what Keras 2's ``AutoCastVariable`` is put around; None for another variable."""
    return getattr(variable, "_variable", None)


# Keras' models, layers and optimizers


def import_keras_module(name: str) -> Any:
    """Return a module of Keras' TensorFlow backend, such as ``rnn``."""
    return importlib.import_module(f"keras.src.backend.tensorflow.{name}")


def get_keras_name_scope() -> Any:
    """Return the class of the scopes that Keras names a layer's ops by; None where it has moved."""
    try:
        from keras.src.backend.tensorflow.core import name_scope
    except ImportError:
        return None
    return name_scope


def get_layers(model: Any, **options: bool) -> Iterable[Any]:
    """Return a model's layers, those inside of layers too; none where it is no Keras model."""
    flatten = getattr(model, "_flatten_layers", None)
    layers: Iterable[Any] = flatten(**options) if flatten is not None else ()
    return layers


def is_distributed(model: Any) -> bool:
    """Say whether a model was made under a distribution strategy."""
    return bool(model._distribute_strategy)


def get_chosen_jit(model: Any) -> bool | None:
    """Return what ``Model.jit_compile`` has been set or resolved to; None for not yet."""
    chosen: bool | None = getattr(model, "_jit_compile", None)
    return chosen


def set_chosen_jit(model: Any, value: bool | None) -> None:
    """Set what ``get_chosen_jit`` returns; None lets Keras resolve it again."""
    model._jit_compile = value


def has_own_weights(layer: Any) -> bool:
    """Say whether a layer itself has trainable weights, in Keras 3 or 2."""
    return bool(
        getattr(layer, "_trainable_variables", None) or getattr(layer, "_trainable_weights", None)
    )


def get_built_variables(optimizer: Any) -> list[Any] | None:
    """Return the variables that an optimizer was built for; None where it was not."""
    variables: list[Any] | None = getattr(optimizer, "_trainable_variables", None)
    return variables


def get_gradient_accumulators(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer adds up gradients in."""
    return list(getattr(optimizer, "_accumulated_gradients", None) or ())


def get_compile_arguments(model: Any) -> dict[str, Any]:
    """Return what a compiled Keras 3 model was compiled with."""
    return dict(getattr(getattr(model, "_compile_config", None), "config", None) or {})


def get_build_shapes(model: Any) -> Mapping[str, Any] | None:
    """Return the shapes that a model was built with, by argument; None where it was not."""
    shapes: Mapping[str, Any] | None = getattr(model, "_build_shapes_dict", None)
    return shapes


def get_input_structure(model: Any) -> Any:
    """Return the symbolic inputs of a functional Keras 3 model in their structure; else None."""
    return getattr(model, "_inputs_struct", None)


def get_output_structure(model: Any) -> Any:
    """Return the symbolic outputs of a functional Keras 3 model in their structure; else None."""
    return getattr(model, "_outputs_struct", None)


def get_history(tensor: Any) -> Any:
    """Return the record of which layer made a symbolic tensor; None where there is none."""
    return getattr(tensor, "_keras_history", None)


def get_compiled_loss(model: Any) -> Any:
    """Return the object that every use of a Keras 3 model's loss goes through; None for none."""
    return getattr(model, "_compile_loss", None)


def closes_scope(scope: Any) -> bool:
    """Say whether leaving a Keras name scope ends it: an inner one of the same layer does not."""
    return bool(scope._pop_on_exit)


# Keras 2


def keras_2_is_compiled(model: Any) -> bool:
    """Say whether a Keras 2 model has an optimizer and a loss."""
    return bool(model._is_compiled)


def get_keras_2_inputs(model: Any) -> Any:
    """Return the symbolic inputs of a functional Keras 2 model in their structure; else None."""
    return getattr(model, "_nested_inputs", None)


def get_keras_2_outputs(model: Any) -> Any:
    """Return the symbolic outputs of a functional Keras 2 model in their structure; else None."""
    return getattr(model, "_nested_outputs", None)


def get_keras_2_counter(model: Any, *, train: bool) -> Any:
    """Return the variable that counts a Keras 2 model's steps."""
    return model._train_counter if train else model._predict_counter
