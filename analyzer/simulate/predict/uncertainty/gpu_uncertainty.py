"""Uncertainty of a prediction for a GPU beside its schedule, in bytes and in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from analyzer.model.contract.graph_note import Op
from analyzer.model.contract.report.trust_figures import StatedRange, shift_bound
from analyzer.model.graph.host_copies import COPY
from analyzer.model.units import format_bytes
from analyzer.simulate.predict.process_table import Played
from analyzer.simulate.predict.sampling import Prediction
from analyzer.simulate.predict.schedule import Schedule, live_bytes
from analyzer.simulate.predict.uncertainty.workspace_range import (
    describe_workspaces,
    find_workspaces,
)

_ASYNCHRONOUS: Final = ("Where", "Unique", "UniqueV2", "DynamicPartition", "CudnnRNNBackpropV3")
"""Kernels that wait for a number from the card; their successors may start later than predicted."""

_HELD_SHARE: Final = 0.03
"""Share of the peak by which real runs may exceed the estimate. Five public runs of convolutional
networks did by 0.4 to 2.7 % (benchmarks/results/real-cards.md): other tensors of the process."""

_OPAQUE: Final = ("PartitionedCall", "StatefulPartitionedCall", "XlaLaunch", "_XlaRun")
"""Ops that call a function whose ops are not in the graph."""


_OPTIMISED_FROM: Final = 0.8
"""Share of a card's memory above which TensorFlow's optimizer rewrites the graph, if it expects that use
(``SchedulingPass`` and ``SwappingPass`` in ``memory_optimizer.cc``)."""


def add_gpu_uncertainty(
    base: StatedRange, prediction: Prediction, played: Played, limit_bytes: int
) -> StatedRange:
    """Return the range with cuDNN's workspaces and more sentences.

    Args:
        base: The range over schedules.
        played: The shown schedule, from the process's start.
        limit_bytes: The memory limit for which TensorFlow optimized the graph.
    """
    schedule, ops = played.schedule, prediction.prepared.wiring.ops
    rise = find_unknown_rise(prediction, schedule)
    workspace = find_workspaces(
        prediction, schedule, limit_bytes=limit_bytes, aside_bytes=played.aside_bytes
    )
    because = [*base.because, *describe_workspaces(workspace)]
    below = above = 0
    if workspace is not None:
        peak_bytes = schedule.peak_bytes + played.aside_bytes
        below = max(peak_bytes - workspace.steady.low, 0)
        held_bytes = int(_HELD_SHARE * peak_bytes)
        above = max(workspace.steady.high - peak_bytes, 0) + held_bytes
        because.append(
            f"Other tensors of a process, which no step shows, may add {format_bytes(held_bytes)}: they "
            "added 0.4 to 2.7 % in public runs."
        )
    if rise > above:
        because.append(
            f"Libraries may take up to {format_bytes(rise)} more: cuDNN does not document the memory of "
            "batch normalization, recurrent layers and reductions."
        )
    above = max(above, rise)
    if (base.limit_high_bytes or limit_bytes) < _OPTIMISED_FROM * limit_bytes:
        because.append(
            f"TensorFlow optimized the graph for a limit of {format_bytes(limit_bytes)}. If it "
            f"expects a "
            f"step to use over {_OPTIMISED_FROM:.0%} of the limit, it rewrites the graph, which changes "
            "the need: --limit SIZE tests a smaller limit."
        )
    because += _sentences(ops, [ops[node].type for node in prediction.prepared.kernels.unmodelled])
    because.append(
        "No GPU was used: the graph is TensorFlow's own for that card, and the kernels' memory follows "
        "its source code."
    )
    return replace(
        base,
        low_bytes=shift_bound(base.low_bytes, -below),
        high_bytes=shift_bound(base.high_bytes, above),
        allocated_low_bytes=shift_bound(base.allocated_low_bytes, -below),
        allocated_high_bytes=shift_bound(base.allocated_high_bytes, above),
        workspace_bytes=above,
        workspace=workspace,
        because=tuple(because),
    )


def find_unknown_rise(prediction: Prediction, schedule: Schedule) -> int:
    """Return the bytes by which undocumented memory of libraries can raise the peak.

    It lives while its kernel runs. So its bound is added to the live bytes at each of the kernel's own
    allocations.
    """
    plans = prediction.prepared.kernels.plans
    bounds = {node: plan.unknown_bytes for node, plan in enumerate(plans) if plan.unknown_bytes}
    if not bounds:
        return 0
    live = live_bytes(schedule.buffers, schedule.instants)
    node, born = (
        np.asarray(x, dtype=np.int64) for x in (schedule.buffers.node, schedule.buffers.born)
    )
    chosen = np.isin(node, list(bounds)) & (born >= schedule.steps[-1][0])
    tops = (live[born[row] + 1] + bounds[int(node[row])] for row in np.flatnonzero(chosen))
    return max(int(max(tops, default=0)) - schedule.peak_bytes, 0)


def _sentences(ops: Sequence[Op], unmodelled: list[str]) -> list[str]:
    counts: Counter[str] = Counter(op.type for op in ops)
    sentences = []
    copies = [op for op in ops if op.type == COPY]
    size = sum(_size(op) for op in copies)
    if size >= 1 << 20:
        sentences.append(
            f"The step copies {len(copies)} tensors from host memory to the card: {format_bytes(size)}."
        )
    waiting = [kind for kind in _ASYNCHRONOUS if counts[kind]]
    if waiting:
        sentences.append(
            f"{', '.join(waiting)} finish asynchronously; later ops may run in another order."
        )
    opaque = sum(kind in _OPAQUE for kind in unmodelled)
    if opaque:
        sentences.append(
            f"{opaque} nested functions run as one kernel each (compiled with XLA or not "
            f"inlined): their "
            "inner allocations are unknown."
        )
    recurrent = sum(count for kind, count in counts.items() if kind.startswith("CudnnRNN"))
    if recurrent:
        sentences.append(
            "cuDNN does not document the reserve space of recurrent layers: it is estimated from "
            "the needs "
            "of the backward pass."
        )
    return sentences


def _size(op: Op) -> int:
    return sum(spec.size_bytes or 0 for spec in op.outputs)
