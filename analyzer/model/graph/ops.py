"""Names of ops and tensors, and the attributes that a capture adds to ops."""

from __future__ import annotations

from typing import Final

PLACE: Final = "analyzer_place"
"""Attribute of an op: its position in the graph before oneDNN's pass moved the nodes it rewrote."""

MERGED_PLACE: Final = "analyzer_merged_place"
"""Attribute of an op: the same position of the bias gradient that the pass merged into it."""

LEAST_SHAPES: Final = "analyzer_least_shapes"
"""Attribute of an op: shapes of its outputs with one element, if the data decide the shapes and the
upper bound was taken."""


def split_tensor(tensor: str) -> tuple[str, int]:
    """Return op name and output index of a tensor named ``node:output``."""
    name, _, index = tensor.rpartition(":")
    return (name, int(index)) if name else (tensor, 0)


def op_types(text: str) -> frozenset[str]:
    """Return the set of op types in a text, separated by white space."""
    return frozenset(text.split())


CONVOLUTIONS: Final = op_types(
    """
    Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2
    Conv3DBackpropFilterV2 _FusedConv2D
    """
)
"""Ops that cuDNN computes on a card, with a workspace (a temporary of type ``uint8``)."""
