"""The base class of all enumerations that are written into files."""

from enum import Enum


class Choice(str, Enum):
    """An enumeration whose members are strings, like ``enum.StrEnum`` of Python 3.11."""

    def __str__(self) -> str:
        return str(self.value)


class Category(Choice):
    """The purpose of a buffer, in the order in which charts and tables list it."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer_state"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    CONSTANT = "constant"
    UNATTRIBUTED = "unattributed"
