"""What a buffer is for."""

from __future__ import annotations

from analyzer.model.choice import Choice


class Category(Choice):
    """What a buffer is for. The order is the order in which categories are stacked and listed."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer_state"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    CONSTANT = "constant"
    UNATTRIBUTED = "unattributed"
