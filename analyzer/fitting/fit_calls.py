"""The functions ``analyzer.fit`` and ``analyzer.fits``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.targets.target_spec import parse_target
from analyzer.fitting.estimate_at_size import (
    SizeEstimates,
    StepAccess,
    access_target,
    make_workplace,
    parse_varied,
)
from analyzer.fitting.fit_answer import FitAnswer as FitAnswer
from analyzer.fitting.fit_target import FitQuestion, fit_step, optimize_for, resolve_limit
from analyzer.model.contract.capture_request import CaptureOptions, StepOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes
from analyzer.phantom.phantom_environment import find_smallest_card, normalize_cards
from analyzer.session.estimate_captures import capture_object
from analyzer.session.public_calls import make_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


def fit(
    target: Any,
    *,
    limit: int | str | None = None,
    vary: str | Sequence[str] = (),
    wanted: int | None = None,
    confirm: bool | None = None,
    remedies: bool = False,
    what_if: Sequence[str] = (),
    threads: int | None = None,
    **step: Unpack[StepOptions],
) -> FitAnswer:
    """Return the largest batch, or the largest input, of a step on a card or under a limit.

    Args:
        target: A name, or a live Keras model or function, which is captured in this process.
        limit: The allocator's limit, in bytes or such as ``8GiB``; None for the card's or machine's.
        vary: Input axes with an N, such as ``tokens=N``, to find the largest N; empty for the batch.
        wanted: A size to judge.
        confirm: Whether to run the result and its neighbours; None runs them on a simulated card.
        remedies, what_if: Whether to estimate all remedies; the names of those to estimate.
        threads: Threads that one op may use; None for this machine's.
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
        confirm=confirm,
        remedies=tuple(what_if) if remedies or what_if else None,
        threads=threads,
        varied=parse_varied([vary] if isinstance(vary, str) and vary else vary),
    )
    with _access(target) as access:
        return fit_step(access, options, question, lambda stage, share: None)


def fits(
    target: Any,
    size: int,
    *,
    limit: int | str | None = None,
    **step: Unpack[StepOptions],
) -> bool:
    """Say whether a step surely fits with a batch size, by one capture; for search loops.

    True if the upper bound of the need fits the lower bound of the limit, so that a trial that starts
    does not run out of memory.

    The arguments are those of ``fit``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if size < 1:
        raise InputError(f"A batch size of {size} is too small.", hint="Give 1 or more.")
    step["batch_size"] = size
    limit_bytes = parse_bytes(limit) if isinstance(limit, str) else limit
    options = optimize_for(_make_options(step), limit_bytes)
    card = find_smallest_card(options.gpu) if options.gpu else None
    _, bounds = resolve_limit(card, limit_bytes)
    with _access(target) as access:
        estimate = SizeEstimates(access, options).estimate(size)
        return estimate.need_high_bytes <= bounds.range.low


@contextmanager
def _access(target: Any) -> Iterator[StepAccess]:
    """Give access to a named target, or to a live model or function, which can only be captured."""
    if isinstance(target, str | os.PathLike):
        with access_target(parse_target(os.fspath(target))) as access:
            yield access
        return

    def capture(options: CaptureOptions, folder: Path) -> Path:
        return capture_object(target, options, folder)

    name = str(getattr(target, "name", None) or getattr(target, "__name__", "step"))
    with make_workplace() as folder:
        yield StepAccess(name=name, folder=folder, capture=capture)


def _make_options(step: StepOptions) -> CaptureOptions:
    """Return the options of the captures, on a card of the catalogue or the CPU."""
    gpu = step.get("gpu", "")
    step["gpu"] = normalize_cards(gpu) if gpu else ""
    step["device"] = "gpu" if gpu else "cpu"
    return make_options(step)
