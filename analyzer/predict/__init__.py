"""The executor's order, and from it and the kernels' plans the allocations of a step."""

from analyzer.predict.prediction import Prediction, predict
from analyzer.predict.step import Owner

__all__ = ["Owner", "Prediction", "predict"]
