"""Uncertainty of a prediction for a GPU beside its schedule, in bytes and in sentences."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from analyzer.model.contract.report.peak_figures import StatedRange, WorkspaceFigures, shift_bounds
from analyzer.model.ranges import Range
from analyzer.model.recording.schema import TRIAL, WORKSPACE
from analyzer.model.units import format_bytes
from analyzer.simulate.kernels.shared.op_call import Workspace
from analyzer.simulate.predict.prepared_step import Prepared, Schedule, live_bytes
from analyzer.simulate.predict.process_table import Played
from analyzer.simulate.predict.sampling import Prediction
from analyzer.simulate.predict.uncertainty.stated_range import SENTENCES

_HELD_SHARE: Final = 0.015
"""Share of the peak that other tensors of a process may add: 0.1 to 1.3 % in four public programs
before their steps (benchmarks/results/real-cards.md)."""

# Ops that call a function whose ops are not in the graph.
_OPAQUE: Final = ("PartitionedCall", "StatefulPartitionedCall", "XlaLaunch", "_XlaRun")

_OPTIMISED_FROM: Final = 0.8
"""Share of a card's memory above which TensorFlow's optimizer rewrites the graph, if it expects that use
(``SchedulingPass`` and ``SwappingPass`` in ``memory_optimizer.cc``)."""


def add_gpu_uncertainty(
    base: StatedRange, prediction: Prediction, played: Played, limit_bytes: int
) -> StatedRange:
    """Return the range with cuDNN's workspaces, for a graph optimized for the limit."""
    schedule, aside_bytes = played.schedule, played.aside_bytes
    workspace = find_workspaces(
        prediction, schedule, limit_bytes=limit_bytes, aside_bytes=aside_bytes
    )
    because = list(base.because)
    below = above = 0
    if workspace is not None:
        peak_bytes = schedule.peak_bytes + aside_bytes
        below = max(peak_bytes - workspace.steady.low, 0)
        held_bytes = int(_HELD_SHARE * peak_bytes)
        above = max(workspace.steady.high - peak_bytes, 0) + held_bytes
        because += describe_workspaces(workspace)
        because.append(SENTENCES["held"].format(format_bytes(held_bytes)))
    rise = find_unknown_rise(prediction, schedule)
    if rise > above:
        above = rise
        because.append(SENTENCES["libraries"].format(format_bytes(rise)))
    if (base.limit_high_bytes or limit_bytes) < _OPTIMISED_FROM * limit_bytes:
        limit = format_bytes(limit_bytes)
        because.append(SENTENCES["optimised"].format(limit, _OPTIMISED_FROM))
    because += _describe_ops(prediction.prepared)
    because.append(SENTENCES["no_gpu"])
    return replace(
        base,
        **shift_bounds(base, below, above, "", "allocated_"),
        workspace_bytes=above,
        workspace=workspace,
        because=tuple(because),
    )


def find_unknown_rise(prediction: Prediction, schedule: Schedule) -> int:
    """Return how much libraries' undocumented memory, held while kernels run, can raise the peak."""
    plans, buffers = prediction.prepared.kernels.plans, schedule.buffers
    live = live_bytes(buffers, schedule.instants)
    tops = (
        int(live[born + 1]) + plans[node].unknown_bytes
        for node, born in zip(buffers.node, buffers.born, strict=True)
        if node >= 0 and plans[node].unknown_bytes and born >= schedule.steps[-1][0]
    )
    return max(max(tops, default=0) - schedule.peak_bytes, 0)


def _describe_ops(prepared: Prepared) -> Iterator[str]:
    ops = prepared.wiring.ops
    opaque = sum(ops[node].type in _OPAQUE for node in prepared.kernels.unmodelled)
    if opaque:
        yield SENTENCES["opaque"].format(opaque)
    if any(op.type.startswith("CudnnRNN") for op in ops):
        yield SENTENCES["recurrent"]


_SAMPLES: Final = 2000  # sampled choices of all algorithms
_QUANTILES: Final = (0.05, 0.95)  # ends of the range of the sampled peaks


def find_workspaces(
    prediction: Prediction, schedule: Schedule, *, limit_bytes: int, aside_bytes: int = 0
) -> WorkspaceFigures | None:
    """Return the expected workspace and the peaks that it allows; None without convolutions.

    The schedule starts with the process, so that its first step has the trials; a trial that
    exceeds the limit is skipped. The process holds ``aside_bytes`` outside the graph.
    """
    prepared = prediction.prepared
    plans = enumerate(prepared.kernels.plans)
    expected = {node: plan.workspace for node, plan in plans if plan.workspace is not None}
    if not expected:
        return None
    buffers, instants, last = schedule.buffers, schedule.instants, schedule.steps[-1]
    size = np.asarray(buffers.size_bytes, dtype=np.int64)
    region = np.asarray(buffers.region, dtype=object)
    born, dies = (np.asarray(x, dtype=np.int64) for x in (buffers.born, buffers.dies))
    bare = live_bytes(buffers, instants, np.where(region == WORKSPACE, 0, size))
    tops: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(buffers.node, list(expected)) & (born >= last[0])):
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

    ``tops`` are the bytes alive at each node's call, ``floor`` the peak, both without workspaces.
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
    bounds = (
        top + max(expected[node].sizes_bytes)
        for node, top in tops.items()
        if not expected[node].is_measured
    )
    return Range(int(low), max(int(high), *bounds, 0))


def describe_workspaces(workspace: WorkspaceFigures) -> Iterator[str]:
    """Yield sentences about workspaces."""
    steady, first = workspace.steady, workspace.first_step
    if steady.width:
        yield SENTENCES["steady"].format(*map(format_bytes, (steady.low, steady.high)))
    if workspace.trial_bytes:
        sizes_bytes = (workspace.trial_bytes, first.low, first.high)
        yield SENTENCES["first_step"].format(*map(format_bytes, sizes_bytes))
    if workspace.unmeasured:
        most = format_bytes(workspace.unmeasured_bytes)
        yield SENTENCES["unmeasured"].format(workspace.unmeasured, most)
