"""Poolings on a GPU: what TensorFlow allocates around its calls of cuDNN.

Two axes of space: cuDNN reads NHWC and NCHW as they are (``pooling_ops_common.cc``). Three axes:
TensorFlow always calls it in NCDHW, so a node in NDHWC works on copies (``cudnn_pooling_gpu.cc``), and
the layout pass turns no such node. Either way the gradient of an average asks for the two pooled tensors
that cuDNN's call wants and does not read. On cards without bfloat16 a pooling of bfloat16 is computed in
float32 (``IsBF16NotSupportedInOps``), on casts of its tensors.
"""

from __future__ import annotations

from typing import Final

from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, asked_for
from analyzer.simulate.kernels.shared.op_call import Call, allocate_all

Capability = tuple[int, int]

_BFLOAT16_SINCE: Final[Capability] = (8, 0)
_CHANNELS_FIRST: Final = frozenset({"NCHW", "NCDHW"})


def plan_pool_3d(call: Call, capability: Capability) -> MemoryPlan:
    """``MaxPool3D``, ``AvgPool3D``: a copy of the input, then one of the output (``DnnPooling3dOp``)."""
    image, pooled = call.input_size(0), call.size()
    return _in_float32_or_not(call, capability, [image, pooled], [image, pooled])


def plan_max_pool_3d_gradient(call: Call, capability: Capability) -> MemoryPlan:
    """Copies of the input, the output, the input's gradient and the output's gradient.

    ``DnnPooling3dGradOp`` with both tensors given; inputs of ``MaxPool3DGrad`` are the pooled tensor,
    its pooling and the gradient of that.
    """
    image, pooled = call.input_size(0), call.input_size(1)
    casts = [call.input_size(2), image, pooled, call.size()]
    return _in_float32_or_not(call, capability, casts, [image, pooled, image, pooled])


def plan_average_pool_3d_gradient(call: Call, capability: Capability) -> MemoryPlan:
    """Plan the pooling with neither tensor given: both are asked for in every layout.

    ``DnnPooling3dGradOp`` as ``AvgPooling3dGradOp`` calls it; input 1 is the output's gradient.
    """
    image, pooled = call.size(), call.input_size(1)
    copies = [image, pooled] if _is_channels_first(call) else [image, pooled, image, pooled]
    casts = [pooled, image]
    if _is_cast(call, capability):
        return MemoryPlan(outputs=allocate_all(call), after_bytes=_doubled([*casts, *copies]))
    return MemoryPlan(outputs=allocate_all(call), after_bytes=asked_for(copies))


def plan_average_pool_gradient(call: Call, _: Capability) -> MemoryPlan:
    """In NCHW cuDNN asks for the pooled tensors although it does not read them: two temporaries.

    ``DnnPoolingGradOp::Compute`` with neither given; NHWC has a kernel of TensorFlow's own
    (``RunAvePoolBackwardNHWC``).
    """
    copies = [call.size(), call.input_size(1)] if _is_channels_first(call) else []
    return MemoryPlan(outputs=allocate_all(call), after_bytes=asked_for(copies))


def _in_float32_or_not(
    call: Call, capability: Capability, casts: list[int], copies: list[int]
) -> MemoryPlan:
    """Return a plan of casts (where bfloat16 is foreign to the card), then copies (of NDHWC)."""
    copies = [] if _is_channels_first(call) else copies
    if _is_cast(call, capability):
        return MemoryPlan(outputs=allocate_all(call), after_bytes=_doubled([*casts, *copies]))
    return MemoryPlan(outputs=allocate_all(call), after_bytes=asked_for(copies))


def _is_channels_first(call: Call) -> bool:
    return call.attr("data_format") in _CHANNELS_FIRST


def _is_cast(call: Call, capability: Capability) -> bool:
    return call.op.outputs[0].dtype == "bfloat16" and capability < _BFLOAT16_SINCE


def _doubled(sizes_bytes: list[int]) -> tuple[int, ...]:
    """Return the bytes of tensors of bfloat16 as float32."""
    return asked_for([2 * size for size in sizes_bytes])
