"""The names of the user's program that lead to an object, through containers, attributes and closures.

Needs no TensorFlow.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.source_frames import shorten_path
from analyzer.capture.watch.holders.bound_names import (
    SUSPENDED,
    HoldingLink,
    attributes_of,
    enclosed_names,
    frame_of,
    is_dict_of,
    keys_on,
    names_in,
)
from analyzer.capture.watch.holders.user_lines import find_binding_lines, find_growing_lines, is_own

CONTAINERS: Final = (list, dict, set, deque, tuple, frozenset)
"""What holds parts without names."""

_CACHE: Final = type(functools.lru_cache(len))
_GROWING: Final = (list, dict, set, deque, _CACHE)
_DEEPEST: Final = 6
"""Objects between a tensor and the name that leads to it, at most."""

_MOST_REFERRERS: Final = 64
"""Objects that are followed at once."""

_MOST_FILES: Final = 40
"""Files of the user's own in which a statement is looked for."""

_FRAMES_HOLD: Final = sys.version_info < (3, 11)
"""From Python 3.11 on a suspended function holds its local names itself."""

_PATIENCE_S: Final = 5.0
"""Seconds of the processor that are spent on looking for names."""


class NamedHolder:
    """What leads to an object: a name in the user's code, and the container behind it.

    Attributes:
        words: ``the list `kept` ``, or empty where no name leads there.
        where: The line that puts things there.
        grows: It is a container that may have more in it after each step.
        by_traceback: It holds an exception, whose traceback holds the local names of what had raised it.
    """

    __slots__ = ("by_traceback", "grows", "where", "words")

    def __init__(self, words: str, where: str, grows: bool, by_traceback: bool = False) -> None:
        self.words, self.where, self.grows = words, where, grows
        self.by_traceback = by_traceback


class _Look:
    """One look for the name that leads to a container or object.

    Attributes:
        held: What it holds.
        path: Ends of the ways from it that have come to no name yet.
        seen: Identities of what was come by, and of what is not the program's.
        passing: A name that may do, where none is found that lasts.
        found: The answer; None while it is looked for.
    """

    __slots__ = ("found", "held", "passing", "path", "seen")

    def __init__(self, start: HoldingLink, seen: set[int]) -> None:
        self.held, self.path, self.seen = start.inside, [start], seen
        self.passing: NamedHolder | None = None
        self.found: NamedHolder | None = None


class HolderSearch:
    """Looks for the names that lead to objects, through containers and attributes.

    Attributes:
        local_names: Identity of what a local name is bound to -> its code and the name.

    Args:
        frame: The innermost frame of the stack whose local names are looked at; those of other
            threads are too.
    """

    def __init__(self, frame: types.FrameType | None) -> None:
        self.local_names: dict[int, tuple[types.CodeType, str]] = {}
        self._running: set[int] = set()
        self._add_names(frame)
        others = sys._current_frames()
        others.pop(threading.get_ident(), None)  # no frame may hold itself
        for innermost in others.values():
            self._add_names(innermost)
        self._modules = {
            id(vars(module)): module
            for module in list(sys.modules.values())
            if isinstance(module, types.ModuleType)
            and is_own(getattr(module, "__file__", None) or "<")
        }
        self._known: dict[int, NamedHolder] = {}
        self._under: dict[int, NamedHolder] = {}
        self._until_s = time.thread_time() + _PATIENCE_S

    @functools.cached_property
    def _raised(self) -> dict[int, BaseException]:
        return _exceptions_by_frame(self._running)

    @functools.cached_property
    def _suspended(self) -> dict[int, Any]:
        """Identity of a suspended function's frame -> the function, where the frame holds its names."""
        if not _FRAMES_HOLD:
            return {}
        return {id(frame_of(one)): one for one in find_live_objects(SUSPENDED)}

    def _add_names(self, frame: types.FrameType | None) -> None:
        while frame is not None:
            self._running.add(id(frame))
            code = frame.f_code
            if is_own(code.co_filename) and code.co_name != "<module>":
                for name, value in names_in(frame):
                    self.local_names.setdefault(id(value), (code, name))
            frame = frame.f_back

    def is_namespace(self, owner: Any) -> bool:
        """Say whether an object's parts are names: a module's or an instance's dictionary."""
        return id(owner) in self._modules or not isinstance(owner, CONTAINERS)

    def is_left(self, frame: types.FrameType) -> bool:
        """Say whether a frame is of a function that has ended, and kept by an exception's traceback."""
        return id(frame) not in self._running and id(frame) in self._raised

    def of(self, owner: Any, held: Any = None) -> NamedHolder:
        """Return what leads to a container or object that holds something.

        Args:
            owner: The container or object.
            held: What it holds.
        """
        return self.of_all([(owner, held)])[0]

    def of_all(self, held: Sequence[tuple[Any, Any]]) -> list[NamedHolder]:
        """Return what leads to each of some containers or objects.

        To find what refers to something is to go over all of the process' objects, so the ways of all
        are followed at once.

        Args:
            held: Each container or object, and what it holds.
        """
        looks: list[_Look | None] = []
        ours = {id(held), id(looks), id(self._known), id(self.local_names), id(self._modules)}
        ours |= {id(vars(self).get("_raised")), *map(id, held)}
        for owner, thing in held:
            is_known = not self.is_namespace(owner) and id(owner) in self._known
            start = HoldingLink(owner, thing, self._is_growing(owner))
            looks.append(None if is_known else _Look(start, {id(owner)}))
        self._follow_all([look for look in looks if look is not None], ours)
        found = []
        for (owner, _), look in zip(held, looks, strict=True):
            if look is None:
                found.append(self._known[id(owner)])
                continue
            found.append(look.found or look.passing or NamedHolder("", "", False))
            if not self.is_namespace(owner):
                self._known[id(owner)] = found[-1]
        return found

    def _follow_all(self, looks: list[_Look], ours: set[int]) -> None:
        """Follow looks until each has its answer, or is given up.

        Args:
            looks: The looks.
            ours: Identities of what refers to the program's objects and is not the program's.
        """
        links = [
            link for look in looks for link in look.path
        ]  # kept, so that no identity is used anew
        for depth in range(_DEEPEST):
            for look in looks:
                self._name(look)
            looks = [look for look in looks if look.found is None and look.path]
            is_over = depth == _DEEPEST - 1 or time.thread_time() > self._until_s
            if not looks or is_over:
                break
            ours |= {id(one) for one in (looks, links, *looks, *links)}
            ours |= {id(look.path) for look in looks}
            self._go_up(looks, ours)
            links += [link for look in looks for link in look.path]

    def container_of(self, thing: Any) -> str:
        """Return in words the container that holds an object, empty where none of a name does."""
        owners = [
            (owner, thing)
            for owner in gc.get_referrers(thing)[:_MOST_REFERRERS]
            if isinstance(owner, CONTAINERS) and id(owner) not in self._modules
        ]
        for found in self.of_all(owners):
            if found.words and found.grows:
                return f"{found.words} ({found.where})" if found.where else found.words
        return ""

    def _name(self, look: _Look) -> None:
        """Take the answer where a look has come to a name; else leave the ends that go on."""
        following = []
        for link in look.path:
            named = self._under.get(id(link.place)) or self._named(link)
            if named is None:
                following.append(link)
            elif self._may_pass(link):  # a list of this step's: what lasts may hold it too
                look.passing = look.passing if look.passing and look.passing.grows else named
            elif not named.grows and self._is_instance(link.place):  # a record: in a list?
                look.passing = look.passing or named
                following.append(link)
            elif named.grows or look.passing is None:
                look.found = self._noted(named, link, look.held)
                return
        look.path = following if len(following) <= _MOST_REFERRERS else []

    def _may_pass(self, link: HoldingLink) -> bool:
        """Say whether a place is a container that a local name leads to: the next call makes another."""
        return self._is_growing(link.place) and id(link.place) in self.local_names

    def _is_instance(self, place: Any) -> bool:
        """Say whether a place is an object of a class of the user's, of which there may be many."""
        return id(place) not in self._modules and not isinstance(
            place, (type, types.FrameType, *SUSPENDED, *_CODE, *CONTAINERS)
        )

    def _noted(self, named: NamedHolder, link: HoldingLink, held: Any) -> NamedHolder:
        """Return a holder, known from now on for what lies between it and what is held."""
        if link.inside is not held:
            self._under[id(link.inside)] = named
        if not self.is_namespace(link.place):
            self._under[id(link.place)] = named
        return named

    def _is_growing(self, place: Any) -> bool:
        if isinstance(place, deque) and place.maxlen is not None and len(place) >= place.maxlen:
            return False
        return isinstance(place, _GROWING) and id(place) not in self._modules

    def _go_up(self, looks: list[_Look], ours: set[int]) -> None:
        """Go from the ends of all looks to what refers to them.

        Args:
            looks: The looks.
            ours: Identities of what is passed over.
        """
        ends: dict[int, list[tuple[_Look, HoldingLink]]] = {}
        plain = []
        for look in looks:
            path, look.path = look.path, []
            look.path += self._over_frames(path, look.seen)
            for link in path:
                if not isinstance(link.place, types.FrameType):
                    ends.setdefault(id(link.place), []).append((look, link))
                    plain.append(link.place)
        referrers = gc.get_referrers(*plain) if plain else []
        skipped = {*ours, id(plain), id(referrers)}
        for thing in referrers:
            # A function that is suspended holds what its frame does.
            is_frame = isinstance(thing, types.FrameType)
            referrer = self._suspended.get(id(thing)) if is_frame else thing
            if id(referrer) in skipped or isinstance(referrer, _SKIPPED) or referrer is None:
                continue
            for part in gc.get_referents(thing):
                for look, link in ends.get(id(part), ()):
                    if id(referrer) not in look.seen:
                        look.seen.add(id(referrer))
                        look.path.append(self._above(link, referrer))

    def _over_frames(self, path: list[HoldingLink], seen: set[int]) -> Iterator[HoldingLink]:
        """Yield the exceptions whose tracebacks hold the frames of a path."""
        for link in path:
            if not isinstance(link.place, types.FrameType):
                continue
            raised = self._raised.get(id(link.place))
            if raised is not None and id(raised) not in seen:
                seen.add(id(raised))
                yield HoldingLink(raised, link.place, link.grows, link)

    def _above(self, link: HoldingLink, referrer: Any) -> HoldingLink:
        """Return the link of what refers to the place of another."""
        if is_dict_of(link.place, referrer):  # its attributes: no container of its own
            return HoldingLink(referrer, link.inside, link.grew, link.below)
        return HoldingLink(referrer, link.place, link.grows or self._is_growing(referrer), link)

    def _named(self, link: HoldingLink) -> NamedHolder | None:
        """Return the holder where a name of the user's leads to a place, or to what is inside it."""
        place, inside = link.place, link.inside
        if id(place) in self._modules:
            module = self._modules[id(place)]
            names = [name for name, value in place.items() if value is inside]
            return self._holder(names, inside, (module.__file__ or "", ""), link, "global ")
        named = self._of_a_class(link) or self._of_a_function(link)
        if named is None and id(place) in self.local_names and not isinstance(place, _CODE):
            code, name = self.local_names[id(place)]
            return self._holder([name], place, (code.co_filename, code.co_name), link)
        return named

    def _of_a_class(self, link: HoldingLink) -> NamedHolder | None:
        """Return the holder where something is an attribute of the user's class, or of an instance."""
        place, inside = link.place, link.inside
        is_class = isinstance(place, type)
        kind = place if is_class else type(place)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<"
        if not is_own(file) or isinstance(place, _CODE):
            return None
        names = [name for name, value in attributes_of(place) if value is inside]
        if not names:
            return None
        owner = f"class {kind.__name__}" if is_class else f"{_article(kind.__name__)}"
        what = f"{_kind(inside, link.grows)} `{names[0]}` of {owner}"
        return self._put(what, (file, ""), names[0], link)

    def _of_a_function(self, link: HoldingLink) -> NamedHolder | None:
        """Return the holder where a suspended function's name, a closure or a default leads there."""
        place = link.place
        if isinstance(place, SUSPENDED):
            frame = frame_of(place)
            if frame is None or not is_own(frame.f_code.co_filename):
                return None
            names = [name for name, value in names_in(frame) if value is link.inside]
            code = frame.f_code
            return self._holder(names, link.inside, (code.co_filename, code.co_name), link)
        # A tensor that a function closes over is held by what holds the function.
        if not isinstance(place, types.FunctionType) or not link.grew:
            return None
        code = place.__code__
        if not is_own(code.co_filename):
            return None
        for name, thing in enclosed_names(place, link):
            return self._holder([name], thing, (code.co_filename, ""), link)
        return None

    def _holder(
        self,
        names: list[str],
        thing: Any,
        scope: tuple[str, str],
        link: HoldingLink,
        prefix: str = "",
    ) -> NamedHolder | None:
        """Return the holder that the first of some names is, None where there is none.

        Args:
            names: The names.
            thing: What they are bound to.
            scope: The file, and the function in it where they are local names.
            link: The end of the way to them.
            prefix: Before the words.
        """
        if not names:
            return None
        inside = f" in {scope[1]}" if scope[1] else ""
        what = f"{prefix}{_kind(thing, link.grows)} `{names[0]}`{inside}"
        return self._put(what, scope, names[0], link)

    def _put(self, what: str, scope: tuple[str, str], name: str, link: HoldingLink) -> NamedHolder:
        found, function = scope
        lines: list[int] = []
        grows = link.grows
        if not grows and isinstance(link.inside, tuple) | isinstance(link.place, tuple):
            # A tuple cannot grow; the name may get a longer one each time.
            lines = find_growing_lines(found, name, function)
            grows = bool(lines)
        elif grows:
            keys = keys_on(link)
            lines = find_growing_lines(found, name, function, keys)
            for other in [] if lines else self._files(found):  # another file's code may do it
                if lines := find_growing_lines(other, name, keys=keys):
                    found = other
                    break
        lines = lines or find_binding_lines(found, name)
        where = f"{shorten_path(found)}:{lines[0]}" if lines else shorten_path(found)
        return NamedHolder(f"the {what}", where, grows, link.by_traceback)

    def _files(self, but: str) -> list[str]:
        files = dict.fromkeys(str(module.__file__) for module in self._modules.values())
        return [file for file in files if file != but][:_MOST_FILES]


def _exceptions_by_frame(running: set[int]) -> dict[int, BaseException]:
    """Return for each frame of a function that has ended the exception whose traceback holds it.

    Args:
        running: Identities of the frames that run.
    """
    found: dict[int, BaseException] = {}
    for thing in find_live_objects(BaseException):
        traceback = thing.__traceback__
        while traceback is not None:
            if id(traceback.tb_frame) not in running:
                found[id(traceback.tb_frame)] = thing
            traceback = traceback.tb_next
    return found


_CODE: Final = (types.CellType, types.FunctionType, types.MethodType)
_SKIPPED: Final[tuple[type, ...]] = (
    types.FrameType,
    types.TracebackType,
    weakref.ref,
    type(iter([])),
)


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "AEIOUaeio" else f"a {noun}"


def _kind(thing: Any, grows: bool) -> str:
    if isinstance(thing, dict):
        return "dictionary"
    if isinstance(thing, CONTAINERS):
        return type(thing).__name__
    if isinstance(thing, _CACHE):
        return "cache of"
    return f"{type(thing).__name__} under" if grows else "name"
