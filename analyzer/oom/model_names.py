"""Names for the sizes in a log, from a model's tensors.

A dump names no tensor. If a chunk has exactly the bytes of a model's tensor, rounded up to 256, it may
be that tensor. Several tensors may have one size; all are named, long-lived ones first.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

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

ModelTensor = tuple[str, str, int]  # name, category and bytes


def add_names(
    document: OomDocument,
    tensors: Iterable[ModelTensor],
    model: str,
    *,
    is_target: bool,
) -> OomDocument:
    """Return the document with a model's tensors named next to the sizes.

    ``is_target``: the model is a target, which the next command can use.
    """
    by_size: dict[int, dict[str, int]] = defaultdict(dict)
    for name, category, size_bytes in tensors:
        rank = len(_LONG_LIVED)
        if category in _LONG_LIVED:
            rank = _LONG_LIVED.index(category)

        words = f"{name} ({category.replace('_', ' ')})"
        by_size[round_up_request(size_bytes)].setdefault(words, rank)

    failures = tuple(_add_to_failure(one, by_size) for one in document.failures)
    command = document.next_command
    if command is not None and is_target:
        command = command.replace("TARGET", shlex.quote(model))
    return replace(
        document, failures=failures, matched_with=model, next_command=command
    )


def _add_to_failure(
    failure: OomFailure, by_size: dict[int, dict[str, int]]
) -> OomFailure:
    sentences = []
    asked = failure.asked
    if asked is not None and asked.rounded_bytes in by_size:
        listed = ", ".join(_list_names(by_size[asked.rounded_bytes]))
        sentences.append(f"The model has tensors of the requested size: {listed}.")

    sizes = []
    named = 0

    for row in failure.sizes:
        if row.size_bytes >= _LEAST_BYTES and row.size_bytes in by_size:
            row = replace(row, names=_list_names(by_size[row.size_bytes]))
            named += row.total_bytes
        sizes.append(row)

    total = sum(row.total_bytes for row in sizes)

    if total:
        sentences.append(
            f"{format_bytes(named)} of the {format_bytes(total)} in use ({named / total:.0%}) "
            "have the size of a tensor of the model."
        )
    return replace(failure, sizes=tuple(sizes), matched=tuple(sentences))


def _list_names(ranks: dict[str, int]) -> tuple[str, ...]:
    """Return the first few names of one size, long-lived tensors first."""
    names = sorted(ranks, key=lambda name: ranks[name])
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"and {len(names) - _MOST_NAMES:,} more"]
    return tuple(names)
