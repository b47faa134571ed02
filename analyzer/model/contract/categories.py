"""The categories of buffers."""

from __future__ import annotations

from analyzer.model.choice import Choice


class Category(Choice):
    """The purpose of a buffer, in the order in which charts and tables list it."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer_state"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    CONSTANT = "constant"
    UNATTRIBUTED = "unattributed"
