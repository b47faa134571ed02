"""The names by which modules, objects and functions of the user's code hold something.

Needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import queue
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from analyzer.capture.run.source_frames import list_cells, shorten_path
from analyzer.capture.watch.holders.user_lines import (
    find_binding_lines,
    find_growing_lines,
    is_own,
    removes_entries,
)

CONTAINERS: Final = (list, dict, set, deque, tuple, frozenset)  # whose parts have no names
CODE: Final = (types.CellType, types.FunctionType, types.MethodType)  # rather than data
SUSPENDED: Final[dict[type, str]] = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
"""Suspended functions, with the attribute for their frame."""

_CACHE: Final = type(functools.lru_cache(len))
_GROWING: Final = (list, dict, set, deque, _CACHE)
_MAX_FILES: Final = 40  # of the user's that are searched for a statement

_OWN_REFERENCES: Final = 3
"""References to a frame's dictionary of names: the frame's, ours, and the argument of the count."""


@dataclass(frozen=True, slots=True)
class HoldingLink:
    """One object, ``place``, on the way from a held object to a name."""

    place: Any
    inside: Any  # its part on the way; for an object, a part of its dictionary
    grows: bool  # whether a growing container is on the way up to and including it
    below: HoldingLink | None = None  # the previous link
    bound: int = 0  # most entries of a bounded container on the way; 0 if there is none

    def follow(self) -> Iterator[HoldingLink]:
        """Yield this link and those below."""
        link: HoldingLink | None = self
        while link is not None:
            yield link
            link = link.below

    @property
    def grew(self) -> bool:
        """Whether a growing container is on the way before this object."""
        return self.below is not None and self.below.grows


@dataclass(frozen=True, slots=True)
class NamedHolder:
    """A name in the user's code that leads to an object; fields as in ``HeldTensors``."""

    words: str = ""  # the list `kept`; empty if there is none
    where: str = ""
    grows: bool = False
    by_traceback: bool = False
    bound: int = 0
    removes: bool = False


class _Scope(NamedTuple):
    """Names with their values, the file and function that bind them, and words around a name."""

    names: Iterable[tuple[str, Any]]
    file: str
    function: str = ""
    prefix: str = ""
    suffix: str = ""


class HolderNamer:
    """Names the ends of ways to held objects."""

    def __init__(self, local_names: dict[int, tuple[types.CodeType, str]]) -> None:
        self._local_names = local_names
        self._cells = list_cells()
        files = {  # of the user's modules, by the identity of their dictionaries; none of a notebook
            id(vars(module)): str(getattr(module, "__file__", None) or "")
            for name, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType)
        }
        main = id(vars(sys.modules["__main__"])) if self._cells else 0
        self.modules = {
            key: file for key, file in files.items() if is_own(file or "<") or key == main
        }

    def is_growing(self, place: Any) -> bool:
        """Return whether a place is a container that may grow without a bound."""
        is_container = isinstance(place, _GROWING) and id(place) not in self.modules
        return is_container and not find_bound(place)

    def name(self, link: HoldingLink) -> NamedHolder | None:
        """Return the name that leads to a link's place or its part; None if there is none."""
        place = link.place
        if scope := self._find_scope(link):
            names = list(scope.names)
            for part in (one.inside for one in link.follow()):
                for name, value in names:
                    if value is part:
                        return self._locate(name, value, scope, link)
        if id(place) in self._local_names and not isinstance(place, CODE):
            code, name = self._local_names[id(place)]
            return self._locate(name, place, _make_local_scope([], code), link)
        return None

    def _find_scope(self, link: HoldingLink) -> _Scope | None:
        """Return the names that a link's place binds; None if it is not of the user's code."""
        place = link.place
        if id(place) in self.modules:
            return _Scope(place.items(), self.modules[id(place)], prefix="global ")
        if type(place) in SUSPENDED:
            frame = getattr(place, SUSPENDED[type(place)])  # None if the function has ended
            if frame is None or not is_own(frame.f_code.co_filename):
                return None
            return _make_local_scope(list_local_names(frame), frame.f_code)
        if isinstance(place, types.FunctionType):
            # A tensor that a function closes over is held by the function's own holder.
            file = place.__code__.co_filename
            return _Scope(_list_enclosed(place), file) if link.grew and is_own(file) else None
        is_class = isinstance(place, type)
        kind = place if is_class else type(place)
        module = id(getattr(sys.modules.get(kind.__module__), "__dict__", None))
        if isinstance(place, CODE) or module not in self.modules:
            return None
        file = self.modules[module]
        article = "an" if kind.__name__[:1] in "AEIOUaeio" else "a"
        owner = f"class {kind.__name__}" if is_class else f"{article} {kind.__name__}"
        return _Scope(_list_attributes(place), file, suffix=f" of {owner}")

    def _locate(self, name: str, thing: Any, scope: _Scope, link: HoldingLink) -> NamedHolder:
        """Return the holder with the line that grows it, or else the line that binds its name."""
        binding = (cell for cell in self._cells if find_binding_lines(cell, name))
        file, lines = scope.file or next(binding, ""), list[int]()
        grows = link.grows and not link.bound
        if link.grows or link.bound:
            keys = _list_keys(link)
            others = (*self.modules.values(), *self._cells)
            for other in itertools.islice(dict.fromkeys((file, *others)), _MAX_FILES):
                function = scope.function if other == scope.file else ""
                if lines := find_growing_lines(other, name, function, keys):
                    file = other
                    break
        elif isinstance(link.inside, tuple) or isinstance(link.place, tuple):
            # A tuple cannot grow, but the name may get a longer one each time.
            lines = find_growing_lines(file, name, scope.function)
            grows = bool(lines)
        lines = lines or find_binding_lines(file, name)
        kind = _describe_kind(thing, link.grows)
        return NamedHolder(
            words=f"the {scope.prefix}{kind} `{name}`{scope.suffix}",
            where=f"{shorten_path(file)}:{lines[0]}" if lines else shorten_path(file),
            grows=grows,
            by_traceback=any(isinstance(one.place, types.FrameType) for one in link.follow()),
            bound=link.bound,
            removes=grows and removes_entries(scope.file, name),
        )


def _make_local_scope(names: Iterable[tuple[str, Any]], code: types.CodeType) -> _Scope:
    return _Scope(names, code.co_filename, code.co_name, suffix=f" in {code.co_name}")


def _list_keys(link: HoldingLink) -> frozenset[str]:
    """Return the text keys of dictionaries on the way of a link."""
    tables = [one for one in link.follow() if isinstance(one.place, dict)]
    items = [(one.inside, *item) for one in tables for item in one.place.items()]
    return frozenset(
        key for inside, key, value in items if value is inside and isinstance(key, str)
    )


def find_bound(place: Any) -> int:
    """Return the most entries of a bounded container; 0 for any other object."""
    if isinstance(place, deque):
        return place.maxlen or 0
    if isinstance(place, _CACHE):
        return place.cache_parameters()["maxsize"] or 0
    return place.maxsize if isinstance(place, queue.Queue) else 0


def _describe_kind(thing: Any, grows: bool) -> str:
    if isinstance(thing, CONTAINERS):
        return "dictionary" if isinstance(thing, dict) else type(thing).__name__
    if isinstance(thing, _CACHE):
        return "cache of"
    return f"{type(thing).__name__} under" if grows else "name"


def list_local_names(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return a frame's local names and their values.

    Up to Python 3.12, reading them leaves a dictionary at the frame that keeps all values alive while
    the function runs. It is emptied here, unless the program itself uses it (``locals()``).
    """
    names = frame.f_locals
    items = list(names.items())
    is_copy = isinstance(names, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(names) <= _OWN_REFERENCES:
        names.clear()
    return items


def _list_attributes(place: Any) -> Iterator[tuple[str, Any]]:
    """Yield the own attributes of an object or class, with values."""
    with contextlib.suppress(TypeError):
        yield from list(vars(place).items())
    for kind in type(place).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):
                    yield name, slot.__get__(place)


def _list_enclosed(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the closure variables and defaults of a function, with values."""
    code, defaults = function.__code__, function.__defaults__ or ()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not bound yet
            yield name, cell.cell_contents
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def is_dict_of(place: Any, thing: Any) -> bool:
    """Return whether ``place`` is the dictionary of attributes of an object or class."""
    if not isinstance(place, dict):
        return False
    try:
        if isinstance(thing, type):  # its __dict__ is a view of the dictionary
            return any(part is place for part in gc.get_referents(vars(thing)))
        return object.__getattribute__(thing, "__dict__") is place
    except AttributeError:
        return False
