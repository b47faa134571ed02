"""The child that runs a user's script as Python would, and watches its steps.

Nothing of TensorFlow is imported before the script does it: what the script sets in its environment
counts. What this module needs itself is imported before anything can come from the script's folder.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

from analyzer.capture.process import child_environment as phantom
from analyzer.capture.watch.watch_files import BEGUN_FILE, DUMP, FAULT_FILE
from analyzer.model.contract.capture_request import WATCH_VERSION, WatchRequest
from analyzer.model.contract.child_messages import read_message
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.interrupts import EXIT_BASE

_OURS: Final = str(Path(__file__).parents[2]) + os.sep
_WATCHED: Final = ("tensorflow", "keras", "tf_keras")


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Calls ``ready`` when TensorFlow, and Keras where it is on the way, have been imported."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._looking = False
        self._loading: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _WATCHED or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            self._loading.add(name)
            try:
                load(module)
            finally:
                self._loading.discard(name)
            self._loaded()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _loaded(self) -> None:
        if "tensorflow" not in sys.modules or self._loading:
            return  # what is on the way ends later
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        self._ready()


class ScriptRun:
    """One script, run as ``python script.py`` would.

    Args:
        request: What is asked.
    """

    def __init__(self, request: WatchRequest) -> None:
        self._request = request
        self._folder = Path(request.folder)
        self._script_folder = str(Path(os.path.realpath(request.script)).parent)
        self._watcher: Any = None
        self._owner = os.getpid()

    def run(self, before: frozenset[str], places: list[str]) -> NoReturn:
        """Run the script and end as it does.

        Args:
            before: Names of the modules that a bare Python has loaded.
            places: ``sys.path`` of a Python of the user's own, without the script's folder.
        """
        module = types.ModuleType("__main__")
        path = self._request.script
        vars(module).update(__file__=path, __builtins__=builtins, __spec__=None, __cached__=None)
        sys.modules["__main__"] = module
        sys.argv[:] = [path, *self._request.arguments]
        sys.path[:] = [self._script_folder, *places]
        self._unshadow(before)
        sys.meta_path.insert(0, _ImportWatch(self._begin))
        self._catch_ends()
        ended, status = "", 0
        fatal: BaseException | None = None
        try:
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, vars(module))
        except SystemExit as stop:
            ended = f"sys.exit({stop.code!r})" if stop.code not in (None, 0) else ""
            status = self._status_of(stop)
        except BaseException as error:
            fatal, ended = error, type(error).__name__
            _print_as_python(error)
            status = EXIT_BASE + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        if os.getpid() != self._owner:
            self._leave(status)  # a copy that the script forked and let run on
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                with contextlib.suppress(RuntimeError, KeyboardInterrupt):
                    thread.join()
        self.finish(ended, fatal)
        if status == EXIT_BASE + signal.SIGINT:
            self._raise_default(signal.SIGINT)
        self._leave(status)

    def finish(self, ended: str, error: BaseException | None = None) -> None:
        """Write what was seen; nothing of it may harm the script.

        Args:
            ended: How the script ends, in words.
            error: What ended it.
        """
        watcher, self._watcher = self._watcher, None
        if watcher is None or os.getpid() != self._owner:
            return
        try:
            with _one_interrupt_ignored():
                watcher.finish(ended, error)
        except KeyboardInterrupt:
            return  # what the traced steps left is written
        except Exception:
            self._tell_fault()

    def _leave(self, status: int) -> NoReturn:
        """End with ``status`` as Python does: what was registered for the end is done."""
        sys.exit(status)

    def _status_of(self, stop: SystemExit) -> int:
        """Return the exit status that Python makes of a ``SystemExit``, and print what it prints."""
        if stop.code is None:
            return 0
        if isinstance(stop.code, int):
            return stop.code & 0xFF if stop.code >= 0 else stop.code % 256
        with contextlib.suppress(Exception):
            print(stop.code, file=sys.stderr)
        return 1

    def _unshadow(self, before: frozenset[str]) -> None:
        """Let modules of the script's folder be found that have the name of one loaded for us."""
        folder = Path(self._script_folder)
        for name in {name.partition(".")[0] for name in sys.modules} - before - {"analyzer"}:
            if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
                for one in [one for one in sys.modules if one.partition(".")[0] == name]:
                    del sys.modules[one]

    def _begin(self) -> None:
        """Watch from now on: TensorFlow has just been imported by the script."""
        kept = list(sys.path)
        sys.path[:] = [place for place in kept if os.path.realpath(place) != self._script_folder]
        try:
            import tensorflow as tf

            if self._request.options.gpu:
                phantom.configure_cards(self._request.options, tf)
            from analyzer.capture.watch.watcher import Watcher

            options = self._request.options
            if options.inter_op_threads:
                tf.config.threading.set_inter_op_parallelism_threads(options.inter_op_threads)
            on_phantom = bool(options.gpu)
            cards = phantom.make_phantom_note(options) if on_phantom else None

            def complete(found: Any) -> None:
                found.run = replace(found.run, phantom=cards)

            self._watcher = Watcher(
                self._folder,
                steps=self._request.steps,
                warmup=self._request.warmup,
                target=TargetNote(
                    text=self._request.script,
                    kind="script",
                    name=Path(self._request.script).stem[:60],
                ),
                dump=self._folder / DUMP,
                complete=complete,
            )
            self._watcher.begin()
            (self._folder / BEGUN_FILE).touch()
        except Exception:
            self._tell_fault()
        finally:
            sys.path[:] = kept

    def _tell_fault(self) -> None:
        with contextlib.suppress(OSError):
            (self._folder / FAULT_FILE).write_text(traceback.format_exc(), "utf-8")

    def _catch_ends(self) -> None:
        """Write what was seen before ``os._exit`` and SIGTERM; forget it in a forked copy."""
        leave = os._exit

        @functools.wraps(leave)
        def exit_now(status: int) -> NoReturn:
            self.finish(f"os._exit({status})")
            leave(status)

        os._exit = exit_now
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
        os.register_at_fork(after_in_child=self._forked)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self.finish(signal.Signals(number).name, KeyboardInterrupt(signal.Signals(number).name))
        self._raise_default(number)

    def _raise_default(self, number: int) -> None:
        """Die of a signal, as a Python that does not catch it does."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _forked(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.forget()
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _one_interrupt_ignored() -> Iterator[None]:
    """Let the first Ctrl-C in the block do nothing: the script has ended, with a status of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


def _print_as_python(error: BaseException) -> None:
    """Print a traceback as Python would, without the lines of ours in it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = _without_ours(link.__traceback__)
        link = link.__cause__ or link.__context__
    sys.excepthook(type(error), error, error.__traceback__)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    rows = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            rows.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for row in reversed(rows):
        kept = TracebackType(kept, row.tb_frame, row.tb_lasti, row.tb_lineno)
    return kept


def main(request_path: str, before: frozenset[str], places: list[str]) -> NoReturn:
    """Run the script that a request names.

    Args:
        request_path: The request.
        before: Names of the modules that a bare Python has loaded.
        places: ``sys.path`` of a Python of the user's own, without the script's folder.
    """
    request = read_message(Path(request_path), WatchRequest, WATCH_VERSION)
    ScriptRun(request).run(before, places)
