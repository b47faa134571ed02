"""The functions ``analyzer.fit`` and ``analyzer.fits``."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes
from analyzer.phantom.phantom_environment import find_smallest_card, normalize_cards
from analyzer.session.estimate_captures import capture_object
from analyzer.session.public_calls import collect_options


def fit(
    target: Any,
    *,
    gpu: str = "",
    limit: int | str | None = None,
    vary: str | Sequence[str] = (),
    wanted: int | None = None,
    confirm: bool | None = None,
    remedies: bool = False,
    what_if: Sequence[str] = (),
    threads: int | None = None,
    batch_size: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    mode: str = "",
    optimizer: str = "",
    loss: str = "",
    jit: bool | None = None,
    dtype_policy: str = "",
    inter_op_threads: int | None = None,
    assume: Mapping[str, int] | None = None,
) -> FitAnswer:
    """Return the largest batch, or the largest input, of a step on a card or under a limit.

    Args:
        target: A name, or a live Keras model or function, which is captured in this process.
        gpu: The card; empty for the CPU.
        limit: The allocator's limit, in bytes or such as ``8GiB``; None for the card's or machine's.
        vary: Input axes with an N, such as ``tokens=N``, to find the largest N; empty for the batch.
        wanted: A size to judge.
        confirm: Whether to run the result and its neighbours; None runs them on a simulated card.
        remedies, what_if: Whether to estimate all remedies; the names of those to estimate.
        threads: Threads that one op may use; None for this machine's.
        batch_size: First batch of the search; with ``vary``, the batch. None for 32.
        shapes, mode, optimizer, loss, jit, dtype_policy, inter_op_threads, assume: As for ``estimate``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if batch_size is None and not vary:
        batch_size = wanted
    gpu, device = _find_device(gpu)
    options = collect_options(locals())
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
    batch_size: int,
    *,
    gpu: str = "",
    limit: int | str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    mode: str = "",
    optimizer: str = "",
    loss: str = "",
    jit: bool | None = None,
    dtype_policy: str = "",
    inter_op_threads: int | None = None,
) -> bool:
    """Say whether a step surely fits with a batch size, by one capture; for search loops.

    True if the upper bound of the need fits the lower bound of the limit, so that a trial that starts
    does not run out of memory.

    The arguments are those of ``fit``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if batch_size < 1:
        raise InputError(f"A batch size of {batch_size} is too small.", hint="Give 1 or more.")
    gpu, device = _find_device(gpu)
    limit_bytes = parse_bytes(limit) if isinstance(limit, str) else limit
    options = optimize_for(collect_options(locals()), limit_bytes)
    _, bounds = resolve_limit(find_smallest_card(gpu) if gpu else None, limit_bytes)
    with _access(target) as access:
        return (
            SizeEstimates(access, options).estimate(batch_size).need_high_bytes <= bounds.range.low
        )


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


def _find_device(gpu: str) -> tuple[str, str]:
    """Return the card's name in the catalogue and the device."""
    return (normalize_cards(gpu), "gpu") if gpu else ("", "cpu")
