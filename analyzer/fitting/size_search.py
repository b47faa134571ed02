"""The search for the largest size that fits: a line to the limit, then a bracket.

Every size is answered in one of two ways: a run on a simulated card, or an estimate. The search
does not know which. A line through two needs leads to the next size (secant method). It stays
below the limit until it is near, because a run that fails takes 10 s.

A process runs the step at all sizes if its batch axis can stay open: it is built and traced once.
Otherwise each size is a process of its own.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from operator import attrgetter

from analyzer.fitting.fit_answer import SizePoint, Varied, apply_size
from analyzer.fitting.step_access import StepAccess, estimate_step
from analyzer.model.contract.child_messages import CaptureOptions, SizeRun
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
from analyzer.tracing.parse.run_folder import RUN_FILE

MOST_SIZE = 1 << 24  # no size above this is tried
_MOST_TRIALS = 24
_MOST_CARD_TRIALS = 6  # for all cards of one kind

# The search ends if the bracket is at most 1 / 64 of the size: below 128, neighbours.
_BRACKET_PARTS = 64

# share of the limit to aim at until a size needs ``_NEAR`` of it
_APPROACH = 0.95
_NEAR = 0.9
_LONGEST_STEP = 1024  # largest factor between a fitting size and the next one

# Factor to the next size if the need did not grow: at small sizes, the start of the step may need
# more than the step.
_PLATEAU_STEP = 16

# A need that does not grow by such a factor of the size does not depend on it.
_LONGEST_PLATEAU = 1000


def tolerance_at(size: int) -> int:
    """Return the width of the bracket at which a search ends."""
    return max(size // _BRACKET_PARTS, 1)


class SizeSearch:
    """The sizes that were tried, and the next one.

    The need grows with the ``power`` of the size: 1 for a batch, 2 for the side of an image.
    """

    def __init__(self, limit_bytes: int, first_size: int, power: int = 1) -> None:
        self.limit_bytes = limit_bytes
        self.first_size = first_size
        self.power = power
        self.points: dict[int, SizePoint] = {}
        self.fixed_bytes = 0  # need at size 0, at least

    @property
    def fitting(self) -> int:
        """The largest size that fits, below every size that does not; 0 for none."""
        failing = self.failing
        sizes = [point.size for point in self.points.values() if point.fits]
        below = [size for size in sizes if failing is None or size < failing]

        return max(below, default=0)

    @property
    def failing(self) -> int | None:
        """The smallest size that does not fit or is not possible; None for none."""
        sizes = [one.size for one in self.points.values() if one.has_failed]

        return min(sizes, default=None)

    def add(self, point: SizePoint, fixed_bytes: int = 0) -> None:
        """Take the answer for a size."""
        self.points[point.size] = point
        self.fixed_bytes = max(self.fixed_bytes, fixed_bytes)

    def next_size(self) -> int | None:
        """Return the next size to try; None at the end."""
        if not self.points:
            return self.first_size

        last = next(reversed(self.points.values()))

        is_stuck = not last.fits and not last.has_failed
        if is_stuck or len(self.points) >= _MOST_TRIALS:
            return None

        fitting = self.fitting
        failing = self.failing
        step = tolerance_at(fitting)

        if failing is None:
            return self._next_larger(fitting, step)
        if failing - fitting <= step:
            return None

        if not fitting:
            return max(failing // 4, 1)

        guess = self._guess(fitting)
        if fitting // 2 < guess < failing - step:
            return max(guess, fitting + step)

        failures = sum(point.has_failed for point in self.points.values())
        down = max(failing // max(32 >> failures, 2), 1)

        return max((fitting + failing) // 2, failing - down)

    def _next_larger(self, fitting: int, step: int) -> int | None:
        if fitting >= MOST_SIZE:
            return None
        if self._is_on_plateau():
            return min(_PLATEAU_STEP * fitting, MOST_SIZE)

        near = [one.size for one in self.points.values() if 5 * one.size > 4 * fitting]
        guess = max(self._guess(fitting), fitting + (step << (len(near) - 1)))

        return min(guess, _LONGEST_STEP * fitting, MOST_SIZE)

    def _guess(self, fitting: int) -> int:
        """Return the size at which the need reaches the limit, or a part of it at first."""
        need_bytes = self.points[fitting].need_bytes or 0
        aim_bytes = self.limit_bytes

        if need_bytes < _NEAR * self.limit_bytes:
            aim_bytes = int(_APPROACH * self.limit_bytes)

        return self.size_at(aim_bytes)

    def size_at(
        self,
        limit_bytes: int,
        figure: Callable[[SizePoint], int | None] = attrgetter("need_bytes"),
    ) -> int:
        """Return the largest size whose figure, the need, is within a limit; 0 if there is none.

        The line goes through the two points around the limit, below all points through size 0. Above
        them it goes through the last and the next one of at most half its size: a need may grow in
        steps.
        """
        ends: list[tuple[int, int]] = [(0, self.fixed_bytes)]

        for size in sorted(self.points):
            value = figure(self.points[size])
            if value is not None and value > ends[-1][1]:
                ends.append((size, value))

        if len(ends) == 1:
            return 0

        place = 1
        while place + 1 < len(ends) and ends[place][1] <= limit_bytes:
            place += 1

        low, low_bytes = ends[place - 1]
        high, high_bytes = ends[place]
        if high_bytes < limit_bytes:
            low, low_bytes = [end for end in ends if 2 * end[0] <= high][-1]

        slope = (high_bytes - low_bytes) / (high**self.power - low**self.power)
        crossing = low**self.power + (limit_bytes - low_bytes) / slope
        size = int(max(crossing, 0.0) ** (1 / self.power) + 1e-9)

        return min(size, MOST_SIZE)

    def _is_on_plateau(self) -> bool:
        """Say whether the need did not grow so far; raise if it never does."""
        sizes = sorted(self.points)
        low = self.points[sizes[0]]
        high = self.points[sizes[-1]]

        if low is high or (high.need_bytes or 0) > (low.need_bytes or 0):
            return False

        if high.size >= _LONGEST_PLATEAU * low.size:
            raise InputError(
                f"The step needs no more memory at size {high.size} than at {low.size}.",
                "If its own code sets the batch size, change it there.",
            )

        return True

    def slope(self) -> int | None:
        """Return the bytes per example between the two largest sizes that fit; None if unknown."""
        points = self.points.values()
        needs = sorted((one.size, one.need_bytes or 0) for one in points if one.fits)
        if len(needs) < 2:
            return None

        (before, before_bytes), (last, last_bytes) = needs[-2:]
        return max(round((last_bytes - before_bytes) / (last - before)), 0) or None


class CardSearch(SizeSearch):
    """Needs at few sizes, from which the sizes of all cards with some limits follow.

    These are the first size and those near the largest and the smallest limit. With ``is_one``
    it is the first size alone.
    """

    def __init__(self, limits: list[int], first_size: int, *, is_one: bool) -> None:
        super().__init__(max(limits), first_size)
        self.least_bytes = min(limits)
        self.is_one = is_one

    def next_size(self) -> int | None:
        """Return the next size to try; None at the end."""
        failing = self.failing

        is_done = self.is_one and bool(self.points)
        if is_done or len(self.points) >= _MOST_CARD_TRIALS:
            return None

        if not self.points or (not self.fitting and failing != 1):
            return super().next_size()

        for limit_bytes in (self.limit_bytes, self.least_bytes):
            guess = max(self.size_at(int(_APPROACH * limit_bytes)), 1)

            distance = min(abs(size - guess) for size in self.points)
            if distance > guess // 16 and guess < (failing or MOST_SIZE):
                return guess

        return None


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


# Whether the sizes ran, and the note of the step, with all that is known beside its sizes.
Facts = tuple[bool, RunFile]


def can_run(access: StepAccess, options: CaptureOptions) -> bool:
    """Say whether the step can run on a simulated card."""
    is_possible = access.run_sizes is not None and bool(options.gpu)
    return is_possible and not find_obstacle(options)


def answer_sizes(
    access: StepAccess,
    options: CaptureOptions,
    varied: Varied,
    search: SizeSearch,
) -> Facts:
    """Answer the sizes of a search until it ends; return what else is known about the step."""
    is_run = can_run(access, options)
    answer = _run if is_run else _estimate

    try:
        return is_run, answer(access, options, varied, search)
    except InputError as error:
        if error.kind is not FailureKind.FIXED_SIZE:
            raise

        raise InputError(
            f"The batch size of {access.name} is fixed. {error.message}",
            "Leave the first axis of the inputs open, or name the model itself.",
            kind=error.kind,
        ) from None


def _run(
    access: StepAccess,
    options: CaptureOptions,
    varied: Varied,
    search: SizeSearch,
) -> RunFile:
    """Run the sizes of a search, each process as many as it can."""
    options = replace(options, steps=RUN_STEPS, is_open=not varied)
    runs = _SizeRuns(search)
    run_file = None

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
        return assume_note(options)

    notes = dict.fromkeys((run_file.caution, *run_file.notes))
    return replace(run_file, notes=tuple(filter(None, notes)))


class _SizeRuns:
    """The runs of a search's sizes: takes the answer for a size and returns the next one."""

    def __init__(self, search: SizeSearch) -> None:
        self._search = search
        self._size = 0  # the latest one
        self._repeated: set[int] = set()  # sizes that ended a process

    def next_size(self) -> int | None:
        """Return the next size to run; None at the end."""
        size = self._search.next_size()
        if size is not None:
            self._size = size
            report_stage(f"running size {size}")

        return size

    def take(self, run: SizeRun) -> int | None:
        """Take the answer of a run; an open batch axis may be the reason of a failure."""
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
        if error.kind in _DEATHS and self._size not in self._repeated:
            self._repeated.add(self._size)
        else:
            _add_failure(self._search, self._size, error)


def assume_note(options: CaptureOptions) -> RunFile:
    """Return what the options alone tell about a step."""
    step = StepConfig(
        mode="train",
        jit=options.jit,
        batch_size=options.batch_size,
    )

    return RunFile(step=step)


def _add_failure(search: SizeSearch, size: int, error: AnalyzerError) -> None:
    """Add the point of a size that failed; raise if the size is not the reason."""
    is_bug = error.exit_code is ExitCode.BUG and error.kind is FailureKind.OTHER

    is_general = not search.points and error.kind not in _BY_SIZE
    if is_bug or is_general or error.kind in _NOT_BY_SIZE:
        raise error

    detail = error.message.partition("\n")[0]
    search.add(SizePoint(size=size, fits=False, kind=error.kind, detail=detail))


def _estimate(
    access: StepAccess,
    options: CaptureOptions,
    varied: Varied,
    search: SizeSearch,
) -> RunFile:
    """Estimate the sizes of a search."""
    last = None
    while (size := search.next_size()) is not None:
        report_stage(f"estimating size {size}")
        chosen = apply_size(varied, options, size)

        try:
            last = estimate_step(access, chosen, f"size-{size}")
        except AnalyzerError as error:
            if not search.points:
                raise

            _add_failure(search, size, error)
            continue

        point = SizePoint(
            size=size,
            fits=last.need_bytes <= search.limit_bytes,
            need_bytes=last.need_bytes,
            need_high_bytes=last.need_high_bytes,
        )

        search.add(point, last.fixed_bytes)

    assert last is not None
    notes = dict.fromkeys((*last.notes, *describe_sizes(last.note)))
    return replace(last.note, notes=tuple(notes))
