"""The user's setup on a simulated card: it computes on the host, and its variables lie on the card.

No kernel of a simulated card computes, so a vocabulary or an adapted layer would be built from zeros.
"""

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
from analyzer.capture.watch.user_lines import find_calling_line, is_for_logs

_CARD = "/GPU:0"
HOST = "/device:CPU:0"
_STAYS = (tf.string, tf.resource, tf.variant)  # on the host

# Attribute of an ``int32`` tensor made from a Python or NumPy value, which stays on the host.
_IS_CONSTANT = "_analyzer_constant"

# Attribute of a tensor: the same tensor on the host, which has its value; None if it was computed from
# values which the card lacks.
_HOST_VALUE = "_analyzer_host_value"

# Methods of a model that train or test it.
_RUNS = ("fit", "evaluate", "predict", "train_on_batch")

# Size of the largest variable whose initial value stays on the host.
_MOST_ELEMENTS = 1 << 24


def _can_move(value: Any) -> bool:
    """Return whether a value is an eager tensor that a card can hold."""
    is_eager = tf.is_tensor(value) and private.is_eager(value)
    return is_eager and value.dtype not in _STAYS


def keep_value(own: Any, host: Any) -> Any:
    """Return a tensor with which the host's is kept; None for one whose value is unknown."""
    if own is not host:
        setattr(own, _HOST_VALUE, host)

    return own


def find_original(tensor: Any) -> Any:
    """Return the host's tensor of an eager tensor; None if its value is unknown."""
    is_on_card = "GPU" in getattr(tensor, "backing_device", "")  # an array has none
    return getattr(tensor, _HOST_VALUE, None if is_on_card else tensor)


def read_as_array(old: Any, *args: Any, **kwargs: Any) -> Any:
    """Make an array of a tensor's value as Python reads it; NumPy reads the card's memory itself."""
    return old(*(one.numpy() if _can_move(one) else one for one in args), **kwargs)


def make_host_variable(value: Any, **settings: Any) -> Any:
    """Return a variable of ours on the host, with a value or a function that makes it."""
    with tf.init_scope(), tf.device(HOST):
        return private.HostVariable(value, trainable=False, **settings)


class SetupValues:
    """True values of the setup's tensors and variables, which the card does not have."""

    def __init__(self) -> None:
        # Each entry holds its objects, so that no other object gets their id.
        self.copies: dict[int, tuple[Any, Any]] = {}  # host's id -> host's, card's

        # id of a living variable's handle -> initial value, a function that makes it, or variable
        self.initial: dict[int, Any] = {}

        # ids of handles with values that the card should have computed
        self.trained: set[int] = set()
        self.read_at = ""  # the last line of the user that read such a value

    def list_notes(self) -> list[str]:
        """Return a sentence if values were read that the card should have computed."""
        note = (
            f"Values that the card should have computed are read at {self.read_at}. A simulated card "
            "computes nothing, so these are first weights or zeros: sizes and branches that depend on "
            "them may differ."
        )

        return [note] if self.read_at else []

    def move(self, tensor: Any) -> Any:
        """Return the card's copy of an eager tensor of the setup; itself if it belongs on the host."""
        if (
            not _can_move(tensor)
            or "GPU" in tensor.device
            or hasattr(tensor, _IS_CONSTANT)
        ):
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
        is_small = callable(value) or variable.shape.num_elements() <= _MOST_ELEMENTS

        # A function that is being traced initializes it with a tensor of its own.
        is_lost = tf.is_tensor(value) and not private.is_eager(value)

        if handle is not None and is_small and not is_lost:
            self.initial[id(handle)] = value

            # A reference would keep the variable's memory on the card.
            weakref.finalize(handle, self.initial.pop, id(handle), None)

    def read(self, handle: Any) -> Any:
        """Return a variable on the host with the true value of the one with this handle."""
        value = self.initial[id(handle)]
        if not isinstance(value, private.HostVariable):
            spec = private.get_handle_spec(handle)
            value = self.initial[id(handle)] = make_host_variable(
                value, dtype=spec.dtype
            )

        return value

    def execute(self, own_scope: Any, old: Any, *args: Any) -> Any:
        """Run an eager op of the setup; one on a variable also on the host, for its true value."""
        if args[1] == "AssignVariableOp":  # the value before is not computed
            handle = id(args[3])
            host = find_original(args[4])
            if host is None:
                self.trained.add(handle)
            elif handle in self.initial:
                self.initial[handle] = host
                self.trained.discard(handle)

            return old(*args)

        if private.get_eager_device() is not own_scope:
            own = old(*args)
            if args[1] == "Identity" and _can_move(args[3]):  # of a checkpoint's value
                keep_value(own, find_original(args[3]))

            return own

        given = [
            one.value() if isinstance(one, private.ResourceVariable) else one
            for one in args
        ]
        own = old(*given)
        handles = [one for one in given if getattr(one, "dtype", None) == tf.resource]
        is_known = handles and all(id(one) in self.initial for one in handles)

        if not is_known or given[1] == "DestroyResourceOp":
            return own

        known = {id(one): self.read(one).handle for one in handles}
        if self.trained & known.keys():
            self.read_at = find_calling_line()

        true = old(*(known.get(id(one), one) for one in given))

        if true is not None:
            private.record_identity(true, own)

        return true


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
        stack.enter_context(tf.device(HOST))
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

        # A setup may also train or test its model, as a script without ``__main__`` does.
        calls = dict.fromkeys(_RUNS, _call_anywhere)
        calls["__call__"] = partial(_call_on_card, own_scope)
        execute = partial(values.execute, own_scope)

        for wrapped in (
            *(
                wrap_calls(one, name, call)
                for one in get_classes("Model")
                for name, call in calls.items()
            ),
            wrap_calls(private.Function, "__call__", partial(_call_compiled, values)),
            wrap_calls(private.constant_op, "convert_to_eager_tensor", _mark_constant),
            wrap_calls(private.pywrap_tfe, "TFE_Py_FastPathExecute", execute),
        ):
            stack.enter_context(wrapped)

        yield


def _call_on_card(own_scope: Any, old: Any, model: Any, *args: Any, **kw: Any) -> Any:
    """Call a model on the card: only to build it, at no cost."""
    is_free = tf.executing_eagerly() and private.get_eager_device() is own_scope

    with tf.device(_CARD) if is_free and model.weights else nullcontext():
        return old(model, *args, **kw)


def _call_anywhere(old: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a call without the scope of the host, so that TensorFlow places its ops."""
    with tf.device(None):
        return old(*args, **kwargs)


def _call_compiled(
    values: SetupValues, old: Any, function: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a function; one of XLA must run where its variables are. No copy on the host is trained.

    What it returns is unknown if XLA compiled it, or if it trains.
    """
    is_compiled = private.is_jit_compiled(function)
    with tf.device(None) if is_compiled else nullcontext():
        result = old(function, *args, **kwargs)

    if tf.executing_eagerly():
        assigned = private.find_assigned_handles(function)
        values.trained |= assigned
        if (assigned or is_compiled) and not is_for_logs():
            values.read_at = find_calling_line()

    return result


def _mark_constant(old: Any, *args: Any, **kwargs: Any) -> Any:
    tensor = old(*args, **kwargs)
    if private.is_eager(tensor) and tensor.dtype == tf.int32:
        setattr(tensor, _IS_CONSTANT, True)

    return tensor
