"""Find the live objects of some classes. Needs no TensorFlow."""

import gc
from typing import Any


def find_live_objects(kinds: type[Any] | tuple[type[Any], ...]) -> list[Any]:
    """Return the live objects of some classes that Python's collector knows.

    Each class is tested once, because abstract classes are slow and a process has a million objects.
    ``__class__`` is not read, because that would resolve proxies.
    """
    objects = gc.get_objects()

    # By identity: a class may be unhashable.
    classes = {id(kind): kind for kind in map(type, objects)}
    wanted = {number for number, kind in classes.items() if issubclass(kind, kinds)}

    return [thing for thing in objects if id(type(thing)) in wanted]
