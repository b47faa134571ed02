"""The names by which frames, modules, objects and functions of the user's code hold something.

Needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import queue
import sys
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from analyzer.capture.run.source_frames import shorten_path
from analyzer.capture.watch.holders.user_lines import (
    find_binding_lines,
    find_growing_lines,
    is_own,
    removes_entries,
)

CONTAINERS: Final = (list, dict, set, deque, tuple, frozenset)
"""Containers whose parts have no names."""

SUSPENDED: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
"""Suspended functions."""

CODE: Final = (types.CellType, types.FunctionType, types.MethodType)
"""Objects that belong to code rather than data."""

_CACHE: Final = type(functools.lru_cache(len))
_GROWING: Final = (list, dict, set, deque, _CACHE)
_MAX_FILES: Final = 40  # of the user's that are searched for a statement

_OWN_REFERENCES: Final = 3
"""References to a frame's dictionary of names: the frame's, ours, and the argument of the count."""


@dataclass(frozen=True, slots=True)
class HoldingLink:
    """One object on the way from a held object to a name.

    Attributes:
        place: The object.
        inside: Its part on the way; for an object, a part of its dictionary.
        grows: Whether a growing container is on the way up to and including this object.
        below: The previous link; None for the first.
        bound: Most entries of a bounded container on the way; 0 if there is none.
    """

    place: Any
    inside: Any
    grows: bool
    below: HoldingLink | None = None
    bound: int = 0

    @property
    def grew(self) -> bool:
        """Whether a growing container is on the way before this object."""
        return self.below is not None and self.below.grows

    @property
    def by_traceback(self) -> bool:
        """Whether the way goes through the frame of a function that has ended."""
        link: HoldingLink | None = self
        while link is not None and not isinstance(link.place, types.FrameType):
            link = link.below
        return link is not None

    def list_keys(self) -> frozenset[str]:
        """Return the text keys of dictionaries on the way."""
        keys = set()
        link: HoldingLink | None = self
        while link is not None:
            if isinstance(link.place, dict):
                inside = link.inside
                keys |= {key for key, value in link.place.items() if value is inside}
            link = link.below
        return frozenset(key for key in keys if isinstance(key, str))


@dataclass(frozen=True, slots=True)
class NamedHolder:
    """A name in the user's code that leads to an object.

    Attributes:
        words: The name in words, ``the list `kept` ``; empty if there is none.
        where: The line that adds objects to it.
        grows: Whether it is a container that may grow after each step.
        by_traceback: Whether it holds an exception, whose traceback holds local names.
        bound: Most entries of a bounded container; 0 if no bound is known.
        removes: Whether the program's code also removes entries.
    """

    words: str = ""
    where: str = ""
    grows: bool = False
    by_traceback: bool = False
    bound: int = 0
    removes: bool = False


class HolderNamer:
    """Names the ends of ways to held objects.

    Attributes:
        modules: The user's modules, by the identity of their dictionaries.
    """

    def __init__(self, local_names: dict[int, tuple[types.CodeType, str]]) -> None:
        self._local_names = local_names
        self.modules = {
            id(vars(module)): module
            for module in list(sys.modules.values())
            if isinstance(module, types.ModuleType)
            and is_own(getattr(module, "__file__", None) or "<")
        }

    def is_growing(self, place: Any) -> bool:
        """Return whether a place is a container that may grow without a bound."""
        if find_bound(place):
            return False
        return isinstance(place, _GROWING) and id(place) not in self.modules

    def name(self, link: HoldingLink) -> NamedHolder | None:
        """Return the name that leads to a link's place or its part; None if there is none."""
        place, inside = link.place, link.inside
        if id(place) in self.modules:
            module = self.modules[id(place)]
            names = [name for name, value in place.items() if value is inside]
            return self._name_variable(names, inside, (module.__file__ or "", ""), link, "global ")
        named = self._name_attribute(link) or self._name_in_function(link)
        if named is None and id(place) in self._local_names and not isinstance(place, CODE):
            code, name = self._local_names[id(place)]
            return self._name_variable([name], place, (code.co_filename, code.co_name), link)
        return named

    def _name_attribute(self, link: HoldingLink) -> NamedHolder | None:
        """Name an attribute of a class of the user's, or of an instance of one."""
        place, inside = link.place, link.inside
        is_class = isinstance(place, type)
        kind = place if is_class else type(place)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<"
        if not is_own(file) or isinstance(place, CODE):
            return None
        names = [name for name, value in list_attributes(place) if value is inside]
        if not names:
            return None
        article = "an" if kind.__name__[:1] in "AEIOUaeio" else "a"
        owner = f"class {kind.__name__}" if is_class else f"{article} {kind.__name__}"
        words = f"{_describe_kind(inside, link.grows)} `{names[0]}` of {owner}"
        return self._locate(words, (file, ""), names[0], link)

    def _name_in_function(self, link: HoldingLink) -> NamedHolder | None:
        """Name a local variable of a suspended function, a closure variable or a default."""
        place = link.place
        if isinstance(place, SUSPENDED):
            frame = get_frame(place)
            if frame is None or not is_own(frame.f_code.co_filename):
                return None
            names = [name for name, value in list_local_names(frame) if value is link.inside]
            code = frame.f_code
            return self._name_variable(names, link.inside, (code.co_filename, code.co_name), link)
        # A tensor that a function closes over is held by the function's own holder.
        if not isinstance(place, types.FunctionType) or not link.grew:
            return None
        code = place.__code__
        if not is_own(code.co_filename):
            return None
        for name, thing in _list_enclosed(place, link):
            return self._name_variable([name], thing, (code.co_filename, ""), link)
        return None

    def _name_variable(
        self,
        names: list[str],
        thing: Any,
        scope: tuple[str, str],
        link: HoldingLink,
        prefix: str = "",
    ) -> NamedHolder | None:
        """Return the holder for the first of ``names``; ``scope`` is the file and the function."""
        if not names:
            return None
        suffix = f" in {scope[1]}" if scope[1] else ""
        words = f"{prefix}{_describe_kind(thing, link.grows)} `{names[0]}`{suffix}"
        return self._locate(words, scope, names[0], link)

    def _locate(
        self, words: str, scope: tuple[str, str], name: str, link: HoldingLink
    ) -> NamedHolder:
        """Return the holder with the line that makes it grow, or else binds its name."""
        file, function = scope
        lines: list[int] = []
        grows = link.grows and not link.bound
        removes = grows and removes_entries(file, name)
        if not (grows or link.bound) and isinstance(link.inside, tuple) | isinstance(
            link.place, tuple
        ):
            # A tuple cannot grow, but the name may get a longer one each time.
            lines = find_growing_lines(file, name, function)
            grows = bool(lines)
        elif grows or link.bound:
            keys = link.list_keys()
            lines = find_growing_lines(file, name, function, keys)
            for other in [] if lines else self._list_other_files(file):
                if lines := find_growing_lines(other, name, keys=keys):
                    file = other
                    break
        lines = lines or find_binding_lines(file, name)
        where = f"{shorten_path(file)}:{lines[0]}" if lines else shorten_path(file)
        return NamedHolder(f"the {words}", where, grows, link.by_traceback, link.bound, removes)

    def _list_other_files(self, file: str) -> list[str]:
        files = dict.fromkeys(str(module.__file__) for module in self.modules.values())
        return [other for other in files if other != file][:_MAX_FILES]


def find_bound(place: Any) -> int:
    """Return the most entries of a bounded container; 0 for any other object."""
    if isinstance(place, deque):
        return place.maxlen or 0
    if isinstance(place, _CACHE):
        return place.cache_parameters()["maxsize"] or 0
    return place.maxsize if isinstance(place, queue.Queue) else 0


def _describe_kind(thing: Any, grows: bool) -> str:
    if isinstance(thing, dict):
        return "dictionary"
    if isinstance(thing, CONTAINERS):
        return type(thing).__name__
    if isinstance(thing, _CACHE):
        return "cache of"
    return f"{type(thing).__name__} under" if grows else "name"


def get_frame(function: Any) -> types.FrameType | None:
    """Return the frame of a generator or coroutine, None if it has ended."""
    frames = (getattr(function, name, None) for name in ("gi_frame", "cr_frame", "ag_frame"))
    return next((one for one in frames if one is not None), None)


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


def list_attributes(place: Any) -> Iterator[tuple[str, Any]]:
    """Yield the own attributes of an object or class, with values."""
    with contextlib.suppress(TypeError):
        yield from list(vars(place).items())
    for kind in type(place).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            descriptor = vars(kind).get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    yield name, descriptor.__get__(place)
                except AttributeError:
                    continue


def _list_enclosed(function: types.FunctionType, link: HoldingLink) -> Iterator[tuple[str, Any]]:
    """Yield the closure variables and defaults that hold the part on a link's way, with values."""
    code, below = function.__code__, link.below
    if below is None:
        return
    if link.inside is function.__closure__ and below.below is not None:
        for name, cell in zip(code.co_freevars, function.__closure__, strict=False):
            if cell is below.inside:
                yield name, below.below.inside
    elif link.inside is function.__defaults__:
        names = code.co_varnames[: code.co_argcount][-len(function.__defaults__) :]
        for name, value in zip(names, function.__defaults__, strict=False):
            if value is below.inside:
                yield name, value
    elif link.inside is function.__kwdefaults__:
        for name, value in function.__kwdefaults__.items():
            if value is below.inside:
                yield name, value


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
