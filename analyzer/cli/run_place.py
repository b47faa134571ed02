"""Options for the run folder of a capture."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from analyzer.capture.process.run_folders import make_default_path
from analyzer.cli import shared_options as options
from analyzer.cli.outputs import report_written
from analyzer.model.contract.capture_request import TargetKind, TargetSpec
from analyzer.report.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """Options that choose the run folder."""

    out: options.Out = None
    no_save: Annotated[
        bool,
        options.in_result(
            "Write no run folder, only the files named here.", "--no-save", is_rare=True
        ),
    ] = False

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            InputError: --no-save comes with --out.
        """
        if self.no_save:
            options.refuse_options(
                "and --no-save exclude each other", "Leave one out.", out=self.out
            )

    def refuse_for(self, spec: TargetSpec) -> None:
        """Refuse a run folder for a trace that is only opened.

        Raises:
            InputError: --out is given.
        """
        options.refuse_options(
            f"cannot be used: {spec.text} is only opened",
            "Leave it out; --json FILE and --html FILE write the result.",
            out=self.out,
        )

    @contextlib.contextmanager
    def folder_for(self, spec: TargetSpec) -> Iterator[Path]:
        """Yield the folder's path; with --no-save it is temporary."""
        if not self.no_save or spec.kind is TargetKind.TRACE:
            yield self.out or make_default_path(spec)
            return
        with tempfile.TemporaryDirectory(prefix="analyze-") as temporary:
            yield Path(temporary) / spec.name

    def without_lost_folder(self, result: Result) -> Result:
        """Return the result without its folder if that is temporary."""
        return replace(result, folder=None) if self.no_save else result

    def announce(self, contents: str, command: str, folder: Path, *, quiet: bool) -> None:
        """Print the run folder and the command that opens it again.

        Args:
            contents: What the folder contains, for the reader.
            command: ``trace`` or ``estimate``.
            folder: The run folder.
            quiet: Leave out the command.
        """
        if self.no_save:
            return
        report_written(folder, f" ({contents}).")
        if not quiet:
            print(f"Open it again: analyze {command} {folder}", file=sys.stderr)
