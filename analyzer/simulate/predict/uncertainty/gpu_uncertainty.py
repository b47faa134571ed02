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
from analyzer.simulate.predict.played_step import Draw, live_bytes
from analyzer.simulate.predict.schedules import Prediction

_ASYNCHRONOUS: Final = ("Where", "Unique", "UniqueV2", "DynamicPartition", "CudnnRNNBackpropV3")
"""Kernels that wait for a number from the card; their successors may start later than predicted."""

_TUNED: Final = (
    "Conv2D",
    "Conv3D",
    "_FusedConv2D",
    "Conv2DBackpropInput",
    "Conv2DBackpropFilter",
    "Conv3DBackpropInputV2",
    "Conv3DBackpropFilterV2",
)
"""Kernels that time cuDNN's algorithms at their first call of a shape (``TF_CUDNN_USE_AUTOTUNE``)."""

_OPAQUE: Final = ("PartitionedCall", "StatefulPartitionedCall", "XlaLaunch", "_XlaRun")
"""Ops that call a function whose ops are not in the graph."""


_OPTIMISED_FROM: Final = 0.8
"""Share of a card's memory above which TensorFlow's optimizer rewrites the graph, if it expects that use
(``SchedulingPass`` and ``SwappingPass`` in ``memory_optimizer.cc``)."""


def add_gpu_uncertainty(
    base: StatedRange, prediction: Prediction, draw: Draw, limit_bytes: int
) -> StatedRange:
    """Return the range with cuDNN's workspaces and more sentences.

    Args:
        base: The range over schedules.
        limit_bytes: The memory limit for which TensorFlow optimized the graph.
    """
    rise = find_workspace_rise(prediction, draw)
    ops = prediction.prepared.wiring.ops
    because = [*base.because]
    if rise:
        because.append(
            f"cuDNN chooses each convolution's workspace by timing algorithms on the card. "
            f"Workspaces are not counted and may raise the peak by up to {format_bytes(rise)}; "
            f"cuDNN skips a "
            f"workspace that "
            "does not fit."
        )
    if any(op.type in _TUNED for op in ops):
        because.append(
            "The first step times cuDNN's algorithms for each convolution, with workspaces of up "
            "to 4 GiB "
            "and a copy of the result with 16 MiB of guards. It may peak higher than later steps; "
            "algorithms that do not fit are skipped."
        )
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
        high_bytes=shift_bound(base.high_bytes, rise),
        allocated_high_bytes=shift_bound(base.allocated_high_bytes, rise),
        workspace_bytes=rise,
        because=tuple(because),
    )


def find_workspace_rise(prediction: Prediction, draw: Draw) -> int:
    """Return the bytes by which cuDNN's workspaces can raise the peak.

    A workspace lives while its kernel runs. So its bound is added to the live bytes at each of the
    kernel's own allocations.
    """
    bounds = {
        node: plan.workspace_bytes
        for node, plan in enumerate(prediction.prepared.kernels.plans)
        if plan.workspace_bytes
    }
    if not bounds:
        return 0
    buffers = draw.buffers
    live = live_bytes(buffers, draw.instants)
    first = draw.steps[-1][0]
    node = np.asarray(buffers.node, dtype=np.int64)
    born = np.asarray(buffers.born, dtype=np.int64)
    is_bounded = np.isin(node, list(bounds)) & (born >= first)
    if not is_bounded.any():
        return 0
    workspaces = np.asarray([bounds[int(n)] for n in node[is_bounded]], dtype=np.int64)
    tops = live[born[is_bounded] + 1] + workspaces
    return max(int(tops.max()) - draw.peak_bytes, 0)


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
