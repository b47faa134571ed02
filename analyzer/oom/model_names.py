"""Names for the sizes in a log, from a model's tensors.

A dump names no tensor. If a chunk has exactly the bytes of a model's tensor, rounded up to 256, it may
be that tensor. Several tensors may have one size; all are named, long-lived ones first.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from analyzer.model.contract.oom_file import OomDocument, OomFailure
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
    names: dict[int, list[str]] = defaultdict(list)
    ranks = {category: rank for rank, category in enumerate(_LONG_LIVED)}

    for name, category, size_bytes in sorted(
        tensors,
        key=lambda one: ranks.get(one[1], 9),
    ):
        words = f"{name} ({category.replace('_', ' ')})"
        same = names[round_up_request(size_bytes)]
        if words not in same:
            same.append(words)

    command = document.next_command
    if command is not None and is_target:
        command = command.replace("TARGET", shlex.quote(model))

    failures = tuple(_add_to_failure(one, names) for one in document.failures)

    return replace(
        document,
        failures=failures,
        matched_with=model,
        next_command=command,
    )


def _add_to_failure(failure: OomFailure, names: dict[int, list[str]]) -> OomFailure:
    sentences = []
    asked_bytes = failure.asked.rounded_bytes if failure.asked else 0

    if asked_bytes in names:
        listed = ", ".join(names[asked_bytes][:_MOST_NAMES])
        sentences.append(f"The model has tensors of the requested size: {listed}.")

    sizes = []
    total = named = 0

    for row in failure.sizes:
        total += row.total_bytes

        if row.size_bytes >= _LEAST_BYTES and row.size_bytes in names:
            row = replace(row, names=tuple(names[row.size_bytes][:_MOST_NAMES]))
            named += row.total_bytes

        sizes.append(row)

    if total:
        sentences.append(
            f"{format_bytes(named)} of the {format_bytes(total)} in use ({named / total:.0%}) "
            "have the size of a tensor of the model."
        )

    return replace(failure, sizes=tuple(sizes), matched=tuple(sentences))
