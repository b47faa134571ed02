"""Optimizers that a step of the user's own makes, of another class.

A Keras model can be compiled with another optimizer; a step of the user's own holds the one that its
code made. So while that code runs, what is made of each class of Keras' becomes one of the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest.mock import patch

import keras

from analyzer.model.errors import TargetError

_COMMON: Final = frozenset(
    {
        "learning_rate",
        "weight_decay",
        "clipnorm",
        "clipvalue",
        "global_clipnorm",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
        "loss_scale_factor",
        "gradient_accumulation_steps",
    }
)
"""Options that every optimizer takes: those of the one in whose place another is made are kept."""

_HOLD_OTHERS: Final = frozenset({"Optimizer", "LossScaleOptimizer", "MultiOptimizer"})
"""Classes whose objects keep no slots of their own."""


@contextlib.contextmanager
def replace_optimizers(name: str) -> Iterator[list[str]]:
    """Let Keras' optimizers that are made in the block be of another class; give the names of theirs.

    Args:
        name: The other class, in small letters.

    Raises:
        TargetError: Keras has no such optimizer.
    """
    kinds = {
        kind.__name__.lower(): kind
        for kind in vars(keras.optimizers).values()
        if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
        if kind.__name__ not in _HOLD_OTHERS and "__init__" in vars(kind)
    }
    if name not in kinds:
        raise TargetError(f"Keras has no optimizer {name!r}.")
    made: list[str] = []
    inits = {kind: vars(kind)["__init__"] for kind in kinds.values()}
    with contextlib.ExitStack() as stack:
        for kind in inits:
            stack.enter_context(
                patch.object(kind, "__init__", _becoming(kind, kinds[name], inits, made))
            )
        yield made


def _becoming(
    kind: Any, chosen: Any, inits: Mapping[Any, Callable[..., None]], made: list[str]
) -> Callable[..., None]:
    """Return the ``__init__`` with which a class's objects become another's.

    Args:
        kind: The class.
        chosen: The other.
        inits: The ``__init__`` of each as Keras has it.
        made: Names of the classes whose objects were to be made; added to.
    """

    def become(self: Any, *args: Any, **options: Any) -> None:
        if type(self) is not kind or kind is chosen:  # for an object of a class that extends it
            inits[kind](self, *args, **options)
            return
        made.append(kind.__name__)
        if args:
            options["learning_rate"] = args[0]
        object.__setattr__(self, "__class__", chosen)  # Keras tracks what is set otherwise
        inits[chosen](self, **{key: options[key] for key in options.keys() & _COMMON})

    return become
