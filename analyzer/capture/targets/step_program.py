"""A step that can be called, and checks that the traced step does what was asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import InputError


class Promise(Protocol):
    """A requested property of the step, checked once the step has been traced."""

    def check(self, function: Any) -> None:
        """Raise InputError if the step breaks it; ``function`` is None for an eager step."""


class Used:
    """Promise that the step calls a method of an optimizer or a loss.

    Args:
        method: The method that every use goes through.
    """

    def __init__(self, owner: Any, method: str, error: InputError) -> None:
        self._error = error
        self._is_used = False
        original = getattr(owner, method)

        @functools.wraps(original)
        def watch(*args: Any, **kwargs: Any) -> Any:
            self._is_used = True
            return original(*args, **kwargs)

        setattr(owner, method, watch)

    def check(self, function: Any) -> None:
        """Raise if tracing or running the step did not call the method."""
        if not self._is_used:
            raise self._error


@dataclass(frozen=True, slots=True)
class NothingCompiled:
    """Promise that XLA compiles no function inside the step."""

    name: str

    def check(self, function: Any) -> None:
        """Raise if the step's graph calls a function with ``jit_compile=True``."""
        if function is None:
            return
        for definition in function.graph.as_graph_def().library.function:
            if definition.attr["_XlaMustCompile"].b:
                # TensorFlow names it __inference_NAME_42.
                full = definition.signature.name
                name = full.removeprefix("__inference_").rpartition("_")[0] or full
                raise InputError(
                    f"--no-jit cannot be used: {self.name} calls {name}, which sets jit_compile=True.",
                    hint="Leave it out, or change that function.",
                )


@dataclass(kw_only=True)
class Program:
    """One training or inference step that can be called repeatedly.

    Attributes:
        call: Runs one step without arguments and returns its result.
        args: The tensors that the step is fed.
        function: The ``tf.function`` behind ``call``; None if the step runs eagerly.
        messages: Choices made for the user, one sentence each.
        promises: Checks of the traced step.
        jit_reason: Why XLA compiles the step on a GPU, or not; for a Keras model's step only.
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
