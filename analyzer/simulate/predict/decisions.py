"""Branches, loops and sizes that data decide: alternatives, assumptions, and sentences about them.

The outcome that needs most memory is shown, because it has to fit. The range starts at the outcome that
needs least. Each alternative is one schedule.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

from analyzer.model.contract.run_note import DataSize
from analyzer.model.errors import InputError
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.simulate.predict.schedule import Schedule, play
from analyzer.tracing.parse.run_folder import RunNote

MOST_BRANCHES = 12  # the first ones are tried
_NAMED = 3  # most names in a sentence


def decide(prepared: Prepared) -> tuple[Prepared, dict[str, str], list[int]]:
    """Return the step with the outcomes that need most memory, and the peaks of all that were tried.

    The dictionary has a sentence about each branch and loop, by name.
    """
    ops = prepared.ops
    by_user = prepared.assumed
    assumed = dict(by_user)

    top = play(prepared)
    peaks_bytes = [top.peak_bytes]

    def try_out(name: str, outcome: int) -> Schedule:
        schedule = play(prepared.assume(assumed | {name: outcome}))
        peaks_bytes.append(schedule.peak_bytes)

        return schedule

    sentences: dict[str, str] = {}

    for name, trips in top.decisions.trips.items():
        if name not in by_user and trips > 1:
            try_out(name, 1)

        plural = "s" * (trips != 1)
        bound = (
            ""
            if name in top.decisions.unbounded
            else ", the most that its condition allows"
        )

        sentences[name] = (
            f"Data decide the trips of loop {name}; assumed: {trips} trip{plural}{bound} "
            f"(--assume {name}=N changes it)."
        )

    for node, count in list(top.decisions.branches.items())[:MOST_BRANCHES]:
        name = ops[node].name
        outcomes: set[int] = set()
        if name not in by_user:
            outcomes = {*range(count)} - {1}  # 1 was played

        for branch in sorted(outcomes):
            schedule = try_out(name, branch)
            if schedule.peak_bytes > top.peak_bytes:
                assumed[name] = branch
                top = schedule

        sentences[name] = (
            f"Data decide branch {name}; assumed: number {assumed.get(name, 1)} "
            f"(--assume {name}=N changes it)."
        )

    return prepared.assume(assumed), sentences, peaks_bytes if sentences else []


def check_assumptions(note: RunNote, decided: Collection[str]) -> None:
    """Check that each assumption names something that data decide."""
    known = [*decided, *(size.op for size in note.sizes)]

    for name in note.assumed:
        if name not in known:
            names = f"Names: {', '.join(known[:6])}."
            raise InputError(
                f"--assume {name}: no data-dependent loop, branch or size has that name.",
                hint=names if known else "Nothing in this step depends on data.",
            )


def describe_sizes(
    note: RunNote,
    names: Collection[str] | None = None,
) -> list[str]:
    """Return sentences about sizes that depend on data; ``names`` are the ops that ran, None for all."""
    by_basis: dict[str, list[DataSize]] = defaultdict(list)
    for size in note.sizes:
        if names is None or size.basis != "most" or size.op in names:
            by_basis[size.basis].append(size)

    sentences = []
    assumed = by_basis["told"]
    given = by_basis["inputs"]
    most = by_basis["most"]

    if assumed:
        sentences.append(
            f"Data-dependent sizes, as assumed (--assume): {_list(assumed)}."
        )

    if given:
        sentences.append(f"Input-dependent sizes follow the inputs: {_list(given)}.")

    if most:
        count = "1 size depends" if len(most) == 1 else f"{len(most)} sizes depend"
        sentences.append(
            f"{count} on data; assumed: the largest possible: {_list(most)} "
            f"(--assume {most[0].op}=N changes it)."
        )

    return sentences


def _list(sizes: Sequence[DataSize]) -> str:
    names = ", ".join(f"{size.op} {size.size}" for size in sizes[:_NAMED])
    left = len(sizes) - _NAMED
    return f"{names} and {left} more" if left > 0 else names
