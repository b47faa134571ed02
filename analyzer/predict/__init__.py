"""The executor's order, and from it and the kernels' plans the allocations of a step."""

from analyzer.predict.played_step import Owner
from analyzer.predict.schedules import Prediction, predict

__all__ = ["Owner", "Prediction", "predict"]
