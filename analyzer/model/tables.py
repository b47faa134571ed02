"""Tables of texts, names and numbers that the package ships."""

from importlib.resources import files
from typing import TypeVar

import msgspec

_Table = TypeVar("_Table")


def read_table(place: str, kind: type[_Table]) -> _Table:
    """Return a TOML file of the package, such as ``report/actions.toml``, as an object of ``kind``."""
    return msgspec.toml.decode((files("analyzer") / place).read_bytes(), type=kind)
