"""Convolutions and recurrent layers on a GPU: the memory around TensorFlow's calls of cuDNN.

TensorFlow stores filters as height, width, in, out. cuDNN needs out, in, height, width (or out,
height, width, in), so each call copies the filter. cuDNN computes in NHWC only with tensor cores
(``ComputeInNhwcEnabled`` in ``conv_ops_gpu.h``); otherwise a node in NHWC copies its tensors to NCHW.
Sources: ``conv_ops_impl.h`` of the 2.21 wheel, lines 780 to 1200; ``conv_grad_input_ops.cc`` and
``conv_grad_filter_ops.cc``. The first call of a shape tries cuDNN's algorithms; later calls use the
fastest, or if its workspace does not fit one without (``AllocateScratchOrFallback``).

For a recurrent layer ``CudnnRNNForwardOp`` (``cudnn_rnn_ops.cc``) allocates the results, the length of
each sequence (4 bytes), the workspace (a temporary), and the *reserve space* for the backward pass
(output 3; ``CreateRnnTempSpace`` in ``cuda_dnn.cc``). That pass allocates lengths and workspace last.
"""

import math
from dataclasses import replace
from typing import Final

from analyzer.cards import Gpu
from analyzer.simulate.kernels.convolution_on_card import Convolution
from analyzer.simulate.kernels.cudnn_algorithms import (
    Offer,
    find_likely_bytes,
    find_offers,
)
from analyzer.simulate.kernels.op_call import (
    ELSEWHERE,
    NO_BUFFER,
    Call,
    LibraryCall,
    MemoryPlan,
    Output,
    Way,
    allocate,
    allocate_all,
    forward,
    without_zeros,
)

LIMIT_VARIABLE: Final = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"
_LIMIT_BYTES: Final = 8 << 30
"""Limit of a workspace by default (``GetDnnWorkspaceLimitOrDefault``)."""
_FUSED_LIMIT_BYTES: Final = 4 << 30
"""The same of ``_FusedConv2D`` (``conv_ops_fused_impl.h``)."""
_GUARDS_BYTES: Final = 16 << 20
"""Guards before and after a buffer on which algorithms are tried, to detect writes outside of it
(twice ``kDefaultRedzoneSize`` in ``redzone_allocator.h``)."""


def plan_convolution(
    call: Call,
    gpu: Gpu,
    workspace_limit_bytes: int | None,
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
    item_bytes = call.item_bytes()
    image_bytes = math.prod(image) * item_bytes
    kernel_bytes = math.prod(kernel) * item_bytes
    result_bytes = math.prod(result) * item_bytes
    padded_bytes = math.prod(described.image) * item_bytes

    is_padded = padded_bytes != image_bytes
    padding = padded_bytes * is_padded
    after: tuple[int, ...] = (padding, kernel_bytes)

    if channels_last and not described.channels_last:
        image_copy = padded_bytes * (described.image[1] > 1)
        result_copy = result_bytes * (result[-1] > 1)

        unpadded = image_bytes * is_padded
        buffers = {
            "forward": (padding, image_copy, kernel_bytes, result_bytes),
            "input_gradient": (kernel_bytes, result_copy, padded_bytes, unpadded),
            "filter_gradient": (padding, kernel_bytes, result_copy, image_copy),
        }
        after = buffers[direction]
    elif direction == "input_gradient":
        # The result is computed into ``pre_transformed_in_backprop``, of the same size, which becomes
        # the output. The allocated output is freed, and asymmetric padding is removed after trials.
        before = without_zeros((call.size(), kernel_bytes, padding))
        plan = MemoryPlan(outputs=(allocate(call, region="temp"),), before_bytes=before)
        after = ()

    plan = replace(plan, after_bytes=without_zeros(after))
    if gpu.is_amd:  # MIOpen's workspace is not published
        return plan

    results = {"forward": result_bytes, "filter_gradient": kernel_bytes}
    computed_bytes = results.get(direction, padded_bytes)
    limit_bytes = workspace_limit_bytes
    if limit_bytes is None:
        limit_bytes = _find_usual_limit(call)

    candidates = find_offers(described, gpu, limit_bytes)
    key = _make_trial_key(call, described.dtype, shapes)

    return replace(plan, library=_call_library(candidates, computed_bytes, key))


def _find_usual_limit(call: Call) -> int:
    """Return TensorFlow's limit of a workspace, in bytes."""
    return _FUSED_LIMIT_BYTES if call.op.type == "_FusedConv2D" else _LIMIT_BYTES


def _find_shapes(call: Call, direction: str) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shapes of image, kernel and result of a pass; None if unknown."""
    if direction == "forward":
        return call.shape(0), call.shape(1), call.out_shape()
    if direction == "input_gradient":
        return call.out_shape(), call.shape(1), call.shape(2)

    return call.shape(0), call.out_shape(), call.shape(2)


def _call_library(
    candidates: tuple[Offer, ...],
    result_bytes: int,
    key: tuple[object, ...],
) -> LibraryCall:
    """Return the trial of cuDNN's algorithms and the workspace of the fastest.

    ``AutotuneFusedConv`` in ``conv_ops_gpu.cc``: a guarded copy of the result, skipped if it does not
    fit (``WrapRedzoneBestEffort``), and guards around each algorithm's workspace, even an empty one.
    """
    expected_bytes, least_bytes, most_bytes = find_likely_bytes(candidates)

    return LibraryCall(
        key=key,
        copy_bytes=result_bytes + _GUARDS_BYTES,
        tried_bytes=tuple(one.bytes + _GUARDS_BYTES for one in candidates),
        workspace_bytes=expected_bytes,
        least_bytes=least_bytes,
        most_bytes=most_bytes,
    )


def _make_trial_key(
    call: Call,
    dtype: str,
    shapes: tuple[object, ...],
) -> tuple[object, ...]:
    """Return the parameters by which the choice is cached (``ConvParameters``)."""
    names = ("strides", "dilations", "explicit_paddings", "fused_ops")
    lists = (tuple(call.attr(name) or ()) for name in names)
    texts = (call.attr("padding"), call.attr("data_format"))

    return (call.op.type, dtype, *texts, *shapes, *lists)


_CHANNELS_LAST_FROM: Final = {"float16": (7, 0), "bfloat16": (8, 0), "float32": (8, 0)}
"""First capability for which cuDNN computes in NHWC, with tensor cores (``ComputeInNhwcEnabled``)."""


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
    tensor_cores = _CHANNELS_LAST_FROM.get(dtype)
    axes = range(1, len(image) - 1) if last else range(2, len(image))
    depth = image[-1] if last else image[1]
    has_tensor_cores = (
        tensor_cores is not None and gpu.compute_capability >= tensor_cores
    )
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
        channels_last=last and has_tensor_cores,
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


_KEPT: Final = {"lstm": 5, "gru": 6, "rnn_tanh": 2, "rnn_relu": 2}
"""Numbers in the reserve space per unit, step and row of the batch, beside the lengths. Measured on an
H200 with cuDNN 9.19: two LSTM layers and a GRU exact; the other cells are assumed."""

_STATES: Final = {"lstm": 11}
_FIXED_WORKSPACE_BYTES: Final = 8 << 20
"""The workspace is three times input and output, the weights, 8 MiB, and a number of states of the batch
(11 for an LSTM, 5 for a GRU): the same layers within 8 KiB."""


def plan_recurrent_layer(call: Call) -> MemoryPlan:
    """Allocate the outputs, the reserve space, the lengths and the workspace."""
    mode = str(call.attr("rnn_mode", "lstm"))
    units = _count_unit_bytes(call, call.out_shape(0), call.size(0))
    reserve = 0

    if units and call.attr("is_training", True):
        reserve = _KEPT.get(mode, 6) * units + _lengths_bytes(call)

    outputs = allocate_all(call)
    cell = outputs[2] if mode == "lstm" else NO_BUFFER
    kept = Output(Way.ALLOCATE, reserve) if reserve else NO_BUFFER

    return MemoryPlan(
        outputs=(*outputs[:2], cell, kept, ELSEWHERE)[: len(outputs)],
        after_bytes=_find_recurrent_buffers(call, mode, units),
    )


def plan_recurrent_gradient(call: Call) -> MemoryPlan:
    """Allocate gradients, each in the shape of its input, the lengths and the workspace."""
    mode = str(call.attr("rnn_mode", "lstm"))
    shape = call.shape(5) or call.shape(0)
    size_bytes = call.input_size(5) or call.input_size(0)
    units = _count_unit_bytes(call, shape, size_bytes)

    outputs = []

    for index in range(len(call.op.outputs)):
        size = call.size(index) or call.input_size(index)
        is_missing_cell = index == 2 and mode != "lstm"
        has_buffer = size and not is_missing_cell
        outputs.append(Output(Way.ALLOCATE, size) if has_buffer else NO_BUFFER)

    after = _find_recurrent_buffers(call, mode, units)

    return MemoryPlan(outputs=tuple(outputs), after_bytes=after)


def _find_recurrent_buffers(call: Call, mode: str, unit_bytes: int) -> tuple[int, ...]:
    states = _STATES.get(mode, 5) * call.input_size(1)
    weights = call.input_size(3)
    tensors = 3 * (call.input_size(0) + unit_bytes)
    workspace = tensors + states + weights + _FIXED_WORKSPACE_BYTES

    return without_zeros((_lengths_bytes(call), workspace))


def _lengths_bytes(call: Call) -> int:
    """Return the bytes of the sequence lengths, an input of the third version of the ops."""
    if call.op.type.endswith("V3"):
        return call.input_size(4)

    return 0


def _count_unit_bytes(
    call: Call,
    shape: tuple[int, ...] | None,
    size_bytes: int,
) -> int:
    """Return the bytes of one number per unit, step and row: the size of the output."""
    if shape is not None and size_bytes:
        return size_bytes

    inputs = call.shape(0)
    state = call.shape(1)
    if inputs is None or state is None:
        return 0

    item_bytes = call.input_size(0) // max(math.prod(inputs), 1)

    return inputs[0] * inputs[1] * state[-1] * item_bytes
