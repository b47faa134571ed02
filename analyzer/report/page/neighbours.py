"""The part of the graph for the page: the producer and the readers of the largest tensors.

The whole graph has tens of thousands of nodes. The page has only the tensors with the largest product
of bytes and lifetime. The time of an op is known if it requested a buffer; other uses are unknown.
"""

from __future__ import annotations

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

    Readers of tensor ``i`` are ``consumers[consumer_offsets[i]:consumer_offsets[i + 1]]``.

    Attributes:
        ops: Rows ``[name, type, layer, source]``; ``producers`` and ``consumers`` are places in it.
        producers: Place of each tensor's producer plus one; 0 if it has none.
        uses, use_offsets: The known reading states of each *buffer* of the table.
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
    places: dict[str, int] = {}

    def place(op: str) -> int:
        if op not in places:
            places[op] = len(places)
            around.ops.append([op, *ends.facts.get(op, ("", "", ""))])
        return places[op]

    weight = table["requested_bytes"] * (table["dies"] - table["born"]).clip(lower=1)
    by_tensor = weight.groupby(table["tensor"].astype(str).to_numpy(dtype=object)).sum()
    for name in map(str, by_tensor.drop("", errors="ignore").nlargest(MAX_TENSORS).index):
        maker, readers = ends.makers.get(name), ends.readers.get(name, [])
        if maker is None and not readers:
            continue
        around.tensors.append(name)
        around.producers.append(0 if maker is None else place(maker) + 1)
        around.consumers += [place(op) for op in readers[:MAX_CONSUMERS]]
        around.consumer_offsets.append(len(around.consumers))
    _add_uses(ends, table, around)
    return around


def _add_uses(ends: TensorLinks, table: pd.DataFrame, around: Neighbours) -> None:
    """Add the states at which each buffer of a chosen tensor is read."""
    taken = set(around.tensors)
    births = {
        str(op): np.sort(states.to_numpy(dtype=np.int64))
        for op, states in (table["born"] + 1).groupby(
            table["op"].astype(str).to_numpy(dtype=object)
        )
    }
    around.use_offsets = [0]
    rows = zip(table["tensor"].astype(str), table["born"] + 1, table["dies"] + 1, strict=True)
    for name, born, dies in rows:
        readers = ends.readers.get(name, [])[:MAX_CONSUMERS] if name in taken else []
        ran = [births[op] for op in readers if op in births]
        uses = {int(at) for states in ran for at in states[(states >= born) & (states <= dies)]}
        around.uses += sorted(uses)[:MAX_USES]
        around.use_offsets.append(len(around.uses))
