"""The child that runs a user's script as Python would, and watches its steps.

TensorFlow is imported by the script, not before, so that environment variables set by the script take
effect. All modules that this one needs are imported before the script's folder is on ``sys.path``.
"""

import builtins
import importlib.abc
import importlib.machinery
import math
import os
import shlex
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from itertools import pairwise
from pathlib import Path
from runpy import _get_module_details  # type: ignore[attr-defined]
from types import FrameType, TracebackType
from typing import Any, NoReturn

from analyzer.capture.process.child_environment import (
    configure_cards,
    make_card_note,
)
from analyzer.capture.watch.script_launch import (
    BEGUN_FILE,
    DUMP,
    REPORT_FILE,
    write_fault,
)
from analyzer.model.contract.child_messages import WatchRequest, read_message
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.interrupts import EXIT_BASE, REPEAT_S, delay_signals

_OURS = str(Path(__file__).parents[2]) + os.sep
_WATCHED = ("tensorflow", "keras", "tf_keras")


class _ImportHook(importlib.abc.MetaPathFinder):
    """Calls ``ready`` when TensorFlow is imported, and Keras if its import has begun."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._loading: set[str] = set()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        spec = (
            importlib.machinery.PathFinder.find_spec(name) if name in _WATCHED else None
        )
        if spec is None or spec.loader is None:
            return spec

        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            self._loading.add(name)
            try:
                load(module)
            finally:
                self._loading.discard(name)

            if "tensorflow" in sys.modules and not self._loading:
                sys.meta_path[:] = [
                    finder for finder in sys.meta_path if finder is not self
                ]
                self._ready()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]

        return spec


class ScriptRun:
    """One script, run as ``python script.py`` would run it."""

    def __init__(self, request: WatchRequest) -> None:
        self._request = request
        self._folder = Path(request.folder)
        self._script_folder = os.path.dirname(os.path.realpath(request.script))

        if request.is_module:
            self._script_folder = os.getcwd()

        self._watcher: Any = None
        self._owner = os.getpid()
        self._is_script = True  # whether the script's own code runs
        self._interrupted_s = -math.inf  # the last Ctrl-C that it got

    def run(self, places: list[str], modules: frozenset[str]) -> NoReturn:
        """Run the script and end as it ends."""
        module = types.ModuleType("__main__")
        path = self._request.script
        vars(module).update(
            __file__=path,
            __builtins__=builtins,
            __spec__=None,
            __cached__=None,
        )

        sys.modules["__main__"] = module
        sys.argv[:] = [path, *self._request.arguments]
        sys.path[:] = [self._script_folder, *places]

        self._unload_modules(modules)
        sys.meta_path.insert(0, _ImportHook(self._begin))
        self._install_exit_hooks()

        ended = ""
        status = 0
        fatal: BaseException | None = None

        try:
            exec(self._load_code(module), vars(module))
        except SystemExit as stop:
            status = _get_status(stop)
            if stop.code not in (None, 0):
                ended = f"sys.exit({stop.code!r})"
        except BaseException as error:
            self._is_script = False
            fatal = error
            ended = type(error).__name__
            status = 1
            _print_as_python(error)

            if isinstance(error, KeyboardInterrupt):
                status = EXIT_BASE + signal.SIGINT

        if os.getpid() != self._owner:
            sys.exit(status)  # a fork by the script that ran to the script's end

        # it ends the wait for the script's threads
        with suppress(KeyboardInterrupt):
            self._is_script = True
            for thread in threading.enumerate():
                if not thread.daemon and thread is not threading.current_thread():
                    thread.join()

        self.finish(ended, fatal)

        # Python ends as usual, without a second traceback
        if isinstance(fatal, KeyboardInterrupt):
            sys.excepthook = lambda *_: None
            raise KeyboardInterrupt

        sys.exit(status)

    def _unload_modules(self, kept: frozenset[str]) -> None:
        """Unload our modules that have the name of a module in the script's folder."""
        folder = Path(self._script_folder)
        for module in list(sys.modules):
            name = module.partition(".")[0]
            if name in kept or name == "analyzer":
                continue

            if (folder / f"{name}.py").is_file() or (
                folder / name / "__init__.py"
            ).is_file():
                del sys.modules[module]

    def _load_code(self, module: types.ModuleType) -> types.CodeType:
        """Return the code to run; for a module, import its packages and set its names."""
        path = self._request.script
        if self._request.is_module:
            code: types.CodeType
            _, spec, code = _get_module_details(path, SystemExit)
            names = {
                "__file__": spec.origin,
                "__spec__": spec,
                "__package__": spec.parent,
            }

            vars(module).update(names, __loader__=spec.loader)
            sys.argv[0] = spec.origin or path

            return code

        return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)

    def finish(self, ended: str, error: BaseException | None = None) -> None:
        """Write the observations; an error of ours does not affect the script."""
        watcher = self._watcher
        self._watcher = None
        self._is_script = False

        if watcher is None:
            return

        (self._folder / REPORT_FILE).touch()

        try:
            with delay_signals():
                watcher.finish(ended, error)
        except KeyboardInterrupt:
            return  # the script has already ended with its own status
        except Exception:
            write_fault(self._folder)

    def _begin(self) -> None:
        """Start to watch; called when the script has imported TensorFlow."""
        paths = list(sys.path)
        sys.path[:] = [
            place for place in paths if os.path.realpath(place) != self._script_folder
        ]

        try:
            self._watcher = self._make_watcher()
            self._watcher.begin()
            (self._folder / BEGUN_FILE).touch()
        except Exception:
            write_fault(self._folder)
        finally:
            sys.path[:] = paths

    def _make_watcher(self) -> Any:
        import tensorflow as tf

        options = self._request.options
        script = self._request.script
        if options.gpu:
            configure_cards(options, tf)

        from analyzer.capture.watch.watcher import Watcher

        if options.inter_op_threads:
            tf.config.threading.set_inter_op_parallelism_threads(
                options.inter_op_threads
            )

        # The next command repeats the script's arguments.
        arguments = shlex.join(self._request.arguments)

        text = script
        if arguments:
            text = f"{script} -- {arguments}"

        return Watcher(
            self._folder,
            steps=self._request.steps,
            warmup=self._request.warmup,
            target=TargetNote(text=text, kind="script", name=Path(script).stem[:60]),
            dump=self._folder / DUMP,
            simulated_card=make_card_note(options) if options.gpu else None,
        )

    def _install_exit_hooks(self) -> None:
        """Write the observations before ``os._exit`` and at SIGTERM; drop them in a fork."""
        leave = os._exit

        @wraps(leave)
        def exit_now(status: int) -> NoReturn:
            self.finish(f"os._exit({status})")
            leave(status)

        os._exit = exit_now
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

        os.register_at_fork(after_in_child=self._forget_in_fork)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self.finish(name, KeyboardInterrupt(name))

        with suppress(Exception):
            sys.stdout.flush()

        # die of it, as a Python that does not catch it does
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt in the script's code, once for signals in quick succession."""
        now_s = time.monotonic()
        if self._is_script and now_s - self._interrupted_s >= REPEAT_S:
            self._interrupted_s = now_s
            raise KeyboardInterrupt

    def _forget_in_fork(self) -> None:
        watcher = self._watcher
        self._watcher = None
        if watcher is not None:
            watcher.forget()

        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _get_status(stop: SystemExit) -> int:
    """Return the exit status of a ``SystemExit``, and print its message, as Python does."""
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) % 256

    with suppress(Exception):
        print(stop.code, file=sys.stderr)

    return 1


def _print_as_python(error: BaseException) -> None:
    """Print a traceback as Python would, without our own lines."""
    seen: set[int] = set()
    link: BaseException | None = error

    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = _remove_our_frames(link.__traceback__)
        link = link.__cause__ or link.__context__

    sys.excepthook(type(error), error, error.__traceback__)


def _remove_our_frames(trace: TracebackType | None) -> TracebackType | None:
    rows: list[TracebackType | None] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            rows.append(trace)

        trace = trace.tb_next

    rows.append(None)

    for row, following in pairwise(rows):
        assert row is not None
        row.tb_next = following

    return rows[0]


def main(request_path: str, places: list[str], modules: frozenset[str]) -> NoReturn:
    """Run the script of a request file; see ``ScriptRun.run``."""
    ScriptRun(read_message(Path(request_path), WatchRequest)).run(places, modules)
