"""The functions ``analyzer.fit`` and ``analyzer.fits``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.fitting.estimate_at_size import (
    SizeEstimates,
    StepAccess,
    access_target,
    make_workplace,
    parse_varied,
)
from analyzer.fitting.fit_answer import FitAnswer as FitAnswer
from analyzer.fitting.fit_target import FitQuestion, fit_step, optimize_for, resolve_limit
from analyzer.fitting.size_search import Limit
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes

_CONFIGURED: Final = frozenset({"Functional", "Sequential"})
"""Keras classes whose configuration describes the whole model; a subclass may leave things out."""

_COUNTER: Final = re.compile(r"_\d+$")
_MOST_KNOWN: Final = 10_000  # models that ``fits`` remembers


@dataclass(slots=True)
class KnownFits:
    """Known batch sizes of one step under one limit.

    Attributes:
        fitting: The largest batch known to fit; 0 for none.
        failing: The smallest batch known not to fit; None for none.
    """

    fitting: int = 0
    failing: int | None = None

    def judge(self, batch_size: int) -> bool | None:
        """Say whether a batch fits; None if not known."""
        if batch_size <= self.fitting:
            return True
        if self.failing is not None and batch_size >= self.failing:
            return False
        return None

    def add(self, batch_size: int, *, fits: bool) -> None:
        """Remember a batch."""
        if fits:
            self.fitting = max(self.fitting, batch_size)
        else:
            self.failing = min(self.failing or batch_size, batch_size)


_known: dict[str, KnownFits] = {}


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
    question = FitQuestion(
        limit_bytes=_parse_limit(limit),
        wanted=wanted,
        confirm=confirm,
        remedies=remedies,
        what_if=tuple(what_if),
        threads=threads,
        varied=parse_varied([vary] if isinstance(vary, str) and vary else vary),
    )
    options = replace(
        _options_for(gpu),
        batch_size=wanted if batch_size is None and not vary else batch_size,
        shapes=dict(shapes or {}),
        mode=mode,
        optimizer=optimizer,
        loss=loss,
        jit=jit,
        dtype_policy=dtype_policy,
        inter_op_threads=inter_op_threads,
        assume=dict(assume or {}),
    )
    return _fit(target, options, question)


def _fit(target: Any, options: CaptureOptions, question: FitQuestion) -> FitAnswer:
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
    """Say whether a step surely fits with a batch size; for search loops.

    True if the upper bound of the need fits the lower bound of the limit, so that a trial that starts
    does not run out of memory. Answers are remembered while the process lives: a functional or
    sequential model of the same configuration is captured once for each batch that is not known yet.

    Args:
        target: As for ``fit``.
        batch_size: The batch.
        gpu, limit, shapes, mode, optimizer, loss, jit, dtype_policy, inter_op_threads: As for ``fit``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if batch_size < 1:
        raise InputError(f"A batch size of {batch_size} is too small.", hint="Give 1 or more.")
    limit_bytes = _parse_limit(limit)
    options = replace(
        _options_for(gpu),
        shapes=dict(shapes or {}),
        mode=mode,
        optimizer=optimizer,
        loss=loss,
        jit=jit,
        dtype_policy=dtype_policy,
        inter_op_threads=inter_op_threads,
    )
    options = optimize_for(options, limit_bytes)
    _, bounds = resolve_limit(find_gpu(gpu) if gpu else None, limit_bytes)
    key = _make_key(target, options, bounds)
    known = KnownFits() if key is None else _known.setdefault(key, KnownFits())
    verdict = known.judge(batch_size)
    if verdict is None:
        with _access(target) as access:
            verdict = _fits(access, options, batch_size, bounds)
        known.add(batch_size, fits=verdict)
    if len(_known) > _MOST_KNOWN:
        del _known[next(iter(_known))]
    return verdict


def _fits(access: StepAccess, options: CaptureOptions, batch_size: int, limit: Limit) -> bool:
    return SizeEstimates(access, options).estimate(batch_size).need.high <= limit.low_bytes


def _make_key(target: Any, options: CaptureOptions, limit: Limit) -> str | None:
    """Return a key for a step, its options and its limit; None if the step cannot be identified."""
    if type(target).__name__ not in _CONFIGURED:
        return None
    try:
        compiled = target.get_compile_config() if target.compiled else None
        config = [json.loads(target.to_json()), json.loads(json.dumps(compiled))]
        parts = [
            _replace_names(config, _number_names(config)),
            [(list(weight.shape), str(weight.dtype)) for weight in target.weights],
            [weight.trainable for weight in target.weights],
            asdict(replace(options, batch_size=None)),
            (limit.bytes, limit.low_bytes, limit.high_bytes),
        ]
        return json.dumps(parts, sort_keys=True)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None


def _number_names(config: Any) -> dict[str, str]:
    """Map automatic layer names to positions: Keras continues its numbers from model to model."""
    names: dict[str, str] = {}
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += reversed(value)
        if not isinstance(value, dict):
            continue
        inner = value.get("config")
        name = inner.get("name") if isinstance(inner, dict) else None
        class_name = _to_snake_case(str(value.get("class_name")))
        if isinstance(name, str) and _COUNTER.sub("", name) == class_name:
            names.setdefault(name, f"({len(names)})")
        waiting += reversed(list(value.values()))
    return names


def _to_snake_case(name: str) -> str:
    """Convert a class name as Keras does for layer names (``keras/src/utils/naming.py``)."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _replace_names(value: Any, names: dict[str, str]) -> Any:
    """Return JSON values with each name replaced."""
    if isinstance(value, dict):
        return {key: _replace_names(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_names(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


@contextmanager
def _access(target: Any) -> Iterator[StepAccess]:
    """Give access to a named target, or to a live model or function, which can only be captured."""
    if isinstance(target, str | os.PathLike):
        with access_target(parse_target(os.fspath(target))) as access:
            yield access
        return
    from analyzer.capture.process.live_capture import capture_unrun

    def capture(options: CaptureOptions, folder: Path) -> Path:
        return capture_unrun(target, options, folder)

    name = str(getattr(target, "name", None) or getattr(target, "__name__", "step"))
    with make_workplace() as folder:
        yield StepAccess(name=name, folder=folder, capture=capture)


def _parse_limit(limit: int | str | None) -> int | None:
    return parse_bytes(limit) if isinstance(limit, str) else limit


def _options_for(gpu: str) -> CaptureOptions:
    card = find_gpu(gpu).id if gpu else ""
    return CaptureOptions(gpu=card, device="gpu" if card else "cpu")
