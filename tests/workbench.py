"""Commands that tests share, whose captures are forks of processes that have imported TensorFlow.

The import is most of a small capture. Commands with processes of their own, as a user starts them, are
in ``test_trace_command.py``, ``test_scripts.py`` and ``test_hostile_steps.py``.
"""

import json
import os
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from builders import ROOT, Ended, analyze

import analyzer
from analyzer.capture.process import launch
from analyzer.capture.process.child_process import Child, Fork, ForkServers
from analyzer.model.contract.child_messages import CaptureRequest

TARGETS = ROOT / "tests" / "integration" / "targets"
_START = launch._start


@dataclass(frozen=True)
class Ran:
    """A command that has ended, and the folder of its run."""

    ended: Ended
    folder: Path

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return document

    @property
    def result(self) -> analyzer.Result:
        return analyzer.open_trace(self.folder)


class Workbench(AbstractContextManager["Workbench"]):
    """A folder with targets in which each command runs once for all tests of a worker.

    All commands run in this folder, which is the working folder of the forks too. The folder ``servers``
    is for what the forks share.
    """

    def __init__(self, folder: Path, servers: Path) -> None:
        self.folder = folder
        self._place = servers
        self._stack = ExitStack()
        self._servers: dict[tuple[str, str], ForkServers] = {}
        self._known: dict[tuple[object, ...], Ran] = {}

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(
        self,
        command: str,
        target: str,
        *options: str,
        code: int = 0,
        **environment: str,
    ) -> Ran:
        """Return what a command with ``--out`` left, which runs only if no test has asked for it."""
        words = (command, target, *options)
        key = (*words, *sorted(environment.items()))

        if key not in self._known:
            out = f"run-{len(self._known)}"
            ended = self.analyze(*words, "--out", out, **environment)
            self._known[key] = Ran(ended, self.folder / out)

        ran = self._known[key]
        assert ran.ended.code == code, ran.ended.err
        return ran

    def analyze(self, *words: str, **environment: str) -> Ended:
        """Run a command in this process, as its console script does."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            with (
                patch.dict(os.environ, environment),
                patch.object(launch, "_start", self._start_fork),
            ):
                # Servers are shared by captures with the same variables.
                os.environ.pop("PYTEST_CURRENT_TEST", None)
                return analyze(*words)
        finally:
            os.chdir(before)

    def _start_fork(
        self, request: CaptureRequest, copies: ForkServers | None
    ) -> Child | Fork:
        if copies is not None:
            return _START(request, copies)

        options = request.options
        is_static = request.kind == "static"  # with the same variables for any card
        key = (request.kind, "" if is_static else options.gpu)
        if key not in self._servers:
            self._servers[key] = self._stack.enter_context(ForkServers(self._place))

        if not options.gpu:  # a fork sees no card of the machine's own
            request = replace(request, options=replace(options, device="cpu"))

        return _START(request, self._servers[key])
