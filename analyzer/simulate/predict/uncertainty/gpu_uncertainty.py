"""What is uncertain about a prediction for a GPU beside its schedule, in bytes and in words."""

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
"""Kernels that finish later than they return, because they wait for a number from the card; what
follows them may start later than predicted."""

_TUNED: Final = (
    "Conv2D",
    "Conv3D",
    "_FusedConv2D",
    "Conv2DBackpropInput",
    "Conv2DBackpropFilter",
    "Conv3DBackpropInputV2",
    "Conv3DBackpropFilterV2",
)
"""Kernels that measure cuDNN's algorithms at their first call of a shape (``TF_CUDNN_USE_AUTOTUNE``)."""

_OPAQUE: Final = ("PartitionedCall", "StatefulPartitionedCall", "XlaLaunch", "_XlaRun")
"""Types of ops that call a function of which the graph does not show the ops."""


_OPTIMISED_FROM: Final = 0.8
"""Share of a device's memory from which on, where TensorFlow expects it to be in use, its optimiser
makes another graph (``SchedulingPass``, ``SwappingPass``, ``memory_optimizer.cc``)."""


def with_gpu_doubts(
    base: StatedRange, prediction: Prediction, draw: Draw, limit_bytes: int
) -> StatedRange:
    """Return the range with what a GPU adds to it.

    Args:
        base: The range by schedule (``uncertainty_of``).
        prediction: The prediction.
        draw: The draw that is shown.
        limit_bytes: The memory limit that the graph is of.

    Returns:
        ``base`` with the upper ends raised by ``workspace_bytes``, that number, and more sentences.
    """
    rise = workspace_rise(prediction, draw)
    ops = prediction.prepared.wiring.ops
    because = [*base.because]
    if rise:
        because.append(
            f"cuDNN picks a workspace for each convolution by trying algorithms on the card; counted as "
            f"nothing, it may raise the peak by up to {format_bytes(rise)}. One that does not fit is "
            "done without."
        )
    if any(op.type in _TUNED for op in ops):
        because.append(
            "The first step tries cuDNN's algorithms for each convolution, with workspaces of up to "
            "4 GiB where that much is free and 16 MiB of guards around a copy of the result: it may "
            "peak higher than the steps after it. What does not fit there is skipped."
        )
    if (base.limit_high_bytes or limit_bytes) < _OPTIMISED_FROM * limit_bytes:
        because.append(
            f"The graph is of a limit of {format_bytes(limit_bytes)}. Where TensorFlow expects over "
            f"{_OPTIMISED_FROM:.0%} of a limit to be in use it makes another one, which may need more "
            "or less: --limit SIZE asks about a limit near what the step needs."
        )
    because += _sentences(ops, [ops[node].type for node in prediction.prepared.kernels.unmodelled])
    because.append(
        "Nothing of this was measured on a GPU: the graph is TensorFlow's own for that card, the "
        "kernels' memory is read from its source."
    )
    return replace(
        base,
        high_bytes=shift_bound(base.high_bytes, rise),
        allocated_high_bytes=shift_bound(base.allocated_high_bytes, rise),
        workspace_bytes=rise,
        because=tuple(because),
    )


def workspace_rise(prediction: Prediction, draw: Draw) -> int:
    """Return by how much the largest workspace near the peak can raise it, bytes.

    A kernel's workspace lives while the kernel runs, beside all that it allocated: the most bytes alive
    at one of the kernel's own allocations, and the workspace's bound on top.
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
    kept = np.isin(node, list(bounds)) & (born >= first)
    if not kept.any():
        return 0
    tops = live[born[kept] + 1] + np.asarray([bounds[int(n)] for n in node[kept]], dtype=np.int64)
    return max(int(tops.max()) - draw.peak_bytes, 0)


def _sentences(ops: Sequence[Op], unmodelled: list[str]) -> list[str]:
    counts: Counter[str] = Counter(op.type for op in ops)
    sentences = []
    copies = [op for op in ops if op.type == COPY]
    size = sum(_size(op) for op in copies)
    if size >= 1 << 20:
        sentences.append(
            f"{len(copies)} tensors are taken to be copied from the host's memory to the card's: "
            f"{format_bytes(size)} in all."
        )
    waiting = [kind for kind in _ASYNCHRONOUS if counts[kind]]
    if waiting:
        sentences.append(
            f"{', '.join(waiting)} finish later than they return; what follows may run in another order."
        )
    opaque = sum(kind in _OPAQUE for kind in unmodelled)
    if opaque:
        sentences.append(
            f"{opaque} nested functions are one kernel each (compiled with XLA or not inlined): "
            "what they allocate inside is not known."
        )
    recurrent = sum(count for kind, count in counts.items() if kind.startswith("CudnnRNN"))
    if recurrent:
        sentences.append(
            "cuDNN does not say how large a recurrent layer's reserve space is: estimated from what the "
            "backward pass needs."
        )
    return sentences


def _size(op: Op) -> int:
    return sum(spec.size_bytes or 0 for spec in op.outputs)
