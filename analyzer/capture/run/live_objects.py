"""The process' objects of some classes, found among all of them. Needs no TensorFlow."""

from __future__ import annotations

import gc
from typing import Any


def find_live_objects(kinds: type[Any] | tuple[type[Any], ...]) -> list[Any]:
    """Return the objects of some classes that Python's collector knows.

    Each class is asked about once: abstract ones answer slowly, and a process has a million objects.
    An object's own ``__class__`` is not looked at, which would wake up a proxy.

    Args:
        kinds: The classes.
    """
    objects = gc.get_objects()
    # By identity: a class may be unhashable.
    classes = {id(kind): kind for kind in map(type, objects)}
    wanted = {number for number, kind in classes.items() if issubclass(kind, kinds)}
    return [thing for thing in objects if id(type(thing)) in wanted]
