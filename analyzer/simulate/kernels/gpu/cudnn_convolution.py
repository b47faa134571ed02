"""Convolutions on a GPU: the memory that TensorFlow allocates around its calls of cuDNN.

TensorFlow stores filters as height, width, in, out. cuDNN needs out, in, height, width (or out,
height, width, in), so each call copies the filter. cuDNN computes in NHWC only with tensor cores
(``ComputeInNhwcEnabled`` in ``conv_ops_gpu.h``); otherwise a node in NHWC copies its tensors to NCHW.
Sources: ``conv_ops_impl.h`` of the 2.21 wheel, lines 780 to 1200; ``conv_grad_input_ops.cc`` and
``conv_grad_filter_ops.cc``.

The first call of a shape tries cuDNN's algorithms (``convolution_algorithms``) with guards around each
workspace; later calls use the fastest. If its workspace does not fit, TensorFlow falls back to an
algorithm without one (``AllocateScratchOrFallback`` in ``conv_ops_gpu.h``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from analyzer.cards import Gpu
from analyzer.simulate.kernels.gpu.convolution_algorithms import (
    Convolution,
    find_candidates,
    is_measured,
)
from analyzer.simulate.kernels.shared.op_call import (
    FLOAT_BYTES,
    Call,
    MemoryPlan,
    Output,
    Trial,
    Way,
    Workspace,
    allocate,
    allocate_all,
    forward,
    plan_allocation,
    without_zeros,
)

LIMIT_VARIABLE: Final = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"

WORKSPACE_LIMIT_BYTES: Final = 8 << 30
"""Limit of a workspace by default (``GetDnnWorkspaceLimitOrDefault``)."""

FUSED_LIMIT_BYTES: Final = 4 << 30
"""The same of ``_FusedConv2D`` (``conv_ops_fused_impl.h``)."""

_GUARD_BYTES: Final = 8 << 20
"""Guard before and after a buffer on which algorithms are tried, to detect writes outside of it
(``kDefaultRedzoneSize`` in ``redzone_allocator.h``)."""


@dataclass(frozen=True, slots=True)
class DnnCard:
    """A card, and the limit that ``TF_CUDNN_WORKSPACE_LIMIT_IN_MB`` sets; None for the default."""

    gpu: Gpu
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolved:
    """One convolution, forward or backward.

    Attributes:
        shapes: Of image, kernel and result, in the node's layout.
        changes_layout: Whether cuDNN computes in another layout.
        padded_bytes: Bytes of the asymmetrically padded image; 0 if its padding is symmetric.
        image_copy_bytes: Bytes of the (padded) image in the other layout; 0 for one channel, which needs
            no copy.
        result_copy_bytes: The same of the result, for a gradient that reads it.
    """

    described: Convolution
    shapes: tuple[tuple[int, ...], ...]
    changes_layout: bool
    image_bytes: int
    result_bytes: int
    kernel_bytes: int
    padded_bytes: int
    image_copy_bytes: int
    result_copy_bytes: int


def plan_convolution(call: Call, card: DnnCard) -> MemoryPlan:
    """Copy the filter, the input if its padding is asymmetric, and the tensors to change the layout.

    ``LaunchConvOpImpl``. The side input of a fused ``Add`` (``_FusedConv2D``) is forwarded.
    """
    is_sum = "Add" in (call.attr("fused_ops") or [])
    first = forward(call, (len(call.inputs) - 1,)) if is_sum else allocate(call)
    plan = MemoryPlan(outputs=(first, *allocate_all(call)[1:]))
    one = _read(call, card, "forward", call.shape(0), call.shape(1), call.out_shape())
    if one is None:
        return plan
    copies = [one.padded_bytes, one.kernel_bytes]
    if one.changes_layout:
        copies = [one.padded_bytes, one.image_copy_bytes, one.kernel_bytes, one.result_bytes]
    return _with_algorithms(replace(plan, after_bytes=without_zeros(copies)), call, one, card)


def plan_input_gradient(call: Call, card: DnnCard) -> MemoryPlan:
    """Compute the gradient of the input into a temporary of the same size.

    ``LaunchConv2DBackpropInputOp`` always computes into ``pre_transformed_in_backprop``, so two buffers
    exist during the call. If the layout stays, the temporary becomes the output and the allocated
    output is freed; the same in three axes. Asymmetric padding is removed after the trials of
    algorithms.
    """
    one = _read(call, card, "input_gradient", call.out_shape(), call.shape(1), call.shape(2))
    if one is None:
        return plan_allocation(call)
    if one.changes_layout:
        copies = [one.kernel_bytes, one.result_copy_bytes, one.padded_bytes or one.image_bytes]
        copies += [one.image_bytes] if one.padded_bytes else []
        plan = plan_allocation(call, after_bytes=copies)
    else:
        copies = [call.size(), one.kernel_bytes, one.padded_bytes]
        output = allocate(call, region="temp")
        plan = MemoryPlan(outputs=(output,), before_bytes=without_zeros(copies))
    return _with_algorithms(plan, call, one, card)


def plan_filter_gradient(call: Call, card: DnnCard) -> MemoryPlan:
    """Allocate a padded input, the gradient of the filter in cuDNN's order, and layout copies.

    ``LaunchConv2DBackpropFilterOp``.
    """
    one = _read(call, card, "filter_gradient", call.shape(0), call.out_shape(), call.shape(2))
    if one is None:
        return plan_allocation(call)
    copies = [one.padded_bytes, one.kernel_bytes]
    if one.changes_layout:
        copies += [one.result_copy_bytes, one.image_copy_bytes]
    return _with_algorithms(plan_allocation(call, after_bytes=copies), call, one, card)


def plan_depthwise(call: Call, card: DnnCard) -> MemoryPlan:
    """Allocate the outputs; cuDNN, with a workspace, serves only float16 in NCHW.

    ``depthwise_conv_op.cc``: ``use_cudnn_grouped_conv_``.
    """
    bound = 0
    is_half = call.item_bytes() < FLOAT_BYTES and call.attr("data_format") == "NCHW"
    if is_half and card.gpu.compute_capability >= (7, 0):
        bound = sum(call.input_size(index) for index in range(len(call.inputs))) + call.size()
    return MemoryPlan(outputs=allocate_all(call), unknown_bytes=min(bound, WORKSPACE_LIMIT_BYTES))


def plan_batch_norm(call: Call) -> MemoryPlan:
    """Forward the input to the result; statistics and reserve space are small.

    ``FusedBatchNormOpBase`` forwards input 0 to output 0. ``reserve_space_3`` (output 5) is as large as
    cuDNN asks for (``CudnnBatchNormAllocatorInOutput``): nothing, or in the fast NHWC mode a mask of the
    activation, one bit per element, which is the bound of the workspace.
    """
    outputs = [forward(call, (0,)), *allocate_all(call)[1:]]
    outputs[5:] = [one if one.is_known else Output(Way.NONE, elsewhere=True) for one in outputs[5:]]
    bound = call.input_size(0) // max(8 * call.item_bytes(), 1)
    return MemoryPlan(outputs=tuple(outputs), unknown_bytes=bound)


def _with_algorithms(plan: MemoryPlan, call: Call, one: _Convolved, card: DnnCard) -> MemoryPlan:
    """Return the plan with the trials of the first call, and the workspace of the fastest algorithm.

    ``AutotuneUnfusedConv`` and ``AutotuneFusedConv`` in ``conv_ops_gpu.cc``: a guarded copy of the
    result, skipped if it does not fit (``WrapRedzoneBestEffort``), and guards around the workspace of
    each algorithm, even an empty one. The choice is cached by shapes and parameters
    (``ConvParameters``).
    """
    default = FUSED_LIMIT_BYTES if call.op.type == "_FusedConv2D" else WORKSPACE_LIMIT_BYTES
    limit = default if card.limit_bytes is None else card.limit_bytes
    candidates = find_candidates(one.described, card.gpu, limit)
    kind = (call.op.type, call.op.outputs[0].dtype, call.attr("padding"), call.attr("data_format"))
    names = ("strides", "dilations", "explicit_paddings", "fused_ops")
    numbers = (tuple(call.attr(name) or ()) for name in names)
    copied = {
        "forward": one.result_bytes,
        "input_gradient": one.padded_bytes or one.image_bytes,
        "filter_gradient": one.kernel_bytes,
    }
    guards = 2 * _GUARD_BYTES
    workspace = None
    if candidates:
        workspace = Workspace(
            bytes=min(candidates, key=lambda candidate: candidate.microseconds).bytes,
            sizes_bytes=tuple(candidate.bytes for candidate in candidates),
            chances=tuple(candidate.probability for candidate in candidates),
            is_measured=is_measured(one.described, card.gpu),
        )
    return replace(
        plan,
        workspace=workspace,
        trial=Trial(
            key=(*kind, *one.shapes, *numbers),
            copy_bytes=copied[one.described.direction] + guards,
            scratch_bytes=tuple(candidate.bytes + guards for candidate in candidates) or (guards,),
            is_early=one.described.direction == "input_gradient" and bool(one.padded_bytes),
        ),
    )


def _computes_channels_last(dtype: str, capability: tuple[int, int]) -> bool:
    """Return whether cuDNN computes in NHWC, with tensor cores (``ComputeInNhwcEnabled``)."""
    if dtype == "float16":
        return capability >= (7, 0)
    return dtype in ("bfloat16", "float32") and capability >= (8, 0)


def _read(
    call: Call,
    card: DnnCard,
    direction: str,
    image: tuple[int, ...] | None,
    kernel: tuple[int, ...] | None,
    result: tuple[int, ...] | None,
) -> _Convolved | None:
    """Return a call's convolution as cuDNN sees it: channels before axes, symmetric padding.

    None if a shape is unknown, or it is a plain matrix product.
    """
    if image is None or kernel is None or result is None or len(image) != len(kernel):
        return None
    channels_last = str(call.attr("data_format", "NHWC")) in ("NHWC", "NDHWC")
    if channels_last and _is_product(call, image, kernel):
        return None
    first = 1 if channels_last else 2
    axes = slice(first, first + len(image) - 2)
    window, filters = kernel[:-2], kernel[-1]
    padded = tuple(
        length
        + _find_asymmetry(call, length, window[number], result[first + number], first + number)
        for number, length in enumerate(image[axes])
    )
    dtype, item_bytes = call.op.outputs[0].dtype, call.item_bytes()
    depth, out_depth = (shape[-1 if channels_last else 1] for shape in (image, result))
    image_bytes, result_bytes = (math.prod(shape) * item_bytes for shape in (image, result))
    padded_bytes = image[0] * depth * math.prod(padded) * item_bytes
    padded_bytes = padded_bytes if padded != image[axes] else 0
    is_native = _computes_channels_last(dtype, card.gpu.compute_capability)
    return _Convolved(
        described=Convolution(
            direction=direction,
            image=(image[0], depth, *padded),
            kernel=(filters, *window),
            result=result[axes],
            groups=max(depth // max(kernel[-2], 1), 1),
            stride=max(map(int, call.attr("strides") or (1,))),
            dilation=max(map(int, call.attr("dilations") or (1,))),
            dtype=dtype,
        ),
        shapes=(image, kernel, result),
        changes_layout=channels_last and not is_native,
        image_bytes=image_bytes,
        result_bytes=result_bytes,
        kernel_bytes=math.prod(kernel) * item_bytes,
        padded_bytes=padded_bytes,
        image_copy_bytes=(padded_bytes or image_bytes) if depth > 1 else 0,
        result_copy_bytes=result_bytes if out_depth > 1 else 0,
    )


def _find_asymmetry(call: Call, length: int, window: int, out: int, axis: int) -> int:
    """Return the difference of the padding at the two ends of an axis."""
    padding = call.attr("padding", "VALID")
    if padding == "EXPLICIT":
        pads = call.attr("explicit_paddings") or []
        if len(pads) > 2 * axis + 1:
            return int(abs(pads[2 * axis + 1] - pads[2 * axis]))
        return 0
    if padding != "SAME":
        return 0
    strides, dilations = call.attr("strides") or [], call.attr("dilations") or []
    stride = int(strides[axis]) if axis < len(strides) else 1
    dilation = int(dilations[axis]) if axis < len(dilations) else 1
    total = max((out - 1) * stride + (window - 1) * dilation + 1 - length, 0)
    return total % 2


def _is_product(call: Call, image: tuple[int, ...], kernel: tuple[int, ...]) -> bool:
    """Return whether a call in NHWC is a plain matrix product, without temporaries."""
    if kernel[-2] != image[-1]:
        return False
    window = kernel[:-2]
    strides, dilations = call.attr("strides") or [1], call.attr("dilations") or [1]
    if set(window) == {1} and all(int(x) == 1 for x in (*strides, *dilations)):
        return call.attr("padding") in ("SAME", "VALID")
    return window == image[1:-1] and call.attr("padding") == "VALID"
