"""Live eager tensors and their holders: after the traced steps, and later if memory grows.

Also containers of the program that collect NumPy arrays or other host data.
"""

from __future__ import annotations

import gc
import inspect
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from msgspec.structs import replace

from analyzer.capture.graph.plain_graphs import get_shape
from analyzer.capture.private_names import is_eager
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.step_variables import find_address
from analyzer.capture.watch.holders.bound_names import NamedHolder, find_bound
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.model.contract.watch_note import HeldTensors, LargeConstant, WatchNote

if TYPE_CHECKING:
    from analyzer.capture.watch.data_ledger import DataLedger
    from analyzer.capture.watch.function_ledger import FunctionLedger
    from analyzer.capture.watch.step_trace import StepTrace


_MAX_GROUPS: Final = 200  # holders of which names are looked for, the largest
_MAX_ADDRESSES: Final = 4000  # noted for one holder
_MAX_SHAPES: Final = 8
_MAX_RESIDENT: Final = 64  # tensors from before the trace whose holders are looked for, the largest
_MAX_LATER: Final = 32  # holders noted by a later check
_FEW: Final = 16  # tensors for one gc.get_referrers call
_MANY: Final = 4  # tensors under an attribute name that count as an attribute of many objects
_MIN_LATER: Final = 3  # tensors of a holder that a later check records
_LARGE_BYTES: Final = 1 << 20  # of old tensors that are noted; of growth that is checked
_TIME_SHARE: Final = 0.005  # largest share of the run time for later checks


def find_live_tensors() -> list[Any]:
    """Return the live eager tensors."""
    return [thing for thing in find_live_objects(tf.Tensor) if is_eager(thing)]


def make_references(tensors: Iterable[Any]) -> dict[int, weakref.ref[Any]]:
    """Return weak references to tensors, by identity."""
    return {id(tensor): weakref.ref(tensor) for tensor in tensors}


def _find_new_tensors(known: dict[int, weakref.ref[Any]]) -> list[Any]:
    return [
        tensor
        for tensor in find_live_tensors()
        if (ref := known.get(id(tensor))) is None or ref() is not tensor
    ]


def count_tensor_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's elements; 0 if they are not numbers."""
    count = tensor.shape.num_elements()
    return 0 if count is None or not tensor.dtype.is_numpy_compatible else count * tensor.dtype.size


def find_holders(tensors: list[Any], frame: types.FrameType | None) -> list[HeldTensors]:
    """Return the holders of tensors, the largest first; ``frame`` is as for ``HolderSearch``."""
    search = HolderSearch(frame)
    groups: dict[int, tuple[tuple[Any, Any], list[Any]]] = {}
    owners = _find_direct_owners(tensors, search)
    for tensor in sorted(tensors, key=count_tensor_bytes, reverse=True):
        for owner in owners.get(id(tensor), ()):
            # Each name in a namespace is a holder of its own.
            key = id(tensor) if search.is_namespace(owner) else id(owner)
            if key in groups or len(groups) < _MAX_GROUPS:
                groups.setdefault(key, ((owner, tensor), []))[1].append(tensor)
    for tensor in tensors:
        if id(tensor) in search.local_names and id(tensor) not in owners:
            groups[id(tensor)] = ((tensor, None), [tensor])
    holders = search.find_all([first for first, _ in groups.values()])
    merged: dict[tuple[str, str], tuple[NamedHolder, dict[int, Any]]] = {}
    for holder, (_, members) in zip(holders, groups.values(), strict=True):
        if holder.words:
            _, known = merged.setdefault((holder.words, holder.where), (holder, {}))
            known.update({id(member): member for member in members})
    rows = [_describe(holder, list(members.values())) for holder, members in merged.values()]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _describe(holder: NamedHolder, members: list[Any]) -> HeldTensors:
    addresses = [address for one in members[:_MAX_ADDRESSES] if (address := find_address(one))]
    shapes = dict.fromkeys(shape for one in members if (shape := get_shape(one)) is not None)
    is_many = not (holder.grows or holder.bound) and len(members) >= _MANY
    return HeldTensors(
        holder=f"{holder.words}, in {len(members)} new objects" if is_many else holder.words,
        where=holder.where,
        count=len(members),
        size_bytes=sum(map(count_tensor_bytes, members)),
        addresses=tuple(addresses),
        shapes=tuple(shapes)[:_MAX_SHAPES],
        grows=holder.grows or is_many,
        by_traceback=holder.by_traceback,
        bound=holder.bound,
        removes=holder.removes,
    )


def _find_direct_owners(tensors: list[Any], search: HolderSearch) -> dict[int, list[Any]]:
    """Return the containers and objects that refer to each tensor directly, by its identity."""
    wanted = {id(tensor) for tensor in tensors}
    owners: dict[int, list[Any]] = {}
    if not wanted:
        return owners
    # The collector compares every reference with every tensor: for many, a set is faster.
    objects = gc.get_referrers(*tensors) if len(tensors) <= _FEW else gc.get_objects()
    ignored = {id(tensors), id(objects)}
    for owner in objects:
        is_running = isinstance(owner, types.FrameType) and not search.is_left(owner)
        if id(owner) not in ignored and not is_running:
            for part in gc.get_referents(owner):
                if id(part) in wanted:
                    owners.setdefault(id(part), []).append(owner)
    return owners


def find_held_objects(trace: StepTrace, functions: FunctionLedger, data: DataLedger) -> WatchNote:
    """Return a note with the objects that are held after the traced steps; the trace is closed."""
    frame = sys._getframe(1)  # not this one: it would hold itself
    made = _find_new_tensors(trace.before)
    tensors = tuple(find_holders(made, frame))
    made_ids = {id(one) for one in made}
    del made
    search = HolderSearch(frame)
    return WatchNote(
        held=tensors,
        on_host=()
        if trace.is_whole  # nothing tells its growth from what it holds
        else find_grown_containers(trace.containers, trace.done, search),
        tapes=tuple(data.list_tapes(search)),
        constants=(*_find_resident(trace, made_ids), *functions.list_constants()),
    )


def _find_resident(trace: StepTrace, made: set[int]) -> list[LargeConstant]:
    """Return the large tensors that existed through all traced steps, and name them in ``trace``."""
    old = (tensor for tensor in find_live_tensors() if id(tensor) not in made)
    large = sorted(old, key=count_tensor_bytes, reverse=True)[:_MAX_RESIDENT]
    dtypes = {find_address(tensor): tensor.dtype.name for tensor in large}
    rows = find_holders(large, inspect.currentframe())
    names = {address: row.holder for row in rows for address in row.addresses}
    for key, one in trace.resident.items():
        if one.address in names:
            trace.resident[key] = replace(one, name=names[one.address])
    known: set[int] = set()
    constants = []
    for row in sorted(rows, key=lambda one: (one.grows, -one.size_bytes)):
        # Not the tensors that another name or a larger holder also holds.
        is_new = not row.addresses or not known.issuperset(row.addresses)
        if is_new and row.size_bytes >= _LARGE_BYTES:
            known.update(row.addresses)
            constants.append(
                LargeConstant(
                    kind="held",
                    where=row.where,
                    dtype=dtypes.get(next(iter(row.addresses), -1), ""),
                    shape=next(iter(row.shapes), None),
                    size_bytes=row.size_bytes,
                    name=row.holder,
                    copies=row.count,
                )
            )
    return constants


class GrowthCheck:
    """Finds containers that grow once an epoch rather than once a step.

    The check walks all Python objects. So it runs only if memory has grown, and each time after twice as
    many steps. ``held`` and ``step`` are the containers and the number of steps of the latest check.
    """

    def __init__(self, step: int, in_use_bytes: int) -> None:
        self._before = make_references(find_live_tensors())
        self._base_bytes = in_use_bytes
        self._next_step, self._next_s = 2 * step, 0.0
        self.held: tuple[HeldTensors, ...] = ()
        self.step = step

    def look(
        self, step: int, in_use_bytes: int, frame: types.FrameType | None, *, is_last: bool
    ) -> None:
        """Look for containers if more is in use than at the end of the trace.

        ``frame`` is the innermost frame whose local names are searched. Before the last step, some steps
        and time pass between two checks.
        """
        is_due = is_last or (step >= self._next_step and time.perf_counter() >= self._next_s)
        if not is_due or in_use_bytes - self._base_bytes < _LARGE_BYTES:
            return
        began_s = time.perf_counter()
        rows = [
            row
            for row in find_holders(_find_new_tensors(self._before), frame)
            if (row.grows or row.bound) and row.count >= _MIN_LATER
        ]
        if rows or not self.held:  # after the program's end, its functions' names are gone
            self.held, self.step = tuple(rows[:_MAX_LATER]), step
        now_s = time.perf_counter()
        self._next_step, self._next_s = 2 * step, now_s + (now_s - began_s) / _TIME_SHARE


_MIN_ENTRY_BYTES: Final = 4096  # smaller entries take a million steps to matter
_MAX_FILLED: Final = 1 << 16  # entries; C code never fills a longer list entry by entry
_MAX_DEPTH: Final = 3  # of containers in containers
_MAX_PARTS: Final = 16  # of a container that are counted
_MAX_CONTAINERS: Final = 32  # that are reported


def count_host_containers() -> dict[int, int]:
    """Return the length of each container with large entries, by identity."""
    return {id(one): len(one) for one in _list_candidates()}


def find_grown_containers(
    before: Mapping[int, int], steps: int, search: HolderSearch
) -> tuple[HeldTensors, ...]:
    """Return the containers that got at least one entry a step, the largest growth first."""
    grown = []
    for one in _list_candidates():
        added = len(one) - before.get(id(one), 0)
        if added >= max(steps, 2):
            grown.append((added * _count_entry_bytes(one), added, one))
    grown.sort(key=lambda row: -row[0])
    holders = search.find_all([(one, None) for *_, one in grown[:_MAX_CONTAINERS]])
    return tuple(
        HeldTensors(
            holder=holder.words,
            where=holder.where,
            count=added,
            size_bytes=size_bytes,
            removes=holder.removes,
        )
        for (size_bytes, added, _), holder in zip(grown, holders, strict=False)
        if holder.words and holder.grows
    )


def _list_candidates() -> list[Any]:
    containers = [one for one in gc.get_objects() if type(one) in (list, dict, set, deque)]
    return [
        one
        for one in containers
        if one and not find_bound(one) and _count_entry_bytes(one) >= _MIN_ENTRY_BYTES
    ]


def _count_entry_bytes(container: Any) -> int:
    """Return the bytes of the last entry, of any entry for a set; 0 if there is none."""
    try:
        if type(container) is list:
            is_filled = len(container) > _MAX_FILLED
            return count_host_bytes((container[-1:] if is_filled else _list_parts(container))[0])
        values = container.values() if type(container) is dict else container
        last = iter(values) if type(container) is set else reversed(values)
        return count_host_bytes(next(last))
    except (IndexError, KeyError, StopIteration, RuntimeError):  # another thread changes it
        return 0


def _list_parts(container: Any) -> list[Any]:
    """Return the objects that a list or tuple refers to, from the last one on.

    C code may still be filling the container, and reading an empty entry crashes the process.
    """
    return gc.get_referents(container)


def count_host_bytes(thing: Any, depth: int = _MAX_DEPTH) -> int:
    """Return the bytes of the arrays, bytes and texts in an entry of a container."""
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if type(thing) in (bytes, bytearray, str):
        return sys.getsizeof(thing)
    if depth and type(thing) in (tuple, list, dict):
        parts = thing.values() if type(thing) is dict else _list_parts(thing)
        return sum(count_host_bytes(part, depth - 1) for part in islice(parts, _MAX_PARTS))
    return 0
