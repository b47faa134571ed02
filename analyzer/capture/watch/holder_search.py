"""Find the names of the user's code that hold an object, through containers and attributes.

The search starts at the user's global and local variables and follows references. Needs no TensorFlow.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any

import numpy as np

from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.source_frames import list_cells, shorten_path
from analyzer.capture.watch.user_lines import (
    find_binding_line,
    find_growing_line,
    is_own,
    removes_entries,
)
from analyzer.model.contract.run_note import HeldTensors

_GROWING = (list, dict, set, deque)
_MAX_DEPTH = 8  # references between a name and an object
_MAX_OBJECTS = 1_000_000  # that are followed
_TIMEOUT_S = 5.0  # processor time for one search
_MAX_FILES = 40  # of the user's that are searched for a statement
_LEAVES = (
    types.ModuleType,
    types.FrameType,
    types.CodeType,
    types.BuiltinFunctionType,
)

# package of graphs, ops and tensors
_GRAPHS = [
    "tensorflow",
    "python",
    "framework",
]

# References to a frame's dictionary of names: the frame's, ours, and the argument of the count.
_OWN_REFERENCES = 3


@dataclass(frozen=True)
class Link:
    """An object on the way from a name of the user's code to a held object."""

    place: Any
    above: Link | None = None  # the object that refers to it
    name: str = ""  # empty if the reference has none
    words: str = "the {} `{}`"  # for the kind of the object and its name
    file: str = ""  # that binds the name
    function: str = ""  # whose local variable it is

    def follow(self) -> Iterator[Link]:
        """Yield this link and those above."""
        link: Link | None = self
        while link is not None:
            yield link
            link = link.above


class HolderSearch:
    """The objects that the user's variables lead to, also those of ``frame`` and other threads."""

    def __init__(self, frame: FrameType | None) -> None:
        self._cells = list_cells()
        self._modules = self._find_modules()
        self._holders: dict[tuple[Any, ...], HeldTensors] = {}
        globals_ = [
            Link(value, None, variable, "the global {} `{}`", file)
            for name, file in self._modules.items()
            for variable, value in list(vars(sys.modules[name]).items())
        ]

        locals_ = _list_stack_names(frame)
        frames = sys._current_frames()
        frames.pop(threading.get_ident(), None)  # no frame may hold itself

        for innermost in frames.values():
            locals_ += _list_stack_names(innermost)

        # Objects of the user's classes that only libraries hold, such as callbacks of ``fit``.
        kinds = {id(kind): kind for kind in map(type, gc.get_objects())}
        classes = tuple(
            kind for kind in kinds.values() if kind.__module__ in self._modules
        )
        objects = [Link(one) for one in find_live_objects(classes)] if classes else []
        self._roots = [globals_, locals_, objects]
        self._links = self._walk()

    def _find_modules(self) -> dict[str, str]:
        """Return the files of the user's modules by name; "" for the cells of a notebook."""
        modules = {}
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            is_notebook = name == "__main__" and self._cells

            if is_own(file or "<") or is_notebook:
                modules[name] = file

        return modules

    def _walk(self) -> list[Link]:
        """Return a link to each object; globals come before locals, which hold it for less long."""
        links: list[Link] = []
        seen: set[int] = set()
        until_s = time.thread_time() + _TIMEOUT_S

        for roots in self._roots:
            reached = roots
            for _ in range(_MAX_DEPTH):
                followed = []
                for link in reached:
                    if id(link.place) not in seen and _is_followed(link.place):
                        seen.add(id(link.place))
                        followed.append(link)

                links += followed
                if len(links) > _MAX_OBJECTS or time.thread_time() > until_s:
                    break

                reached = list(chain.from_iterable(map(self._list_parts, followed)))

        return links

    def _list_parts(self, link: Link) -> Iterator[Link]:
        """Yield the objects that an object refers to, with the names of the user's code."""
        place = link.place
        is_class = isinstance(place, type)
        kind = place if is_class else type(place)

        if isinstance(place, types.FunctionType):
            yield from _list_enclosed(place, link)
            return

        if isinstance(place, BaseException):
            yield from _list_raised(place, link)

        attributes = _get_attributes(place)
        if kind.__module__ in self._modules and attributes is not None:
            article = "an" if kind.__name__[:1] in "AEIOUaeio" else "a"
            owner = (
                f"class {kind.__name__}" if is_class else f"{article} {kind.__name__}"
            )
            words = f"the {{}} `{{}}` of {owner}"
            file = self._modules[kind.__module__]

            for name, value in list(attributes.items()):
                yield Link(value, link, name, words, file)
        elif attributes is not None and not is_class:
            for value in list(attributes.values()):
                yield Link(value, link)

        if is_class:
            return

        # Not read by iteration: C code may still be filling a list.
        for part in gc.get_referents(place):
            if part is not attributes and gc.is_tracked(part):
                yield Link(part, link)

    def find_all(self, things: list[Any]) -> dict[int, list[HeldTensors]]:
        """Return the holders of objects, by the identity of the objects."""
        wanted = {id(one) for one in things}
        holders: dict[int, list[HeldTensors]] = {}

        for link in self._list_ends():
            if id(link.place) in wanted:
                holder = self._name(link)
                if holder is not None:
                    holders.setdefault(id(link.place), []).append(holder)

        return holders

    def find_arrays(self) -> list[tuple[Any, HeldTensors]]:
        """Return the NumPy arrays that the user's names lead to, with their holders."""
        arrays: dict[int, tuple[Any, HeldTensors]] = {}
        for link in self._list_ends():
            if isinstance(link.place, np.ndarray) and id(link.place) not in arrays:
                holder = self._name(link)
                if holder is not None:
                    arrays[id(link.place)] = (link.place, holder)

        return list(arrays.values())

    def _list_ends(self) -> Iterator[Link]:
        for roots in self._roots:
            yield from roots

        for link in self._links:
            yield from self._list_parts(link)

    def find_container(self, things: list[Any]) -> str:
        """Return in words a named container of an object, with its line; may be empty.

        The latest object may not be in it yet.
        """
        for holder in chain(*self.find_all(things).values()):
            if holder.grows:
                return f"{holder.holder} ({holder.where})"

        return ""

    def _name(self, end: Link) -> HeldTensors | None:
        """Return the nearest name above a container that grows, else the nearest name."""
        grows = by_traceback = False
        bound = 0
        named: Link | None = None

        for link in end.follow():
            grows |= isinstance(link.place, _GROWING)
            by_traceback |= isinstance(link.place, BaseException)

            if isinstance(link.place, deque):
                bound = max(bound, link.place.maxlen or 0)

            if link.name and (grows or named is None):
                named = link

            if link.name and grows:
                break

        if named is None:
            return None

        key = (id(named.above), named.name, id(named.place), grows, bound, by_traceback)
        if key not in self._holders:
            self._holders[key] = self._locate(named, grows, bound, by_traceback)

        return self._holders[key]

    def _locate(
        self,
        link: Link,
        grows: bool,
        bound: int,
        by_traceback: bool,
    ) -> HeldTensors:
        """Return the holder with the line that makes it grow, or else the line that binds its name."""
        file = link.file
        name = link.name
        if not file:  # of a cell
            bindings = (cell for cell in self._cells if find_binding_line(cell, name))
            file = next(bindings, "")

        line = 0
        others = dict.fromkeys([file, *self._modules.values(), *self._cells])

        for other in list(others)[:_MAX_FILES] if grows else ():
            function = link.function if other == file else ""
            line = find_growing_line(other, name, function)

            if line:
                file = other
                break

        line = line or find_binding_line(file, name)

        path = shorten_path(file)
        grows = grows and not bound

        return HeldTensors(
            holder=link.words.format(_describe_kind(link.place, grows), name),
            where=f"{path}:{line}" if line else path,
            count=0,
            size_bytes=0,
            grows=grows,
            by_traceback=by_traceback,
            bound=bound,
            removes=grows and removes_entries(link.file, name),
        )


def _is_followed(place: Any) -> bool:
    is_graph = type(place).__module__.split(".")[:3] == _GRAPHS

    return gc.is_tracked(place) and not is_graph and not isinstance(place, _LEAVES)


def _get_attributes(place: Any) -> Any:
    """Return the dictionary of an object's or class' attributes; None if it has none."""
    try:
        return object.__getattribute__(place, "__dict__")
    except AttributeError:
        return None


def _describe_kind(thing: Any, grows: bool) -> str:
    if isinstance(thing, dict):
        return "dictionary"
    if isinstance(thing, (*_GROWING, tuple)):
        return type(thing).__name__

    if grows:
        return f"{type(thing).__name__} under"

    return "name"


def _list_stack_names(frame: FrameType | None) -> list[Link]:
    """Return the local variables of the user's functions on a stack, the outermost first."""
    links: list[Link] = []
    while frame is not None:
        code = frame.f_code
        if is_own(code.co_filename) and code.co_name != "<module>":
            names = _list_local_names(frame)
            words = f"the {{}} `{{}}` in {code.co_name}"
            links[:0] = [
                Link(value, None, name, words, code.co_filename, code.co_name)
                for name, value in names
            ]

        frame = frame.f_back

    return links


def _list_local_names(frame: types.FrameType) -> list[tuple[str, Any]]:
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


def _list_raised(error: BaseException, link: Link) -> Iterator[Link]:
    """Yield the local values of the functions that an exception's traceback keeps alive."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name != "<module>":
            for _, value in _list_local_names(trace.tb_frame):
                yield Link(value, link)

        trace = trace.tb_next


def _list_enclosed(function: types.FunctionType, link: Link) -> Iterator[Link]:
    """Yield the closure variables of a function of the user's."""
    code = function.__code__
    if not is_own(code.co_filename):
        return

    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Link(cell.cell_contents, link, name, file=code.co_filename)
        except ValueError:  # not bound yet
            continue
