"""Convolutions and recurrent layers on a GPU: the memory around TensorFlow's calls of cuDNN.

TensorFlow stores filters as height, width, in, out. cuDNN needs out, in, height, width (or out,
height, width, in), so each call copies the filter. cuDNN computes in NHWC only with tensor cores
(``ComputeInNhwcEnabled`` in ``conv_ops_gpu.h``); otherwise a node in NHWC copies its tensors to NCHW.
Sources: ``conv_ops_impl.h`` of the 2.21 wheel, lines 780 to 1200; ``conv_grad_input_ops.cc`` and
``conv_grad_filter_ops.cc``. The first call of a shape tries cuDNN's algorithms, which is not
modelled; later calls use the fastest.

For a recurrent layer ``CudnnRNNForwardOp`` (``cudnn_rnn_ops.cc``) allocates the results, the workspace
(a temporary), and the *reserve space* for the backward pass (output 3; ``CreateRnnTempSpace`` in
``cuda_dnn.cc``).
"""

import math
from dataclasses import replace

from analyzer.cards import Gpu
from analyzer.simulate.kernels.cudnn_algorithms import (
    Convolution,
    find_likely_bytes,
    find_offers,
    has_tensor_cores,
)
from analyzer.simulate.kernels.op_call import (
    ELSEWHERE,
    NO_BUFFER,
    Call,
    MemoryPlan,
    Output,
    Way,
    allocate,
    allocate_all,
    forward,
    without_zeros,
)

# Limit of a workspace by default (``GetDnnWorkspaceLimitOrDefault``).
_LIMIT_BYTES = 8 << 30

# The same of ``_FusedConv2D`` (``conv_ops_fused_impl.h``).
_FUSED_LIMIT_BYTES = 4 << 30


def plan_convolution(
    call: Call,
    gpu: Gpu,
    direction: str,
) -> MemoryPlan:
    """Allocate the outputs, copies of tensors, and the workspace of cuDNN's algorithm.

    Each pass copies the filter, the image if its padding is asymmetric, and its tensors to change the
    layout; a tensor with one channel needs no change. The side input of a fused ``Add``
    (``_FusedConv2D``) is forwarded. ``direction`` is one of ``PASSES``: ``LaunchConvOpImpl``,
    ``LaunchConv2DBackpropInputOp`` and ``LaunchConv2DBackpropFilterOp``.
    """
    first = allocate(call)
    if "Add" in (call.attr("fused_ops") or []):
        first = forward(call, (len(call.inputs) - 1,))

    plan = MemoryPlan(outputs=(first, *allocate_all(call)[1:]))

    shapes = _find_shapes(call, direction)
    image, kernel, result = shapes

    if image is None or kernel is None or result is None or len(image) != len(kernel):
        return plan

    channels_last = str(call.attr("data_format", "NHWC")) in ("NHWC", "NDHWC")
    if channels_last and _is_product(call, image, kernel):
        return plan

    known = (image, kernel, result)
    described = _describe(call, gpu, direction, known, last=channels_last)
    plan = _plan_copies(call, plan, known, described, is_last=channels_last)

    if gpu.is_amd:  # MIOpen's workspace is not published
        return plan

    is_fused = call.op.type == "_FusedConv2D"
    limit_bytes = _FUSED_LIMIT_BYTES if is_fused else _LIMIT_BYTES
    offers = find_offers(described, gpu, limit_bytes)

    return replace(plan, workspaces_bytes=find_likely_bytes(offers))


def _plan_copies(
    call: Call,
    plan: MemoryPlan,
    shapes: tuple[tuple[int, ...], ...],
    described: Convolution,
    *,
    is_last: bool,
) -> MemoryPlan:
    """Return the plan with copies of image, filter and result; ``is_last``: channels last."""
    image, kernel, result = shapes
    item_bytes = call.item_bytes()
    image_bytes = math.prod(image) * item_bytes

    kernel_bytes = math.prod(kernel) * item_bytes
    result_bytes = math.prod(result) * item_bytes
    padded_bytes = math.prod(described.image) * item_bytes

    is_padded = padded_bytes != image_bytes
    padding = padded_bytes * is_padded
    after: tuple[int, ...] = (padding, kernel_bytes)

    if is_last and not described.channels_last:
        image_copy = padded_bytes * (described.image[1] > 1)
        result_copy = result_bytes * (result[-1] > 1)

        unpadded = image_bytes * is_padded
        buffers = {
            "forward": (padding, image_copy, kernel_bytes, result_bytes),
            "input_gradient": (kernel_bytes, result_copy, padded_bytes, unpadded),
            "filter_gradient": (padding, kernel_bytes, result_copy, image_copy),
        }

        after = buffers[described.direction]
    elif described.direction == "input_gradient":
        # The result is computed into ``pre_transformed_in_backprop``, of the same size, which becomes
        # the output. The allocated output is freed, and asymmetric padding is removed after trials.
        before = without_zeros((call.size(), kernel_bytes, padding))
        plan = MemoryPlan(outputs=(allocate(call, region="temp"),), before_bytes=before)
        after = ()

    return replace(plan, after_bytes=without_zeros(after))


def _find_shapes(call: Call, direction: str) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shapes of image, kernel and result of a pass; None if unknown."""
    if direction == "forward":
        return call.shape(0), call.shape(1), call.out_shape()
    if direction == "input_gradient":
        return call.out_shape(), call.shape(1), call.shape(2)

    return call.shape(0), call.out_shape(), call.shape(2)


def _describe(
    call: Call,
    gpu: Gpu,
    direction: str,
    shapes: tuple[tuple[int, ...], ...],
    *,
    last: bool,
) -> Convolution:
    """Return the convolution as cuDNN sees it: channels before axes, symmetric padding."""
    image, kernel, result = shapes
    dtype = call.op.outputs[0].dtype
    axes = range(1, len(image) - 1) if last else range(2, len(image))

    depth = image[-1] if last else image[1]
    padded = []

    for axis, window in zip(axes, kernel, strict=False):
        length = image[axis]
        added = _find_asymmetry(call, length, window, result[axis], axis)
        padded.append(length + added)

    return Convolution(
        direction=direction,
        image=(image[0], depth, *padded),
        kernel=(kernel[-1], *kernel[:-2]),
        result=tuple(result[axis] for axis in axes),
        groups=max(depth // max(kernel[-2], 1), 1),
        stride=max(map(int, call.attr("strides") or (1,))),
        dilation=max(map(int, call.attr("dilations") or (1,))),
        dtype=dtype,
        channels_last=last and has_tensor_cores(dtype, gpu),
    )


def _find_asymmetry(call: Call, length: int, window: int, out: int, axis: int) -> int:
    """Return the points that padding SAME adds at the end of an axis only."""
    if call.attr("padding", "VALID") != "SAME":
        return 0

    dilations = call.attr("dilations")
    strides = call.attr("strides")
    dilation = int(dilations[axis]) if dilations else 1

    stride = int(strides[axis]) if strides else 1
    reach = (window - 1) * dilation + 1
    missing = max((out - 1) * stride + reach - length, 0)

    return missing % 2


def _is_product(call: Call, image: tuple[int, ...], kernel: tuple[int, ...]) -> bool:
    """Return whether a call in NHWC is a plain matrix product, without temporaries."""
    if kernel[-2] != image[-1]:
        return False

    strides = call.attr("strides") or [1]
    dilations = call.attr("dilations") or [1]
    is_plain = all(int(x) == 1 for x in (*strides, *dilations))

    if set(kernel[:-2]) == {1} and is_plain:
        return call.attr("padding") in ("SAME", "VALID")

    return kernel[:-2] == image[1:-1] and call.attr("padding") == "VALID"


# Numbers in the reserve space for each number of the result (an H200 with cuDNN 9.19).
_KEPT = {"lstm": 5, "gru": 6}

_FIXED_WORKSPACE_BYTES = 8 << 20


def plan_recurrent_layer(call: Call) -> MemoryPlan:
    """Allocate the outputs, the reserve space and the workspace."""
    results, states, cell, *_ = allocate_all(call)
    reserve = NO_BUFFER

    if call.attr("is_training", True):
        numbers = _KEPT.get(str(call.attr("rnn_mode")), 6)
        reserve = Output(Way.ALLOCATE, numbers * call.size(0))

    outputs = (results, states, cell, reserve, ELSEWHERE)[: len(call.op.outputs)]

    return MemoryPlan(
        outputs=outputs,
        after_bytes=(_find_workspace(call, call.size(0)),),
    )


def plan_recurrent_gradient(call: Call) -> MemoryPlan:
    """Allocate gradients, each in the shape of its input, and the workspace."""
    outputs = []
    for index in range(len(call.op.outputs)):
        size_bytes = call.size(index) or call.input_size(index)
        outputs.append(Output(Way.ALLOCATE, size_bytes) if size_bytes else NO_BUFFER)

    workspace_bytes = _find_workspace(call, call.input_size(5))

    return MemoryPlan(outputs=tuple(outputs), after_bytes=(workspace_bytes,))


def _find_workspace(call: Call, result_bytes: int) -> int:
    """Return about three times input and result, and the weights (an H200 with cuDNN 9.19)."""
    tensors_bytes = 3 * (call.input_size(0) + result_bytes)
    return tensors_bytes + call.input_size(3) + _FIXED_WORKSPACE_BYTES
