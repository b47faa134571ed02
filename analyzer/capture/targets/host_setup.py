"""The user's setup on a simulated card: it computes on the host, and its variables lie on the card.

No kernel of a simulated card computes, so a vocabulary or an adapted layer would be built from zeros.
"""

import math
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.private_names import get_classes
from analyzer.capture.run.wrapped_calls import wrap_calls

_CARD = "/GPU:0"
_STAYS = (tf.string, tf.resource, tf.variant)  # on the host

# Attribute of an ``int32`` tensor made from a Python or NumPy value, which stays on the host.
_IS_CONSTANT = "_analyzer_constant"

# Attribute of a tensor of the card: the same tensor on the host, which has its value.
_HOST_VALUE = "_analyzer_host_value"

# Attribute of a tensor of the host that was computed from values which the card lacks.
_IS_UNKNOWN = "_analyzer_unknown"

# Methods of a model that train or test it.
_RUNS = ("fit", "evaluate", "predict", "train_on_batch")

# Size of the largest variable whose initial value stays on the host.
_MOST_ELEMENTS = 1 << 24


def _can_move(value: Any) -> bool:
    """Return whether a value is an eager tensor that a card can hold."""
    is_eager = tf.is_tensor(value) and private.is_eager(value)
    return is_eager and value.dtype not in _STAYS


def keep_value(own: Any, host: Any) -> Any:
    """Return a tensor of the card, with which the host's is kept."""
    if own is not host:
        setattr(own, _HOST_VALUE, host)

    return own


def mark_unknown(tensor: Any) -> None:
    """Mark a tensor of the host that was computed from values which the card lacks."""
    setattr(tensor, _IS_UNKNOWN, True)


def find_original(tensor: Any) -> Any:
    """Return the host's tensor of an eager tensor; None if its value is unknown."""
    if hasattr(tensor, _HOST_VALUE):
        return getattr(tensor, _HOST_VALUE)

    is_unknown = hasattr(tensor, _IS_UNKNOWN) or "GPU" in tensor.backing_device

    return None if is_unknown else tensor


class SetupValues:
    """True values of the setup's tensors and variables, which the card does not have."""

    def __init__(self) -> None:
        # Each entry holds its objects, so that no other object gets their id.
        self.copies: dict[int, tuple[Any, Any]] = {}  # host's id -> host's, card's

        # id of a living variable's handle -> the initial value or a function that makes it
        self.initial: dict[int, Any] = {}

    def move(self, tensor: Any) -> Any:
        """Return the card's copy of an eager tensor of the setup; itself if it belongs on the host."""
        if not _can_move(tensor):
            return tensor

        if "GPU" in tensor.device or getattr(tensor, _IS_CONSTANT, False):
            return tensor

        if id(tensor) not in self.copies:
            copy = self.copy(tensor)
            self.copies[id(tensor)] = (tensor, copy)
            keep_value(copy, tensor)

        return self.copies[id(tensor)][1]

    def copy(self, value: Any) -> Any:
        """Return a copy on the card of an eager tensor of the host; any other value itself."""
        if not _can_move(value):
            return value

        return private.copy_to_device(
            value, tf.config.list_logical_devices("GPU")[0].name
        )

    def remember(self, variable: Any, value: Any) -> None:
        """Keep the initial value of a variable, or the function that makes it."""
        handle = getattr(variable, "handle", None)
        is_small = (
            callable(value) or math.prod(variable.shape.as_list()) <= _MOST_ELEMENTS
        )

        # A function that is being traced initializes it with a tensor of its own.
        is_lost = tf.is_tensor(value) and not private.is_eager(value)

        if handle is not None and is_small and not is_lost:
            self.initial[id(handle)] = value

            # A reference would keep the variable's memory on the card.
            weakref.finalize(handle, self.initial.pop, id(handle), None)


_collected: list[SetupValues] = []


@contextmanager
def collect_setup_values() -> Iterator[SetupValues | None]:
    """Let the user's code in the block run on the host, if the step runs on a simulated card."""
    if "SIMULATED_CARDS" not in os.environ:
        yield None
        return

    _collected.append(SetupValues())

    try:
        yield _collected[-1]
    finally:
        _collected.pop()


def move_to_card(structure: Any) -> Any:
    """Return a step's arguments with the tensors of the setup on the card."""
    if not _collected:
        return structure

    return tf.nest.map_structure(_collected[-1].move, structure, expand_composites=True)


@contextmanager
def run_setup_on_host() -> Iterator[None]:
    """Run eager ops of the block on the host, except for models and the creation of variables."""
    if not _collected:
        yield
        return

    values = _collected[-1]
    with ExitStack() as stack:
        stack.enter_context(tf.device("/CPU:0"))
        own_scope = private.get_eager_device()

        def create(next_creator: Any, **settings: Any) -> Any:
            # the user, or a strategy, chose a device
            if private.get_eager_device() is not own_scope:
                return next_creator(**settings)

            value = settings.get("initial_value")

            # An implicit copy to the card would live as long as the host's tensor (a mirror).
            on_card = settings | {"initial_value": values.copy(value)}

            with tf.device(_CARD):
                variable = next_creator(**on_card)

            values.remember(variable, value)

            return variable

        stack.enter_context(tf.variable_creator_scope(create))

        for model_class in get_classes("Model"):
            call = partial(_call_on_card, own_scope)
            stack.enter_context(wrap_calls(model_class, "__call__", call))

            # A setup may also train or test its model, as a script without ``__main__`` does.
            for name in _RUNS:
                stack.enter_context(wrap_calls(model_class, name, _call_anywhere))

        compiled = private.Function, "__call__", _call_compiled
        stack.enter_context(wrap_calls(*compiled))

        convert = private.constant_op, "convert_to_eager_tensor", _mark_constant
        stack.enter_context(wrap_calls(*convert))
        yield


def _call_on_card(own_scope: Any, old: Any, model: Any, *args: Any, **kw: Any) -> Any:
    """Call a model on the card: only to build it, at no cost."""
    is_free = tf.executing_eagerly() and private.get_eager_device() is own_scope
    device = _CARD if is_free and model.weights else None

    with nullcontext() if device is None else tf.device(device):
        return old(model, *args, **kw)


def _call_anywhere(old: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a call without the scope of the host, so that TensorFlow places its ops."""
    with tf.device(None):
        return old(*args, **kwargs)


def _call_compiled(old: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function; one of XLA must run where its variables are."""
    if private.is_jit_compiled(function):
        return _call_anywhere(old, function, *args, **kwargs)

    return old(function, *args, **kwargs)


def _mark_constant(old: Any, *args: Any, **kwargs: Any) -> Any:
    tensor = old(*args, **kwargs)
    if private.is_eager(tensor) and tensor.dtype == tf.int32:
        setattr(tensor, _IS_CONSTANT, True)

    return tensor
