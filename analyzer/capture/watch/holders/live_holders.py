"""Live eager tensors, and what in the user's program holds them, with the line that puts them there."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterable
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_shape
from analyzer.capture.private_names import is_eager
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.tensor_addresses import find_address
from analyzer.capture.watch.holders.holder_search import HolderSearch, NamedHolder
from analyzer.model.contract.watch_note import HeldTensors

_GROUPS: Final = 200
"""Holders that are told of, the largest first."""

_ADDRESSES: Final = 4000
"""Addresses noted of one holder."""

_FEW: Final = 16

_MANY: Final = 4
"""Tensors that one attribute's name leads to from which on there are as many objects of its class."""


def find_live_tensors() -> list[Any]:
    """Return the eager tensors that are alive and have bytes."""
    return [thing for thing in find_live_objects(tf.Tensor) if is_eager(thing)]


def references(tensors: Iterable[Any]) -> dict[int, weakref.ref[Any]]:
    """Return weak references to tensors by their identity."""
    return {id(tensor): weakref.ref(tensor) for tensor in tensors}


def find_new_tensors(known: dict[int, weakref.ref[Any]]) -> list[Any]:
    """Return the live tensors that are none of those known."""
    return [
        tensor
        for tensor in find_live_tensors()
        if (ref := known.get(id(tensor))) is None or ref() is not tensor
    ]


def find_holders(tensors: list[Any], frame: types.FrameType | None) -> list[HeldTensors]:
    """Return who holds tensors, those that hold most first.

    Args:
        tensors: The tensors.
        frame: The innermost frame of the stack whose local names are looked at.
    """
    search = HolderSearch(frame)
    ignored = {id(tensors)}
    groups: dict[int, tuple[tuple[Any, Any], list[Any]]] = {}
    owners = _direct_owners(tensors, ignored, search)
    for tensor in sorted(
        tensors, key=count_tensor_bytes, reverse=True
    ):  # the largest are told of first
        for owner in owners.get(id(tensor), ()):
            # A namespace holds many names, each for something of its own.
            key = id(tensor) if search.is_namespace(owner) else id(owner)
            if key in groups or len(groups) < _GROUPS:
                groups.setdefault(key, ((owner, tensor), []))[1].append(tensor)
    for tensor in tensors:
        if id(tensor) in search.local_names and id(tensor) not in owners:
            groups[id(tensor)] = ((tensor, None), [tensor])
    found = search.of_all([first for first, _ in groups.values()])
    merged: dict[tuple[str, str], tuple[NamedHolder, dict[int, Any]]] = {}
    for holder, (_, members) in zip(found, groups.values(), strict=True):
        if holder.words:
            _, known = merged.setdefault((holder.words, holder.where), (holder, {}))
            known.update({id(member): member for member in members})
    rows = [_row(holder, list(members.values())) for holder, members in merged.values()]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _row(holder: NamedHolder, members: list[Any]) -> HeldTensors:
    sizes = {id(one): count_tensor_bytes(one) for one in members}
    addresses = [address for one in members[:_ADDRESSES] if (address := find_address(one))]
    shapes: list[tuple[int, ...]] = []
    for one in members:
        shape = get_shape(one)
        if shape is not None and shape not in shapes and len(shapes) < 8:
            shapes.append(shape)
    is_many = not holder.grows and len(members) >= _MANY
    return HeldTensors(
        holder=f"{holder.words}, in {len(members)} new objects" if is_many else holder.words,
        where=holder.where,
        count=len(members),
        size_bytes=sum(sizes.values()),
        addresses=tuple(addresses),
        shapes=tuple(shapes),
        grows=holder.grows or is_many,
        by_traceback=holder.by_traceback,
    )


def count_tensor_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's elements; 0 where they are no plain numbers."""
    count = tensor.shape.num_elements()
    return 0 if count is None or not tensor.dtype.is_numpy_compatible else count * tensor.dtype.size


def _direct_owners(
    tensors: list[Any], ignored: set[int], search: HolderSearch
) -> dict[int, list[Any]]:
    """Return for each tensor the containers and objects that refer to it directly.

    Args:
        tensors: The tensors.
        ignored: Identities of objects of ours.
        search: Knows the frames that an exception holds.
    """
    wanted = {id(tensor) for tensor in tensors}
    if not wanted:
        return {}
    owners: dict[int, list[Any]] = {}
    # The collector compares every reference with every tensor: for many, a set is quicker.
    objects = gc.get_referrers(*tensors) if len(tensors) <= _FEW else gc.get_objects()
    ignored.add(id(objects))
    for owner in objects:
        if id(owner) in ignored:
            continue
        if isinstance(owner, types.FrameType) and not search.is_left(owner):
            continue
        for part in gc.get_referents(owner):
            if id(part) in wanted:
                owners.setdefault(id(part), []).append(owner)
    return owners
