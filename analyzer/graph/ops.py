"""Ops and tensors as plain data: what capture hands over and everything else reads.

An op is written as TensorFlow writes a node: ``inputs`` name tensors as ``node:output``. Nothing here
needs TensorFlow, so a graph can be saved beside its trace and read anywhere.
"""

from __future__ import annotations

from typing import Final

from analyzer.contract.graph import Op, TensorSpec
from analyzer.contract.sizes import ITEM_BYTES

__all__ = ["ITEM_BYTES", "MERGED_PLACE", "PLACE", "Op", "TensorSpec", "split_tensor"]

PLACE: Final = "analyzer_place"
"""Attribute of an op: its place in the graph before oneDNN's pass moved the nodes that it rewrote."""

MERGED_PLACE: Final = "analyzer_merged_place"
"""The same of the bias' gradient that the pass merged into a filter's."""


LEAST_SHAPES: Final = "analyzer_least_shapes"
"""The same: shapes of its outputs with one element where the data decide and the most was taken."""


def split_tensor(tensor: str) -> tuple[str, int]:
    """Return the op's name and the output's index of a tensor named ``node:output``."""
    name, _, index = tensor.rpartition(":")
    return (name, int(index)) if name else (tensor, 0)
