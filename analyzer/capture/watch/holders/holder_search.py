"""Search the names of the user's program that lead to an object, through containers and attributes.

Needs no TensorFlow.
"""

import functools
import gc
import sys
import threading
import time
import types
import weakref
from collections.abc import Sequence
from typing import Any, Final

from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.watch.holders.bound_names import (
    CODE,
    CONTAINERS,
    SUSPENDED,
    HolderNamer,
    HoldingLink,
    NamedHolder,
    find_bound,
    is_dict_of,
    list_local_names,
)
from analyzer.capture.watch.holders.user_lines import is_own

_MAX_DEPTH: Final = 6  # objects between a tensor and its name
_MAX_REFERRERS: Final = 64  # objects followed at once
_TIMEOUT_S: Final = 5.0  # processor time for one search

_SKIPPED: Final[tuple[type, ...]] = (
    types.FrameType,
    types.TracebackType,
    weakref.ref,
    type(iter([])),
)
_NO_INSTANCES: Final = (type, types.FrameType, *SUSPENDED, *CODE, *CONTAINERS)


class _Look:
    """The search for the holder of one object; ``path`` has the ends of ways without a name."""

    def __init__(self, start: HoldingLink) -> None:
        self.held, self.path, self.seen = start.inside, [start], {id(start.place)}
        self.fallback = NamedHolder()  # perhaps short-lived; if no lasting one is found
        self.result: NamedHolder | None = None


class HolderSearch:
    """Searches the names that lead to objects, also in the stacks of ``frame`` and other threads."""

    def __init__(self, frame: types.FrameType | None) -> None:
        # Identity of an object -> the code and name of a local variable bound to it.
        self.local_names: dict[int, tuple[types.CodeType, str]] = {}
        self._running: set[int] = set()
        self._add_names(frame)
        others = sys._current_frames()
        others.pop(threading.get_ident(), None)  # no frame may hold itself
        for innermost in others.values():
            self._add_names(innermost)
        self._namer = HolderNamer(self.local_names)
        # By identity: the holders of containers, and of objects between a holder and an object.
        self._known: dict[int, NamedHolder] = {}
        self._under: dict[int, NamedHolder] = {}
        self._until_s = time.thread_time() + _TIMEOUT_S

    @functools.cached_property
    def _raised(self) -> dict[int, BaseException]:
        """Exceptions, by the identity of each ended frame in their tracebacks."""
        exceptions: dict[int, BaseException] = {}
        for thing in find_live_objects(BaseException):
            traceback = thing.__traceback__
            while traceback is not None:
                if id(traceback.tb_frame) not in self._running:
                    exceptions[id(traceback.tb_frame)] = thing
                traceback = traceback.tb_next
        return exceptions

    def _add_names(self, frame: types.FrameType | None) -> None:
        while frame is not None:
            self._running.add(id(frame))
            code = frame.f_code
            if is_own(code.co_filename) and code.co_name != "<module>":
                for name, value in list_local_names(frame):
                    self.local_names.setdefault(id(value), (code, name))
            frame = frame.f_back

    def is_namespace(self, owner: Any) -> bool:
        """Return whether an object's parts have names, as in a module or an instance."""
        return id(owner) in self._namer.modules or not isinstance(owner, CONTAINERS)

    def is_left(self, frame: types.FrameType) -> bool:
        """Return whether a frame has ended and an exception's traceback keeps it."""
        return id(frame) not in self._running and id(frame) in self._raised

    def find_all(self, pairs: Sequence[tuple[Any, Any]]) -> list[NamedHolder]:
        """Return the holders of several containers or objects.

        Finding referrers walks all objects of the process, so all searches advance together.
        """
        looks: list[_Look] = []
        # Our own objects that refer to the program's.
        ours = {id(pairs), id(looks), id(self._known), id(self.local_names)}
        ours |= {id(self._namer.modules), id(vars(self).get("_raised")), *map(id, pairs)}
        for owner, thing in pairs:
            grows, bound = self._namer.is_growing(owner), find_bound(owner)
            looks.append(_Look(HoldingLink(owner, thing, grows, bound=bound)))
            if not self.is_namespace(owner):
                looks[-1].result = self._known.get(id(owner))
        self._follow_all(looks, ours)
        holders = [look.result or look.fallback for look in looks]
        for (owner, _), holder in zip(pairs, holders, strict=True):
            if not self.is_namespace(owner):
                self._known[id(owner)] = holder
        return holders

    def find_container(self, thing: Any) -> str:
        """Return in words the named container that holds an object, with its line; may be empty."""
        owners = [
            (owner, thing)
            for owner in gc.get_referrers(thing)[:_MAX_REFERRERS]
            if isinstance(owner, CONTAINERS) and id(owner) not in self._namer.modules
        ]
        found = (one for one in self.find_all(owners) if one.words and one.grows)
        return next((f"{holder.words} ({holder.where})" for holder in found), "")

    def _follow_all(self, looks: list[_Look], ours: set[int]) -> None:
        """Advance all searches, without ``ours``, until each has a result or is given up."""
        # All links are kept, so that no identity is reused.
        links = [link for look in looks for link in look.path]
        ours |= {id(one) for one in (*looks, *links)}
        looks = [look for look in looks if look.result is None]
        for depth in range(_MAX_DEPTH):
            for look in looks:
                self._name(look)
            looks = [look for look in looks if look.result is None and look.path]
            if not looks or depth == _MAX_DEPTH - 1 or time.thread_time() > self._until_s:
                break
            ours |= {id(one) for one in (looks, links, *looks, *links)}
            ours |= {id(look.path) for look in looks}
            self._go_up(looks, ours)
            links += [link for look in looks for link in look.path]

    def _name(self, look: _Look) -> None:
        """Set the result if a way has reached a name; else keep the ends to follow."""
        following = []
        for link in look.path:
            place = link.place
            named = self._under.get(id(place)) or self._namer.name(link)
            if named is None:
                following.append(link)
            elif self._namer.is_growing(place) and id(place) in self.local_names:
                # A container under a local name: the next call makes another one.
                look.fallback = look.fallback if look.fallback.grows else named
            elif (
                not named.grows
                and id(place) not in self._namer.modules
                and not isinstance(place, _NO_INSTANCES)
            ):
                # An instance of a class: a list may hold many of them.
                look.fallback = look.fallback if look.fallback.words else named
                following.append(link)
            elif named.grows or not look.fallback.words:
                look.result = named  # also of the objects between it and the held object
                if link.inside is not look.held:
                    self._under[id(link.inside)] = named
                if not self.is_namespace(place):
                    self._under[id(place)] = named
                return
        look.path = following if len(following) <= _MAX_REFERRERS else []

    def _go_up(self, looks: list[_Look], ours: set[int]) -> None:
        """Extend all ways by the objects that refer to their ends, except ``ours``."""
        ends: dict[int, list[tuple[_Look, HoldingLink]]] = {}
        places = []
        for look in looks:
            path, look.path = look.path, []
            for link in path:
                if not isinstance(link.place, types.FrameType):
                    ends.setdefault(id(link.place), []).append((look, link))
                    places.append(link.place)
                    continue
                raised = self._raised.get(id(link.place))  # its traceback holds the frame
                if raised is not None and id(raised) not in look.seen:
                    look.seen.add(id(raised))
                    look.path.append(HoldingLink(raised, link.place, link.grows, link))
        referrers = gc.get_referrers(*places) if places else []
        skipped = {*ours, id(places), id(referrers)}
        for referrer in referrers:
            if id(referrer) in skipped or isinstance(referrer, _SKIPPED):
                continue
            for part in gc.get_referents(referrer):
                for look, link in ends.get(id(part), ()):
                    if id(referrer) not in look.seen:
                        look.seen.add(id(referrer))
                        look.path.append(self._extend(link, referrer))

    def _extend(self, link: HoldingLink, referrer: Any) -> HoldingLink:
        """Return the link of an object that refers to the place of another link."""
        bound = max(link.bound, find_bound(referrer))
        if is_dict_of(link.place, referrer):  # attributes: not a container of its own
            return HoldingLink(referrer, link.inside, link.grew, link.below, bound)
        grows = link.grows or self._namer.is_growing(referrer)
        return HoldingLink(referrer, link.place, grows, link, bound)
