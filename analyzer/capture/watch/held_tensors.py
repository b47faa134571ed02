"""Live eager tensors and their holders: after the traced steps, and later if memory grows."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from msgspec.structs import replace as replace_fields

from analyzer.capture.graph.plain_graphs import count_bytes, get_shape
from analyzer.capture.private_names import is_eager
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.step_variables import find_address
from analyzer.capture.watch.holder_search import HolderSearch
from analyzer.capture.watch.program_objects import find_grown_containers
from analyzer.model.contract.run_note import HeldTensors, LargeConstant, WatchNote

if TYPE_CHECKING:
    from analyzer.capture.watch.program_objects import ProgramObjects
    from analyzer.capture.watch.step_trace import StepTrace
    from analyzer.capture.watch.traced_functions import FunctionLedger

_MAX_ADDRESSES = 4000  # noted for one holder
_MAX_SHAPES = 8

# tensors from before the trace whose holders are looked for, the largest
_MAX_RESIDENT = 64
_MAX_LATER = 32  # holders noted by a later check

# tensors under an attribute name that count as an attribute of many objects
_MANY = 4
_MIN_LATER = 3  # tensors of a holder that a later check records

# of old tensors that are noted; of growth that is checked
_LARGE_BYTES = 1 << 20


def find_live_tensors() -> list[Any]:
    """Return the live eager tensors."""
    return [thing for thing in find_live_objects(tf.Tensor) if is_eager(thing)]


def make_references(tensors: Iterable[Any]) -> dict[int, weakref.ref[Any]]:
    """Return weak references to tensors, by identity."""
    return {id(tensor): weakref.ref(tensor) for tensor in tensors}


def _find_new_tensors(known: dict[int, weakref.ref[Any]]) -> list[Any]:
    new = []
    for tensor in find_live_tensors():
        reference = known.get(id(tensor))
        if reference is None or reference() is not tensor:
            new.append(tensor)

    return new


def find_holders(tensors: list[Any], search: HolderSearch) -> list[HeldTensors]:
    """Return the holders of tensors, the largest first."""
    found: dict[tuple[str, str], HeldTensors] = {}
    members: dict[tuple[str, str], list[Any]] = {}
    holders = search.find_all(tensors)

    for tensor in tensors:
        rows = holders.get(id(tensor), ())
        names = {(holder.holder, holder.where): holder for holder in rows}
        found |= names

        for name in names:
            members.setdefault(name, []).append(tensor)

    described = [_describe(found[name], held) for name, held in members.items()]
    return sorted(described, key=lambda row: -row.size_bytes)


def _describe(holder: HeldTensors, members: list[Any]) -> HeldTensors:
    addresses = filter(None, map(find_address, members[:_MAX_ADDRESSES]))
    shapes = dict.fromkeys(map(get_shape, members))
    shapes.pop(None, None)
    count = len(members)

    is_many = not (holder.grows or holder.bound) and count >= _MANY

    return replace_fields(
        holder,
        grows=holder.grows or is_many,
        count=count,
        size_bytes=sum(map(count_bytes, members)),
        addresses=tuple(addresses),
        shapes=tuple(shapes)[:_MAX_SHAPES],
    )


def find_held_objects(
    trace: StepTrace,
    functions: FunctionLedger,
    made: ProgramObjects,
) -> WatchNote:
    """Return a note with the objects that are held after the traced steps; the trace is closed."""
    search = HolderSearch(sys._getframe(1))
    tensors = _find_new_tensors(trace.before)
    held = find_holders(tensors, search)
    on_host: list[HeldTensors] = []

    if not trace.is_whole:  # else nothing tells its growth from what it holds
        on_host = find_grown_containers(trace.containers, trace.done, search)

    resident = _find_resident(trace, {id(one) for one in tensors}, search)

    return WatchNote(
        held=tuple(held),
        on_host=tuple(on_host),
        tapes=tuple(made.list_tapes(search)),
        constants=(*resident, *functions.list_constants()),
    )


def _find_resident(
    trace: StepTrace,
    made: set[int],
    search: HolderSearch,
) -> list[LargeConstant]:
    """Return the large tensors that existed through all traced steps, and name them in ``trace``."""
    old = [tensor for tensor in find_live_tensors() if id(tensor) not in made]
    old.sort(key=count_bytes, reverse=True)
    del old[_MAX_RESIDENT:]
    dtypes = {find_address(tensor): tensor.dtype.name for tensor in old}

    rows = find_holders(old, search)
    rows += _find_copies(old, rows, search)
    names: dict[int, str] = {}

    for row in sorted(rows, key=lambda one: not one.grows):  # plain names are last
        names |= dict.fromkeys(row.addresses, row.holder)

    for key, one in trace.resident.items():
        if one.address in names:
            trace.resident[key] = replace_fields(one, name=names[one.address])

    known: set[int] = set()
    constants = []

    for row in sorted(rows, key=lambda one: (one.grows, -one.size_bytes)):
        # Not the tensors that another name or a larger holder also holds.
        is_known = bool(row.addresses) and known.issuperset(row.addresses)
        if is_known or row.size_bytes < _LARGE_BYTES:
            continue

        known.update(row.addresses)
        constants.append(
            LargeConstant(
                kind="held",
                where=row.where,
                dtype=dtypes.get(next(iter(row.addresses), None), ""),
                shape=next(iter(row.shapes), None),
                size_bytes=row.size_bytes,
                name=row.holder,
                copies=row.count,
            )
        )

    return constants


def _find_copies(
    tensors: list[Any],
    rows: list[HeldTensors],
    search: HolderSearch,
) -> list[HeldTensors]:
    """Return a holder for each large tensor without one that is a copy of a NumPy array.

    ``fit`` copies a whole array, or the part before its validation split, and no name holds the copy.
    It converts only arrays of floats, to another type of floats (``array_data_adapter.py`` and
    ``array_slicing.py`` of Keras).
    """
    held = {address for row in rows for address in row.addresses}
    alone = [
        tensor
        for tensor in tensors
        if count_bytes(tensor) >= _LARGE_BYTES and find_address(tensor) not in held
    ]

    copies = []
    arrays = search.find_arrays() if alone else []

    for tensor in alone:
        shape = tuple(tensor.shape)

        for index, (array, holder) in enumerate(arrays):
            is_alike = array.shape[1:] == shape[1:] and array.shape[:1] >= shape[:1]
            is_float = array.dtype.kind == "f"
            if is_alike and is_float == tensor.dtype.is_floating:
                name = holder.holder[holder.holder.index("`") :]
                words = f"the copy of {name}"
                copy = replace_fields(holder, holder=words)
                copies.append(_describe(copy, [tensor]))

                arrays.append(arrays.pop(index))  # an array like it has its own copy
                break

    return copies


class GrowthCheck:
    """Finds containers that grow once an epoch rather than once a step.

    The check walks all Python objects. So it runs only if memory has grown, and each time after twice as
    many steps. ``held`` and ``step`` are the containers and the number of steps of the latest check.
    """

    def __init__(self, step: int, in_use_bytes: int) -> None:
        self._before = make_references(find_live_tensors())
        self._base_bytes = in_use_bytes
        self._next_step = 2 * step
        self.held: tuple[HeldTensors, ...] = ()
        self.step = step

    def look(
        self,
        step: int,
        in_use_bytes: int,
        frame: FrameType | None,
        *,
        is_last: bool,
    ) -> None:
        """Look for containers if more is in use than at the end of the trace.

        ``frame`` is the innermost frame whose local names are searched.
        """
        is_due = is_last or step >= self._next_step
        if not is_due or in_use_bytes - self._base_bytes < _LARGE_BYTES:
            return

        self._next_step = 2 * step
        rows = [
            row
            for row in find_holders(
                _find_new_tensors(self._before), HolderSearch(frame)
            )
            if row.count >= _MIN_LATER and (row.grows or row.bound)
        ]

        # after the program's end, its functions' names are gone
        if rows or not self.held:
            self.held = tuple(rows[:_MAX_LATER])
            self.step = step
