"""The functions ``analyzer.fit`` and ``analyzer.fits``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.process.launch import is_model, name_live, save_model
from analyzer.capture.targets.target_spec import parse_target
from analyzer.fitting.fit_answer import FitAnswer as FitAnswer
from analyzer.fitting.fit_target import (
    FitQuestion,
    fit_step,
    limit_options,
    resolve_limit,
)
from analyzer.fitting.size_answers import answer_sizes
from analyzer.fitting.size_search import CardSearch
from analyzer.fitting.step_access import StepAccess, access_target, make_workplace
from analyzer.fitting.varied_size import parse_varied
from analyzer.model.contract.capture_request import CaptureOptions, StepOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes
from analyzer.session.public_calls import make_options
from analyzer.session.target_results import capture_object
from analyzer.simulated_card.card_environment import normalize_cards

if TYPE_CHECKING:
    from typing_extensions import Unpack


def fit(
    target: Any,
    *,
    limit: int | str | None = None,
    vary: str | Sequence[str] = (),
    wanted: int | None = None,
    what_if: Sequence[str] | None = None,
    **step: Unpack[StepOptions],
) -> FitAnswer:
    """Return the largest batch, or the largest input, of a step on a card or under a limit.

    Args:
        target: A name, or a live Keras model or function, which is captured in this process.
        limit: The allocator's limit, in bytes or such as ``8GiB``; None for the card's or machine's.
        vary: Input axes with an N, such as ``tokens=N``, to find the largest N; empty for the batch.
        wanted: A size to judge.
        what_if: The names of the remedies to estimate; empty for all, None for none.
        step: As for ``estimate``. ``batch_size`` is the first batch of the search; with ``vary``, the
            batch.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if not vary:
        step.setdefault("batch_size", wanted)

    options = _make_options(step)
    question = FitQuestion(
        limit_bytes=parse_bytes(limit) if isinstance(limit, str) else limit,
        wanted=wanted,
        remedies=None if what_if is None else tuple(what_if),
        varied=parse_varied([vary] if isinstance(vary, str) and vary else vary),
    )

    with _access(target, options) as access:
        return fit_step(access, options, question)


def fits(
    target: Any,
    size: int,
    *,
    limit: int | str | None = None,
    **step: Unpack[StepOptions],
) -> bool:
    """Say whether a step surely fits with a batch size, by one run or estimate; for search loops.

    True if the upper bound of the need fits the lower bound of the limit, so that a trial that starts
    does not run out of memory. The arguments are those of ``fit``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if size < 1:
        raise InputError(
            f"A batch size of {size} is too small.",
            hint="Give 1 or more.",
        )

    step["batch_size"] = size
    limit_bytes = parse_bytes(limit) if isinstance(limit, str) else limit
    options = limit_options(_make_options(step), limit_bytes)
    _, bounds = resolve_limit(options, limit_bytes)
    search = CardSearch([bounds.bytes], size, is_one=True)

    with _access(target, options) as access:
        answer_sizes(access, options, (), search)

    high_bytes = search.points[size].need_high_bytes

    return high_bytes is not None and high_bytes <= bounds.range.low


@contextmanager
def _access(target: Any, options: CaptureOptions) -> Iterator[StepAccess]:
    """Give access to a named target, a live model, or a live function.

    A model for a card is saved, so that other processes can run it. A function cannot be saved.
    """
    if isinstance(target, str | os.PathLike):
        with access_target(parse_target(os.fspath(target))) as access:
            yield access

        return

    if options.gpu and is_model(target):
        with save_model(target) as spec, access_target(spec) as access:
            yield access

        return

    def capture(options: CaptureOptions, folder: Path) -> Path:
        return capture_object(target, options, folder)

    with make_workplace() as folder:
        yield StepAccess(name=name_live(target), folder=folder, capture=capture)


def _make_options(step: StepOptions) -> CaptureOptions:
    """Return the options of the captures, on a card of the catalogue or the CPU."""
    gpu = step.get("gpu", "")
    step["gpu"] = normalize_cards(gpu) if gpu else ""
    step["device"] = "gpu" if gpu else "cpu"

    return make_options(step)
