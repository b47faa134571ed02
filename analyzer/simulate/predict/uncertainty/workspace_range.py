"""Peaks of a step on a card over the algorithms that cuDNN may run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from analyzer.model.contract.report.trust_figures import WorkspaceFigures
from analyzer.model.ranges import Range
from analyzer.model.recording.schema import TRIAL, WORKSPACE
from analyzer.model.units import format_bytes
from analyzer.simulate.kernels.shared.memory_plan import Workspace
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.simulate.predict.sampling import Prediction
from analyzer.simulate.predict.schedule import Schedule, live_bytes

_SAMPLES: Final = 2000
"""Sampled choices of all algorithms."""

_QUANTILES: Final = (0.05, 0.95)
"""Ends of the range of the sampled peaks."""


def find_workspaces(
    prediction: Prediction, schedule: Schedule, *, limit_bytes: int, aside_bytes: int = 0
) -> WorkspaceFigures | None:
    """Return the expected workspace and the peaks that it allows; None without convolutions.

    Args:
        schedule: A schedule from the process's start, so that its first step has the trials.
        limit_bytes: The memory limit; a trial that exceeds it is skipped.
        aside_bytes: Bytes that the process holds outside the graph.
    """
    prepared = prediction.prepared
    expected = {
        node: plan.workspace
        for node, plan in enumerate(prepared.kernels.plans)
        if plan.workspace is not None
    }
    if not expected:
        return None
    buffers, instants, last = schedule.buffers, schedule.instants, schedule.steps[-1]
    size = np.asarray(buffers.size_bytes, dtype=np.int64)
    region = np.asarray(buffers.region, dtype=object)
    born, dies = (np.asarray(x, dtype=np.int64) for x in (buffers.born, buffers.dies))
    bare = live_bytes(buffers, instants, np.where(region == WORKSPACE, 0, size))
    in_step = np.flatnonzero(np.isin(buffers.node, list(expected)) & (born >= last[0]))
    tops: dict[int, int] = {}
    for row in in_step:
        node = buffers.node[row]
        tops[node] = max(tops.get(node, 0), int(bare[born[row] + 1]))
    steady = _sample_peaks(prepared, expected, tops, int(bare[last[0] :].max()))
    steady = steady.including(schedule.peak_bytes)
    first_step = slice(schedule.steps[0][0], schedule.steps[0][1] + 2)
    needed = live_bytes(buffers, instants, np.where(region == TRIAL, 0, size))[first_step].max()
    highest = int(live_bytes(buffers, instants)[first_step].max())
    highest = min(highest, max(limit_bytes - aside_bytes, int(needed)))
    lowest = int(needed) - (schedule.peak_bytes - steady.low)
    alive = (born <= schedule.peak_instant) & ((dies > schedule.peak_instant) | (dies < 0))
    unmeasured = [max(one.sizes_bytes) for one in expected.values() if not one.is_measured]
    return WorkspaceFigures(
        bytes=int(size[alive & (region == WORKSPACE)].sum()),
        steady=steady.shifted(aside_bytes),
        first_step=Range(min(lowest, highest), max(highest, steady.high)).shifted(aside_bytes),
        trial_bytes=int(size[region == TRIAL].max(initial=0)),
        unmeasured=len(unmeasured),
        unmeasured_bytes=max(unmeasured, default=0),
    )


def _sample_peaks(
    prepared: Prepared, expected: Mapping[int, Workspace], tops: Mapping[int, int], floor: int
) -> Range:
    """Return the range of the peak over sampled choices; calls of one shape share their choice.

    Args:
        expected: Node -> its workspace.
        tops: Node -> bytes alive at its call beside the workspace.
        floor: The peak without workspaces.
    """
    generator = np.random.default_rng(0)
    peaks = np.full(_SAMPLES, floor, dtype=np.int64)
    choices: dict[object, np.ndarray] = {}
    for node, top in tops.items():
        one, trial = expected[node], prepared.kernels.plans[node].trial
        key = node if trial is None else trial.key
        if key not in choices:
            choices[key] = generator.choice(one.sizes_bytes, _SAMPLES, p=one.chances)
        np.maximum(peaks, top + choices[key], out=peaks)
    low, high = np.quantile(peaks, _QUANTILES, method="nearest")
    bounds = [tops[node] + max(one.sizes_bytes) for node, one in _unmeasured(expected, tops)]
    return Range(int(low), max(int(high), *bounds, 0))


def _unmeasured(
    expected: Mapping[int, Workspace], tops: Mapping[int, int]
) -> Sequence[tuple[int, Workspace]]:
    return [(node, expected[node]) for node in tops if not expected[node].is_measured]


def describe_workspaces(workspace: WorkspaceFigures | None) -> Iterator[str]:
    """Yield sentences about workspaces; none without convolutions."""
    if workspace is None:
        return
    steady, first = workspace.steady, workspace.first_step
    if steady.width:
        yield (
            f"cuDNN's fastest algorithm for each convolution varies with the card. Over the likely "
            f"algorithms a step peaks between {format_bytes(steady.low)} and "
            f"{format_bytes(steady.high)}."
        )
    if workspace.trial_bytes:
        yield (
            f"The first step tries each algorithm, with up to {format_bytes(workspace.trial_bytes)} "
            f"for one, and peaks between {format_bytes(first.low)} and {format_bytes(first.high)}. "
            "TensorFlow skips trials that do not fit."
        )
    if workspace.unmeasured:
        yield (
            f"No measurement of cuDNN is published for {workspace.unmeasured} convolutions (three "
            f"axes, float64 or bfloat16, Hopper). Each may take up to "
            f"{format_bytes(workspace.unmeasured_bytes)} for copies of its tensors and partial sums."
        )
