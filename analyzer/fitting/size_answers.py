"""Answer the sizes of a search: by runs on a simulated card where there is one, else by estimates.

A process runs the step at all sizes if its batch axis can stay open: it is built and traced once.
Otherwise each size is a process of its own.
"""

import shutil
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from analyzer.fitting.fit_answer import SizePoint
from analyzer.fitting.size_search import SizeSearch
from analyzer.fitting.step_access import StepAccess, StepEstimate, estimate_step
from analyzer.fitting.varied_size import Varied, apply_size
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.child_messages import SizeRun
from analyzer.model.contract.run_note import RunFile, StepConfig, read_run_file
from analyzer.model.errors import (
    AnalyzerError,
    ExitCode,
    FailureKind,
    InputError,
    TargetError,
)
from analyzer.model.progress import report_stage
from analyzer.session.target_results import find_obstacle
from analyzer.simulate.predict.prediction import describe_sizes
from analyzer.tracing.parse.logdir import RUN_FILE

# the first allocates variables of the optimizer, the others repeat
RUN_STEPS = 3

# of a run; a fork of a process with threads may hang in a lock
_LIMIT_S = 1800.0
_MARGIN = 1.03  # from the peak of a run to the upper bound of its need

# Failures that say nothing about the size.
_NOT_BY_SIZE = (FailureKind.FIXED_SIZE, FailureKind.EXITED)

# Failures for which a smaller size is tried, also if no size has run yet.
_BY_SIZE = (FailureKind.OUT_OF_MEMORY, FailureKind.TOO_LARGE)

# Ends of a process after which the size is run once more, in a new one. A size before may be the
# cause: after a refused request XLA can free a buffer twice, and the allocator then ends the process.
# Or the pool was the short one of a first run.
_DEATHS = (FailureKind.CRASHED, FailureKind.OUT_OF_MEMORY)


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is known about the step beside its sizes."""

    by: Literal["runs", "estimates"]
    step: StepConfig
    notes: tuple[str, ...] = ()
    versions: dict[str, str]


def can_run(access: StepAccess, options: CaptureOptions) -> bool:
    """Say whether the step can run on a simulated card."""
    is_possible = access.run_sizes is not None and bool(options.gpu)
    return is_possible and not find_obstacle(options)


def answer_sizes(
    access: StepAccess,
    options: CaptureOptions,
    varied: Varied,
    search: SizeSearch,
) -> StepFacts:
    """Answer the sizes of a search until it ends; return what else is known about the step."""
    try:
        answer = _run if can_run(access, options) else _estimate
        return answer(access, options, varied, search)
    except InputError as error:
        if error.kind is not FailureKind.FIXED_SIZE:
            raise

        raise InputError(
            f"The batch size of {access.name} is fixed. {error.message}",
            hint="Leave the first axis of the inputs open, or name the model itself.",
            kind=error.kind,
        ) from None


def _run(
    access: StepAccess,
    options: CaptureOptions,
    varied: Varied,
    search: SizeSearch,
) -> StepFacts:
    """Run the sizes of a search, each process as many as it can."""
    options = replace(options, steps=RUN_STEPS, is_open=not varied)
    runs = _SizeRuns(search)
    run_file: RunFile | None = None

    for number in count():
        size = runs.next_size()
        if size is None:
            break

        folder = access.folder / f"runs-{number}"
        chosen = apply_size(varied, options, size)
        assert access.run_sizes is not None

        try:
            access.run_sizes(chosen, folder, limit_s=_LIMIT_S, next_size=runs.take)
            run_file = read_run_file(folder / RUN_FILE)
        except AnalyzerError as error:
            is_refused = error.exit_code is ExitCode.BAD_INPUT
            if is_refused and options.is_open and not search.points:
                options = replace(options, is_open=False)
            else:
                runs.fail(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    if run_file is None:  # no process reached its end
        return assume_facts(options, is_run=True)

    return StepFacts(
        by="runs",
        step=run_file.step,
        notes=tuple(filter(None, dict.fromkeys((run_file.caution, *run_file.notes)))),
        versions=run_file.versions,
    )


class _SizeRuns:
    """The runs of a search's sizes: takes the answer for a size and returns the next one."""

    def __init__(self, search: SizeSearch) -> None:
        self._search = search
        self._size: int | None = None
        self._repeated: set[int] = set()  # sizes that ended a process

    def next_size(self) -> int | None:
        """Return the next size to run; None at the end."""
        self._size = self._search.next_size()
        if self._size is not None:
            report_stage(f"running size {self._size}")

        return self._size

    def take(self, run: SizeRun) -> int | None:
        """Take the answer of a run; an open batch axis may be the reason of a failure."""
        assert self._size is not None
        is_by_size = run.kind is None or run.kind in _BY_SIZE

        if not is_by_size and not self._search.points:
            raise TargetError(run.detail, kind=run.kind)

        peak_bytes = run.peak_bytes
        point = SizePoint(
            size=self._size,
            fits=peak_bytes is not None,
            need_bytes=peak_bytes,
            need_high_bytes=None if peak_bytes is None else int(peak_bytes * _MARGIN),
            kind=run.kind,
            detail=run.detail,
        )

        self._search.add(point, run.fixed_bytes)
        return self.next_size()

    def fail(self, error: AnalyzerError) -> None:
        """Take the end of a process; the size that ended it is run once more."""
        assert self._size is not None
        if error.kind in _DEATHS and self._size not in self._repeated:
            self._repeated.add(self._size)
        else:
            self._search.add(_make_failure(self._size, error, self._search))


def assume_facts(options: CaptureOptions, is_run: bool) -> StepFacts:
    """Return the facts about a step that follow from the options alone."""
    step = StepConfig(
        mode="train",
        jit=options.jit,
        batch_size=options.batch_size,
    )

    return StepFacts(
        by="runs" if is_run else "estimates",
        step=step,
        versions={},
    )


def _make_failure(size: int, error: AnalyzerError, search: SizeSearch) -> SizePoint:
    """Return the point of a size that failed; raise if the size is not the reason."""
    is_bug = error.exit_code is ExitCode.BUG and error.kind is FailureKind.OTHER

    is_general = not search.points and error.kind not in _BY_SIZE
    if is_bug or is_general or error.kind in _NOT_BY_SIZE:
        raise error

    return SizePoint(
        size=size,
        fits=False,
        kind=error.kind,
        detail=error.message.partition("\n")[0],
    )


def _estimate(
    access: StepAccess,
    options: CaptureOptions,
    varied: Varied,
    search: SizeSearch,
) -> StepFacts:
    """Estimate the sizes of a search."""
    last: StepEstimate | None = None
    while (size := search.next_size()) is not None:
        report_stage(f"estimating size {size}")
        chosen = apply_size(varied, options, size)

        try:
            last = estimate_step(access, chosen, f"size-{size}")
        except AnalyzerError as error:
            if not search.points:
                raise

            search.add(_make_failure(size, error, search))
            continue

        point = SizePoint(
            size=size,
            fits=last.need_bytes <= search.limit_bytes,
            need_bytes=last.need_bytes,
            need_high_bytes=last.need_high_bytes,
        )

        search.add(point, last.fixed_bytes)

    assert last is not None
    return StepFacts(
        by="estimates",
        step=last.note.step,
        notes=tuple(dict.fromkeys((*last.notes, *describe_sizes(last.note)))),
        versions=last.note.versions,
    )
