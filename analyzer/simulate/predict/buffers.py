"""A buffer of a process, and references to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from analyzer.model.choice import Category

OUTPUT, TEMPORARY = "output", "temp"  # regions of buffers
NO_NODE: Final = -1


@dataclass(slots=True, eq=False)
class Buffer:
    """A buffer; one without bytes is no allocation."""

    size_bytes: int
    born: int  # an instant; ``dies`` is None while the buffer lives
    node: int = NO_NODE  # node that requested it
    output: int = -1  # output of that node; -1 for a temporary
    region: str = ""
    references: int = 1
    dies: int | None = None
    variable: int = -1  # number of the variable whose value it is or became
    value_since: int = -1  # instant from which it is that value; -1 for its birth
    elements: list[Buffer | None] | None = (
        None  # of a TensorList; None for one that was never set
    )
    label: tuple[Category, str] | None = (
        None  # category and role, if the graph does not tell them
    )


Tensor: TypeAlias = Buffer | None
"""The buffer of a tensor; None for a missing input, or a result in other memory."""


_Tensor = TypeVar("_Tensor", bound=Tensor)


def share(buffer: _Tensor) -> _Tensor:
    """Add a reference to a buffer, if there is one, and return it."""
    if buffer is not None:
        buffer.references += 1
    return buffer
