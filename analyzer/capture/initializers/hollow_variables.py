"""Variables that have a shape, can be read and assigned, and take no memory.

In the block of ``record_births``, a variable made by an initializer of Keras 3, Keras 2 or TensorFlow
gets zeros without memory; the initializer is traced instead of run. An assigned value is checked for its
shape and dropped. Small variables are real: Python may read them (a learning rate, a step counter).

Outside of a function, or lifted out of it by ``init_scope``, a variable has its value at once. Inside a
function that is being traced, as slots, it is an ``UnliftedInitializerVariable``: the first tracing
computes its initial value, and it is assigned afterwards (``polymorphic_function.py``).
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.graph.executor_graph import instantiate
from analyzer.capture.graph.plain_graphs import get_node_name
from analyzer.capture.initializers.variable_births import (
    CPU_DEVICE,
    Birth,
    Births,
    StandIns,
    active_births,
    get_bytes_in_use,
)
from analyzer.model.contract.fields import REHOMED_ELEMENTS
from analyzer.model.errors import TargetError
from analyzer.model.units import round_up

_LARGE_BYTES: Final = 1 << 20
"""A given value of at least this size is dropped; a smaller one may be a lookup table."""
_HOLLOW: Final = "_analyzer_hollow"  # set on a variable without memory for its value
FROM_NUMPY: Final = "_analyzer_from_numpy"
"""Set on a tensor that was made from a NumPy array. It shares the array's memory if the address is a
multiple of 64 bytes; TensorFlow copies others (``TF_NewTensor`` in ``tf_tensor.cc``)."""


@contextlib.contextmanager
def record_births(*, hollow: bool, host_dtypes: frozenset[str] = frozenset()) -> Iterator[Births]:
    """Record how variables are made in the block; ``host_dtypes`` lie in the host's memory."""
    births = Births(stand_ins=StandIns() if hollow else None, host_dtypes=host_dtypes)
    active_births.append(births)
    try:
        with contextlib.ExitStack() as stack:
            _Patches(births, stack).apply()
            yield births
    finally:
        active_births.remove(births)


def build_slots(optimizer: Any, variables: list[Any]) -> None:
    """Make the slots of a Keras optimizer in a graph of their own, as a first tracing of the step does.

    In the step's graph, the scope of the slots would change the names of the update's ops.
    """
    scope = private.keras_backend.name_scope(optimizer.name, caller=optimizer)
    graph = private.FuncGraph("slots").as_default()
    with graph, scope, tf.variable_creator_scope(_create_from_constant):
        optimizer.build(variables)


def _create_from_constant(create: Callable[..., Any], *, initial_value: Any, **kwargs: Any) -> Any:
    """Create a variable; one with a constant of the graph as its value (Nadam) gets a copy of it."""
    if tf.is_tensor(initial_value) and tf.is_symbolic_tensor(initial_value):
        initial_value = tf.get_static_value(initial_value)
    return create(initial_value=initial_value, **kwargs)


@dataclass
class _Patches:
    births: Births
    stack: contextlib.ExitStack
    _in_keras: bool = False

    def apply(self) -> None:
        """Replace the methods."""
        self._wrap(private.KerasVariable, private.INITIALIZE_KERAS_VARIABLE, self._initialize)
        self._wrap(private.KerasVariable, private.CONVERT_TO_TENSOR, self._convert)
        for owner in (private.KerasVariable, private.BaseResourceVariable):
            self._wrap(owner, "assign", self._assign)
            self._wrap(owner, "numpy", self._numpy)
        self._wrap(private.ResourceVariable, private.INITIALIZE_VARIABLE, self._init_from_args)
        self._wrap(private.UnliftedInitializerVariable, "__init__", self._init_lifted)
        self._wrap(private.constant_op, "convert_to_eager_tensor", _mark_from_numpy)
        if self.births.stand_ins is not None:
            for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
                self._wrap(optimizer, "apply", self._build_and_apply)

    def _wrap(self, owner: Any, name: str, new: Callable[..., Any]) -> None:
        old = getattr(owner, name)

        @functools.wraps(old)
        def method(*args: Any, **kwargs: Any) -> Any:
            return new(old, *args, **kwargs)

        self.stack.enter_context(patch.object(owner, name, method))

    @contextlib.contextmanager
    def _count_bytes(self) -> Iterator[None]:
        before = get_bytes_in_use()
        yield
        self.births.made_bytes += get_bytes_in_use() - before

    def _initialize(self, old: Any, variable: Any, initializer: Any) -> None:
        traced = not tf.executing_eagerly()
        shape, name = private.get_keras_shape(variable), private.get_keras_dtype(variable)
        dtype = tf.as_dtype(name)
        with self._count_bytes(), tf.init_scope():
            hollow = self._can_be_hollow(shape, dtype)
            is_direct = hollow or (traced and self.births.stand_ins is not None)
            if is_direct and not tf.distribute.has_strategy():
                # Not through tf.function's creator, which would trace the step a second time.
                value = private.UninitializedVariable(
                    trainable=variable.trainable, name=variable.name, shape=shape, dtype=dtype
                )
                if not hollow:
                    value.assign(tf.cast(initializer(shape, dtype=dtype), dtype))
                private.set_keras_value(variable, value)
            else:
                with patch.object(self, "_in_keras", True):
                    old(variable, initializer)
            value = private.get_keras_value(variable)
            parts = private.get_device_parts(value) or (value,)  # one for each device
            for one in (*parts, variable) if hollow else ():
                self._hollow_out(one)
            self.births.add(parts[0], initializer, shape, name, traced=traced)
            for part in parts[1:]:  # initialized with the first one's value
                self.births.add_value(part)

    def _build_and_apply(
        self, old: Any, optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not optimizer.built and not tf.executing_eagerly():
                build_slots(optimizer, trainable_variables)
        return old(optimizer, grads, trainable_variables)

    def _convert(self, old: Any, variable: Any, value: Any, dtype: Any = None) -> Any:
        """Convert a value for a Keras variable: an int is an int32 tensor first, on the card."""
        if type(value) is int and dtype is not None and tf.executing_eagerly():
            wanted = keras.backend.standardize_dtype(dtype)
            if wanted != "int32" and tf.as_dtype(wanted).is_integer:
                self.births.add_numbers([(float(value), "int32")])
        return old(variable, value, dtype=dtype)

    def _init_from_args(
        self, old: Any, variable: Any, initial_value: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """Make a variable of TensorFlow that has its value at once."""
        with tf.init_scope():
            is_eager = tf.executing_eagerly()
        if isinstance(initial_value, private.CheckpointInitialValueCallable) or not is_eager:
            old(variable, initial_value, *args, **kwargs)
        else:
            self._make_at_once(old, variable, initial_value, *args, **kwargs)

    def _make_at_once(
        self, old: Any, variable: Any, initial_value: Any, *args: Any, **kwargs: Any
    ) -> None:
        if self._in_keras:  # _initialize records it
            old(variable, initial_value, *args, **kwargs)
            return
        spec = _trace_spec(initial_value) if callable(initial_value) else None
        hollow = spec is not None and self._can_be_hollow(spec.shape, spec.dtype)
        value = self._make_zeros(spec) if hollow else initial_value
        with self._count_bytes():
            old(variable, value, *args, **kwargs)
        if spec is not None:
            setattr(variable, _HOLLOW, hollow)
            initializer = _get_initializer(initial_value)
            self.births.add(variable, initializer, spec.shape, spec.dtype.name, traced=False)
        elif variable.shape.is_fully_defined():
            self.births.add_value(variable)
            if not tf.is_tensor(value):
                return
            shape, dtype = variable.shape, variable.dtype
            size_bytes = shape.num_elements() * dtype.size
            is_large = size_bytes >= _LARGE_BYTES and dtype.is_floating
            if is_large and self._can_be_hollow(shape, dtype):
                self._hollow_out(variable)
            else:  # the variable shares the buffer of the tensor, which was allocated before
                self.births.made_bytes += round_up(size_bytes)

    def _init_lifted(
        self, old: Any, variable: Any, initial_value: Any = None, **kwargs: Any
    ) -> None:
        """Make a variable inside a function that is traced for the first time."""
        if tf.executing_eagerly():  # inside init_scope, out of the function
            self._make_at_once(old, variable, initial_value, **kwargs)
            return
        is_computed = kwargs.get("add_initializers_to") is None or self.births.stand_ins is None
        if not is_computed:
            kwargs["add_initializers_to"] = []
        old(variable, initial_value, **kwargs)
        shape, dtype = variable.shape, variable.dtype
        if not shape.is_fully_defined():
            return
        self.births.traces_twice = True
        if is_computed:  # after tracing
            self.births.made_bytes += round_up(shape.num_elements() * dtype.size)
        else:
            with self._count_bytes(), tf.init_scope():
                if self._can_be_hollow(shape, dtype):
                    self._hollow_out(variable)
                else:
                    variable.assign(_compute_value(initial_value, shape, dtype))
        initializer = _get_initializer(initial_value)
        self.births.add(variable, initializer, shape, dtype.name, traced=True)

    def _assign(self, old: Any, variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        is_hollow = getattr(variable, _HOLLOW, False) and tf.executing_eagerly()
        if is_hollow and tuple(np.shape(value)) == tuple(variable.shape):
            return value if isinstance(variable, private.KerasVariable) else variable
        return old(variable, value, *args, **kwargs)

    def _numpy(self, old: Any, variable: Any) -> Any:
        if not getattr(variable, _HOLLOW, False):
            return old(variable)
        # Zeros of NumPy take memory only when they are written.
        value = private.get_keras_value(variable, variable)
        return np.zeros(tuple(value.shape), value.dtype.as_numpy_dtype)

    def _can_be_hollow(self, shape: Any, dtype: Any) -> bool:
        count = tf.TensorShape(shape).num_elements()
        if self.births.stand_ins is None or count is None:
            return False
        return count > REHOMED_ELEMENTS and bool(dtype.is_numpy_compatible)

    def _make_zeros(self, spec: Any) -> Any:
        assert self.births.stand_ins is not None
        with tf.init_scope(), tf.device(CPU_DEVICE):
            return self.births.stand_ins.make_tensor(spec.dtype, tuple(spec.shape), least=0)

    def _hollow_out(self, variable: Any) -> None:
        if not isinstance(variable, private.KerasVariable):
            zeros = self._make_zeros(variable)
            with tf.init_scope(), tf.device(CPU_DEVICE):
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=zeros)
        setattr(variable, _HOLLOW, True)


def _mark_from_numpy(old: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    tensor = old(value, *args, **kwargs)
    if isinstance(value, np.ndarray):
        setattr(tensor, FROM_NUMPY, True)
    return tensor


def _trace_spec(make: Callable[[], Any]) -> Any:
    """Return shape and dtype of the result of ``make``; None if a graph does not tell."""
    # An error of the user's code is shown when it is called again later.
    with contextlib.suppress(Exception), tf.Graph().as_default():
        value = tf.convert_to_tensor(make())
        return tf.TensorSpec(value.shape, value.dtype) if value.shape.is_fully_defined() else None
    return None


def _get_initializer(initial_value: Any) -> Any:
    """Return the initializer of a value, called with shape and dtype as Keras' initializers are.

    Keras 2 binds shape and dtype to an initializer (``functools.partial``). A graph makes one constant
    of two such values if their initializers have the same class and configuration.
    """
    if isinstance(initial_value, functools.partial):
        bound = set(initial_value.keywords), len(initial_value.args)
        if bound in (({"shape", "dtype"}, 0), ({"dtype"}, 1)):
            return initial_value.func

    def make_value(shape: Any, dtype: Any = None) -> Any:
        if callable(initial_value):
            return initial_value()
        # In a graph, the value may be a tensor of another graph.
        return initial_value if tf.executing_eagerly() else tf.zeros(shape, dtype)

    make_value.__name__ = f"value {id(make_value)}"  # it differs from every other value
    return make_value


def _compute_value(initial_value: Any, shape: Any, dtype: Any) -> Any:
    """Return a small initial value, outside of the function that was to compute it."""
    try:
        value = initial_value() if callable(initial_value) else initial_value
        if tf.is_tensor(value) and tf.is_symbolic_tensor(value):
            value = tf.get_static_value(value)  # such as Adafactor's placeholders
        return tf.cast(value, dtype)
    except Exception:  # a tensor of the function that is not constant
        return tf.zeros(shape, dtype)


_MAX_ELEMENTS: Final = 1 << 20
"""A larger slot is replaced by a small one, because the optimiser computes each constant."""
_numbers = itertools.count()


def sort_slots_by_creation(births: list[Birth]) -> list[Birth]:
    """Return the births with the slots last, in the order in which their buffers are made.

    TensorFlow collects their initial values in one function, whose optimiser merges equal values and
    orders the remaining constants in its own way. The same function is built here and its graph read.
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
