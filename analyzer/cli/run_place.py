"""Where a run folder goes: a folder named, the usual one, or none that stays."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from analyzer.capture.process.run_folders import make_default_path
from analyzer.cli import shared_options as options
from analyzer.cli.outputs import say_wrote
from analyzer.model.contract.capture_request import TargetKind, TargetSpec
from analyzer.report.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What was asked for; each field is an option.

    Attributes:
        out: The folder; None for ``traces/NAME-TIME``.
        force: Replace an earlier run in it.
        no_save: Keep no folder.
    """

    out: options.Out = None
    force: options.Force = False
    no_save: options.NoSave = False

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            InputError: they do.
        """
        if self.no_save:
            options.refuse_given(
                "and --no-save exclude each other", "Leave one out.", out=self.out, force=self.force
            )

    def refuse_for(self, spec: TargetSpec) -> None:
        """Refuse a place for what is only opened.

        Raises:
            InputError: one was given.
        """
        options.refuse_given(
            f"cannot be honoured: {spec.text} is only opened, and makes no run folder",
            "Leave it out; --json FILE and --html FILE write the result.",
            out=self.out,
            force=self.force,
        )

    @contextlib.contextmanager
    def made(self, spec: TargetSpec) -> Iterator[Path]:
        """Give the folder's path; one that is not kept is gone after the block."""
        if not self.no_save or spec.kind is TargetKind.TRACE:
            yield self.out or make_default_path(spec)
            return
        with tempfile.TemporaryDirectory(prefix="analyze-") as temporary:
            yield Path(temporary) / spec.name

    def seen(self, result: Result) -> Result:
        """Return the result without its folder where that does not stay."""
        return replace(result, folder=None) if self.no_save else result

    def say(self, holds: str, command: str, folder: Path, *, quiet: bool) -> None:
        """Name the folder that was written, and the command that opens it again.

        Args:
            holds: What lies in it, for the reader.
            command: The command that opens it again.
            folder: The folder.
            quiet: Whether the command is left out.
        """
        if self.no_save:
            return
        say_wrote(folder, f" ({holds}).")
        if not quiet:
            print(f"Open it again: analyze {command} {folder}", file=sys.stderr)
