"""Assumptions about branches, loops and sizes that data decide, and sentences about them."""

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
"""Most names in a sentence."""


def read_assumptions(note: RunNote) -> Assumptions:
    """Return the user's assumptions; a name may be a loop or a branch."""
    return Assumptions(trips=note.assumed, branches=note.assumed)


def check_assumptions(note: RunNote, prediction: Prediction) -> None:
    """Check that each assumption names something that data decide.

    Raises:
        InputError: one does not.
    """
    known = [decision.name for decision in prediction.decisions]
    known += [size.op for size in note.sizes]
    for name in note.assumed:
        if name not in known:
            hint = "Nothing in this step depends on data."
            if known:
                hint = f"Names: {', '.join(known[:6])}."
            raise InputError(
                f"--assume {name}: no data-dependent loop, branch or size has that name.",
                hint=hint,
            )


def describe_decision(decision: Decision) -> str:
    """Return a sentence about a branch or a loop that data decide."""
    name, outcome = decision.name, decision.outcome
    trips = f"{outcome} trip{'s' * (outcome != 1)}"
    if decision.by_user:
        chosen = f"Loop {name} makes {trips}" if decision.is_loop else f"Branch {name} is {outcome}"
        return f"{chosen}, as assumed (--assume)."
    other = ""
    if decision.other_bytes is not None:
        alternative = "one trip" if decision.is_loop else "another branch"
        other = f"; with {alternative} the peak is {format_bytes(decision.other_bytes)}"
    hint = f"--assume {name}=N changes it"
    if not decision.is_loop:
        return f"Data decide branch {name}; assumed: number {outcome}{other} ({hint})."
    if decision.bounded:
        trips += ", the most that its condition allows"
    return f"Data decide the trips of loop {name}; assumed: {trips}{other} ({hint})."


def describe_run_sizes(note: RunNote, prediction: Prediction, draw: Draw) -> list[str]:
    """Return sentences about data-dependent sizes of ops that run in the shown schedule."""
    sentences = []
    ops, least_bytes = prediction.prepared.wiring.ops, prediction.least_bytes
    ran = {ops[node].name for node in draw.order}
    assumed = [size for size in note.sizes if size.basis == "told"]
    if assumed:
        sentences.append(f"Data-dependent sizes, as assumed (--assume): {_list(assumed)}.")
    most = [size for size in note.sizes if size.basis == "most" and size.op in ran]
    if most:
        other = ""
        if least_bytes is not None:
            other = f"; with one element each the peak is {format_bytes(least_bytes)}"
        sentences.append(f"{_describe_most(most)}{other} (--assume {most[0].op}=N changes it).")
    return sentences


def describe_data_sizes(note: RunNote) -> list[str]:
    """Return sentences about data-dependent sizes of a note with generated inputs."""
    most = [size for size in note.sizes if size.basis == "most"]
    by_inputs = [size for size in note.sizes if size.basis == "inputs"]
    sentences = []
    if by_inputs:
        sentences.append(
            f"Input-dependent sizes follow generated inputs: {_list(by_inputs)}. "
            "Real inputs may need more."
        )
    return sentences + ([f"{_describe_most(most)}."] if most else [])


def _describe_most(sizes: Sequence[DataSize]) -> str:
    count = "1 size depends" if len(sizes) == 1 else f"{len(sizes)} sizes depend"
    return f"{count} on data; assumed: the largest possible: {_list(sizes)}"


def describe_input_sizes(note: RunNote) -> list[str]:
    """Return a sentence about sizes that depend on the values of given inputs."""
    sizes = [size for size in note.sizes if size.basis == "inputs"]
    if not sizes:
        return []
    return [f"Input-dependent sizes follow the given inputs: {_list(sizes)}."]


def _list(sizes: Sequence[DataSize]) -> str:
    names = ", ".join(f"{size.op} {size.size}" for size in sizes[:_NAMED])
    left = len(sizes) - _NAMED
    return f"{names} and {left} more" if left > 0 else names
