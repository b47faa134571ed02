"""Poolings on a GPU: the memory that TensorFlow allocates around its calls of cuDNN.

Two spatial axes: cuDNN reads NHWC and NCHW directly (``pooling_ops_common.cc``). Three axes: TensorFlow
always calls it in NCDHW, so a node in NDHWC copies its tensors (``cudnn_pooling_gpu.cc``); the layout
pass changes no such node. The gradient of an average pooling allocates two pooled tensors that cuDNN
requires but does not read. On cards without bfloat16, a pooling of bfloat16 casts its tensors to
float32 (``IsBF16NotSupportedInOps``).
"""

from __future__ import annotations

from typing import Final

from analyzer.simulate.kernels.shared.op_call import Call, MemoryPlan, plan_allocation

Capability = tuple[int, int]

_BFLOAT16_SINCE: Final[Capability] = (8, 0)
_CHANNELS_FIRST: Final = frozenset({"NCHW", "NCDHW"})


def plan_pool_3d(call: Call, capability: Capability) -> MemoryPlan:
    """Copy the input, then the output (``DnnPooling3dOp``)."""
    image, pooled = call.input_size(0), call.size()
    copies = [] if _is_channels_first(call) else [image, pooled]
    return _plan_copies(call, capability, [image, pooled], copies)


def plan_max_pool_3d_gradient(call: Call, capability: Capability) -> MemoryPlan:
    """Copy the input, the output, and the gradients of both.

    ``DnnPooling3dGradOp`` with both tensors. The inputs of ``MaxPool3DGrad`` are the pooled tensor,
    the result and the gradient of the result.
    """
    image, pooled = call.input_size(0), call.input_size(1)
    casts = [call.input_size(2), image, pooled, call.size()]
    copies = [] if _is_channels_first(call) else [image, pooled, image, pooled]
    return _plan_copies(call, capability, casts, copies)


def plan_average_pool_3d_gradient(call: Call, capability: Capability) -> MemoryPlan:
    """Allocate both pooled tensors in any layout.

    ``AvgPooling3dGradOp`` calls ``DnnPooling3dGradOp`` without them; input 1 is the gradient of the
    output.
    """
    image, pooled = call.size(), call.input_size(1)
    copies = [image, pooled] if _is_channels_first(call) else [image, pooled, image, pooled]
    casts = [pooled, image]
    return _plan_copies(call, capability, casts, copies)


def plan_average_pool_gradient(call: Call, _: Capability) -> MemoryPlan:
    """Allocate in NCHW the two pooled tensors, which cuDNN requires but does not read.

    ``DnnPoolingGradOp::Compute`` without them. NHWC has TensorFlow's own kernel
    (``RunAvePoolBackwardNHWC``).
    """
    copies = [call.size(), call.input_size(1)] if _is_channels_first(call) else []
    return plan_allocation(call, after_bytes=copies)


def _plan_copies(
    call: Call, capability: Capability, casts: list[int], copies: list[int]
) -> MemoryPlan:
    """Plan the casts of a card without bfloat16, which double the sizes, and the layout copies."""
    if call.op.outputs[0].dtype == "bfloat16" and capability < _BFLOAT16_SINCE:
        copies = [2 * size for size in (*casts, *copies)]
    return plan_allocation(call, after_bytes=copies)


def _is_channels_first(call: Call) -> bool:
    return call.attr("data_format") in _CHANNELS_FIRST
