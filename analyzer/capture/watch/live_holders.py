"""Live eager tensors, and what in the user's program holds them, with the line that puts them there."""

from __future__ import annotations

import gc
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import shape_of
from analyzer.capture.private_names import is_eager
from analyzer.capture.run.source_frames import shown
from analyzer.capture.run.tensor_addresses import address_of
from analyzer.capture.watch.user_lines import binding_lines, is_own, putting_lines
from analyzer.contract.watch_note import HeldTensors

_CONTAINERS: Final = (list, dict, set, deque, tuple, frozenset)
_GROWING: Final = (list, dict, set, deque)
_DEEPEST: Final = 6
"""Objects between a tensor and the name that leads to it, at most."""

_GROUPS: Final = 200
"""Holders that are told of, the largest first."""

_ADDRESSES: Final = 4000
"""Addresses noted of one holder."""

_MOST_REFERRERS: Final = 64
_FEW: Final = 16
_PATIENCE_S: Final = 5.0
"""Seconds of the processor that are spent on looking for names."""


class NamedHolder:
    """What leads to an object: a name in the user's code, and the container behind it.

    Attributes:
        words: ``the list `kept` ``, or empty where no name leads there.
        where: The line that puts things there.
        grows: It is a container that statements add to.
        place: The container itself, for telling holders apart.
    """

    __slots__ = ("grows", "place", "where", "words")

    def __init__(self, words: str, where: str, grows: bool, place: int) -> None:
        self.words, self.where, self.grows, self.place = words, where, grows, place


def live_tensors() -> list[Any]:
    """Return the eager tensors that are alive and have bytes."""
    found = []
    for thing in gc.get_objects():
        kind = type(thing)  # not isinstance: proxies would be woken up
        if issubclass(kind, tf.Tensor) and is_eager(thing):
            found.append(thing)
    return found


def references(tensors: Iterable[Any]) -> dict[int, weakref.ref[Any]]:
    """Return weak references to tensors by their identity."""
    return {id(tensor): weakref.ref(tensor) for tensor in tensors}


def new_since(known: dict[int, weakref.ref[Any]]) -> list[Any]:
    """Return the live tensors that are none of those known."""
    return [
        tensor
        for tensor in live_tensors()
        if (ref := known.get(id(tensor))) is None or ref() is not tensor
    ]


def held_by(tensors: list[Any], frame: types.FrameType | None) -> list[HeldTensors]:
    """Return who holds tensors, those that hold most first.

    Args:
        tensors: The tensors.
        frame: The innermost frame of the stack whose local names are looked at.
    """
    search = HolderSearch(frame)
    ignored = {id(tensors)}
    groups: dict[int, tuple[NamedHolder, list[Any]]] = {}
    owners = _direct_owners(tensors, ignored)
    containers = {id(one): one for some in owners.values() for one in some}
    search.prepare(
        [one for one in containers.values() if not search.is_namespace(one)][:_MOST_REFERRERS]
    )
    for tensor in sorted(tensors, key=bytes_of, reverse=True):  # the largest get their names first
        for owner in owners.get(id(tensor), ()):
            # A namespace holds many names, each for something of its own.
            key = id(tensor) if search.is_namespace(owner) else id(owner)
            if key not in groups:
                if len(groups) >= _GROUPS:
                    continue
                groups[key] = (search.of(owner, tensor), [])
            groups[key][1].append(tensor)
    for tensor in tensors:
        if id(tensor) in search.local_names and id(tensor) not in owners:
            groups[id(tensor)] = (search.of(tensor), [tensor])
    merged: dict[tuple[str, str], tuple[NamedHolder, dict[int, Any]]] = {}
    for holder, members in groups.values():
        if holder.words:
            _, known = merged.setdefault((holder.words, holder.where), (holder, {}))
            known.update({id(member): member for member in members})
    rows = [_row(holder, list(members.values())) for holder, members in merged.values()]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _row(holder: NamedHolder, members: list[Any]) -> HeldTensors:
    sizes = {id(one): bytes_of(one) for one in members}
    addresses = [address for one in members[:_ADDRESSES] if (address := address_of(one))]
    shapes: list[tuple[int, ...]] = []
    for one in members:
        shape = shape_of(one)
        if shape is not None and shape not in shapes and len(shapes) < 8:
            shapes.append(shape)
    return HeldTensors(
        holder=holder.words,
        where=holder.where,
        count=len(members),
        size_bytes=sum(sizes.values()),
        addresses=tuple(addresses),
        shapes=tuple(shapes),
        grows=holder.grows,
    )


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a tensor's elements; 0 where they are no plain numbers."""
    count = tensor.shape.num_elements()
    return 0 if count is None or not tensor.dtype.is_numpy_compatible else count * tensor.dtype.size


def _direct_owners(tensors: list[Any], ignored: set[int]) -> dict[int, list[Any]]:
    """Return for each tensor the containers and objects that refer to it directly."""
    wanted = {id(tensor) for tensor in tensors}
    if not wanted:
        return {}
    owners: dict[int, list[Any]] = {}
    # The collector compares every reference with every tensor: for many, a set is quicker.
    objects = gc.get_referrers(*tensors) if len(tensors) <= _FEW else gc.get_objects()
    ignored.add(id(objects))
    for owner in objects:
        if id(owner) in ignored or isinstance(owner, types.FrameType):
            continue
        for part in gc.get_referents(owner):
            if id(part) in wanted:
                owners.setdefault(id(part), []).append(owner)
    return owners


class HolderSearch:
    """Looks for the names that lead to objects, through containers and attributes.

    Attributes:
        local_names: Identity of what a local name is bound to -> its frame and the name.

    Args:
        frame: The innermost frame of the stack whose local names are looked at.
    """

    def __init__(self, frame: types.FrameType | None) -> None:
        self.local_names: dict[int, tuple[types.FrameType, str]] = {}
        self._frames: list[types.FrameType] = []
        while frame is not None:
            if is_own(frame.f_code.co_filename):
                self._frames.append(frame)
                if frame.f_code.co_name != "<module>":
                    for name, value in list(frame.f_locals.items()):
                        self.local_names.setdefault(id(value), (frame, name))
            frame = frame.f_back
        self._modules = {
            id(vars(module)): module
            for module in list(sys.modules.values())
            if isinstance(module, types.ModuleType)
            and is_own(getattr(module, "__file__", None) or "<")
        }
        self._known: dict[int, NamedHolder] = {}
        self._under: dict[int, NamedHolder] = {}
        self._referrers: dict[int, list[Any]] = {}
        self._until_s = time.thread_time() + _PATIENCE_S

    def is_namespace(self, owner: Any) -> bool:
        """Say whether an object's parts are names: a module's or an instance's dictionary."""
        return id(owner) in self._modules or not isinstance(owner, _CONTAINERS)

    def of(self, owner: Any, held: Any = None) -> NamedHolder:
        """Return what leads to a container or object that holds something.

        Args:
            owner: The container or object.
            held: What it holds.
        """
        if self.is_namespace(owner):
            return self._look(owner, held)
        found = self._known.get(id(owner))
        if found is None:
            found = self._known[id(owner)] = self._look(owner, held)
        return found

    def container_of(self, thing: Any) -> str:
        """Return in words the container that holds an object, empty where none of a name does."""
        for owner in gc.get_referrers(thing)[:_MOST_REFERRERS]:
            if isinstance(owner, _CONTAINERS) and id(owner) not in self._modules:
                found = self.of(owner, thing)
                if found.words and found.grows:
                    return f"{found.words} ({found.where})" if found.where else found.words
        return ""

    def _look(self, owner: Any, held: Any) -> NamedHolder:
        grows = isinstance(owner, _GROWING) and id(owner) not in self._modules
        path: list[tuple[Any, Any, bool]] = [(owner, held, grows)]
        seen = {id(owner), id(self._known), id(self.local_names), id(self._modules)}
        for _ in range(_DEEPEST):
            for place, inside, growing in path:
                named = self._under.get(id(place)) or self._named(place, inside, growing)
                if named is not None:
                    if inside is not held:
                        self._under[id(inside)] = named
                    if not self.is_namespace(place):
                        self._under[id(place)] = named
                    return named
            if not path or len(path) > _MOST_REFERRERS:
                break
            known = len(path) == 1 and id(path[0][0]) in self._referrers
            if not known and time.thread_time() > self._until_s:
                break
            path = self._behind(path, seen)
        return NamedHolder("", "", False, id(owner))

    def prepare(self, owners: Iterable[Any]) -> None:
        """Look up what refers to several containers at once: each look goes over all objects.

        Args:
            owners: The containers.
        """
        places = {id(owner): owner for owner in owners}
        self._referrers = {number: [] for number in places}
        for referrer in gc.get_referrers(*places.values()) if places else ():
            if referrer is places or isinstance(referrer, _SKIPPED):
                continue
            for part in gc.get_referents(referrer):
                if id(part) in places:
                    self._referrers[id(part)].append(referrer)

    def _behind(
        self, path: list[tuple[Any, Any, bool]], seen: set[int]
    ) -> list[tuple[Any, Any, bool]]:
        """Return what refers to the objects of a path, each with what it holds of them."""
        places = {id(place): (place, inside, growing) for place, inside, growing in path}
        seen |= {id(path), id(places)} | {id(entry) for entry in (*path, *places.values())}
        following: list[tuple[Any, Any, bool]] = []
        seen.add(id(following))
        known = self._referrers.get(id(path[0][0])) if len(path) == 1 else None
        if known is None:
            known = gc.get_referrers(*(place for place, _, _ in path))
        seen.add(id(known))
        for referrer in known:
            if id(referrer) in seen or isinstance(referrer, _SKIPPED):
                continue
            seen.add(id(referrer))
            for part in gc.get_referents(referrer):
                if id(part) in places:
                    place, inside, growing = places[id(part)]
                    held = inside if _is_dict_of(place, referrer) else place
                    following.append((referrer, held, growing or isinstance(referrer, _GROWING)))
                    break
        return following

    def _named(self, place: Any, inside: Any, grows: bool) -> NamedHolder | None:
        """Return the holder where a name of the user's leads to ``place``, or to what is inside it."""
        if id(place) in self._modules:
            module = self._modules[id(place)]
            names = [name for name, value in place.items() if value is inside]
            return self._holder(names, inside, module.__file__ or "", "", grows, "global ")
        attribute = self._attribute_of(place, inside, grows)
        if attribute is None and id(place) in self.local_names:
            frame, name = self.local_names[id(place)]
            code = frame.f_code
            return self._holder([name], place, code.co_filename, code.co_name, grows, "")
        return attribute

    def _attribute_of(self, place: Any, inside: Any, grows: bool) -> NamedHolder | None:
        """Return the holder where ``inside`` is an attribute of an object of the user's own class."""
        kind = type(place)
        if isinstance(place, types.CellType | types.FunctionType | types.MethodType):
            return None
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<"
        if not is_own(file) or not hasattr(place, "__dict__"):
            return None
        names = [name for name, value in vars(place).items() if value is inside]
        if not names:
            return None
        what = f"{_kind(inside, grows)} `{names[0]}` of a {kind.__name__}"
        return self._put(what, file, names[0], "", grows, id(inside))

    def _holder(
        self, names: list[str], thing: Any, filename: str, scope: str, grows: bool, prefix: str
    ) -> NamedHolder | None:
        if not names:
            return None
        inside = f" in {scope}" if scope else ""
        what = f"{prefix}{_kind(thing, grows)} `{names[0]}`{inside}"
        return self._put(what, filename, names[0], scope, grows, id(thing))

    def _put(
        self, what: str, filename: str, name: str, scope: str, grows: bool, place: int
    ) -> NamedHolder:
        lines = putting_lines(filename, name, scope) if grows else []
        if not lines:
            lines = binding_lines(filename, name)
            grows = False
        where = f"{shown(filename)}:{lines[0]}" if lines else shown(filename)
        return NamedHolder(f"the {what}", where, grows, place)


def _is_dict_of(place: Any, thing: Any) -> bool:
    """Say whether a dictionary is where an object keeps its attributes."""
    if not isinstance(place, dict):
        return False
    try:
        return object.__getattribute__(thing, "__dict__") is place
    except AttributeError:
        return False


_SKIPPED: Final[tuple[type, ...]] = (
    types.FrameType,
    types.TracebackType,
    weakref.ref,
    type(iter([])),
)


def _kind(thing: Any, grows: bool) -> str:
    if isinstance(thing, dict):
        return "dictionary"
    if isinstance(thing, _CONTAINERS):
        return type(thing).__name__
    return f"{type(thing).__name__} under" if grows else "name"
