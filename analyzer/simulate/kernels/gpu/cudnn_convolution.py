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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from analyzer.cards import Gpu
from analyzer.simulate.kernels.gpu.convolution_algorithms import (
    PASSES,
    Candidate,
    Convolution,
    choose,
    find_candidates,
    is_measured,
)
from analyzer.simulate.kernels.shared.op_call import (
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

Capability = tuple[int, int]

LIMIT_VARIABLE: Final = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"

WORKSPACE_LIMIT_BYTES: Final = 8 << 30
"""Limit of a workspace by default (``GetDnnWorkspaceLimitOrDefault``)."""

FUSED_LIMIT_BYTES: Final = 4 << 30
"""The same of ``_FusedConv2D`` (``conv_ops_fused_impl.h``)."""

_GUARD_BYTES: Final = 8 << 20
"""Guard before and after a buffer on which algorithms are tried, to detect writes outside of it
(``kDefaultRedzoneSize`` in ``redzone_allocator.h``)."""

_SMALLEST_FLOAT_BYTES: Final = 4  # bytes of float32: types below it may take cuDNN's grouped kernel


@dataclass(frozen=True, slots=True)
class DnnCard:
    """A card, and the limit that ``TF_CUDNN_WORKSPACE_LIMIT_IN_MB`` sets; None for the default."""

    gpu: Gpu
    limit_bytes: int | None = None

    @property
    def capability(self) -> Capability:
        """Its compute capability."""
        return self.gpu.compute_capability

    def limit_of(self, op_type: str) -> int:
        """Return the limit of a workspace of an op, in bytes."""
        if self.limit_bytes is not None:
            return self.limit_bytes
        return FUSED_LIMIT_BYTES if op_type == "_FusedConv2D" else WORKSPACE_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Shapes and bytes of one convolution, forward or backward.

    Attributes:
        image: Shape of the convolved tensor, in the node's layout.
        result: Shape of the result.
        kernel: Shape of the filter.
        item_bytes: Bytes of one element.
        channels_last: Whether the node is in NHWC.
        padded: Shape of ``image`` with the asymmetric part of its padding.
    """

    image: tuple[int, ...]
    result: tuple[int, ...]
    kernel: tuple[int, ...]
    item_bytes: int
    channels_last: bool
    padded: tuple[int, ...]

    @property
    def padded_bytes(self) -> int:
        """Bytes of the padded image; 0 if its padding is symmetric."""
        return math.prod(self.padded) * self.item_bytes if self.padded != self.image else 0

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
        """Bytes of the (padded) image in the other layout; 0 for one channel, which needs no copy."""
        return (self.padded_bytes or self.image_bytes) if self.depth > 1 else 0

    @property
    def result_copy_bytes(self) -> int:
        """Bytes of the result in the other layout, for a gradient that reads it."""
        channels = self.result[-1] if self.channels_last else self.result[1]
        return self.result_bytes if channels > 1 else 0


def plan_convolution(call: Call, card: DnnCard) -> MemoryPlan:
    """Copy the filter, the input if its padding is asymmetric, and the tensors to change the layout.

    ``LaunchConvOpImpl``. The side input of a fused ``Add`` (``_FusedConv2D``) is forwarded.
    """
    output: Output = allocate(call)
    if "Add" in (call.attr("fused_ops") or []):
        output = forward(call, (len(call.inputs) - 1,))
    sizes = _sizes(call, call.shape(0), call.shape(1), call.out_shape())
    if sizes is None or _is_product(call, sizes):
        return MemoryPlan(outputs=(output, *allocate_all(call)[1:]))
    temporaries = [sizes.padded_bytes]
    if _copies_layout(call, sizes, card.capability):
        temporaries += [sizes.image_copy_bytes, sizes.kernel_bytes, sizes.result_bytes]
    else:
        temporaries.append(sizes.kernel_bytes)
    plan = MemoryPlan(
        outputs=(output, *allocate_all(call)[1:]), after_bytes=without_zeros(temporaries)
    )
    return _with_algorithms(plan, call, sizes, card, PASSES[0])


def plan_input_gradient(call: Call, card: DnnCard) -> MemoryPlan:
    """Compute the gradient of the input into a temporary of the same size.

    ``LaunchConv2DBackpropInputOp`` always computes into ``pre_transformed_in_backprop``, so two buffers
    exist during the call. If the layout stays, the temporary becomes the output and the allocated
    output is freed; the same in three axes. Asymmetric padding is removed after the trials of
    algorithms.
    """
    sizes = _sizes(call, call.out_shape(), call.shape(1), call.shape(2))
    if sizes is None or _is_product(call, sizes):
        return plan_allocation(call)
    if _copies_layout(call, sizes, card.capability):
        outputs, before = allocate_all(call), []
        after = [sizes.kernel_bytes, sizes.result_copy_bytes]
        after.append(sizes.padded_bytes or sizes.image_bytes)
        after += [sizes.image_bytes] if sizes.padded_bytes else []
    else:
        outputs, after = (allocate(call, region="temp"),), []
        before = [call.size(), sizes.kernel_bytes, sizes.padded_bytes]
    plan = MemoryPlan(
        outputs=outputs, before_bytes=without_zeros(before), after_bytes=without_zeros(after)
    )
    return _with_algorithms(plan, call, sizes, card, PASSES[1])


def plan_filter_gradient(call: Call, card: DnnCard) -> MemoryPlan:
    """Allocate a padded input, the gradient of the filter in cuDNN's order, and layout copies.

    ``LaunchConv2DBackpropFilterOp``.
    """
    sizes = _sizes(call, call.shape(0), call.out_shape(), call.shape(2))
    if sizes is None or _is_product(call, sizes):
        return plan_allocation(call)
    temporaries = [sizes.padded_bytes, sizes.kernel_bytes]
    if _copies_layout(call, sizes, card.capability):
        temporaries += [sizes.result_copy_bytes, sizes.image_copy_bytes]
    plan = MemoryPlan(outputs=allocate_all(call), after_bytes=without_zeros(temporaries))
    return _with_algorithms(plan, call, sizes, card, PASSES[2])


def plan_depthwise(call: Call, card: DnnCard) -> MemoryPlan:
    """Allocate the outputs; cuDNN, with a workspace, serves only float16 in NCHW.

    ``depthwise_conv_op.cc``: ``use_cudnn_grouped_conv_``.
    """
    item_bytes = call.item_bytes()
    grouped = item_bytes < _SMALLEST_FLOAT_BYTES and call.attr("data_format") == "NCHW"
    bound = 0
    if grouped and card.capability >= (7, 0):
        bound = sum(call.input_size(index) for index in range(len(call.inputs))) + call.size()
    return MemoryPlan(outputs=allocate_all(call), unknown_bytes=min(bound, WORKSPACE_LIMIT_BYTES))


_BATCH_NORM_RESERVE: Final = 5
"""Output of ``FusedBatchNormV3`` that cuDNN sizes."""


def plan_batch_norm(call: Call, _: DnnCard) -> MemoryPlan:
    """Forward the input to the result; statistics and reserve space are small.

    ``FusedBatchNormOpBase`` forwards input 0 to output 0. ``reserve_space_3`` (output 5) is as large as
    cuDNN asks for (``CudnnBatchNormAllocatorInOutput``): nothing, or in the fast NHWC mode a mask of the
    activation, one bit per element, which is the bound of the workspace.
    """
    outputs = [forward(call, (0,)), *allocate_all(call)[1:]]
    if len(outputs) > _BATCH_NORM_RESERVE and not outputs[_BATCH_NORM_RESERVE].is_known:
        outputs[_BATCH_NORM_RESERVE] = Output(Way.NONE, elsewhere=True)
    bound = call.input_size(0) // (8 * call.item_bytes()) if call.input_size(0) else 0
    return MemoryPlan(outputs=tuple(outputs), unknown_bytes=bound)


def _with_algorithms(
    plan: MemoryPlan, call: Call, sizes: _Sizes, card: DnnCard, direction: str
) -> MemoryPlan:
    """Return the plan with the trials of the first call, and the workspace of the fastest algorithm.

    ``AutotuneUnfusedConv`` and ``AutotuneFusedConv`` in ``conv_ops_gpu.cc``: a guarded copy of the
    result, skipped if it does not fit (``WrapRedzoneBestEffort``), and guards around the workspace of
    each algorithm, even an empty one. The choice is cached by shapes and parameters
    (``ConvParameters``).
    """
    convolution = _describe(call, sizes, card, direction)
    candidates = find_candidates(convolution, card.gpu, card.limit_of(call.op.type))
    numbers = [
        tuple(call.attr(name) or ())
        for name in ("strides", "dilations", "explicit_paddings", "fused_ops")
    ]
    kind = (call.op.type, call.op.outputs[0].dtype, call.attr("padding"), call.attr("data_format"))
    copied = {
        "forward": sizes.result_bytes,
        "input_gradient": sizes.padded_bytes or sizes.image_bytes,
        "filter_gradient": sizes.kernel_bytes,
    }
    guards = 2 * _GUARD_BYTES
    return replace(
        plan,
        workspace=_expect(candidates, is_measured(convolution, card.gpu)),
        trial=Trial(
            key=(*kind, sizes.image, sizes.kernel, sizes.result, *numbers),
            copy_bytes=copied[direction] + guards,
            scratch_bytes=tuple(one.bytes + guards for one in candidates) or (guards,),
            is_early=direction == "input_gradient" and bool(sizes.padded_bytes),
        ),
    )


def _describe(call: Call, sizes: _Sizes, card: DnnCard, direction: str) -> Convolution:
    """Return the convolution as cuDNN sees it: channels before axes, symmetric padding."""
    rank = len(sizes.image)
    axes = slice(1, rank - 1) if sizes.channels_last else slice(2, rank)
    largest = {
        name: max((int(x) for x in (call.attr(name) or (1,))), default=1)
        for name in ("strides", "dilations")
    }
    return Convolution(
        direction=direction,
        image=(sizes.image[0], sizes.depth, *sizes.padded[axes]),
        kernel=(sizes.kernel[-1], *sizes.kernel[:-2]),
        result=sizes.result[axes],
        groups=max(sizes.depth // max(sizes.kernel[-2], 1), 1),
        stride=largest["strides"],
        dilation=largest["dilations"],
        dtype=call.op.outputs[0].dtype,
    )


def _expect(candidates: Sequence[Candidate], has_evidence: bool) -> Workspace | None:
    """Return the workspace of the fastest candidate with those of the others; None without any."""
    fastest = choose(candidates)
    if fastest is None:
        return None
    return Workspace(
        bytes=fastest.bytes,
        sizes_bytes=tuple(one.bytes for one in candidates),
        chances=tuple(one.probability for one in candidates),
        is_measured=has_evidence,
    )


def computes_channels_last(dtype: str, capability: Capability) -> bool:
    """Return whether cuDNN computes in NHWC, with tensor cores (``ComputeInNhwcEnabled``)."""
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
        padded[axis] += _find_asymmetry(call, image[axis], kernel[number], result[axis], axis)
    return _Sizes(image, result, kernel, call.item_bytes(), channels_last, tuple(padded))


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


def _is_product(call: Call, sizes: _Sizes) -> bool:
    """Return whether the call is a plain matrix product, without temporaries (NHWC only)."""
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
