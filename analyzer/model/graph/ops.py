"""Names of ops and tensors, and the attributes that a capture adds to an op.

An op is written as TensorFlow writes a node: ``inputs`` name tensors as ``node:output``.
"""

from __future__ import annotations

from typing import Final

PLACE: Final = "analyzer_place"
"""Attribute of an op: its place in the graph before oneDNN's pass moved the nodes that it rewrote."""

MERGED_PLACE: Final = "analyzer_merged_place"
"""The place, likewise, of the bias' gradient that the pass merged into a filter's."""


LEAST_SHAPES: Final = "analyzer_least_shapes"
"""Attribute of an op: shapes of its outputs with one element, where the data decide and the most was
taken."""


def split_tensor(tensor: str) -> tuple[str, int]:
    """Return the op's name and the output's index of a tensor named ``node:output``."""
    name, _, index = tensor.rpartition(":")
    return (name, int(index)) if name else (tensor, 0)


def op_types(text: str) -> frozenset[str]:
    """Return the op types that a text names, set apart by white space."""
    return frozenset(text.split())
