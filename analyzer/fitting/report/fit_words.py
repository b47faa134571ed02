"""Sentences of an answer that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from analyzer.fitting.scaling.fit_answer import FitAnswer
from analyzer.model.units import format_bytes

_EACH_ORDER: Final = "in every order of the ops that was drawn"


def basis_of(answer: FitAnswer) -> str:
    """Return what the figures rest on, in one word for a badge."""
    return "predicted" if answer.confirmation is None else "predicted, and run to confirm"


def sentences_of(answer: FitAnswer) -> Iterator[str]:
    """Yield what the answer rests on."""
    low, high = answer.limit_low_bytes, answer.limit_high_bytes
    if answer.limit_of == "cards":
        yield (
            f"The allocator may use {format_bytes(low)} to {format_bytes(high)}, by card. What "
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
    if answer.taken is not None:
        yield f"The step takes at most {answer.label(answer.taken)}. {answer.refusal}"
    if answer.largest:
        yield from _margins(answer)
    yield _how_found(answer)
    yield from _waiting(answer)
    yield from _in_pieces(answer)
    yield from _confirmed(answer)


def whether_fits(answer: FitAnswer, size: int) -> str:
    """Say that a size does not fit, or may not; nothing where it fits."""
    if size <= answer.largest:
        return ""
    ran_out = () if answer.confirmation is None else answer.confirmation.runs
    if size > answer.most or any(not run.ran and run.size <= size for run in ran_out):
        return "does not fit"
    return "may not fit"


def _margins(answer: FitAnswer) -> Iterator[str]:
    """Yield what is safe, and up to where chance decides."""
    least = (
        " and the least that this limit may be"
        if answer.limit_low_bytes != answer.limit_high_bytes
        else ""
    )
    noun, following = answer.noun, answer.label(answer.largest + 1)
    spare = "6 %" if answer.forms.swaps else "3 %"
    is_compiled = bool(answer.forms.planned_at)
    each = "with any kernels that XLA is expected to choose" if is_compiled else _EACH_ORDER
    basis = f"{each}, with {spare} to spare{least}"
    if not answer.safe:
        least_one = f"input {answer.label(1)}" if answer.shape else "a batch of 1"
        yield f"With a margin not even {least_one} is sure: it does not fit {basis}."
    elif answer.safe == answer.largest:
        yield f"{noun.capitalize()} {answer.label(answer.safe)} is safe, too: it fits {basis}."
    else:
        yield f"To be safe take {noun} {answer.label(answer.safe)}: it fits {basis}."
    if answer.forms.swaps:
        yield (
            "What TensorFlow swaps differs from process to process, and the need with it by a few per "
            f"cent: the largest {noun} is known no closer than that without a run (--confirm)."
        )
        if answer.most > answer.largest and answer.confirmation is None:
            yield f"No {noun} from {following} to {answer.label(answer.most)} was tried."
    elif answer.forms.another_from is not None and answer.confirmation is None:
        another = answer.label(answer.forms.another_from)
        yield (
            f"From {another} on, at the latest, TensorFlow expects the memory to get short and makes "
            f"another graph of the step, which does not fit; which one it makes from {following} on was "
            "not tried."
        )
    elif answer.most > answer.largest:
        what = "the kernels that XLA chooses" if is_compiled else "the order in which the ops run"
        what += " and the limit itself" if least else ""
        yield f"From {following} to {answer.label(answer.most)} it depends on {what}; above, none fits."


def _waiting(answer: FitAnswer) -> Iterator[str]:
    """Yield why sizes fit that the curve shows above the limit: ops wait for each other's memory."""
    over = [
        point.size
        for point in answer.curve
        if point.size <= answer.largest and point.allocated_bytes > answer.limit_bytes
    ]
    if answer.device == "cpu" and over:
        yield (
            f"At {answer.noun} {answer.label(over[0])} ops that run side by side would take more than "
            "the limit: what finds no room waits for the others, for up to ten seconds. The curve shows "
            "it as if nothing waited."
        )


def _in_pieces(answer: FitAnswer) -> Iterator[str]:
    """Yield why sizes do not fit that the curve shows below the limit."""
    below = [
        point.size
        for point in answer.curve
        if point.size > answer.most and point.allocated_bytes <= answer.limit_low_bytes
    ]
    if below:
        yield (
            f"At {answer.noun} {answer.label(below[0])} the steady step's chunks are less than the "
            "limit, and still it does not fit: what is free lies in pieces, or the first step needs "
            "more."
        )


def _how_found(answer: FitAnswer) -> str:
    """Return how the sizes between those captured were worked out."""
    forms = answer.forms
    captured = _list(answer, forms.captured_at)
    if not forms.is_closed_form:
        return (
            f"The step was captured anew at each {answer.noun} tried ({captured}): {forms.why_not}."
        )
    told = f"The step was captured, not run, at {answer.noun} {captured}; "
    if forms.planned_at:
        planned = _list(answer, forms.planned_at)
        told += f"what XLA compiles at others follows from these, and was compiled at {planned}"
    else:
        told += "what it needs at any other follows from these"
    return told + (f" (checked at {_list(answer, forms.checked_at)})." if forms.checked_at else ".")


def _list(answer: FitAnswer, sizes: Sequence[int]) -> str:
    *most, last = map(answer.label, sizes)
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
        f"{answer.label(run.size)} {'ran' if run.ran else 'ran out of memory'}"
        for run in confirmation.runs
    )
    yield f"Run on {how}: {told}."
    if confirmation.predicted != answer.largest:
        yield f"Predicted was {answer.label(confirmation.predicted)}; the runs are right."


def step_words(answer: FitAnswer) -> str:
    """Return how the step is run."""
    parts = (
        "train" if answer.mode == "train" else "inference",
        f"batch {answer.batch_size}" if answer.batch_size else "",
        answer.optimizer,
        answer.dtype_policy,
        "XLA" if answer.jit else "op by op",
    )
    return ", ".join(part for part in parts if part)
