"""Chunks of a dump matched to a model's own tensors, by their sizes.

A dump names no tensor. A model's trace or estimate does: where a chunk has exactly the bytes that a
tensor of the model takes, rounded up to 256, that is what it may be. Several tensors may have one
size; all are named, those that live long first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from analyzer.model.contract.report.oom_file import OomDocument, OomFailure, OomSize
from analyzer.model.units import format_bytes
from analyzer.oom.amounts import rounded_up

_MOST_NAMES: Final = 4  # tensors named for one size
_LONG_LIVED: Final = ("parameter", "optimizer_state", "input", "activation", "gradient", "constant")
_ORDER: Final = {category: place for place, category in enumerate(_LONG_LIVED)}
_LEAST_BYTES: Final = 1024
"""Chunks of less are of counters, scalars and biases alike, and named by none."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of a model.

    Attributes:
        name: Its name, or that of its op.
        layer: The layer; empty where it has none.
        category: Parameter, activation and so on.
        op: The op that makes it; empty for variables and inputs.
        requested_bytes: Its bytes.
    """

    name: str
    layer: str
    category: str
    op: str
    requested_bytes: int


def with_names(
    document: OomDocument, tensors: Iterable[ModelTensor], matched_with: str
) -> OomDocument:
    """Return the document with the model's tensors named beside the sizes.

    Args:
        document: The account of a log.
        tensors: The model's tensors, the variables among them.
        matched_with: What to call the model.
    """
    by_size: dict[int, list[ModelTensor]] = {}
    by_op: dict[str, list[ModelTensor]] = {}
    for tensor in tensors:
        by_size.setdefault(rounded_up(tensor.requested_bytes), []).append(tensor)
        by_op.setdefault(tensor.op, []).append(tensor)
    failures = tuple(_named(failure, by_size, by_op) for failure in document.failures)
    return msgspec.structs.replace(document, failures=failures, matched_with=matched_with)


def _named(
    failure: OomFailure,
    by_size: dict[int, list[ModelTensor]],
    by_op: dict[str, list[ModelTensor]],
) -> OomFailure:
    sizes = tuple(
        msgspec.structs.replace(row, names=_names(by_size.get(row.size_bytes, ())))
        if row.size_bytes >= _LEAST_BYTES
        else row
        for row in failure.sizes
    )
    told = [*_of_the_request(failure, by_size, by_op), *_of_what_is_in_use(failure, sizes)]
    return msgspec.structs.replace(failure, sizes=sizes, matched=tuple(told))


def _names(tensors: Sequence[ModelTensor]) -> tuple[str, ...]:
    """Return how the tensors of one size are called: each once, the first few by name."""
    ordered = sorted(tensors, key=lambda tensor: _ORDER.get(tensor.category, len(_ORDER)))
    names = list(dict.fromkeys(map(_called, ordered)))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"and {len(names) - _MOST_NAMES:,} more"]
    return tuple(names)


def _called(tensor: ModelTensor) -> str:
    return f"{tensor.name} ({tensor.category.replace('_', ' ')})"


def _of_the_request(
    failure: OomFailure,
    by_size: dict[int, list[ModelTensor]],
    by_op: dict[str, list[ModelTensor]],
) -> list[str]:
    asked = failure.asked
    told: list[str] = []
    if asked is None:
        return told
    same = by_size.get(asked.rounded_bytes, [])
    if same:
        told.append(f"The model has tensors of the asked size: {', '.join(_names(same))}.")
    own = _of_op(failure, by_op)
    if own and not any(tensor in same for tensor in own):
        largest = max(own, key=lambda tensor: tensor.requested_bytes)
        told.append(
            f"The op {largest.op} asks for {format_bytes(largest.requested_bytes)} in the model as "
            f"given here, and asked for {format_bytes(asked.requested_bytes)} in the log: another "
            "batch size, shape or type."
        )
    return told


def _of_op(failure: OomFailure, by_op: dict[str, list[ModelTensor]]) -> list[ModelTensor]:
    """Return the tensors of the op that failed, by its name without the calls around it."""
    for name in (failure.op, failure.requested_by):
        rest = name or ""
        while rest:
            if rest in by_op:
                return by_op[rest]
            rest = rest.partition("/")[2]
    return []


def _of_what_is_in_use(failure: OomFailure, sizes: Sequence[OomSize]) -> list[str]:
    named = sum(row.total_bytes for row in sizes if row.names)
    total = sum(row.total_bytes for row in sizes)
    if not total:
        return []
    share = named / total
    return [
        f"{format_bytes(named)} of the {format_bytes(total)} in use ({share:.0%}) have the sizes of "
        "tensors of the model."
    ]
