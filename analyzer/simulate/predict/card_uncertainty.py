"""Uncertainty of a prediction for a GPU beside its schedules, in bytes and in sentences."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from analyzer.model.contract.report.peak_figures import (
    StatedRange,
    WorkspaceFigures,
    shift_bounds,
)
from analyzer.model.ranges import Range
from analyzer.model.recording.schema import TRIAL, WORKSPACE
from analyzer.model.units import format_bytes
from analyzer.simulate.predict.buffers import Buffer
from analyzer.simulate.predict.prediction import Prediction
from analyzer.simulate.predict.stated_range import SENTENCES

_HELD_SHARE: Final = 0.015
"""Share of the peak that other tensors of a process may add: 0.1 to 1.3 % in four public programs
before their steps (benchmarks/results/real-cards.md)."""

# Ops that call a function whose ops are not in the graph.
_OPAQUE: Final = ("PartitionedCall", "StatefulPartitionedCall", "XlaLaunch", "_XlaRun")

_OPTIMISED_FROM: Final = 0.8
"""Share of a card's memory above which TensorFlow's optimizer rewrites the graph, if it expects that use
(``SchedulingPass`` and ``SwappingPass`` in ``memory_optimizer.cc``)."""

_SAMPLES: Final = 2000  # sampled choices of all algorithms
_QUANTILES: Final = (0.05, 0.95)  # ends of the range of the sampled peaks


def add_card_uncertainty(
    stated: StatedRange, prediction: Prediction, limit_bytes: int
) -> StatedRange:
    """Return the range with cuDNN's workspaces, for a graph optimized for the limit."""
    workspace = find_workspaces(prediction, limit_bytes)
    because = list(stated.because)
    peak_bytes = prediction.middle.peak_bytes
    below = above = 0
    if workspace is not None:
        held_bytes = int(_HELD_SHARE * peak_bytes)
        below = max(peak_bytes - workspace.steady.low, 0)
        above = max(workspace.steady.high - peak_bytes, 0) + held_bytes
        because += _describe_workspaces(workspace)
        because.append(SENTENCES["held"].format(format_bytes(held_bytes)))
    rise = find_unknown_rise(prediction)
    if rise > above:
        above = rise
        because.append(SENTENCES["libraries"].format(format_bytes(rise)))
    if (stated.limit_high_bytes or limit_bytes) < _OPTIMISED_FROM * limit_bytes:
        limit = format_bytes(limit_bytes)
        because.append(SENTENCES["optimised"].format(limit, _OPTIMISED_FROM))
    because += _describe_ops(prediction)
    because.append(SENTENCES["no_gpu"])
    return replace(
        stated,
        **shift_bounds(stated, below, above, "", "allocated_"),
        workspace_bytes=above,
        workspace=workspace,
        because=tuple(because),
    )


def find_unknown_rise(prediction: Prediction) -> int:
    """Return how much libraries' undocumented memory, held while kernels run, can raise the peak."""
    schedule, plans = prediction.middle, prediction.prepared.kernels.plans
    highest = 0
    for buffer in schedule.buffers:
        unknown_bytes = plans[buffer.node].unknown_bytes if buffer.node >= 0 else 0
        if unknown_bytes and buffer.born >= schedule.steps[-1].first:
            live_bytes = int(schedule.live_bytes[buffer.born + 1])
            highest = max(highest, live_bytes + unknown_bytes)
    return max(highest - schedule.peak_bytes, 0)


def _describe_ops(prediction: Prediction) -> Iterator[str]:
    ops = prediction.prepared.wiring.ops
    opaque = [
        node
        for node in prediction.prepared.kernels.unmodelled
        if ops[node].type in _OPAQUE
    ]
    if opaque:
        yield SENTENCES["opaque"].format(len(opaque))
    if any(op.type.startswith("CudnnRNN") for op in ops):
        yield SENTENCES["recurrent"]


def find_workspaces(
    prediction: Prediction, limit_bytes: int
) -> WorkspaceFigures | None:
    """Return the expected workspace and the peaks that it allows; None without convolutions.

    The first step has the trials; a trial that exceeds the limit is skipped.
    """
    schedule, plans = prediction.middle, prediction.prepared.kernels.plans
    workspaces = [plan.workspace for plan in plans if plan.workspace is not None]
    if not workspaces:
        return None
    steady = _sample_peaks(prediction).including(schedule.peak_bytes)
    first = schedule.steps[0]
    span = slice(first.first, first.last + 2)
    needed_bytes = int(
        schedule.sum_live(_sizes_without(schedule.buffers, TRIAL))[span].max()
    )
    highest_bytes = min(
        int(schedule.live_bytes[span].max()), max(limit_bytes, needed_bytes)
    )
    lowest_bytes = needed_bytes - (schedule.peak_bytes - steady.low)
    at_peak = [one for one in schedule.find_alive_at_peak() if one.region == WORKSPACE]
    trials = [one.size_bytes for one in schedule.buffers if one.region == TRIAL]
    unmeasured = [max(one.sizes_bytes) for one in workspaces if not one.is_measured]
    return WorkspaceFigures(
        bytes=sum(one.size_bytes for one in at_peak),
        steady=steady,
        first_step=Range(
            min(lowest_bytes, highest_bytes), max(highest_bytes, steady.high)
        ),
        trial_bytes=max(trials, default=0),
        unmeasured=len(unmeasured),
        unmeasured_bytes=max(unmeasured, default=0),
    )


def _sizes_without(buffers: list[Buffer], region: str) -> list[int]:
    return [0 if buffer.region == region else buffer.size_bytes for buffer in buffers]


def _sample_peaks(prediction: Prediction) -> Range:
    """Return the range of the peak over sampled algorithms; calls of one shape share their choice."""
    schedule, plans = prediction.middle, prediction.prepared.kernels.plans
    bare = schedule.sum_live(_sizes_without(schedule.buffers, WORKSPACE))
    last = schedule.steps[-1].first
    tops: dict[int, int] = {}  # highest bytes without workspaces while each node runs
    for buffer in schedule.buffers:
        if (
            buffer.born >= last
            and buffer.node >= 0
            and plans[buffer.node].workspace is not None
        ):
            tops[buffer.node] = max(
                tops.get(buffer.node, 0), int(bare[buffer.born + 1])
            )
    generator = np.random.default_rng(0)
    peaks = np.full(_SAMPLES, int(bare[last:].max()), dtype=np.int64)
    choices: dict[object, np.ndarray] = {}
    highest = 0
    for node, top in tops.items():
        workspace, trial = plans[node].workspace, plans[node].trial
        assert workspace is not None
        key = node if trial is None else trial.key
        if key not in choices:
            sizes = workspace.sizes_bytes
            choices[key] = generator.choice(sizes, _SAMPLES, p=workspace.chances)
        np.maximum(peaks, top + choices[key], out=peaks)
        if not workspace.is_measured:
            highest = max(highest, top + max(workspace.sizes_bytes))
    low, high = np.quantile(peaks, _QUANTILES, method="nearest")
    return Range(int(low), max(int(high), highest))


def _describe_workspaces(workspace: WorkspaceFigures) -> Iterator[str]:
    steady, first = workspace.steady, workspace.first_step
    if steady.width:
        yield SENTENCES["steady"].format(*map(format_bytes, (steady.low, steady.high)))
    if workspace.trial_bytes:
        sizes_bytes = (workspace.trial_bytes, first.low, first.high)
        yield SENTENCES["first_step"].format(*map(format_bytes, sizes_bytes))
    if workspace.unmeasured:
        most = format_bytes(workspace.unmeasured_bytes)
        yield SENTENCES["unmeasured"].format(workspace.unmeasured, most)
