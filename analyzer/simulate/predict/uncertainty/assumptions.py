"""What is taken for what the data decide, as the capture noted it and as the user is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from analyzer.model.contract.run_note import DataSize
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes
from analyzer.simulate.predict.executor.data_decisions import Assumptions
from analyzer.simulate.predict.played_step import Draw
from analyzer.simulate.predict.schedules import Prediction
from analyzer.simulate.predict.uncertainty.branch_alternatives import Decision
from analyzer.tracing.parse.run_folder import RunNote

_NAMED: Final = 3
"""Names that a sentence gives of several."""


def assumptions_of(note: RunNote) -> Assumptions:
    """Return what the user told of loops and branches; which of the two a name is shows later."""
    return Assumptions(trips=note.assumed, branches=note.assumed)


def check_assumptions(note: RunNote, prediction: Prediction) -> None:
    """Refuse an assumption about something that the data do not decide, or that is not there.

    Raises:
        InputError: there is one.
    """
    known = [decision.name for decision in prediction.decisions]
    known += [size.op for size in note.sizes]
    for name in note.assumed:
        if name not in known:
            there = f"It decides: {', '.join(known[:6])}." if known else "It decides nothing here."
            raise InputError(
                f"--assume {name}: the data decide no loop, branch or size of that name.",
                hint=there,
            )


def told_decision(decision: Decision) -> str:
    """Return a sentence about a branch or a loop that the data decide: what is taken, and why."""
    name, taken = decision.name, decision.taken
    if decision.told:
        return f"{'Loop' if decision.is_loop else 'Branch'} {name} is taken as {taken}, as told."
    other = ""
    if decision.other_bytes is not None:
        what = "one trip" if decision.is_loop else "another branch"
        other = f"; with {what} the peak is {format_bytes(decision.other_bytes)}"
    hint = f"--assume {name}=N says otherwise"
    if not decision.is_loop:
        return f"The data decide branch {name}, taken as number {taken}{other} ({hint})."
    trips = f"{taken} trip{'s' * (taken != 1)}"
    if decision.bounded:
        why = "the most that its condition allows"
        return f"The data end loop {name}, taken as {trips}, {why}{other} ({hint})."
    return (
        f"How often loop {name} goes round cannot be known before it runs, and is taken as {trips}"
        f"{other} ({hint})."
    )


def told_sizes(note: RunNote, prediction: Prediction, draw: Draw) -> list[str]:
    """Return sentences about sizes of ops that run, that depend on data and that no input tells.

    Args:
        note: The run note.
        prediction: The prepared step.
        draw: The draw that is shown.
    """
    sentences = []
    ops, least_bytes = prediction.prepared.wiring.ops, prediction.least_bytes
    ran = {ops[node].name for node in draw.order}
    told = [size for size in note.sizes if size.basis == "told"]
    if told:
        sentences.append(f"Sizes that depend on data are taken as told: {_named(told)}.")
    most = [size for size in note.sizes if size.basis == "most" and size.op in ran]
    if most:
        other = ""
        if least_bytes is not None:
            other = f"; with one element each the peak is {format_bytes(least_bytes)}"
        sentences.append(f"{_taken_as_most(most)}{other} (--assume {most[0].op}=N says otherwise).")
    return sentences


def sizes_of(note: RunNote) -> list[str]:
    """Return sentences about sizes that depend on data: what they are, of inputs that are made up here.

    Args:
        note: The run note.
    """
    most = [size for size in note.sizes if size.basis == "most"]
    told = [size for size in note.sizes if size.basis == "inputs"]
    made_up = (
        f"Sizes that depend on the inputs' values are those of inputs made up here: {_named(told)}. "
        "Real ones may need more."
        if told
        else ""
    )
    return [*filter(None, [made_up]), *([f"{_taken_as_most(most)}."] if most else [])]


def _taken_as_most(sizes: Sequence[DataSize]) -> str:
    if len(sizes) == 1:
        told = "1 size depends on data and is taken as the most that it can be"
    else:
        told = f"{len(sizes)} sizes depend on data and are taken as the most that they can be"
    return f"{told}: {_named(sizes)}"


def sizes_from_inputs(note: RunNote) -> list[str]:
    """Return a sentence about sizes that the values of the inputs given tell."""
    found = [size for size in note.sizes if size.basis == "inputs"]
    if not found:
        return []
    return [
        f"Sizes that depend on the values of the inputs are those of the ones given: {_named(found)}."
    ]


def _named(sizes: Sequence[DataSize]) -> str:
    names = ", ".join(f"{size.op} {size.size}" for size in sizes[:_NAMED])
    left = len(sizes) - _NAMED
    return f"{names} and {left} more" if left > 0 else names
