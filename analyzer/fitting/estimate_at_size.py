"""Estimate a step at one size: a need with bounds, or the reason why the size is not possible."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import structs

from analyzer.capture.process.fork_servers import ForkServers
from analyzer.capture.process.launch import capture, start_fork_server
from analyzer.capture.targets.target_spec import parse_shapes
from analyzer.explain.need import find_need
from analyzer.explain.questions.peak_owner import peak_op
from analyzer.fitting.fit_answer import AXIS_OF_N, CurvePoint, SizeFailure, insert_size
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind, TargetSpec
from analyzer.model.errors import FailureKind, InputError, StepOutOfMemory, TargetError
from analyzer.model.ranges import Range
from analyzer.session.estimate_captures import capture_target
from analyzer.session.opening import analyse_step
from analyzer.simulate.predict.stated_range import LIMIT_MARGIN
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import RunNote, read_run

_FIRST_LENGTH: Final = 128
"""Length of the longest varied axis at the first size: every ``keras.applications`` model accepts it."""

_FORMAT_HINT: Final = "Write it as tokens=N or 32N,32N,3."

_SWAP_OP: Final = "_CopyFromGpuToHost"
"""Op that TensorFlow's optimizer inserts to swap a tensor to the host (``BuildSwapPair``)."""

_SWAP_MARGIN: Final = 0.03
"""Ratio by which the bounds widen if tensors are swapped. The optimizer walks over nodes in the order of
their addresses (``nodes_to_swap`` in ``memory_optimizer.cc``), so each process swaps different tensors:
captures of one batch differed by 2.7 % of the peak."""

_NOT_BY_SIZE: Final = (FailureKind.FIXED_SIZE, FailureKind.KILLED, FailureKind.EXITED)
"""Failures that say nothing about the size."""


@dataclass(frozen=True, slots=True)
class VariedSize:
    """The meaning of a size: input axes with an N, such as ``32N,32N,3``; the batch if empty."""

    shapes: tuple[str, ...] = ()

    @property
    def template(self) -> str:
        """The shapes as one text, empty for the batch."""
        return " ".join(self.shapes)

    def apply(self, options: CaptureOptions, size: int) -> CaptureOptions:
        """Return the options of the step at a size."""
        if not self.shapes:
            return replace(options, batch_size=size)
        shapes = parse_shapes([insert_size(shape, size) for shape in self.shapes])
        return replace(options, shapes={**options.shapes, **shapes})

    def first_size(self, options: CaptureOptions) -> int:
        """Return the size at which a search starts: the wanted batch, or a length that most accept."""
        if not self.shapes:
            return options.open_batch_size
        factors = (int(factor or 1) for shape in self.shapes for factor in _factors_of_n(shape))
        return max(_FIRST_LENGTH // max(factors), 2)


BATCH: Final = VariedSize()


def split_shapes(shapes: Sequence[str]) -> tuple[list[str], VariedSize]:
    """Separate shapes without an N from those with one, such as ``224,224,3`` and ``tokens=N``."""
    varied = [shape for shape in shapes if _factors_of_n(shape)]
    return [shape for shape in shapes if shape not in varied], parse_varied(varied)


def parse_varied(shapes: Sequence[str]) -> VariedSize:
    """Return the meaning of a size for shapes with an N; no shapes stand for the batch."""
    parsed = []
    for shape in shapes:
        name, equals, axes = shape.rpartition("=")
        parsed.append(name.strip() + equals + "".join(axes.split()).upper())
        if not _factors_of_n(parsed[-1]):
            raise InputError(f"The shape {shape!r} has no N.", hint=_FORMAT_HINT)
        try:
            parse_shapes([insert_size(parsed[-1], 1)])
        except TargetError:
            raise InputError(f"{shape!r} is not a shape with an N.", hint=_FORMAT_HINT) from None
    return VariedSize(tuple(parsed))


def _factors_of_n(shape: str) -> list[str]:
    """Return the digits before each N in an input's shape; ``""`` for a bare N."""
    return AXIS_OF_N.findall(shape.rpartition("=")[2].upper())


Capture = Callable[[CaptureOptions, Path], Path]
"""Capture or run the step with these options into a folder; return its final path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccess:
    """Ways to use the step of a target, at any size and with any option; None if not possible."""

    name: str
    folder: Path  # folder for captures, removed at the end
    capture: Capture  # for an estimate
    # runs the step for up to ``limit_s`` seconds and records only whether it finished
    trial: Callable[..., Path] | None = None
    # imports TensorFlow for later trials with these options
    prepare_trials: Callable[[CaptureOptions], None] | None = None
    capture_file: Callable[[Path, CaptureOptions, Path], Path] | None = None
    """Like ``capture``, with another file in place of the target's."""


@contextmanager
def access_target(
    spec: TargetSpec, show_stage: Callable[[str], None] = lambda stage: None
) -> Iterator[StepAccess]:
    """Give access to the step of a target through child processes.

    Captures are forks of one process that has imported TensorFlow; trials are forks of another.
    ``show_stage`` is called with the stage of a capture.
    """
    if spec.kind is TargetKind.TRACE:
        raise InputError(
            f"{spec.text} is a trace or an estimate of one batch size.",
            hint="Name the model or the step itself.",
        )
    with make_workplace() as folder, ForkServers(folder) as servers:

        def show(stage: str, share: float) -> None:
            show_stage(stage)

        def capture_file(file: Path, options: CaptureOptions, out: Path) -> Path:
            copy = structs.replace(spec, path=str(file))
            return capture_target(copy, options, out, force=False, progress=show, copies=servers)

        yield StepAccess(
            name=spec.text,
            folder=folder,
            capture=lambda options, out: capture_target(
                spec, options, out, force=False, progress=show, copies=servers
            ),
            trial=partial(capture, spec, force=False, progress=show, kind="trial", copies=servers),
            prepare_trials=lambda options: start_fork_server(spec, options, "trial", servers),
            capture_file=capture_file,
        )


@contextmanager
def make_workplace() -> Iterator[Path]:
    """Make a temporary folder and remove it after the block."""
    with TemporaryDirectory(prefix="analyze-fit-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class SizeEstimate(CurvePoint, frozen=True, kw_only=True):
    """The estimate of a step at one size; ``need_high_bytes`` has a margin."""

    # bounds of the requested peak over the schedules; None if there is one schedule
    requested: Range | None
    fixed_bytes: int  # bytes of the variables, which no size changes
    swaps: bool  # whether TensorFlow swaps tensors to the host
    note: RunNote  # the capture
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeEstimates:
    """Captures and estimates one step at sizes, each capture in the subfolder ``name``."""

    access: StepAccess
    options: CaptureOptions
    varied: VariedSize = BATCH
    threads: int | None = None
    name: str = "captures"
    capture_s: dict[int, float] = field(default_factory=dict)  # seconds of each capture, by size

    def folder_of(self, size: int) -> Path:
        """Return the folder of the capture at a size, whether it exists or not."""
        return self.access.folder / self.name / str(size)

    def estimate(self, size: int) -> SizeEstimate:
        """Capture and estimate the step at a size."""
        return self.estimate_capture(size, self.capture(size))

    def try_size(self, size: int) -> SizeEstimate | SizeFailure:
        """Estimate a size; return the failure if the step cannot be made at that size."""
        try:
            return self.estimate(size)
        except (TargetError, StepOutOfMemory) as error:
            if error.kind in _NOT_BY_SIZE:
                raise
            return SizeFailure(size=size, kind=error.kind, detail=error.message)

    def capture(self, size: int) -> Path:
        """Capture the step at a size and return the folder; raise if the size is not possible."""
        options = self.varied.apply(self.options, size)
        started_s = time.monotonic()
        try:
            folder = self.access.capture(options, self.folder_of(size))
        except InputError as error:
            if error.kind is not FailureKind.FIXED_SIZE:
                raise
            raise InputError(
                f"The batch size of {self.access.name} is fixed: {error.message}",
                hint="Leave the first axis of the inputs open, or name the model itself.",
                kind=error.kind,
            ) from None
        self.capture_s[size] = time.monotonic() - started_s
        return folder

    def estimate_capture(self, size: int, folder: Path) -> SizeEstimate:
        """Estimate the step that was captured in a folder."""
        note = read_run(folder / RUN_FILE)
        analysis = analyse_step(
            note, folder, threads=self.threads, inter_op=self.options.inter_op_threads
        )
        recording, pool = analysis.recording, find_need(analysis)[0].pool
        stated, low, high = recording.uncertainty, pool.range.low, pool.range.high
        has_margin = note.is_estimate and stated is not None and stated.limit_high_bytes is not None
        if not has_margin:
            high = int(high * (1 + LIMIT_MARGIN))
        swaps = any(op.type == _SWAP_OP for op in note.ops)
        if swaps:
            low, high = int(low / (1 + _SWAP_MARGIN)), int(high * (1 + _SWAP_MARGIN))
        requested = None
        if stated is not None and stated.schedules:
            shown = stated.schedules[0]
            requested = Range(shown.requested_low_bytes, shown.requested_high_bytes)
        return SizeEstimate(
            size=size,
            need_bytes=pool.bytes,
            need_low_bytes=low,
            need_high_bytes=high,
            requested_bytes=analysis.peak.requested_bytes,
            allocated_bytes=analysis.peak.allocated_bytes,
            requested=requested,
            fixed_bytes=sum(row.size_bytes or 0 for row in note.variables),
            op=peak_op(analysis)[0],
            swaps=swaps,
            note=note,
            notes=tuple(dict.fromkeys((*recording.notes, *recording.warnings))),
        )
