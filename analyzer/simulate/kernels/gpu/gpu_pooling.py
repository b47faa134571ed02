"""Poolings on a GPU: the memory that TensorFlow allocates around its calls of cuDNN.

Two spatial axes: cuDNN reads NHWC and NCHW directly (``pooling_ops_common.cc``), and the gradient of an
average in NHWC has TensorFlow's own kernel (``RunAvePoolBackwardNHWC``). Three axes: TensorFlow always
calls cuDNN in NCDHW, so a node in NDHWC copies its tensors (``DnnPooling3dOp`` and
``DnnPooling3dGradOp`` in ``cudnn_pooling_gpu.cc``); the layout pass changes no such node.
"""

from __future__ import annotations

from typing import Final

from analyzer.simulate.kernels.shared.op_call import Call, MemoryPlan, plan_allocation

Capability = tuple[int, int]

POOLINGS: Final = frozenset(
    {"MaxPool3D", "AvgPool3D", "AvgPoolGrad", "AvgPool3DGrad", "MaxPool3DGrad"}
)

_BFLOAT16_SINCE: Final[Capability] = (8, 0)


def plan_pooling(call: Call, capability: Capability) -> MemoryPlan:
    """Allocate the result, copies in cuDNN's layout, and tensors that cuDNN requires but does not read.

    The gradient of an average has neither the pooled tensor nor the result (``DnnPoolingGradOp`` without
    them), so it allocates both. On cards without bfloat16 a pooling casts all its tensors to float32
    (``IsBF16NotSupportedInOps``).
    """
    channels_first = call.attr("data_format") in ("NCHW", "NCDHW")
    both: list[int]
    match call.op.type:
        case "MaxPool3DGrad":  # of the input, the output, and the gradient of the output
            both = [call.input_size(0), call.input_size(1)]
            casts = [call.input_size(2), *both, call.size()]
            copies = [] if channels_first else [*both, *both]
        case "AvgPool3DGrad" | "AvgPoolGrad":
            both = [call.size(), call.input_size(1)]
            if call.op.type == "AvgPoolGrad":
                return plan_allocation(call, after_bytes=both if channels_first else ())
            casts = both[::-1]
            copies = both if channels_first else [*both, *both]
        case _:
            casts = both = [call.input_size(0), call.size()]
            copies = [] if channels_first else both
    if call.op.outputs[0].dtype == "bfloat16" and capability < _BFLOAT16_SINCE:
        copies = [2 * size for size in (*casts, *copies)]
    return plan_allocation(call, after_bytes=copies)
