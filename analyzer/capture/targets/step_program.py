"""A step that can be called, with everything known about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from analyzer.capture.targets.option_checks import Promise
from analyzer.model.contract.run_note import StepConfig


@dataclass(kw_only=True)
class Program:
    """One training or inference step, ready to be called again and again.

    Attributes:
        call: Runs one step; takes nothing, returns what the step returns.
        args: What the step is fed, for telling inputs from other tensors.
        config: Mode, batch size, optimizer and so on.
        function: The ``tf.function`` behind ``call``; None where the step runs eagerly.
        traced_args: The arguments to trace ``function`` with.
        models: Keras models that the step trains or runs.
        optimizers: Keras optimizers that the step applies.
        messages: Choices made for the user, in plain sentences.
        promises: What the traced step is held against.
        jit_reason: Why it is compiled with XLA on a GPU or is not, for a Keras model's step.
    """

    call: Callable[[], Any]
    args: tuple[Any, ...]
    config: StepConfig
    function: Any = None
    traced_args: tuple[Any, ...] = ()
    models: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    jit_reason: str = ""
