"""Prediction of a step's allocations from its graph, without running it.

Input: the run note of a capture (graph, variables, device). Output: a ``Recording`` like a measured one,
with a stated range. Sampled executor schedules and the kernels' memory plans give buffer lifetimes; the
allocator replay gives chunks. Restriction: sizes that depend on data count as assumed or as 0.
"""

from analyzer.simulate.predict.prepared_step import Owner
from analyzer.simulate.predict.schedules import Prediction, predict

__all__ = ["Owner", "Prediction", "predict"]
