"""The executor's order, and from it and the kernels' plans the allocations of a step."""

from analyzer.simulate.predict.played_step import Owner
from analyzer.simulate.predict.schedules import Prediction, predict

__all__ = ["Owner", "Prediction", "predict"]
