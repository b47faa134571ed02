"""The nodes that a walk along edges reaches."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def reach(
    start: Iterable[_Node], step: Callable[[_Node], Iterable[_Node]]
) -> set[_Node]:
    """Return the nodes of ``start`` and all that follow; ``step`` returns the next nodes of one."""
    reached = set(start)
    queue = list(reached)

    while queue:
        new = set(step(queue.pop())) - reached
        reached |= new
        queue += new

    return reached
