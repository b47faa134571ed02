"""Sentences of an answer that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analyzer.scaling.fit_answer import FitAnswer
from analyzer.units import format_bytes


def basis_of(answer: FitAnswer) -> str:
    """Return what the figures rest on, in one word for a badge."""
    return "predicted" if answer.confirmation is None else "predicted, and run to confirm"


def sentences_of(answer: FitAnswer) -> Iterator[str]:
    """Yield what the answer rests on."""
    low, high = answer.limit_low_bytes, answer.limit_high_bytes
    if answer.limit_of == "cards":
        yield (
            f"The allocator may use {format_bytes(low)} to {format_bytes(high)}, by card. A batch that "
            "is safe fits in every order of the ops that was drawn, with 3 % to spare and the least "
            "that the card's limit may be."
        )
        yield f"A card of each kind was worked out, the last so: {_how_found(answer)}"
        return
    limit = f"The allocator may use {format_bytes(answer.limit_bytes)}"
    if low != high:
        limit += f" ({format_bytes(low)} to {format_bytes(high)})"
    whose = {
        "card": f" of {answer.card_name}",
        "machine": ", this machine's memory",
        "given": ", as given",
    }
    yield f"{limit}{whose[answer.limit_of]}."
    if answer.largest:
        yield from _margins(answer)
    yield _how_found(answer)
    yield from _confirmed(answer)


def _margins(answer: FitAnswer) -> Iterator[str]:
    """Yield what is safe, and up to where chance decides."""
    least = (
        " and the least that this limit may be"
        if answer.limit_low_bytes != answer.limit_high_bytes
        else ""
    )
    spare = "6 %" if answer.forms.swaps else "3 %"
    basis = f"in every order of the ops that was drawn, with {spare} to spare{least}"
    if not answer.safe:
        yield f"With a margin not even a batch of 1 is sure: it does not fit {basis}."
    elif answer.safe == answer.largest:
        yield f"Batch {answer.safe} is safe, too: it fits {basis}."
    else:
        yield f"To be safe take batch {answer.safe}: it fits {basis}."
    if answer.forms.swaps:
        yield (
            "What TensorFlow swaps differs from process to process, and the need with it by a few per "
            "cent: the largest batch is known no closer than that without a run (--confirm)."
        )
        if answer.most > answer.largest:
            yield f"No batch from {answer.largest + 1} to {answer.most} was tried."
    elif answer.most > answer.largest:
        what = "the order in which the ops run" + (" and the limit itself" if least else "")
        yield f"From {answer.largest + 1} to {answer.most} it depends on {what}; above, none fits."


def _how_found(answer: FitAnswer) -> str:
    """Return how the sizes between those captured were worked out."""
    forms = answer.forms
    captured = _list(forms.captured_at)
    if not forms.is_closed_form:
        return f"The step was captured anew at each batch tried ({captured}): {forms.why_not}."
    told = f"The step was captured, not run, at batch {captured}; "
    if forms.planned_at:
        planned = _list(forms.planned_at)
        told += f"what XLA compiles at others follows from these, and was compiled at {planned}"
    else:
        told += "what it needs at any other follows from these"
    return told + (f" (checked at {_list(forms.checked_at)})." if forms.checked_at else ".")


def _list(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} and {last}" if most else last


def _confirmed(answer: FitAnswer) -> Iterator[str]:
    confirmation = answer.confirmation
    if confirmation is None:
        return
    how = {
        "phantom": "TensorFlow's own GPU runtime without the card",
        "cpu": "TensorFlow's allocator under this limit, on this machine's CPU",
    }[confirmation.by]
    told = ", ".join(
        f"{run.size} {'ran' if run.ran else 'ran out of memory'}" for run in confirmation.runs
    )
    yield f"Run on {how}: {told}."
    if confirmation.predicted != answer.largest:
        yield f"Predicted was {confirmation.predicted}; the runs are right."


def step_words(answer: FitAnswer) -> str:
    """Return how the step is run."""
    parts = (
        "train" if answer.mode == "train" else "inference",
        answer.optimizer,
        answer.dtype_policy,
        "XLA" if answer.jit else "op by op",
    )
    return ", ".join(part for part in parts if part)
