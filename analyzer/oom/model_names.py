"""Names for the sizes of a log, from the tensors of a model.

A dump names no tensor. If a chunk has exactly the bytes of a model's tensor, rounded up to 256, it may
be that tensor. Several tensors may have one size; all are named, long-lived ones first.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from analyzer.model.contract.report.oom_file import OomDocument, OomFailure
from analyzer.model.graph.graph_index import find_inlined
from analyzer.model.ranges import Range
from analyzer.oom.log_records import round_up_request
from analyzer.oom.log_texts import write_sentence

_MOST_NAMES: Final = 4  # of one size
_LONG_LIVED: Final = ("parameter", "optimizer_state", "input", "activation", "gradient", "constant")
_LEAST_BYTES: Final = 1024  # smaller chunks may be any counter, scalar or bias


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of a model; ``op`` is empty for variables and inputs."""

    name: str
    category: str
    op: str
    requested_bytes: int


Tensors = dict[str, list[ModelTensor]]


def add_names(
    document: OomDocument, tensors: Iterable[ModelTensor], model_name: str, *, is_target: bool
) -> OomDocument:
    """Return the document with a model's tensors named next to the sizes."""
    by_size: dict[int, list[ModelTensor]] = defaultdict(list)
    by_op: Tensors = defaultdict(list)
    for tensor in tensors:
        by_size[round_up_request(tensor.requested_bytes)].append(tensor)
        by_op[tensor.op].append(tensor)
    names = {size_bytes: _names_of(same) for size_bytes, same in by_size.items()}
    failures = tuple(_add_to_failure(one, names, by_op) for one in document.failures)
    command = document.next_command
    if command is not None and is_target:
        command = command.replace("TARGET", shlex.quote(model_name))
    return replace(document, failures=failures, matched_with=model_name, next_command=command)


def _add_to_failure(
    failure: OomFailure, names: dict[int, tuple[str, ...]], by_op: Tensors
) -> OomFailure:
    sizes = tuple(
        replace(row, names=names.get(row.size_bytes, ()) if row.size_bytes >= _LEAST_BYTES else ())
        for row in failure.sizes
    )
    sentences = []
    if failure.asked is not None:
        rounded_bytes, there = failure.asked.rounded_bytes, failure.asked.requested_bytes
        if rounded_bytes in names:
            listed = ", ".join(names[rounded_bytes])
            sentences.append(write_sentence("model", "same_size", names=listed))
        ops = filter(None, (failure.op, failure.requested_by))
        own = next((found for name in ops if (found := find_inlined(name, by_op))), [])
        if own and all(round_up_request(one.requested_bytes) != rounded_bytes for one in own):
            largest = max(own, key=lambda tensor: tensor.requested_bytes)
            here = Range.exactly(largest.requested_bytes)
            values = {"op": largest.op, "here": here, "there": Range.exactly(there)}
            sentences.append(write_sentence("model", "other_size", **values))
    if total := sum(row.total_bytes for row in sizes):
        known = sum(row.total_bytes for row in sizes if row.names)
        figures = {"named": Range.exactly(known), "total": Range.exactly(total)}
        sentences.append(write_sentence("model", "share", share=known / total, **figures))
    return replace(failure, sizes=sizes, matched=tuple(sentences))


def _names_of(tensors: Sequence[ModelTensor]) -> tuple[str, ...]:
    """Return the names of the tensors of one size: each once, the first few."""
    ranks = {category: rank for rank, category in enumerate(_LONG_LIVED)}
    ordered = sorted(tensors, key=lambda one: ranks.get(one.category, len(ranks)))
    names = list(dict.fromkeys(f"{one.name} ({one.category.replace('_', ' ')})" for one in ordered))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"and {len(names) - _MOST_NAMES:,} more"]
    return tuple(names)
