"""Watch the steps of the user's own process, between two lines of the user's code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.capture.process.live_capture import can_trace_here
from analyzer.capture.process.run_folders import (
    check_writable,
    make_default_path,
    make_staging_folder,
    publish,
)
from analyzer.capture.watch.script_launch import read_untraced
from analyzer.model.contract.capture_request import TargetKind, TargetSpec
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.errors import InputError, TargetError
from analyzer.tracing.parse.logdir import RUN_FILE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from analyzer.capture.watch.watcher import Watcher

_running: list[object] = []
"""The active block of this process, at most one."""


class WatchBlock:
    """Steps watched from ``begin`` to ``end``.

    Attributes:
        note: Observations if no step was traced.

    Args:
        out: The run folder; None for the default.
        steps, warmup: Steps to trace, and steps before them.
        name: Name of the steps in the report.
        force: Whether to replace an earlier run in ``out``.

    Raises:
        InputError: ``out`` cannot be used.
        TargetError: this process' allocator writes no memory events.
    """

    def __init__(
        self, out: Path | None, *, steps: int, warmup: int, name: str, force: bool
    ) -> None:
        if steps < 1 or warmup < 1:
            raise InputError(f"steps={steps}, warmup={warmup}: both must be at least 1.")
        spec = TargetSpec(text=name, kind=TargetKind.SCRIPT, path="", attribute=name)
        self._out = (out or make_default_path(spec)).absolute()
        self._force, self._steps, self._warmup, self._spec = force, steps, warmup, spec
        check_writable(self._out, force=force)
        if not can_trace_here():
            raise TargetError(
                "TensorFlow runs in this process on an allocator that writes no memory events.",
                hint="Set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is imported, or run the script "
                "with `analyze trace script.py`.",
            )
        self._staging: AbstractContextManager[Path] | None = None
        self._folder = Path()
        self._watcher: Watcher | None = None
        self.note: WatchNote | None = None

    def begin(self) -> None:
        """Start to watch.

        Raises:
            InputError: another block is active.
        """
        if _running:
            raise InputError(
                "The steps of this process are already watched.", hint="End that block first."
            )
        from analyzer.capture.watch.watcher import Watcher

        self._staging = make_staging_folder(self._out)
        self._folder = self._staging.__enter__()
        target = TargetNote(text=self._spec.text, kind="live", name=self._spec.name)
        self._watcher = Watcher(self._folder, steps=self._steps, warmup=self._warmup, target=target)
        _running.append(self)
        self._watcher.begin()

    def end(self, error: BaseException | None = None) -> Path | None:
        """Stop, and return the run folder; None if no step was traced."""
        if self._watcher is None or self._staging is None:
            return None
        watcher, self._watcher = self._watcher, None
        try:
            watcher.finish("" if error is None else type(error).__name__, error)
            if not (self._folder / RUN_FILE).is_file():
                self.note = read_untraced(self._folder)
                return None
            return publish(self._folder, self._out, force=self._force)
        finally:
            _running.clear()
            self._staging.__exit__(None, None, None)
