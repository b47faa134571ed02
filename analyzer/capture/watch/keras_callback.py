"""A Keras callback that watches the steps of ``fit`` or ``predict``."""

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from analyzer.model.contract.capture_request import SCRIPT_STEPS, SCRIPT_WARMUP_STEPS
from analyzer.model.contract.fields import StrPath


class MemoryCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Trace a few steps after a warm-up, count the others, and write a report after training.

        >>> memory = analyzer.MemoryCallback("memory")
        >>> model.fit(x, y, callbacks=[memory])
        >>> memory.result.findings

    Attributes:
        result: The report's result; None before the end, or if no step was traced.

    Args:
        out: The run folder, with ``report.html`` and ``report.json``; default ``traces/NAME-TIME``.
        steps: Steps to trace.
        warmup: Steps before them.
        name: Name of the steps in the report.
        force: Whether to replace an earlier run in ``out``.
        on_oom: The run folder if a step runs out of memory. Without ``out``, nothing is written unless
            that happens.

    Raises:
        InputError: when training begins, if a folder cannot be used or steps are already watched.
    """

    begin_watch: ClassVar[Callable[..., Any]]

    # Functions of the session, which makes the class public: the capture explains nothing.
    end_watch: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        out: StrPath | None = None,
        *,
        steps: int = SCRIPT_STEPS,
        warmup: int = SCRIPT_WARMUP_STEPS,
        name: str = "fit",
        force: bool = False,
        on_oom: StrPath | None = None,
    ) -> None:
        super().__init__()
        self._options = {
            "out": out,
            "steps": steps,
            "warmup": warmup,
            "name": name,
            "force": force,
            "on_oom": on_oom,
            "watched": self,
        }

        self.result: Any = None
        self.steps = 0
        self._block: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Start to watch."""
        if self._block is None or not self._block.is_running:
            self._block = type(self).begin_watch(**self._options)

    def on_train_end(self, logs: Any = None) -> None:
        """Stop, and write the report."""
        if self._block is not None:
            type(self).end_watch(self._block, self)

    on_predict_begin = on_train_begin
    on_predict_end = on_train_end
