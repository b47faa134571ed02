"""Watch the steps of the user's own process: in a block of code, or of ``fit`` by a callback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import keras

from analyzer.capture.process.launch import can_trace_here, make_allocator_error
from analyzer.capture.process.run_folders import (
    check_writable,
    make_default_path,
    make_staging_folder,
    publish,
)
from analyzer.capture.watch.script_launch import read_untraced
from analyzer.model.contract.child_messages import (
    SCRIPT_STEPS,
    SCRIPT_WARMUP_STEPS,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.fields import StrPath
from analyzer.model.contract.run_note import TargetNote, WatchNote
from analyzer.model.errors import InputError, TraceError
from analyzer.tracing.parse.run_folder import RUN_FILE, find_traces
from analyzer.tracing.parse.xplane import read_trace

if TYPE_CHECKING:
    from analyzer.capture.watch.watcher import Watcher

# The active block of this process, at most one.
_running: list[object] = []


class WatchBlock:
    """The steps of this process from now to ``end``, watched.

    ``out`` is the run folder, None for the default, or for none if ``on_oom`` is given: the folder if a
    step runs out of memory. ``on_failure`` is called in this case, to end the block. InputError if a
    folder cannot be used or a block is active, TargetError if the allocator writes no memory events.
    """

    def __init__(
        self,
        out: Path | None,
        *,
        steps: int,
        warmup: int,
        name: str,
        force: bool,
        on_oom: Path | None = None,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        if steps < 1 or warmup < 1:
            raise InputError(
                f"steps={steps}, warmup={warmup}: both must be at least 1."
            )

        spec = TargetSpec(text=name, kind=TargetKind.SCRIPT, path="", attribute=name)
        if out is None and on_oom is None:
            out = make_default_path(spec)

        # Absolute, because the steps may change the working folder.
        self._out = None if out is None else out.absolute()
        self._places = [one.absolute() for one in (out, on_oom) if one is not None]
        self._force = force

        for folder in self._places:
            check_writable(folder, force=force)

        if not can_trace_here():
            raise make_allocator_error("run the script with `analyze trace script.py`")

        if _running:
            raise InputError(
                "The steps of this process are already watched.",
                "End that block first.",
            )

        from analyzer.capture.watch.watcher import Watcher

        self.note: WatchNote | None = None  # if no step was traced
        self._staging = make_staging_folder(self._places[0])
        self._folder = self._staging.__enter__()
        self._watcher: Watcher | None = Watcher(
            self._folder,
            steps=steps,
            warmup=warmup,
            target=TargetNote(text=spec.text, kind="live", name=spec.name),
            on_failure=on_failure,
        )

        _running.append(self)
        self._watcher.begin()

    @property
    def is_running(self) -> bool:
        """Whether the block has not ended."""
        return self._watcher is not None

    def end(self, error: BaseException | None = None) -> Path | None:
        """Stop, and return the run folder; None if no step was traced or no report is wanted."""
        if self._watcher is None:
            return None

        watcher = self._watcher
        self._watcher = None

        try:
            watcher.finish("" if error is None else type(error).__name__, error)
            out = self._places[-1] if watcher.has_failed else self._out
            is_traced = (self._folder / RUN_FILE).is_file()

            # TensorFlow may have requested nothing
            if is_traced and watcher.trace.is_whole:
                is_traced = _holds_memory(self._folder)

            if out is None or not is_traced:
                self.note = read_untraced(self._folder)
                return None

            return publish(self._folder, out, force=self._force)
        finally:
            _running.clear()
            self._staging.__exit__(None, None, None)


def _holds_memory(folder: Path) -> bool:
    try:
        for trace in find_traces(folder):
            read_trace(trace)
    except TraceError:
        return False

    return True


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
