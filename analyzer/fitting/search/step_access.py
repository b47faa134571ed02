"""How a target is captured, and how it is run, at any batch and with any option."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from analyzer.capture.process.child_process import ForkServers
from analyzer.capture.process.launch import capture, start_fork_server
from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.peak_owner import peak_op
from analyzer.fitting.scaling.fit_answer import shape_at
from analyzer.fitting.scaling.size_lines import SizeNeed, SizeRefused
from analyzer.fitting.search.varied_size import BATCH, VariedSize
from analyzer.model.contract.capture_request import CaptureKind, CaptureOptions, TargetSpec
from analyzer.model.contract.reading import pack
from analyzer.model.errors import InputError, TargetError
from analyzer.session.opening import estimated
from analyzer.simulate.compiler.card_options import CardOptions
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import RunNote, read_run

Capture = Callable[[CaptureOptions, Path], Path]


@dataclass(frozen=True, slots=True)
class StepAccess:
    """A target that can be captured, run and tried.

    Attributes:
        name: As the user named it.
        note: Notes the step with these options into a folder; nothing of it runs.
        run: Runs and traces it; None where that is not possible.
        folder: Where folders may be made; gone afterwards.
        tried: Runs it and notes whether it came to its end; None where that is not possible.
        expected: Told that it will be tried so, at whatever size: TensorFlow is imported meanwhile.
    """

    name: str
    note: Capture
    run: Capture | None
    folder: Path
    tried: Capture | None = None
    expected: Callable[[CaptureOptions], None] | None = None


@contextmanager
def access_of(spec: TargetSpec) -> Iterator[StepAccess]:
    """Give access to a target's step in processes of its own.

    One imports TensorFlow for all graphs, another, which sees the card, for all runs that are tried.
    """

    def doing(kind: CaptureKind) -> Capture:
        def do(options: CaptureOptions, folder: Path) -> Path:
            silent: Callable[[str, float], None] = lambda stage, share: None  # noqa: E731
            return capture(
                spec,
                options,
                folder,
                force=False,
                progress=silent,
                kind=kind,
                copies=None if kind == "run" else copies,
            )

        return do

    def expected(options: CaptureOptions) -> None:
        start_fork_server(spec, options, "trial", copies)

    with workplace() as folder, ForkServers(folder) as copies:
        yield StepAccess(spec.text, doing("static"), doing("run"), folder, doing("trial"), expected)


@contextmanager
def workplace() -> Iterator[Path]:
    """Give a folder that is gone after the block."""
    folder = Path(tempfile.mkdtemp(prefix="analyze-fit-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_NOTED: Final = "noted"


def noted_at(access: StepAccess, size: int) -> Path:
    """Return where the capture of the step at a batch size lies, where it was made."""
    return access.folder / _NOTED / str(size)


class BatchCaptures:
    """Captures of one step at several batch sizes, each in a folder of its own.

    Args:
        access: The step.
        options: How it is made, but for the batch.
        name: Of the folder that holds the captures.
        threads: Threads that one op may use; None for those of the machine that took the notes.
        varied: What the size is of.
    """

    def __init__(
        self,
        access: StepAccess,
        options: CaptureOptions,
        name: str = _NOTED,
        threads: int | None = None,
        varied: VariedSize = BATCH,
    ) -> None:
        self._access = access
        self._varied = varied
        self._options = options
        self._threads = threads
        self._folder = access.folder / name

    def note(self, size: int) -> RunNote:
        """Return what the capture at a size notes.

        Raises:
            InputError: the step has no batch that could be chosen.
            SizeRefused: the step takes no inputs of that size.
        """
        options = self._varied.at(self._options, size)
        try:
            made = self._access.note(options, self._folder / str(size))
        except TargetError as error:
            if self._varied.shapes:
                shape = shape_at(self._varied.template, size)
                raise SizeRefused(
                    f"--shape {shape}: {error.message}", hint=error.hint, size=size
                ) from None
            if _BATCH not in error.message:
                raise
            because = error.message.replace(f"{_BATCH} {size} cannot be used", "it is fixed")
            because = because.replace(f"{_BATCH} cannot be used", "none can be chosen")
            raise InputError(
                f"There is no batch to look for: {because}",
                hint="Leave the first axis of the inputs open, or name the model itself.",
            ) from None
        return read_run(made / RUN_FILE)

    def need(self, size: int) -> SizeNeed:
        """Return the estimate of the capture at a batch size."""
        folder = self._folder / str(size)
        return self.need_of(read_run(folder / RUN_FILE), folder)

    def need_made(self, size: int, note: RunNote, modules: Sequence[bytes]) -> SizeNeed:
        """Return the estimate of a step that was not captured but made by closed forms.

        Args:
            size: The batch size.
            note: The step's note there.
            modules: The modules of the functions that XLA compiles, in the note's order.
        """
        folder = self._folder / f"made-{size}"
        folder.mkdir(parents=True, exist_ok=True)
        compiled = []
        for number, (one, module) in enumerate(zip(note.compiled, modules, strict=True)):
            file = folder / f"module-{number}.hlo.pb.gz"
            file.write_bytes(pack(module, 1))
            compiled.append(replace(one, module=file))
        return self.need_of(replace(note, compiled=tuple(compiled)), folder)

    def need_of(self, note: RunNote, folder: Path) -> SizeNeed:
        """Return the estimate of a noted step.

        Args:
            note: The note.
            folder: Where the card's plans lie, or are left.
        """
        analysis = estimated(
            note,
            folder,
            threads=self._threads,
            inter_op=self._options.inter_op_threads,
            card_options=CardOptions(both=False),
        )
        verdict, peak = analysis.verdict, analysis.peak
        need = None if verdict is None else verdict.need_bytes
        central = peak.allocated_bytes if need is None else need
        low = None if verdict is None else verdict.need_low_bytes
        high = None if verdict is None else verdict.need_high_bytes
        return SizeNeed(
            low_bytes=central if low is None else low,
            bytes=central,
            high_bytes=central if high is None else high,
            requested_bytes=peak.requested_bytes,
            allocated_bytes=peak.allocated_bytes,
            op=peak_op(analysis)[0],
            requested_ends_bytes=_ends_of(analysis),
        )


def _ends_of(analysis: Analysis) -> tuple[int, int] | None:
    """Return the ends of the orders' requested peaks, on the threads that are shown."""
    stated = analysis.recording.uncertainty
    if stated is None or not stated.schedules:
        return None
    drawn = stated.schedules[0]
    return drawn.requested_low_bytes, drawn.requested_high_bytes


_BATCH = "--batch-size"
