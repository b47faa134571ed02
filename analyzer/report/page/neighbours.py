"""The part of the graph for the page: the producer and the readers of the largest tensors.

The whole graph has tens of thousands of nodes. The page has only the tensors with the largest product
of bytes and lifetime. The time of an op is known if it requested a buffer; other uses are unknown.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.recording.records import TensorLinks

MAX_TENSORS: Final = 2_000  # whose neighbours the page holds
MAX_CONSUMERS: Final = 32  # of one tensor
MAX_USES: Final = 24  # of one buffer


@dataclass
class Neighbours:
    """Tensors with their ops, as ragged columns.

    Attributes:
        ops: Rows ``[name, type, layer, source]``; ``producers`` and ``consumers`` are places in it.
        tensors: Names of the tensors.
        producers: Place of each tensor's producer plus one; 0 if it has none.
        consumers, consumer_offsets: Readers of tensor ``i`` are
            ``consumers[consumer_offsets[i]:consumer_offsets[i + 1]]``.
        uses, use_offsets: The same for the known reading states of each *buffer* of the table.
    """

    ops: list[list[str]] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    producers: list[int] = field(default_factory=list)
    consumers: list[int] = field(default_factory=list)
    consumer_offsets: list[int] = field(default_factory=lambda: [0])
    uses: list[int] = field(default_factory=list)
    use_offsets: list[int] = field(default_factory=list)


def neighbours(ends: TensorLinks | None, table: pd.DataFrame) -> Neighbours:
    """Return the neighbours of the largest tensors of ``table``; empty without a graph."""
    around = Neighbours()
    if ends is None or table.empty:
        return around
    op_places: dict[str, int] = {}
    for name in _heaviest(table):
        maker, readers = ends.makers.get(name), ends.readers.get(name, [])
        if maker is None and not readers:
            continue
        around.tensors.append(name)
        around.producers.append(0 if maker is None else _place(ends, around, op_places, maker) + 1)
        around.consumers += [_place(ends, around, op_places, op) for op in readers[:MAX_CONSUMERS]]
        around.consumer_offsets.append(len(around.consumers))
    _add_uses(ends, table, around)
    return around


def _heaviest(table: pd.DataFrame) -> list[str]:
    weight = table["requested_bytes"] * (table["dies"] - table["born"]).clip(lower=1)
    named = table["tensor"].astype(str)
    by_tensor = weight.groupby(named.to_numpy(dtype=object)).sum()
    by_tensor = by_tensor[by_tensor.index != ""]
    return [str(name) for name in by_tensor.sort_values(ascending=False).index[:MAX_TENSORS]]


def _place(ends: TensorLinks, around: Neighbours, places: dict[str, int], op: str) -> int:
    known = places.get(op)
    if known is None:
        known = places[op] = len(around.ops)
        around.ops.append([op, *ends.facts.get(op, ("", "", ""))])
    return known


def _add_uses(ends: TensorLinks, table: pd.DataFrame, around: Neighbours) -> None:
    """Add the states at which each buffer of a chosen tensor is read."""
    taken = set(around.tensors)
    births = {
        str(op): np.sort(states.to_numpy(dtype=np.int64)).tolist()
        for op, states in (table["born"] + 1).groupby(
            table["op"].astype(str).to_numpy(dtype=object)
        )
    }
    around.use_offsets = [0]
    rows = zip(table["tensor"].astype(str), table["born"] + 1, table["dies"] + 1, strict=True)
    for name, born, dies in rows:
        if name in taken:
            around.uses += _uses_between(ends.readers.get(name, []), births, int(born), int(dies))
        around.use_offsets.append(len(around.uses))


def _uses_between(
    readers: list[str], births: dict[str, list[int]], born: int, dies: int
) -> list[int]:
    uses: set[int] = set()
    for op in readers[:MAX_CONSUMERS]:
        ran = births.get(op, [])
        first = bisect_left(ran, born)
        uses.update(state for state in ran[first : first + MAX_USES] if state <= dies)
    return sorted(uses)[:MAX_USES]
