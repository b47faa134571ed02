"""Remedies: each a real change of the step, captured and estimated anew; never a rule of thumb."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Final

from analyzer.fitting.search.remedy_code import written
from analyzer.fitting.search.remedy_plans import RemedyPlan, merged, plans_for
from analyzer.fitting.search.step_access import BatchCaptures, StepAccess
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.report.finding import StepRemedy
from analyzer.model.errors import CompilerUnavailable, InputError
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import RunNote, read_run

_MOST_TOLD: Final = 240
"""Characters of the reason why a remedy cannot be applied."""

_MOST_SETS: Final = 4
"""Sets of several remedies that are captured at most, each a capture and an estimate."""

_LARGEST_SET: Final = 3

_RECOMPUTES: Final = frozenset({"recompute-blocks", "recompute-sqrt"})
"""Remedies that are made of which layers follow on each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNeed:
    """What a step needs.

    Attributes:
        requested_bytes, allocated_bytes: Its peak.
        fits: Whether it runs under the limit; None without one.
        ends_bytes: Between which the requested peak lies, by the order of the ops.
    """

    requested_bytes: int
    allocated_bytes: int
    fits: bool | None
    ends_bytes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyTrial:
    """What all trials of one step share.

    Attributes:
        access: How the step is captured.
        options: How it is made without any remedy.
        limit_bytes: A limit to say of whether the step then fits; None for none.
        threads: Threads that one op may use; None for this machine's.
        report: Called with the stage and the share done.
        is_own_step: Whether the step is the user's own, not that of Keras' ``fit``.
    """

    access: StepAccess
    options: CaptureOptions
    limit_bytes: int | None
    threads: int | None
    report: Callable[[str, float], None]
    is_own_step: bool = False


def tried_remedies(
    access: StepAccess,
    options: CaptureOptions,
    names: Sequence[str],
    limit_bytes: int | None,
    threads: int | None,
    report: Callable[[str, float], None],
    made: Path | None = None,
) -> tuple[StepRemedy, ...]:
    """Capture and estimate a step with each remedy, and with sets of them where none alone is enough.

    Args:
        access: The step.
        options: How it is made without any; its batch size is that of all.
        names: Of the remedies to try; empty for all that may save something.
        limit_bytes: A limit to say of whether the step then fits; None for none.
        threads: Threads that one op may use; None for this machine's.
        report: Called with the stage and the share done.
        made: The folder of a capture of the step as it is; None to capture it.

    Raises:
        InputError: a name is no remedy's.
    """
    trial = RemedyTrial(
        access=access, options=options, limit_bytes=limit_bytes, threads=threads, report=report
    )
    report("estimating the step as it is", 0.0)
    note, before = _need(trial, options, "as-is", made)
    trial = replace(trial, is_own_step=note.step.own)
    op_by_op = _without_xla(trial, note) if _RECOMPUTES & {*names} else None
    plans = _chosen(list(plans_for(options, note, op_by_op)), names)
    found = []
    for number, plan in enumerate(plans):
        report(f"capturing with {plan.id}", (number + 1) / (len(plans) + 1))
        found.append(_tried(trial, (plan,), before))
    if before.fits is False and not any(one.fits for one in found):
        found += _sets(trial, plans, found, before)
    return tuple(sorted(found, key=_place))


def _without_xla(trial: RemedyTrial, note: RunNote) -> RunNote | None:
    """Return the note of a step that XLA compiles, captured op by op: it tells the layers' order."""
    if not note.step.jit:
        return None
    options = replace(trial.options, jit=False)
    trial.report("capturing the step op by op", 0.0)
    captures = BatchCaptures(trial.access, options, "op-by-op", threads=trial.threads)
    return captures.note(options.open_batch_size)


def _place(remedy: StepRemedy) -> tuple[bool, int]:
    return remedy.saves_bytes is None, -(remedy.saves_bytes or 0)


def _tried(trial: RemedyTrial, plans: tuple[RemedyPlan, ...], before: StepNeed) -> StepRemedy:
    """Return what remedies together save, or why they cannot be applied."""
    remedy = StepRemedy(
        id="+".join(plan.id for plan in plans),
        title="; ".join(plan.title for plan in plans),
        code=written([plan.code for plan in plans], is_own_step=trial.is_own_step),
        costs="; ".join(plan.costs for plan in plans if plan.costs),
    )
    try:
        _, after = _need(trial, merged(trial.options, plans), remedy.id)
    except (InputError, CompilerUnavailable) as error:
        return StepRemedy(
            id=remedy.id, title=remedy.title, code=remedy.code, failed=error.message[:_MOST_TOLD]
        )
    low_bytes, high_bytes = _ends_of_saving(before, after)
    return StepRemedy(
        id=remedy.id,
        title=remedy.title,
        code=remedy.code,
        costs=remedy.costs,
        saves_bytes=before.requested_bytes - after.requested_bytes,
        saves_low_bytes=low_bytes,
        saves_high_bytes=high_bytes,
        requested_bytes=after.requested_bytes,
        allocated_bytes=after.allocated_bytes,
        fits=after.fits,
    )


def _ends_of_saving(before: StepNeed, after: StepNeed) -> tuple[int | None, int | None]:
    """Return the least and the most that one run with a remedy takes less than one without.

    Each process takes an order of its own, before and after.
    """
    if before.ends_bytes is None or after.ends_bytes is None:
        return None, None
    (before_low, before_high), (after_low, after_high) = before.ends_bytes, after.ends_bytes
    return before_low - after_high, before_high - after_low


def _sets(
    trial: RemedyTrial,
    plans: Sequence[RemedyPlan],
    alone: Sequence[StepRemedy],
    before: StepNeed,
) -> Iterator[StepRemedy]:
    """Yield sets of remedies, from the one that takes least effort, until one fits.

    Only those whose savings alone add up to enough are captured: savings of different kinds overlap, so
    that together they save hardly more.

    Args:
        trial: The step and its limit.
        plans: The remedies.
        alone: What each saves alone, in the same order.
        before: What the step needs without any.
    """
    assert trial.limit_bytes is not None
    saves = {one.id: one.saves_bytes or 0 for one in alone}
    useful = [plan for plan in plans if saves[plan.id] > 0]
    enough = before.allocated_bytes - trial.limit_bytes
    sets = [
        chosen
        for size in range(2, _LARGEST_SET + 1)
        for chosen in combinations(useful, size)
        if len({plan.kind for plan in chosen}) == size
        and sum(saves[plan.id] for plan in chosen) >= enough
    ]
    sets.sort(
        key=lambda chosen: (
            sum(plan.effort for plan in chosen), -sum(saves[plan.id] for plan in chosen)
        )
    )  # fmt: skip
    for chosen in sets[:_MOST_SETS]:
        trial.report(f"capturing with {' and '.join(plan.id for plan in chosen)}", 0.98)
        remedy = _tried(trial, chosen, before)
        yield remedy
        if remedy.fits:
            return


def _chosen(plans: Sequence[RemedyPlan], names: Sequence[str]) -> list[RemedyPlan]:
    if not names:
        return [plan for plan in plans if not plan.is_named_only]
    known = {plan.id: plan for plan in plans}
    for name in names:
        if name not in known:
            if name in _RECOMPUTES:
                raise InputError(
                    f"{name} has nothing to recompute between: the step's layers are no chain of three "
                    "parts or more.",
                    hint="remat-activations recomputes inside of layers.",
                )
            raise InputError(
                f"No remedy of this step is called {name!r}.",
                hint=f"There are: {', '.join(known)}.",
            )
    return [known[name] for name in names]


def _need(
    trial: RemedyTrial, options: CaptureOptions, name: str, made: Path | None = None
) -> tuple[RunNote, StepNeed]:
    """Return a step's note and its estimate: the figures that ``analyze estimate`` gives of it.

    Args:
        trial: What all trials share.
        options: How the step is made.
        name: Of the folder that its capture is left in.
        made: The folder of a capture of it; None to capture it.
    """
    batch, limit_bytes = options.open_batch_size, trial.limit_bytes
    captures = BatchCaptures(trial.access, options, f"remedy-{name}", threads=trial.threads)
    if made is None:
        note, need = captures.note(batch), captures.need(batch)
    else:
        note = read_run(made / RUN_FILE)
        need = captures.need_of(note, made)
    return note, StepNeed(
        requested_bytes=need.requested_bytes,
        allocated_bytes=need.allocated_bytes,
        fits=None if limit_bytes is None else need.bytes <= limit_bytes,
        ends_bytes=need.requested_ends_bytes,
    )
