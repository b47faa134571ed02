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

from analyzer.allocator import BfcOptions, Engine, Sequence
from analyzer.allocator.minimum_limit import engine_for, safe_limit
from analyzer.parse.run_folder import RunNote
from analyzer.predict.buffers.predicted_events import allocated_in_step
from analyzer.predict.played_step import Owner
from analyzer.predict.process_table import Played, play_from_start
from analyzer.predict.schedules import Prediction, Schedules, draws_within

CANDIDATES: Final = 15
"""Draws whose chunks are worked out."""

FEWEST_CANDIDATES: Final = 5
"""The same where each draw is much work."""

CANDIDATE_RUNS: Final = 120_000
"""Runs of ops that these draws together may take, between the fewest and all."""

NEAR: Final = 0.002
"""Share of the peak by which draws may differ from the middle one to count as like it."""

LIMITS: Final = 6
"""Draws with the highest allocated peaks whose memory limit is searched: where the chunks lie decides
too, so that the highest peak is not always the greatest need."""

FEWEST_LIMITS: Final = 2
"""The same where each draw is much work."""

LIMIT_RUNS: Final = 40_000
"""Runs of ops that these draws together may take, between the fewest and all."""

LIMIT_MARGIN: Final = 0.03
"""Share added to the limit, for places of chunks that no draw shows: a need falls in steps of whole
regions and chunks, and those of real runs were up to 2.5 % beyond all that few draws need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The draw to show, and what the others need.

    Attributes:
        played: The draw, from the process's start.
        allocated_bytes: By number of threads, the allocated peaks of the draws of the stated range that
            were looked at, sorted.
        beside_bytes: What the shown peak holds beside what the draw of the graph alone does.
        limit_bytes: A memory limit under which the steps run even in the orders that need most, with
            :data:`LIMIT_MARGIN`; None where it was not asked for.
    """

    played: Played
    allocated_bytes: Mapping[int, tuple[int, ...]]
    beside_bytes: int
    limit_bytes: int | None


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
        search: Search the memory limit that suffices.
        progress: Called with the share done, 0 to 1.
    """
    report = progress or (lambda share: None)
    each = prediction.prepared.steps * prediction.runs
    count = draws_within(CANDIDATE_RUNS, each, FEWEST_CANDIDATES, CANDIDATES)
    searched = draws_within(LIMIT_RUNS, each, FEWEST_LIMITS, LIMITS) if search else 0
    expected = count + len(prediction.kinds) - 1
    near = int(NEAR * prediction.peak_bytes)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    sequences: dict[tuple[int, int], Sequence] = {}
    about: dict[tuple[int, int], Played] = {}
    rare: set[tuple[int, int]] = set()
    for kind in prediction.kinds:
        # Of other threads than those shown only the middle is told.
        is_shown = kind is prediction.kinds[0]
        for at in _places(kind, count) if is_shown else [(len(kind.seeds) - 1) // 2]:
            drawn = kind.seeds[at], kind.threads
            if at > kind.ends[1]:
                rare.add(drawn)
            one = play_from_start(note, prediction.prepared, owners, *drawn)
            sequences[drawn] = sequence = one.sequence()
            # Where the searches for a limit (these, and that of the shown draw) will use the compiled
            # allocator, this may use it already.
            engine = engine_for(sequence, searched + 1) if search else Engine.AUTO
            report((0.5 if search else 1.0) * len(found) / expected)
            found[drawn] = allocated_in_step(
                sequence, one.instants, one.steps[-1], options, engine=engine
            )
            is_near = abs(kind.draws_bytes[at] - prediction.peak_bytes) <= near
            if is_near and is_shown:
                about[drawn] = one
    shown = _middle_of({at: found[at] for at in about})
    limit = None
    if search and len(found) > 1:
        main = prediction.kinds[0].threads
        own = [at for at in found if at[1] == main]
        largest = sorted(own, key=lambda at: -found[at][0])[:searched]
        limit = _sufficing_limit([sequences[at] for at in largest], options, report)
    usual = {at: peak for at, (peak, _) in found.items() if at not in rare}
    return Chosen(
        played=about[shown],
        allocated_bytes={
            kind.threads: tuple(sorted(usual[at] for at in usual if at[1] == kind.threads))
            for kind in prediction.kinds
        },
        beside_bytes=_beside(prediction, shown, about[shown]),
        limit_bytes=limit,
    )


def _places(kind: Schedules, count: int) -> list[int]:
    """Return the draws to look at: evenly spread over the range, its middle and the last."""
    spread = np.linspace(*kind.ends, count).round().astype(int)
    return sorted({*spread.tolist(), (len(kind.seeds) - 1) // 2, len(kind.seeds) - 1})


def _middle_of(found: Mapping[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    """Return the draw whose two sizes in bytes are nearest to the middle ones."""
    peak_bytes, before_bytes = (median_low([sizes[k] for sizes in found.values()]) for k in (0, 1))
    return min(
        found, key=lambda at: abs(found[at][0] - peak_bytes) + abs(found[at][1] - before_bytes)
    )


def _sufficing_limit(
    sequences: Collection[Sequence], options: BfcOptions, report: Callable[[float], None]
) -> int:
    """Return the memory limit in bytes under which each of the sequences succeeds, with a margin."""
    limit = 0
    for number, sequence in enumerate(sequences):
        report(1 - 0.5 * (len(sequences) - number) / (len(sequences) + 1))
        engine = engine_for(sequence, len(sequences) + 1)
        limit = safe_limit(sequence, options, least_bytes=limit, engine=engine)
    return limit + int(LIMIT_MARGIN * limit)


def _beside(prediction: Prediction, drawn: tuple[int, int], played: Played) -> int:
    """Return what a draw's peak is higher by where it is played from the process's start."""
    kind = next(kind for kind in prediction.kinds if kind.threads == drawn[1])
    alone = kind.draws_bytes[kind.seeds.index(drawn[0])]
    return played.draw.peak_bytes + played.aside_bytes - alone
