"""A step that can be called, and checks that the traced step does what was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import InputError

Promise: TypeAlias = Callable[[Any], None]
"""Raises InputError if the traced step lacks a requested property.

Its argument is the concrete function; None for an eager step, once it has run.
"""


def promise_use(owner: Any, error: InputError) -> Promise:
    """Return a promise that the step uses an optimizer or a loss, which Keras builds at first use."""

    def check(function: Any) -> None:
        if not getattr(owner, "built", True):
            raise error

    return check


def promise_nothing_compiled(text: str) -> Promise:
    """Return a promise that XLA compiles no function inside the step ``text``."""

    def check(function: Any) -> None:
        for definition in function.graph.as_graph_def().library.function if function else ():
            if definition.attr["_XlaMustCompile"].b:
                name = re.sub(r"^__inference_(.+)_\d+$", r"\1", definition.signature.name)
                raise InputError(
                    f"--no-jit cannot be used: {text} calls {name}, which sets jit_compile=True.",
                    hint="Leave it out, or change that function.",
                )

    return check


@dataclass(kw_only=True)
class Program:
    """One training or inference step that can be called repeatedly."""

    call: Callable[[], Any]  # runs one step without arguments and returns its result
    args: tuple[Any, ...]  # the tensors that the step is fed
    config: StepConfig
    function: Any = None  # the ``tf.function`` behind ``call``; None if the step runs eagerly
    traced_args: tuple[Any, ...] = ()
    models: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    messages: list[str] = field(
        default_factory=list
    )  # choices made for the user, one sentence each
    promises: list[Promise] = field(default_factory=list)
    jit_reason: str = ""  # why XLA compiles a Keras model's step on a GPU, or not
