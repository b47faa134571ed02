"""Names for the sizes in a log, from a model's tensors.

A dump names no tensor. If a chunk has exactly the bytes of a model's tensor, rounded up to 256, it may
be that tensor. Several tensors may have one size; all are named, long-lived ones first.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from analyzer.model.contract.report.oom_file import OomDocument, OomFailure
from analyzer.model.units import format_bytes
from analyzer.oom.wordings import round_up_request

_MOST_NAMES: Final = 4  # of one size
_LONG_LIVED: Final = (
    "parameter",
    "optimizer_state",
    "input",
    "activation",
    "gradient",
    "constant",
)
_LEAST_BYTES: Final = 1024  # smaller chunks may be any counter, scalar or bias


class ModelTensor(NamedTuple):
    """A tensor of a model."""

    name: str
    category: str
    requested_bytes: int


def add_names(
    document: OomDocument,
    tensors: Iterable[ModelTensor],
    model_name: str,
    *,
    is_target: bool,
) -> OomDocument:
    """Return the document with a model's tensors named next to the sizes."""
    by_size: dict[int, list[ModelTensor]] = defaultdict(list)
    for tensor in tensors:
        by_size[round_up_request(tensor.requested_bytes)].append(tensor)

    names = {size_bytes: _names_of(same) for size_bytes, same in by_size.items()}
    failures = tuple(_add_to_failure(one, names) for one in document.failures)
    command = document.next_command
    if command is not None and is_target:
        command = command.replace("TARGET", shlex.quote(model_name))
    return replace(
        document, failures=failures, matched_with=model_name, next_command=command
    )


def _add_to_failure(
    failure: OomFailure, names: dict[int, tuple[str, ...]]
) -> OomFailure:
    sizes = []
    for row in failure.sizes:
        is_large = row.size_bytes >= _LEAST_BYTES
        sizes.append(
            replace(row, names=names.get(row.size_bytes, ()) if is_large else ())
        )

    sentences = []

    if failure.asked is not None:
        rounded_bytes = failure.asked.rounded_bytes
        if rounded_bytes in names:
            listed = ", ".join(names[rounded_bytes])
            sentences.append(f"The model has tensors of the requested size: {listed}.")

    total = sum(row.total_bytes for row in sizes)
    named = sum(row.total_bytes for row in sizes if row.names)

    if total:
        sentences.append(
            f"{format_bytes(named)} of the {format_bytes(total)} in use ({named / total:.0%}) "
            "have the size of a tensor of the model."
        )
    return replace(failure, sizes=tuple(sizes), matched=tuple(sentences))


def _names_of(tensors: list[ModelTensor]) -> tuple[str, ...]:
    """Return the names of the tensors of one size: each once, the first few."""
    ranks = {category: rank for rank, category in enumerate(_LONG_LIVED)}
    ordered = sorted(tensors, key=lambda one: ranks.get(one.category, len(ranks)))
    words = [f"{one.name} ({one.category.replace('_', ' ')})" for one in ordered]
    names = list(dict.fromkeys(words))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"and {len(names) - _MOST_NAMES:,} more"]
    return tuple(names)
