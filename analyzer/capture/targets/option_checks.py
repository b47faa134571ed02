"""What shows only when the step is traced: whether it really does what was asked for."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

from analyzer.capture.targets.honoured_options import make_inner_jit_error
from analyzer.model.errors import InputError


class Promise(Protocol):
    """Something that was asked for and is held against the traced step."""

    def check(self, function: Any) -> None:
        """Raise InputError where the step does not keep it; ``function`` is None for an eager step."""


class Used:
    """An optimizer or a loss that the step has to call.

    Args:
        owner: The object.
        method: Its method that every use goes through.
        error: What to raise where it is not called.
    """

    def __init__(self, owner: Any, method: str, error: InputError) -> None:
        self._error = error
        self._is_used = False
        old = getattr(owner, method)

        @functools.wraps(old)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._is_used = True
            return old(*args, **kwargs)

        setattr(owner, method, watched)

    def check(self, function: Any) -> None:
        """Raise where it was not called while the step was traced, or run."""
        if not self._is_used:
            raise self._error


@dataclass(frozen=True, slots=True)
class NothingCompiled:
    """No function in the step says that XLA compiles it.

    Attributes:
        name: What the user called the step.
    """

    name: str

    def check(self, function: Any) -> None:
        """Raise where a function called by the step's graph does."""
        if function is None:
            return
        for definition in function.graph.as_graph_def().library.function:
            if definition.attr["_XlaMustCompile"].b:
                raise make_inner_jit_error(self.name, _plain(definition.signature.name))


def _plain(name: str) -> str:
    """Return the Python name in a function's name in the graph: ``__inference_inner_42``."""
    return name.removeprefix("__inference_").rpartition("_")[0] or name
