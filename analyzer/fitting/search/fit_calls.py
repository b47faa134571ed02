"""What a program calls: ``fit``, and ``fits`` for search loops."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.fitting.scaling.fit_answer import FitAnswer as FitAnswer
from analyzer.fitting.scaling.order_playing import play_orders
from analyzer.fitting.scaling.size_lines import LimitRange
from analyzer.fitting.scaling.step_family import StepFamily
from analyzer.fitting.search.fit_target import (
    FitQuestion,
    answered,
    fit_target,
    limited,
    limits_for,
)
from analyzer.fitting.search.step_access import BatchCaptures, StepAccess, access_of, workplace
from analyzer.fitting.search.varied_size import varied_by
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError
from analyzer.model.units import parse_bytes
from analyzer.simulate.predict.representative import LIMIT_MARGIN

_TOLD_BY_CONFIG: Final = frozenset({"Functional", "Sequential"})
"""Keras' classes whose configuration says all of a model; one of the user's own may leave things out."""

_COUNT: Final = re.compile(r"_\d+$")
_MOST_KNOWN: Final = 10_000


@dataclass(slots=True)
class KnownFits:
    """What is known of a step under a limit: below what fits all does, above what does not none does.

    Attributes:
        fitting: The largest batch that is known to fit; 0 for none.
        failing: The smallest that is known not to; None for none.
    """

    fitting: int = 0
    failing: int | None = None

    def of(self, batch_size: int) -> bool | None:
        """Say whether a batch fits; None where it is not known."""
        if batch_size <= self.fitting:
            return True
        if self.failing is not None and batch_size >= self.failing:
            return False
        return None

    def learn(self, batch_size: int, *, holds: bool) -> None:
        """Take note of a batch."""
        if holds:
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
    **options: Any,
) -> FitAnswer:
    """Return the largest batch of a step on a card or under a limit, or the largest input.

    Args:
        target: As for ``estimate``: a name, or a live Keras model or function. A live one
            is captured in this process, and nothing of it runs.
        gpu: The card; empty for the CPU.
        limit: What the allocator may use, bytes or a text such as ``8GiB``; None for the card's own
            limit, or this machine's memory.
        vary: Inputs' axes with an N, ``tokens=N`` or ``32N,32N,3``: the largest N is looked for, at the
            options' batch size. Empty for the largest batch.
        **options: Fields of ``CaptureOptions``, and
            ``wanted``, ``confirm``, ``threads``, ``remedies`` and ``what_if`` of ``FitQuestion``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    names = ("wanted", "confirm", "threads", "remedies", "what_if")
    asked = {key: options.pop(key) for key in names if key in options}
    varied = varied_by([vary] if isinstance(vary, str) and vary else vary)
    question = FitQuestion(limit_bytes=_bytes_of(limit), varied=varied, **asked)
    chosen = _for_card(gpu, options)
    if isinstance(target, str | os.PathLike):
        return fit_target(parse_target(os.fspath(target)), chosen, question)
    with _live_access(target) as access:
        return answered(access, chosen, question, lambda stage, share: None)[0]


def fits(
    target: Any,
    batch_size: int,
    *,
    gpu: str = "",
    limit: int | str | None = None,
    **options: Any,
) -> bool:
    """Say whether a step fits with a batch size: at most one capture, for search loops.

    It fits where every order of ops that is drawn comes to its end with a margin, so that a trial that
    is begun does not run out of memory. A step that XLA compiles is estimated whole. What was found is
    remembered while the process lives: a functional or sequential model of the same configuration is
    not captured again for a batch that an earlier answer tells of.

    Args:
        target: As for ``fit``.
        batch_size: The batch.
        gpu, limit, **options: As for ``fit``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if batch_size < 1:
        raise InputError(f"{batch_size} is no batch size.", hint="Give 1 or more.")
    limit_bytes = _bytes_of(limit)
    chosen = limited(_for_card(gpu, options), limit_bytes)
    card = find_gpu(gpu) if gpu else None
    _, limits = limits_for(card, limit_bytes)
    key = _key(target, chosen, limits)
    known = KnownFits() if key is None else _known.setdefault(key, KnownFits())
    holds = known.of(batch_size)
    if holds is None:
        with _access(target) as access:
            holds = _fits(access, chosen, batch_size, limits)
        known.learn(batch_size, holds=holds)
    if len(_known) > _MOST_KNOWN:
        del _known[next(iter(_known))]
    return holds


def _key(target: Any, options: CaptureOptions, limits: LimitRange) -> str | None:
    """Return what names a step, the way it is made and its limit; None where nothing does for sure."""
    if type(target).__name__ not in _TOLD_BY_CONFIG:
        return None
    try:
        compiled = target.get_compile_config() if target.compiled else None
        plain = [json.loads(target.to_json()), json.loads(json.dumps(compiled))]
        parts = [
            _unnamed(plain, _names(plain)),
            [(list(weight.shape), str(weight.dtype)) for weight in target.weights],
            [weight.trainable for weight in target.weights],
            asdict(replace(options, batch_size=None)),
            limits.three,
        ]
        return json.dumps(parts, sort_keys=True)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None


def _names(plain: Any) -> dict[str, str]:
    """Return names that Keras gave, by place: it numbers those of each model that it makes.

    Args:
        plain: A model's configuration as JSON values.
    """
    names: dict[str, str] = {}
    waiting = [plain]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += reversed(value)
        if not isinstance(value, dict):
            continue
        config = value.get("config")
        name = config.get("name") if isinstance(config, dict) else None
        if isinstance(name, str) and _COUNT.sub("", name) == _snake(str(value.get("class_name"))):
            names.setdefault(name, f"({len(names)})")
        waiting += reversed(list(value.values()))
    return names


def _snake(name: str) -> str:
    """Return a class' name as Keras makes a layer's of it (``keras/src/utils/naming.py``)."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _unnamed(value: Any, names: dict[str, str]) -> Any:
    """Return JSON values with names in the place of which others stand."""
    if isinstance(value, dict):
        return {key: _unnamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_unnamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


@contextmanager
def _access(target: Any) -> Iterator[StepAccess]:
    """Give access to a target: by its name, or a model or function of this process."""
    if isinstance(target, str | os.PathLike):
        with access_of(parse_target(os.fspath(target))) as access:
            yield access
    else:
        with _live_access(target) as access:
            yield access


def _fits(access: StepAccess, options: CaptureOptions, size: int, limits: LimitRange) -> bool:
    captures = BatchCaptures(access, options)
    note = captures.note(size)
    if note.compiled:
        return captures.need(size).high_bytes <= limits.low_bytes
    orders = play_orders(StepFamily((size,), (note,)), (size,), inter_op=options.inter_op_threads)
    careful = int(limits.low_bytes / (1 + LIMIT_MARGIN))
    under = replace(orders.target.options, memory_limit_bytes=careful)
    return all(order.fits(size, under) for order in orders.every)


@contextmanager
def _live_access(target: Any) -> Iterator[StepAccess]:
    """Give access to a model or function of this process, which can be captured and not run."""
    from analyzer.capture.process.live_capture import capture_unrun

    def note(at: CaptureOptions, folder: Path) -> Path:
        return capture_unrun(target, at, folder)

    name = str(getattr(target, "name", None) or getattr(target, "__name__", "step"))
    with workplace() as folder:
        yield StepAccess(name, note, None, folder)


def _bytes_of(limit: int | str | None) -> int | None:
    return parse_bytes(limit) if isinstance(limit, str) else limit


def _for_card(gpu: str, options: dict[str, Any]) -> CaptureOptions:
    card = find_gpu(gpu).id if gpu else ""
    return CaptureOptions(**{"gpu": card, "device": "gpu" if card else "cpu", **options})
