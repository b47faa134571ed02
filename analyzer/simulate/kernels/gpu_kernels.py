"""GPU kernels: what each op type allocates, forwards, aliases and holds in the memory of a card.

Most kernels do the same as on a CPU: they share the base class or the op (``ReshapeOp``,
``ConcatBaseOp``, ``AddNOp``), and the element-wise kernels, which MLIR generates, forward an input with
the same ``forward_input`` (``tf_framework_c_interface.cc``). This table holds the differences:
temporaries of cuDNN and CUB, and tensors in host memory (``host_copies``). Products run in cuBLAS,
whose workspace lies outside the pool. The rules are read from TensorFlow's source and checked with its
GPU runtime on a simulated card. An op type without a rule counts as allocating, and is reported.

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
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from analyzer.cards.catalogue import Gpu
from analyzer.model.contract.run_note import Op, read_op_types
from analyzer.model.graph.host_copies import (
    VARIABLES_ON_HOST,
    is_output_on_host,
    runs_on_host,
)
from analyzer.simulate.kernels import cpu_kernels as cpu
from analyzer.simulate.kernels.cpu_kernels import (
    ELSEWHERE,
    NO_BUFFER,
    Call,
    KernelDevice,
    MemoryPlan,
    Output,
    Rule,
    Way,
    allocate,
    allocate_all,
    assign_rules,
    forward,
    plan_allocation,
    without_zeros,
)
from analyzer.simulate.kernels.cudnn_algorithms import (
    PASSES,
    Axes,
    Convolution,
    find_likely_bytes,
    find_offers,
    has_tensor_cores,
)

ALLOCATOR = "GPU_0_bfc"  # TensorFlow's name of the allocator of the first card

# Scratch of Eigen's reductions: a kilobyte and a counter, allocated with the device
# (``BaseGPUDevice::InitScratchBuffers``; ``kGpuScratchSize``).
SCRATCH_BYTES = 1028

OP_TYPES = read_op_types("simulate/kernels/card_op_types.toml")["types"]

# Op types whose kernels on a card have the effect of those on the CPU.
_AS_ON_CPU = cpu.SAME_ON_CARDS | OP_TYPES["as_on_cpu"]


def gpu_device(gpu: Gpu) -> KernelDevice:
    """Return the kernels of a card."""
    return KernelDevice(
        kind="gpu",
        allocator=ALLOCATOR,
        plan=partial(_plan_on_card, _make_rules(gpu)),
        held_bytes=_count_held_bytes,
        handle_bytes=0,
        scratch_bytes=SCRATCH_BYTES,
        host_dtypes=VARIABLES_ON_HOST,
        is_cheap=True,
    )


def _count_held_bytes(op: Op) -> int:
    if runs_on_host(op) or is_output_on_host(op, 0, ()):
        return 0

    return op.outputs[0].size_bytes or 0


def _plan_on_card(rules: Mapping[str, Rule], call: Call) -> MemoryPlan:
    """Return the plan of an op without the tensors in host memory."""
    op = call.op
    if runs_on_host(op):
        return _plan_copy_to_host(call)

    default = cpu.plan if op.type in _AS_ON_CPU else cpu.plan_unknown
    plan = rules.get(op.type, default)(call)
    outputs = []

    for index, output in enumerate(plan.outputs):
        is_away = is_output_on_host(op, index, call.inputs)
        outputs.append(ELSEWHERE if is_away and output.way is not Way.ALIAS else output)

    is_known = plan.modelled or set(outputs) == {ELSEWHERE}
    return replace(plan, outputs=tuple(outputs), modelled=is_known)


def _plan_deep_pooling(call: Call) -> MemoryPlan:
    """Copy the tensors of a pooling over three axes in NDHWC.

    TensorFlow calls cuDNN in NCDHW (``cudnn_pooling_gpu.cc``). A gradient has the input and the output
    in both roles.
    """
    if call.attr("data_format") == "NCDHW":
        return plan_allocation(call)

    if call.op.type in ("AvgPool3D", "MaxPool3D"):
        return plan_allocation(call, (call.input_size(0), call.size()))

    copies = (call.size(), call.input_size(1))

    return plan_allocation(call, 2 * copies)


def _plan_batch_norm(call: Call) -> MemoryPlan:
    """Forward the input to the result; the reserve space of cuDNN takes nothing.

    ``FusedBatchNormOpBase`` forwards input 0 to output 0.
    """
    outputs = [forward(call, (0,)), *allocate_all(call)[1:]]
    outputs[5:] = [one if one.is_known else ELSEWHERE for one in outputs[5:]]

    return MemoryPlan(outputs=tuple(outputs))


def _plan_copy_to_host(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(ELSEWHERE,) * len(call.op.outputs))


def _make_rules(gpu: Gpu) -> dict[str, Rule]:
    convolutions = {
        direction: partial(plan_convolution, gpu=gpu, direction=direction)
        for direction in PASSES
    }

    return assign_rules(
        OP_TYPES,
        allocating=plan_allocation,
        only_cpu_forwards=plan_allocation,
        **convolutions,
        batch_norm=_plan_batch_norm,
        deep_pooling=_plan_deep_pooling,
        recurrent=plan_recurrent_layer,
        recurrent_gradient=plan_recurrent_gradient,
        copy_to_host=_plan_copy_to_host,
    )


# Limit of a workspace by default (``GetDnnWorkspaceLimitOrDefault``).
_LIMIT_BYTES = 8 << 30

# Strides or dilations of a call without them, of up to three axes beside batch and channels.
_NO_FACTORS = (1,) * 5

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

    image, kernel, result = _find_shapes(call, direction)

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

    return replace(
        plan,
        workspaces_bytes=find_likely_bytes(find_offers(described, gpu, limit_bytes)),
    )


def _plan_copies(
    call: Call,
    plan: MemoryPlan,
    shapes: tuple[Axes, ...],
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
    copies: tuple[int, ...] = (padding, kernel_bytes)

    if is_last and not described.channels_last:
        image_copy = padded_bytes * (described.image[1] > 1)
        result_copy = result_bytes * (result[-1] > 1)

        unpadded = image_bytes * is_padded
        buffers = {
            "forward": (padding, image_copy, kernel_bytes, result_bytes),
            "input_gradient": (kernel_bytes, result_copy, padded_bytes, unpadded),
            "filter_gradient": (padding, kernel_bytes, result_copy, image_copy),
        }

        copies = buffers[described.direction]
    elif described.direction == "input_gradient":
        # The result is computed into ``pre_transformed_in_backprop``, of the same size, which becomes
        # the output. The allocated output is freed, and asymmetric padding is removed after trials.
        before = without_zeros((call.size(), kernel_bytes, padding))
        plan = MemoryPlan(outputs=(allocate(call, region="temp"),), before_bytes=before)
        copies = ()

    return replace(plan, after_bytes=without_zeros(copies))


def _find_shapes(call: Call, direction: str) -> tuple[Axes | None, ...]:
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
    shapes: tuple[Axes, ...],
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
        stride=max(_list_factors(call, "strides")),
        dilation=max(_list_factors(call, "dilations")),
        dtype=dtype,
        channels_last=last and has_tensor_cores(dtype, gpu),
    )


def _list_factors(call: Call, name: str) -> list[int]:
    """Return the strides or dilations of a call by axis, by default 1."""
    return [*map(int, call.attr(name) or _NO_FACTORS)]


def _find_asymmetry(call: Call, length: int, window: int, out: int, axis: int) -> int:
    """Return the points that padding SAME adds at the end of an axis only."""
    if call.attr("padding", "VALID") != "SAME":
        return 0

    reach = (window - 1) * _list_factors(call, "dilations")[axis] + 1
    stride = _list_factors(call, "strides")[axis]
    missing = max((out - 1) * stride + reach - length, 0)

    return missing % 2


def _is_product(call: Call, image: Axes, kernel: Axes) -> bool:
    """Return whether a call in NHWC is a plain matrix product, without temporaries."""
    if kernel[-2] != image[-1]:
        return False

    factors = _list_factors(call, "strides") + _list_factors(call, "dilations")

    if {*kernel[:-2], *factors} == {1}:
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
