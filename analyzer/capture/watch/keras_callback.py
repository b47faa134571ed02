"""A Keras callback that watches the steps of ``fit``, ``evaluate`` or ``predict``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import keras

from analyzer.model.contract.capture_request import SCRIPT_STEPS, SCRIPT_WARMUP_STEPS


class MemoryCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Trace a few steps after a warm-up, count the others, and leave a report when training ends.

        >>> memory = analyzer.MemoryCallback("memory")
        >>> model.fit(x, y, callbacks=[memory])
        >>> memory.result.findings

    Attributes:
        result: The traced steps, explained; None where none was traced, or while they run.
        steps_made: Steps that were made.

    Args:
        out: The run folder, with ``report.html`` and ``report.json``; default ``traces/NAME-TIME``.
        steps: Steps to trace.
        warmup: Steps before them.
        name: What the report calls them.
        force: Replace an earlier run in ``out``.

    Raises:
        InputError: ``out`` cannot be used, or steps are watched already; when training begins.
    """

    begin_watch: ClassVar[Callable[..., Any]]
    end_watch: ClassVar[Callable[..., Any]]
    """What begins and ends; set by whoever makes the class public: explaining is none of this room."""

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        steps: int = SCRIPT_STEPS,
        warmup: int = SCRIPT_WARMUP_STEPS,
        name: str = "fit",
        force: bool = False,
    ) -> None:
        super().__init__()
        self.result: Any = None
        self.steps_made = 0
        self._asked = {"out": out, "steps": steps, "warmup": warmup, "name": name, "force": force}
        self._block: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to watch."""
        self._begin()

    def on_train_end(self, logs: Any = None) -> None:
        """End, and write the report."""
        self._end()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begin to watch."""
        self._begin()

    def on_predict_end(self, logs: Any = None) -> None:
        """End, and write the report."""
        self._end()

    def _begin(self) -> None:
        if self._block is None:
            self._block = type(self).begin_watch(**self._asked)

    def _end(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            watched = type(self).end_watch(block)
            self.result, self.steps_made = watched.result, watched.steps
