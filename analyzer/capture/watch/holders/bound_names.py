"""The names by which frames, objects and functions hold something.

Needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

SUSPENDED: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
"""What a suspended function is."""

_OWN_REFERENCES: Final = 3
"""References to a frame's dictionary of names: the frame's, ours, and the argument of the count."""


@dataclass(frozen=True, slots=True)
class HoldingLink:
    """One object on the way from what is held to a name.

    Attributes:
        place: The object.
        inside: What of its parts leads to what is held; of an object, of its dictionary's parts.
        grows: A growing container is on the way, this one included.
        below: The link before; None at the first.
    """

    place: Any
    inside: Any
    grows: bool
    below: HoldingLink | None = None

    @property
    def grew(self) -> bool:
        """Whether a growing container lies before this object."""
        return self.below is not None and self.below.grows

    @property
    def by_traceback(self) -> bool:
        """Whether the way leads over the frame of a function that has ended."""
        link: HoldingLink | None = self
        while link is not None and not isinstance(link.place, types.FrameType):
            link = link.below
        return link is not None


def keys_on(link: HoldingLink | None) -> frozenset[Any]:
    """Return the texts under which dictionaries on a way hold what leads to its start."""
    keys = set()
    while link is not None:
        if isinstance(link.place, dict):
            inside = link.inside
            keys |= {key for key, value in link.place.items() if value is inside}
        link = link.below
    return frozenset(key for key in keys if isinstance(key, str))


def frame_of(function: Any) -> types.FrameType | None:
    """Return the frame of a generator or coroutine, None where it has ended."""
    frames = (getattr(function, name, None) for name in ("gi_frame", "cr_frame", "ag_frame"))
    return next((one for one in frames if one is not None), None)


def names_in(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return a frame's local names with what they are bound to.

    Up to Python 3.12 a look at them leaves a dictionary at the frame, which would keep all of that alive
    for as long as the function runs: it is emptied, unless the program itself has it (``locals()``).
    """
    names = frame.f_locals
    found = list(names.items())
    is_copy = isinstance(names, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(names) <= _OWN_REFERENCES:
        names.clear()
    return found


def attributes_of(place: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names that an object, or a class, has of its own."""
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


def enclosed_names(function: types.FunctionType, link: HoldingLink) -> Iterator[tuple[str, Any]]:
    """Yield the name by which a function's closure or defaults hold what a path came from, and that."""
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
    """Say whether a dictionary is where an object or a class keeps its attributes."""
    if not isinstance(place, dict):
        return False
    try:
        if isinstance(thing, type):  # what it shows is a view of its dictionary
            return any(part is place for part in gc.get_referents(vars(thing)))
        return object.__getattribute__(thing, "__dict__") is place
    except AttributeError:
        return False
