"""Variables that have a shape, can be read and assigned, and have no memory behind them.

While the block of ``record_births`` runs, a variable made by an initializer gets zeros with no
memory behind them, be it Keras', Keras 2's or TensorFlow's own; the initializer is traced instead of
run. Such a variable can be read, copied, saved and given other values as any other: what is assigned
to it is checked for its shape and let go, for values say nothing of memory. Small variables are made
as always: Python may decide by them (a learning rate, a step counter).

TensorFlow makes a variable in two ways. Outside of a function, or lifted out of one with
``init_scope``, it has its value at once. Inside a function that is being traced it is an
``UnliftedInitializerVariable``, whose initial value is computed by the function's first tracing and
assigned after it (``polymorphic_function.py``): the slots of an optimizer that was not built before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from analyzer.capture.initializers.memoryless_tensors import CPU_DEVICE, StandIns
from analyzer.capture.initializers.variable_births import Births, active_births, get_bytes_in_use
from analyzer.capture.private_names import (
    CONVERT_TO_TENSOR,
    INITIALIZE_KERAS_VARIABLE,
    INITIALIZE_VARIABLE,
    BaseResourceVariable,
    CheckpointInitialValueCallable,
    KerasVariable,
    ResourceVariable,
    UninitializedVariable,
    UnliftedInitializerVariable,
    get_device_parts,
    get_keras_spec,
    get_keras_value,
    set_keras_value,
)
from analyzer.model.contract.element_sizes import REHOMED_ELEMENTS
from analyzer.model.units import GRANULE_BYTES

_LARGE_BYTES: Final = 1 << 20
"""A value of so many bytes that a variable is given is not kept; a smaller one may be a table."""
_HOLLOW: Final = "_analyzer_hollow"
"""Set on a variable that has no memory behind its value."""


@contextlib.contextmanager
def record_births(*, hollow: bool, host_dtypes: frozenset[str] = frozenset()) -> Iterator[Births]:
    """Note how variables are made in the block.

    Args:
        hollow: Give them no bytes; False makes them as always.
        host_dtypes: Element types that lie in another memory than the device's.
    """
    births = Births(stand_ins=StandIns() if hollow else None, host_dtypes=host_dtypes)
    patches = _Patches(births)
    active_births.append(births)
    try:
        patches.apply()
        yield births
    finally:
        patches.undo()
        active_births.remove(births)


@dataclass
class _Patches:
    """What is put in the place of the makers of variables, and the way back."""

    births: Births
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _is_kerass: bool = False

    def apply(self) -> None:
        """Put them in place."""
        self._wrap(KerasVariable, INITIALIZE_KERAS_VARIABLE, self._initialize)
        self._wrap(KerasVariable, CONVERT_TO_TENSOR, self._convert)
        self._wrap(KerasVariable, "assign", self._assign)
        self._wrap(KerasVariable, "numpy", self._numpy)
        self._wrap(BaseResourceVariable, "assign", self._assign)
        self._wrap(BaseResourceVariable, "numpy", self._numpy)
        self._wrap(ResourceVariable, INITIALIZE_VARIABLE, self._init_from_args)
        self._wrap(UnliftedInitializerVariable, "__init__", self._init_lifted)

    def undo(self) -> None:
        """Take them out again."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str, new: Callable[..., Any]) -> None:
        """Let ``new`` be called with the old method and its arguments."""
        old, is_own = getattr(owner, name), name in vars(owner)

        @functools.wraps(old)
        def method(*args: Any, **kwargs: Any) -> Any:
            return new(old, *args, **kwargs)

        setattr(owner, name, method)
        self._undo.append(
            functools.partial(setattr, owner, name, old)
            if is_own
            else functools.partial(delattr, owner, name)
        )

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        before = get_bytes_in_use()
        yield
        self.births.made_bytes += get_bytes_in_use() - before

    def _initialize(self, old: Any, variable: Any, initializer: Any) -> None:
        """Make a Keras variable."""
        traced = not tf.executing_eagerly()
        shape, name = get_keras_spec(variable)
        dtype = tf.as_dtype(name)
        with self._counting(), tf.init_scope():
            hollow = self._can_be_hollow(shape, dtype)
            if hollow and not tf.distribute.has_strategy():
                made = UninitializedVariable(
                    trainable=variable.trainable, name=variable.name, shape=shape, dtype=dtype
                )
                self._hollow_out(made)
                set_keras_value(variable, made)
            else:
                self._is_kerass = True
                try:
                    old(variable, initializer)
                finally:
                    self._is_kerass = False
                if hollow:  # a strategy has made one for each device
                    for part in get_device_parts(get_keras_value(variable)):
                        self._hollow_out(part)
            if hollow:
                setattr(variable, _HOLLOW, True)
            first, *others = get_device_parts(get_keras_value(variable)) or [
                get_keras_value(variable)
            ]
            self.births.add(first, initializer, shape, name, traced=traced)
            for part in others:  # it gets the first one's value
                self.births.add_value(part)

    def _convert(self, old: Any, variable: Any, value: Any, dtype: Any = None) -> Any:
        """Make a tensor of what a Keras variable is given.

        Keras makes an int32 of a whole number and casts that, which needs it on the card
        (``convert_to_tensor``, ``backend/tensorflow/core.py``).
        """
        if type(value) is int and dtype is not None and tf.executing_eagerly():
            wanted = keras.backend.standardize_dtype(dtype)
            if wanted != "int32" and tf.as_dtype(wanted).is_integer:
                self.births.add_numbers([(float(value), "int32")])
        return old(variable, value, dtype=dtype)

    def _init_from_args(
        self, old: Any, variable: Any, initial_value: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """Make a variable of TensorFlow's that has its value at once."""
        with tf.init_scope():
            is_eager = tf.executing_eagerly()
        if self._is_kerass or not is_eager or isinstance(initial_value, _FROM_CHECKPOINT):
            old(variable, initial_value, *args, **kwargs)
        else:
            self._make_at_once(old, variable, initial_value, *args, **kwargs)

    def _make_at_once(
        self, old: Any, variable: Any, initial_value: Any, *args: Any, **kwargs: Any
    ) -> None:
        spec = _traced(initial_value) if callable(initial_value) else None
        hollow = spec is not None and self._can_be_hollow(spec.shape, spec.dtype)
        value = self._zeros(spec) if hollow else initial_value
        with self._counting():
            old(variable, value, *args, **kwargs)
        if hollow:
            setattr(variable, _HOLLOW, True)
        if spec is None:
            self._record_value(variable, initial_value)
            return
        maker = _maker(initial_value)
        self.births.add(variable, maker, spec.shape, spec.dtype.name, traced=False)

    def _record_value(self, variable: Any, value: Any) -> None:
        """Note a variable that was given a value; one that is large is let go of."""
        shape, dtype = variable.shape, variable.dtype
        if not shape.is_fully_defined():
            return
        self.births.add_value(variable)
        if not tf.is_tensor(value):
            return
        size_bytes = shape.num_elements() * dtype.size
        if size_bytes >= _LARGE_BYTES and dtype.is_floating and self._can_be_hollow(shape, dtype):
            self._hollow_out(variable)
        else:  # the variable has the tensor's own buffer, which was there before it
            self.births.made_bytes += _chunk_bytes(size_bytes)

    def _init_lifted(
        self, old: Any, variable: Any, initial_value: Any = None, **kwargs: Any
    ) -> None:
        """Make a variable inside a function that is traced for the first time."""
        if tf.executing_eagerly():  # init_scope has led out of the function
            if self._is_kerass:  # it is recorded as Keras' own
                old(variable, initial_value, **kwargs)
            else:
                self._make_at_once(old, variable, initial_value, **kwargs)
            return
        pending = kwargs.get("add_initializers_to")
        if pending is not None and self.births.stand_ins is not None:
            kwargs["add_initializers_to"] = []  # nothing is to be computed for it
        old(variable, initial_value, **kwargs)
        if variable.shape.is_fully_defined():
            self._record_lifted(variable, initial_value, pending is not None)

    def _record_lifted(self, variable: Any, initial_value: Any, is_lifted: bool) -> None:
        """Note a variable that has no value yet, and give it one where it is not to be computed."""
        shape, dtype = variable.shape, variable.dtype
        if not is_lifted or self.births.stand_ins is None:  # it is made when the tracing is over
            self.births.made_bytes += _chunk_bytes(shape.num_elements() * dtype.size)
        else:
            with self._counting(), tf.init_scope():
                if self._can_be_hollow(shape, dtype):
                    self._hollow_out(variable)
                else:
                    variable.assign(_value_of(initial_value, shape, dtype))
        maker = _maker(initial_value)
        self.births.add(variable, maker, shape, dtype.name, traced=True)

    def _assign(self, old: Any, variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        is_hollow = getattr(variable, _HOLLOW, False) and tf.executing_eagerly()
        if is_hollow and tuple(np.shape(value)) == tuple(variable.shape):
            return value if isinstance(variable, KerasVariable) else variable
        return old(variable, value, *args, **kwargs)

    def _numpy(self, old: Any, variable: Any) -> Any:
        if not getattr(variable, _HOLLOW, False):
            return old(variable)
        # The system gives a page of zeros its memory when it is written to.
        raw = get_keras_value(variable, variable)
        return np.zeros(tuple(raw.shape), raw.dtype.as_numpy_dtype)

    def _can_be_hollow(self, shape: Any, dtype: Any) -> bool:
        count = tf.TensorShape(shape).num_elements()
        if self.births.stand_ins is None or count is None:
            return False
        return count > REHOMED_ELEMENTS and bool(dtype.is_numpy_compatible)

    def _zeros(self, spec: Any) -> Any:
        assert self.births.stand_ins is not None
        with tf.init_scope(), tf.device(CPU_DEVICE):
            return self.births.stand_ins.unbacked(spec.dtype, tuple(spec.shape))

    def _hollow_out(self, variable: Any) -> None:
        zeros = self._zeros(variable)
        with tf.init_scope(), tf.device(CPU_DEVICE):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=zeros)
        setattr(variable, _HOLLOW, True)


def _chunk_bytes(size_bytes: int) -> int:
    """Return the bytes of the least chunk for a request."""
    return -(-size_bytes // GRANULE_BYTES) * GRANULE_BYTES


_FROM_CHECKPOINT: Final = (CheckpointInitialValueCallable,)


def _traced(make: Callable[[], Any]) -> Any:
    """Return shape and dtype of what a maker of values returns; None where a graph cannot tell."""
    try:
        with tf.Graph().as_default():
            value = tf.convert_to_tensor(make())
    except Exception:  # it is the user's, and is called again where its error is theirs to see
        return None
    return tf.TensorSpec(value.shape, value.dtype) if value.shape.is_fully_defined() else None


def _maker(initial_value: Any) -> Any:
    """Return what makes an initial value, called with shape and dtype as Keras' initializers are.

    Keras 2 binds both to an initializer (``functools.partial``); of two such, with initializers of one
    kind and configuration, a graph makes one constant.
    """
    bound = initial_value.keywords if isinstance(initial_value, functools.partial) else {}
    if set(bound) == {"shape", "dtype"} and not initial_value.args:
        return initial_value.func
    if set(bound) == {"dtype"} and len(initial_value.args) == 1:
        return initial_value.func
    return _Maker(initial_value)


class _Maker:
    """A maker of one value, which is like no other's."""

    def __init__(self, initial_value: Any) -> None:
        self._initial_value = initial_value
        self.__name__ = f"value {id(self)}"

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        if callable(self._initial_value):
            return self._initial_value()
        if tf.executing_eagerly():
            return self._initial_value
        return tf.zeros(shape, dtype)  # it may be a tensor of another graph


def _value_of(initial_value: Any, shape: Any, dtype: Any) -> Any:
    """Return a small initial value outside of the function that was to compute it."""
    try:
        value = initial_value() if callable(initial_value) else initial_value
        if tf.is_tensor(value) and tf.is_symbolic_tensor(value):
            value = tf.get_static_value(value)  # of the function: Adafactor's placeholders are
        return tf.cast(value, dtype)
    except Exception:  # it is a tensor of the function that is no constant
        return tf.zeros(shape, dtype)
