"""The headline of an answer: the largest size, its evidence, and whether the wanted size fits."""

from __future__ import annotations

from msgspec.structs import replace

from analyzer.fitting.fit_answer import FitAnswer
from analyzer.fitting.size_search import MOST_SIZE
from analyzer.model.units import format_bytes


def add_headline(answer: FitAnswer, *, can_confirm: bool = False) -> FitAnswer:
    """Return the answer with its headline.

    Args:
        answer: The answer.
        can_confirm: Whether ``--confirm`` would run the step.
    """
    sentences = [_judge_wanted(answer)] if answer.wanted is not None else []
    sentences.append(_state_largest(answer, can_confirm=can_confirm))
    return replace(answer, headline=" ".join(sentences))


def judge_size(answer: FitAnswer, size: int) -> str:
    """Return ``fits``, ``likely fits``, ``may not fit`` or ``does not fit`` for a size."""
    runs = () if answer.confirmation is None else answer.confirmation.runs
    if size <= answer.safe or any(run.ran and run.size >= size for run in runs):
        return "fits"
    if size <= answer.largest:
        return "likely fits"
    has_failed = any(run.has_failed and run.size <= size for run in runs)
    if has_failed or (answer.most is not None and size > answer.most):
        return "does not fit"
    return "does not fit" if answer.refused and size >= answer.refused.size else "may not fit"


def _judge_wanted(answer: FitAnswer) -> str:
    wanted = answer.wanted or 0
    verdict = judge_size(answer, wanted)
    if verdict == "fits" and wanted > answer.safe:
        verdict = "fits, with less than 3 % to spare"
    return f"{answer.noun.capitalize()} {answer.label(wanted)} {verdict}."


def _state_largest(answer: FitAnswer, *, can_confirm: bool) -> str:
    where = f"{_name_limit(answer)} ({format_bytes(answer.limit_bytes + answer.beside_pool_bytes)})"
    if not answer.largest:
        return _state_none(answer, where)
    named = f"{answer.noun.capitalize()} {answer.label(answer.largest)}"
    runtime = _name_runtime(answer)
    if answer.is_bracketed:
        failing = f"{answer.label(answer.largest + 1)} {_describe_failing(answer)}"
        return f"{named} is the largest that fits {where}: it ran on {runtime}, and {failing}."
    if answer.confirmation is not None:
        fits = f"{named} ran on {runtime} and fits {where}"
    else:
        fits = f"{named} fits {where} by estimate"
    if answer.failing is None:
        top = f"; sizes above {MOST_SIZE} are not tried" if answer.largest >= MOST_SIZE else ""
        return f"{fits}; larger ones were not tried{top}."
    sentences = [f"{fits}; {answer.label(answer.failing)} {_describe_failing(answer)}."]
    if answer.failing not in _list_failed_sizes(answer) and answer.safe < answer.largest:
        sentences.append(_state_safe(answer))
    if can_confirm:
        sentences.append("--confirm runs both.")
    return " ".join(sentences)


def _state_none(answer: FitAnswer, where: str) -> str:
    """Return the headline if no size fits."""
    size = answer.failing or 1
    if judge_size(answer, size) == "may not fit":
        return f"{answer.noun.capitalize()} {answer.label(size)} may not fit {where}, by estimate."
    return f"Not even {answer.noun} {answer.label(size)} fits {where}."


def _describe_failing(answer: FitAnswer) -> str:
    """Return the verb for the size that does not fit, with its evidence."""
    assert answer.failing is not None
    runs = () if answer.confirmation is None else answer.confirmation.runs
    failed = next((run for run in runs if run.has_failed and run.size == answer.failing), None)
    if failed is not None:
        return "ran out of memory" if failed.is_out_of_memory else f"failed ({failed.reason})"
    if answer.refused is not None and answer.refused.size == answer.failing:
        return f"is not possible ({answer.refused.kind})"
    verdict = judge_size(answer, answer.failing)
    return verdict if answer.confirmation is None else f"{verdict} by estimate"


def _state_safe(answer: FitAnswer) -> str:
    if not answer.safe:
        return "No size is safe."
    return f"{answer.noun.capitalize()} {answer.label(answer.safe)} is safe."


def _list_failed_sizes(answer: FitAnswer) -> set[int]:
    runs = () if answer.confirmation is None else answer.confirmation.runs
    return {run.size for run in runs if run.has_failed}


def _name_limit(answer: FitAnswer) -> str:
    if answer.card_name:
        return answer.card_name
    return "this machine" if answer.limit_of == "machine" else "the limit"


def _name_runtime(answer: FitAnswer) -> str:
    is_phantom = answer.confirmation is not None and answer.confirmation.by == "phantom"
    return "TensorFlow's GPU runtime without the card" if is_phantom else "this CPU"
