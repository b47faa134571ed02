"""Run or estimate the step of a target with any options, through child processes."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import TypeVar

from msgspec import structs

from analyzer.capture.process.child_process import ForkServers
from analyzer.capture.process.launch import capture
from analyzer.explain.need import find_need
from analyzer.model.contract.child_messages import (
    CaptureOptions,
    TargetSpec,
)
from analyzer.model.errors import InputError
from analyzer.model.machine import count_cores, read_memory_bytes
from analyzer.session.opening import analyse_path
from analyzer.session.target_results import capture_target
from analyzer.simulate.allocator.replay import LIMIT_MARGIN
from analyzer.tracing.parse.run_folder import RUN_FILE, RunNote, read_run

_ACCESS_BYTES = 6 << 30  # memory of a machine for each capture that runs at a time
_LATER_NICENESS = 10  # of the processes of the other accesses than the first
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Capture the step with these options into a folder; return its final path.
Capture = Callable[[CaptureOptions, Path], Path]


@dataclass(frozen=True, kw_only=True)
class StepAccess:
    """Ways to use the step of a target; None if not possible."""

    name: str
    folder: Path  # folder for captures, removed at the end
    capture: Capture  # for an estimate
    # runs the step at several sizes: ``capture`` in ``launch`` with the kind ``sizes``
    run_sizes: Callable[..., Path] | None = None

    # Like ``capture``, with another file in place of the target's.
    capture_file: Callable[[Path, CaptureOptions, Path], Path] | None = None


@contextmanager
def access_target(spec: TargetSpec, niceness: int = 0) -> Iterator[StepAccess]:
    """Give access to the step of a target through forks of a process that has TensorFlow."""
    if spec.is_trace:
        raise InputError(
            f"{spec.text} is a trace or an estimate of one batch size.",
            "Name the model or the step itself.",
        )

    with make_workplace() as folder, ForkServers(folder, niceness) as servers:

        def capture_spec(spec: TargetSpec, options: CaptureOptions, out: Path) -> Path:
            return capture_target(
                spec,
                options,
                out,
                force=False,
                copies=servers,
            )

        def capture_file(file: Path, options: CaptureOptions, out: Path) -> Path:
            return capture_spec(structs.replace(spec, path=str(file)), options, out)

        yield StepAccess(
            name=spec.text,
            folder=folder,
            capture=partial(capture_spec, spec),
            run_sizes=partial(
                capture,
                spec,
                force=False,
                kind="sizes",
                copies=servers,
            ),
            capture_file=capture_file,
        )


@contextmanager
def open_accesses(spec: TargetSpec, most: int = 2) -> Iterator[list[StepAccess]]:
    """Give ``most`` accesses to a target, or as many as the machine has memory for; one on one core.

    The first access has priority over the others. Its result comes as early as if it ran alone, and
    no core is idle.
    """
    count = min(most, read_memory_bytes() // _ACCESS_BYTES) if count_cores() > 1 else 1

    with ExitStack() as stack:
        accesses = [stack.enter_context(access_target(spec))]
        while len(accesses) < count:
            accesses.append(stack.enter_context(access_target(spec, _LATER_NICENESS)))

        yield accesses


def run_at_once(
    accesses: Sequence[StepAccess],
    call: Callable[[StepAccess, _Item], _Result],
    items: Sequence[_Item],
) -> Generator[_Result]:
    """Yield the result of each item as it is known; an access serves one call at a time.

    If the generator is closed, calls that still run end with their accesses.
    """
    free: SimpleQueue[StepAccess] = SimpleQueue()
    for one in accesses:
        free.put(one)

    def run(item: _Item) -> _Result:
        access = free.get()
        try:
            return call(access, item)
        finally:
            free.put(access)

    pool = ThreadPoolExecutor(len(accesses))
    try:
        for done in as_completed([pool.submit(run, item) for item in items]):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def make_workplace() -> Iterator[Path]:
    """Make a temporary folder and remove it after the block."""
    with TemporaryDirectory(
        prefix="analyze-fit-",
        ignore_cleanup_errors=True,
    ) as folder:
        yield Path(folder)


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """The estimate of a step; ``need_high_bytes`` has a margin."""

    need_bytes: int  # the smallest limit of TensorFlow's pool under which the step runs
    need_high_bytes: int
    requested_bytes: int  # peak of the steady step
    allocated_bytes: int
    note: RunNote  # the capture
    notes: tuple[str, ...]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the variables, which no size changes."""
        return sum(row.size_bytes or 0 for row in self.note.variables)


def estimate_step(
    access: StepAccess,
    options: CaptureOptions,
    name: str,
) -> StepEstimate:
    """Capture a step into the subfolder ``name``, and estimate it."""
    return estimate_folder(access.capture(options, access.folder / name))


def estimate_folder(folder: Path) -> StepEstimate:
    """Estimate the step that was captured in a folder."""
    note = read_run(folder / RUN_FILE)
    analysis = analyse_path(folder)
    recording = analysis.recording
    pool = find_need(analysis)[0].pool

    high_bytes = pool.range.high
    stated = recording.uncertainty

    # one schedule: add the margin here
    if stated is None or stated.limit_high_bytes is None:
        high_bytes = int(high_bytes * (1 + LIMIT_MARGIN))

    return StepEstimate(
        need_bytes=pool.bytes,
        need_high_bytes=high_bytes,
        requested_bytes=analysis.peak.requested_bytes,
        allocated_bytes=analysis.peak.allocated_bytes,
        note=note,
        notes=tuple(dict.fromkeys((*recording.notes, *recording.warnings))),
    )
