"""The headline of an answer: the largest size, its evidence, and whether the wanted size fits."""

from __future__ import annotations

from msgspec.structs import replace

from analyzer.fitting.fit_answer import FitAnswer
from analyzer.fitting.size_search import MOST_SIZE
from analyzer.model.units import format_bytes


def add_headline(answer: FitAnswer) -> FitAnswer:
    """Return the answer with its headline."""
    sentences = [_judge_wanted(answer)] if answer.wanted is not None else []
    sentences.append(_state_largest(answer))
    return replace(answer, headline=" ".join(sentences))


def judge_size(answer: FitAnswer, size: int) -> str:
    """Return ``fits``, ``likely fits``, ``may not fit`` or ``does not fit`` for a size."""
    runs = () if answer.confirmation is None else answer.confirmation.runs
    if size <= answer.safe or any(run.ran and run.size >= size for run in runs):
        return "fits"
    if size <= answer.largest:
        return "likely fits"
    has_failed = any(not run.ran and run.size <= size for run in runs)
    if has_failed or (answer.most is not None and size > answer.most):
        return "does not fit"
    return "does not fit" if answer.refused and size >= answer.refused.size else "may not fit"


def _judge_wanted(answer: FitAnswer) -> str:
    wanted = answer.wanted or 0
    verdict = judge_size(answer, wanted)
    if verdict == "fits" and wanted > answer.safe:
        verdict = "fits, with less than 3 % to spare"
    return f"{answer.noun.capitalize()} {answer.label(wanted)} {verdict}."


def _state_largest(answer: FitAnswer) -> str:
    where = f"{_name_limit(answer)} ({format_bytes(answer.limit_bytes)})"
    if not answer.largest:
        smallest = answer.failing or 1
        return f"Not even {answer.noun} {answer.label(smallest)} fits {where}."
    named = f"{answer.noun.capitalize()} {answer.label(answer.largest)}"
    if answer.failing is None:
        more = "larger ones were not tried"
        if answer.confirmation is not None:
            more = f"it ran on {_name_runtime(answer)}, and {more}"
        limit = f"; {answer.noun} sizes above {MOST_SIZE} are not tried"
        return f"{named} fits {where}: {more}{limit if answer.largest >= MOST_SIZE else ''}."
    is_next = answer.failing == answer.largest + 1
    failing = answer.label(answer.failing)
    if answer.refused is not None and answer.refused.size == answer.failing:
        verb = f"is not possible ({answer.refused.kind})"
    else:
        verb = "does not fit"
    if answer.confirmation is not None and answer.failing in _run_sizes(answer):
        runtime = _name_runtime(answer)
        if is_next:
            ran = f"it ran on {runtime}, and {failing} {_failed_how(answer)}"
            return f"{named} is the largest that fits {where}: {ran}."
        return f"{named} ran on {runtime} and fits {where}; {failing} {_failed_how(answer)}."
    basis = "by estimate"
    if answer.confirmation is not None:
        basis = f"it ran on {_name_runtime(answer)}"
    safe = "" if answer.safe >= answer.largest else f" {_state_safe(answer)}"
    if is_next:
        return f"{named} is the largest that fits {where} ({basis}): {failing} {verb}.{safe}"
    return f"{named} fits {where} ({basis}), {failing} {verb}.{safe}"


def _state_safe(answer: FitAnswer) -> str:
    if not answer.safe:
        return "No size is safe."
    return f"{answer.noun.capitalize()} {answer.label(answer.safe)} is safe."


def _failed_how(answer: FitAnswer) -> str:
    runs = () if answer.confirmation is None else answer.confirmation.runs
    failed = next(run for run in runs if run.size == answer.failing)
    return "ran out of memory" if failed.is_out_of_memory else f"failed ({failed.reason})"


def _run_sizes(answer: FitAnswer) -> set[int]:
    return set() if answer.confirmation is None else {run.size for run in answer.confirmation.runs}


def _name_limit(answer: FitAnswer) -> str:
    if answer.card_name:
        return answer.card_name
    return "this machine" if answer.limit_of == "machine" else "the limit"


def _name_runtime(answer: FitAnswer) -> str:
    is_phantom = answer.confirmation is not None and answer.confirmation.by == "phantom"
    return "TensorFlow's GPU runtime without the card" if is_phantom else "this CPU"
