"""Convolutions on a GPU: what TensorFlow allocates around its calls of cuDNN.

TensorFlow keeps filters as height, width, in, out; cuDNN wants out, in, height, width (or out, height,
width, in), so each call copies the filter. It computes in NHWC only where tensor cores like that
(``ComputeInNhwcEnabled`` in ``conv_ops_gpu.h``); a node in NHWC whose call is NCHW copies its tensors.
Sources: ``conv_ops_impl.h`` of the 2.21 wheel, lines 780 to 1200; ``conv_grad_input_ops.cc`` and
``conv_grad_filter_ops.cc``.

cuDNN's own workspace is chosen by measuring algorithms on the card, and is not known without it: it is
left out, and ``workspace_bound`` says how large it may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, Output, Trial, asked_for
from analyzer.simulate.kernels.shared.op_call import Call, allocate, allocate_all, forward

Capability = tuple[int, int]

WORKSPACE_LIMIT_BYTES: Final = 4 << 30
"""``TF_CUDNN_WORKSPACE_LIMIT_IN_MB`` by default (``GetDnnWorkspaceLimitOrDefault``)."""

_GUARD_BYTES: Final = 8 << 20
"""What lies before and behind a buffer that algorithms are tried on, so that one that writes beside it
is found out (``kDefaultRedzoneSize`` in ``redzone_allocator.h``)."""

_WINOGRAD_GROWTH: Final = 2.25
"""A tile of 4 by 4 results of a 3 by 3 filter is computed from 6 by 6 numbers: 36 / 16. The bound is
that of the non-fused Winograd algorithm, which keeps the transformed input and result, or that of
an engine that copies all three tensors into another layout, whichever is more."""

_SMALLEST_FLOAT_BYTES: Final = 4  # bytes of float32: types below it may take cuDNN's grouped kernel


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The tensors of one convolution, forward or backward; bytes and axes.

    Attributes:
        image: Shape of what is convolved, as the node has it.
        result: Shape of the result.
        kernel: Shape of the filter.
        item_bytes: Bytes of one element.
        channels_last: Whether the node is in NHWC.
        padded_bytes: Bytes of ``image`` with the asymmetric part of its padding; 0 where none.
    """

    image: tuple[int, ...]
    result: tuple[int, ...]
    kernel: tuple[int, ...]
    item_bytes: int
    channels_last: bool
    padded_bytes: int

    @property
    def image_bytes(self) -> int:
        return math.prod(self.image) * self.item_bytes

    @property
    def result_bytes(self) -> int:
        return math.prod(self.result) * self.item_bytes

    @property
    def kernel_bytes(self) -> int:
        return math.prod(self.kernel) * self.item_bytes

    @property
    def depth(self) -> int:
        return self.image[-1] if self.channels_last else self.image[1]

    @property
    def image_copy_bytes(self) -> int:
        """Bytes of the (padded) image in the other layout; 0 for one channel, which is only renamed."""
        return (self.padded_bytes or self.image_bytes) if self.depth > 1 else 0

    @property
    def result_copy_bytes(self) -> int:
        """The same of a result that is read."""
        channels = self.result[-1] if self.channels_last else self.result[1]
        return self.result_bytes if channels > 1 else 0


def plan_convolution(call: Call, capability: Capability) -> MemoryPlan:
    """Forward: the copied filter, a padded input where the padding is uneven, layout copies.

    ``LaunchConvOpImpl``. A fused side input (``_FusedConv2D`` with ``Add``) is written in place.
    """
    output: Output = allocate(call)
    if "Add" in (call.attr("fused_ops") or []):
        output = forward(call, (len(call.inputs) - 1,))
    sizes = _sizes(call, call.shape(0), call.shape(1), call.out_shape())
    if sizes is None or _is_product(call, sizes):
        return MemoryPlan(outputs=(output, *allocate_all(call)[1:]))
    temporaries = [sizes.padded_bytes]
    if _copies_layout(call, sizes, capability):
        temporaries += [sizes.image_copy_bytes, sizes.kernel_bytes, sizes.result_bytes]
    else:
        temporaries.append(sizes.kernel_bytes)
    return MemoryPlan(
        outputs=(output, *allocate_all(call)[1:]),
        after_bytes=asked_for(temporaries),
        workspace_bytes=workspace_bound(sizes.image_bytes, sizes.result_bytes, sizes.kernel_bytes),
        trial=_trial(call, sizes, sizes.result_bytes),
    )


def plan_input_gradient(call: Call, capability: Capability) -> MemoryPlan:
    """The gradient of the input: computed into a temporary of its own size, then handed out.

    ``LaunchConv2DBackpropInputOp`` always computes into ``pre_transformed_in_backprop``: for the time of
    the call there are two. Where no layout has to be turned back that temporary becomes the output, and
    what was allocated as the output goes; so it does in three axes. Uneven padding is cut off after the
    algorithms were tried, on a result that still has it.
    """
    sizes = _sizes(call, call.out_shape(), call.shape(1), call.shape(2))
    if sizes is None or _is_product(call, sizes):
        return MemoryPlan(outputs=allocate_all(call))
    if _copies_layout(call, sizes, capability):
        outputs, before = allocate_all(call), []
        after = [sizes.kernel_bytes, sizes.result_copy_bytes]
        after.append(sizes.padded_bytes or sizes.image_bytes)
        after += [sizes.image_bytes] if sizes.padded_bytes else []
    else:
        outputs, after = (allocate(call, region="temp"),), []
        before = [call.size(), sizes.kernel_bytes, sizes.padded_bytes]
    return MemoryPlan(
        outputs=outputs,
        before_bytes=asked_for(before),
        after_bytes=asked_for(after),
        workspace_bytes=workspace_bound(sizes.image_bytes, sizes.result_bytes, sizes.kernel_bytes),
        trial=replace(
            _trial(call, sizes, sizes.padded_bytes or sizes.image_bytes),
            is_early=bool(sizes.padded_bytes),
        ),
    )


def plan_filter_gradient(call: Call, capability: Capability) -> MemoryPlan:
    """The gradient of the filter: a padded input, the gradient in cuDNN's order, layout copies.

    ``LaunchConv2DBackpropFilterOp``.
    """
    sizes = _sizes(call, call.shape(0), call.out_shape(), call.shape(2))
    if sizes is None or _is_product(call, sizes):
        return MemoryPlan(outputs=allocate_all(call))
    temporaries = [sizes.padded_bytes, sizes.kernel_bytes]
    if _copies_layout(call, sizes, capability):
        temporaries += [sizes.result_copy_bytes, sizes.image_copy_bytes]
    return MemoryPlan(
        outputs=allocate_all(call),
        after_bytes=asked_for(temporaries),
        workspace_bytes=workspace_bound(sizes.image_bytes, sizes.result_bytes, sizes.kernel_bytes),
        trial=_trial(call, sizes, sizes.kernel_bytes),
    )


def plan_depthwise(call: Call, capability: Capability) -> MemoryPlan:
    """TensorFlow's own kernel, without temporaries; cuDNN's only for float16 in NCHW.

    ``depthwise_conv_op.cc``: ``use_cudnn_grouped_conv_``.
    """
    item_bytes = call.item_bytes()
    grouped = item_bytes < _SMALLEST_FLOAT_BYTES and call.attr("data_format") == "NCHW"
    bound = 0
    if grouped and capability >= (7, 0):
        bound = sum(call.input_size(index) for index in range(len(call.inputs))) + call.size()
    return MemoryPlan(outputs=allocate_all(call), workspace_bytes=min(bound, WORKSPACE_LIMIT_BYTES))


def plan_batch_norm(call: Call, _: Capability) -> MemoryPlan:
    """The result in the input's place where that is free; statistics and reserve are small.

    ``FusedBatchNormOpBase`` forwards input 0 to output 0. ``reserve_space_3`` holds cuDNN's mask of
    the activation, one bit an element, in the fast NHWC mode only; its size is the workspace's bound.
    """
    first: Output = forward(call, (0,))
    bound = call.input_size(0) // (8 * call.item_bytes()) if call.input_size(0) else 0
    return MemoryPlan(outputs=(first, *allocate_all(call)[1:]), workspace_bytes=bound)


def _trial(call: Call, sizes: _Sizes, result_bytes: int) -> Trial:
    """Return what the first call for these shapes asks for to choose among cuDNN's algorithms.

    ``AutotuneUnfusedConv`` and ``AutotuneFusedConv`` in ``conv_ops_gpu.cc``: a guarded copy of what is
    computed, given up where there is no room (``WrapRedzoneBestEffort``), and for each algorithm guards
    round its workspace, be that nothing. What was found is kept by the call's shapes and numbers
    (``ConvParameters``).
    """
    numbers = [
        tuple(call.attr(name) or ())
        for name in ("strides", "dilations", "explicit_paddings", "fused_ops")
    ]
    kind = (call.op.type, call.op.outputs[0].dtype, call.attr("padding"), call.attr("data_format"))
    return Trial(
        key=(*kind, sizes.image, sizes.kernel, sizes.result, *numbers),
        copy_bytes=result_bytes + 2 * _GUARD_BYTES,
        scratch_bytes=2 * _GUARD_BYTES,
    )


def workspace_bound(image_bytes: int, result_bytes: int, kernel_bytes: int) -> int:
    """Return the most that cuDNN's workspace of one convolution is taken to be, bytes.

    Args:
        image_bytes: What is convolved.
        result_bytes: The result.
        kernel_bytes: The filter.
    """
    winograd = int(_WINOGRAD_GROWTH * (image_bytes + result_bytes)) + 4 * kernel_bytes
    return min(winograd, WORKSPACE_LIMIT_BYTES)


def computes_channels_last(dtype: str, capability: Capability) -> bool:
    """Say whether cuDNN is called in NHWC (``ComputeInNhwcEnabled``): where tensor cores are used."""
    if dtype == "float16":
        return capability >= (7, 0)
    return dtype in ("bfloat16", "float32") and capability >= (8, 0)


def _sizes(
    call: Call,
    image: tuple[int, ...] | None,
    kernel: tuple[int, ...] | None,
    result: tuple[int, ...] | None,
) -> _Sizes | None:
    if image is None or kernel is None or result is None or len(image) != len(kernel):
        return None
    channels_last = str(call.attr("data_format", "NHWC")) in ("NHWC", "NDHWC")
    spatial = range(1, len(image) - 1) if channels_last else range(2, len(image))
    padded = list(image)
    for number, axis in enumerate(spatial):
        padded[axis] += _uneven(call, image[axis], kernel[number], result[axis], axis)
    item_bytes = call.item_bytes()
    uneven = tuple(padded) != image
    return _Sizes(
        image,
        result,
        kernel,
        item_bytes,
        channels_last,
        math.prod(padded) * item_bytes if uneven else 0,
    )


def _uneven(call: Call, length: int, window: int, out: int, axis: int) -> int:
    """Return by how much the padding at one end of an axis exceeds that at the other."""
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


def _is_product(call: Call, sizes: _Sizes) -> bool:
    """Say whether the call is a plain matrix product, which needs no temporaries (NHWC only)."""
    if not sizes.channels_last or sizes.kernel[-2] != sizes.depth:
        return False
    window = sizes.kernel[:-2]
    strides, dilations = call.attr("strides") or [1], call.attr("dilations") or [1]
    plain = all(int(x) == 1 for x in (*strides, *dilations))
    if all(axis == 1 for axis in window) and plain:
        return call.attr("padding") in ("SAME", "VALID")
    return window == sizes.image[1:-1] and call.attr("padding") == "VALID"


def _copies_layout(call: Call, sizes: _Sizes, capability: Capability) -> bool:
    return sizes.channels_last and not computes_channels_last(call.op.outputs[0].dtype, capability)
