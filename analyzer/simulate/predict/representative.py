"""Which of the draws is shown, and what their chunks need.

Which chunks are handed out whole is a matter of chance, and one draw's luck should not be the figure: of
the draws about the middle by requested bytes, the one nearest to the middle by allocated bytes is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final

import numpy as np

from analyzer.model.recording.records import Step
from analyzer.simulate.allocator import BfcOptions, Engine, Sequence
from analyzer.simulate.allocator.minimum_limit import SharedLimits, engine_for, shared_limits
from analyzer.simulate.predict.buffers.predicted_events import allocated_in_step, with_unseen
from analyzer.simulate.predict.played_step import Draw, Owner
from analyzer.simulate.predict.process_table import Played, play_from_start
from analyzer.simulate.predict.schedules import Prediction, draws_within
from analyzer.tracing.parse.run_folder import RunNote

NEAR: Final = 0.002
"""Share of the peak by which draws may differ from the middle one to count as like it."""

STARTS: Final = 15
"""Draws that are played from the process's start, since a first step decides which chunks there are: the
histories of the others begin as theirs do, and one of them is shown."""

FEWEST_STARTS: Final = 3
"""The same where each draw is much work."""

START_RUNS: Final = 120_000
"""Runs of ops that these together may take, between the fewest and all."""

SEARCHES: Final = 6
"""Whole searches for a limit that those of all draws together are worth: what one draw settles is not
searched again for the others."""

LIMIT_MARGIN: Final = 0.03
"""Share added to the limit that suffices, for places of chunks that no draw shows: a need falls in steps
of whole regions and chunks; of real runs on a card one failed 0.3 % above all that 15 draws need, on a
CPU they needed up to 2.5 % more than a few draws do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The draw to show, and what the others need.

    Attributes:
        played: The draw, from the process's start.
        allocated_bytes: By number of threads, the allocated peaks of the draws of the stated range that
            were looked at, sorted.
        unseen_bytes: Those of the draws on the threads shown, with tiny requests that no draw has; on a
            card only.
        beside_bytes: What the shown peak holds beside what the draw of the graph alone does.
        limits: Between which memory limits it depends on the order whether the steps run; None where
            that was not asked for, or there is one order.
    """

    played: Played
    allocated_bytes: Mapping[int, tuple[int, ...]]
    unseen_bytes: tuple[int, ...]
    beside_bytes: int
    limits: SharedLimits | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A draw's chunks.

    Attributes:
        sequence: What the process asks for.
        peak_bytes: Most bytes of chunks in its last step.
        before_bytes: Those before it.
        unseen: The same requests and tiny ones that no draw has; None where several threads allocate:
            there the draws differ by as much.
        unseen_peak_bytes: Most bytes of chunks with those.
    """

    sequence: Sequence
    peak_bytes: int
    before_bytes: int
    unseen: Sequence | None
    unseen_peak_bytes: int | None

    @classmethod
    def under(
        cls,
        options: BfcOptions,
        sequence: Sequence,
        step: Step,
        unseen: Sequence | None,
        engine: Engine,
    ) -> LaidOut:
        """Lay out a draw.

        Args:
            options: The allocator's set-up.
            sequence: What the process asks for.
            step: Its last step.
            unseen: The same and tiny requests; None for none.
            engine: Which allocator replays.
        """
        peak_bytes, before_bytes = allocated_in_step(sequence, step, options, engine=engine)
        unseen_peak_bytes = None
        if unseen is not None:
            unseen_peak_bytes, _ = allocated_in_step(unseen, step, options, engine=engine)
        return cls(
            sequence=sequence,
            peak_bytes=peak_bytes,
            before_bytes=before_bytes,
            unseen=unseen,
            unseen_peak_bytes=unseen_peak_bytes,
        )


def choose(
    note: RunNote,
    prediction: Prediction,
    owners: Mapping[int, Owner],
    options: BfcOptions,
    *,
    search: bool,
    progress: Callable[[float], None] | None = None,
) -> Chosen:
    """Look at draws spread evenly over the stated range and choose the one to show.

    Args:
        note: What the capture noted.
        prediction: The draws.
        owners: The step's variables by their index in the note.
        options: The allocator's set-up.
        search: Search the memory limits under which some of the draws run, and all.
        progress: Called with the share done, 0 to 1.
    """
    report = progress or (lambda share: None)
    main = prediction.kinds[0]
    begun = beginnings(note, prediction, owners)
    starts = {played.draw.seed: played for played in begun.values()}
    laid: dict[tuple[int, int], LaidOut] = {}
    for number, (drawn, draw) in enumerate(prediction.candidates.items()):
        sequence, step = _history(note, prediction, owners, draw, begun[drawn])
        # Where the searches for a limit (these, and that of the shown draw) will use the compiled
        # allocator, this may use it already.
        engine = engine_for(sequence, SEARCHES + 1) if search else Engine.AUTO
        report((0.5 if search else 1.0) * number / len(prediction.candidates))
        on_card = prediction.prepared.device.is_cheap and drawn[1] == main.threads
        unseen = with_unseen(sequence, drawn[0]) if on_card else None
        laid[drawn] = LaidOut.under(options, sequence, step, unseen, engine)
    own = {at[0]: one for at, one in laid.items() if at[1] == main.threads}
    shown = _shown(prediction, starts, own)
    limits = _limits(own, options, report) if search and len(laid) > 1 else None
    rare = set(main.seeds[main.ends[1] + 1 :])
    usual = {at: one for at, one in laid.items() if at[1] != main.threads or at[0] not in rare}
    return Chosen(
        played=starts[shown],
        allocated_bytes={
            kind.threads: tuple(
                sorted(one.peak_bytes for at, one in usual.items() if at[1] == kind.threads)
            )
            for kind in prediction.kinds
        },
        unseen_bytes=tuple(
            one.unseen_peak_bytes for one in usual.values() if one.unseen_peak_bytes is not None
        ),
        beside_bytes=_beside(prediction, starts[shown]),
        limits=limits,
    )


def beginnings(
    note: RunNote, prediction: Prediction, owners: Mapping[int, Owner]
) -> dict[tuple[int, int], Played]:
    """Return for each candidate what it follows on: a draw that was played from the process's start.

    A few are, and begin with their own; the others follow on one of them, in turn.

    Args:
        note: What the capture noted.
        prediction: The draws.
        owners: The step's variables by their index in the note.
    """
    threads = prediction.kinds[0].threads
    each = prediction.prepared.steps * prediction.runs
    starts = {
        seed: play_from_start(note, prediction.prepared, owners, seed, threads)
        for seed in _starting(prediction, draws_within(START_RUNS, each, FEWEST_STARTS, STARTS))
    }
    in_turn = list(starts.values())
    return {
        drawn: starts.get(drawn[0], in_turn[number % len(in_turn)])
        if drawn[1] == threads
        else in_turn[number % len(in_turn)]
        for number, drawn in enumerate(prediction.candidates)
    }


def _starting(prediction: Prediction, count: int) -> list[int]:
    """Return the seeds of so many candidates: the middle one, half about it and half over the range.

    One of those about it is shown; were there none but the middle one, its chunks would be shown however
    unusual they are.
    """
    main = prediction.kinds[0]
    own = [seed for seed, threads in prediction.candidates if threads == main.threads]
    peak_bytes = dict(zip(main.seeds, main.draws_bytes, strict=True))
    nearest = sorted(own, key=lambda seed: abs(peak_bytes[seed] - prediction.peak_bytes))
    about = nearest[: count // 2]
    rest = [seed for seed in own if seed not in about]
    even = np.linspace(0, len(rest) - 1, min(count - len(about), len(rest))).round().astype(int)
    return list(dict.fromkeys([main.seeds[main.middle], *about, *(rest[at] for at in even)]))


def _history(
    note: RunNote,
    prediction: Prediction,
    owners: Mapping[int, Owner],
    draw: Draw,
    start: Played,
) -> tuple[Sequence, Step]:
    """Return what a process asks the allocator for that ends with a draw, and its last step.

    Where each step may be another (a counter decides a branch) the draw is played from the start.
    """
    if len(draw.steps) == 1:
        return start.ended_with(draw)
    whole = start
    if (draw.seed, draw.threads) != (start.draw.seed, start.draw.threads):
        whole = play_from_start(note, prediction.prepared, owners, draw.seed, draw.threads)
    return whole.sequence(), whole.steps[-1]


def _shown(prediction: Prediction, starts: Collection[int], own: Mapping[int, LaidOut]) -> int:
    """Return which draw to show: by chunks the middle one of those that peak like the middle one.

    Args:
        prediction: The draws.
        starts: Seeds of those that were played from the process's start.
        own: By seed, all that were laid out.
    """
    main, near = prediction.kinds[0], int(NEAR * prediction.peak_bytes)
    alike = [
        seed
        for seed, draw_bytes in zip(main.seeds, main.draws_bytes, strict=True)
        if seed in starts and abs(draw_bytes - prediction.peak_bytes) <= near
    ]
    peak_bytes = median_low([one.peak_bytes for one in own.values()])
    before_bytes = median_low([one.before_bytes for one in own.values()])
    return min(
        alike,
        key=lambda at: (
            abs(own[at].peak_bytes - peak_bytes) + abs(own[at].before_bytes - before_bytes)
        ),
    )


def _limits(
    own: Mapping[int, LaidOut], options: BfcOptions, report: Callable[[float], None]
) -> SharedLimits:
    """Return between which limits it depends on the order whether the steps run."""
    # The highest first: what the others need is then mostly known to be less.
    largest = sorted(own.values(), key=lambda one: -one.peak_bytes)
    orders = [one.sequence for one in largest]
    orders += [one.unseen for one in largest if one.unseen is not None]
    return shared_limits(orders, options, progress=lambda share: report(0.5 + 0.5 * share))


def _beside(prediction: Prediction, played: Played) -> int:
    """Return what a draw's peak is higher by where it is played from the process's start."""
    main = prediction.kinds[0]
    alone = main.draws_bytes[main.seeds.index(played.draw.seed)]
    return played.draw.peak_bytes + played.aside_bytes - alone
