"""GPU kernels: what each op type allocates, forwards, aliases and holds in the memory of a card.

Most kernels do the same as on a CPU: they share the base class or the op (``ReshapeOp``,
``ConcatBaseOp``, ``AddNOp``), and the element-wise kernels, which MLIR generates, forward an input with
the same ``forward_input`` (``tf_framework_c_interface.cc``). This table holds the differences:
temporaries of cuDNN and CUB, and tensors in host memory (``host_copies``). Products run in cuBLAS,
whose workspace lies outside the pool. The rules are read from TensorFlow's source and checked with its
GPU runtime on a simulated card. An op type without a rule counts as allocating, and is reported.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from analyzer.cards import Gpu
from analyzer.model.contract.graph_note import Op, read_op_types
from analyzer.model.graph.host_copies import (
    HOST_TYPES,
    VARIABLES_ON_HOST,
    is_output_on_host,
    runs_on_host,
)
from analyzer.simulate.kernels.cpu import cpu_kernels as cpu
from analyzer.simulate.kernels.gpu import cudnn_calls as cudnn
from analyzer.simulate.kernels.gpu import gpu_reduction
from analyzer.simulate.kernels.gpu.cudnn_calls import DnnCard
from analyzer.simulate.kernels.gpu.gpu_solvers import plan_factorization
from analyzer.simulate.kernels.kernel_device import KernelDevice
from analyzer.simulate.kernels.shared.data_movement import plan_einsum
from analyzer.simulate.kernels.shared.op_call import (
    ELSEWHERE,
    Call,
    ListUse,
    MemoryPlan,
    Rule,
    Way,
    assign_rules,
    plan_allocation,
)

ALLOCATOR: Final = "GPU_0_bfc"  # TensorFlow's name of the allocator of the first card

SCRATCH_BYTES: Final = 1028
"""Scratch of Eigen's reductions: a kilobyte and a counter, allocated with the device
(``BaseGPUDevice::InitScratchBuffers``; ``kGpuScratchSize``)."""

OP_TYPES: Final = read_op_types("simulate/kernels/gpu/card_op_types.toml")["types"]

_AS_ON_CPU: Final = (cpu.SAME_ON_CARDS - OP_TYPES["only_cpu_forwards"]) | OP_TYPES[
    "as_on_cpu"
]
"""Op types whose kernels on a card have the effect of those on the CPU."""


def gpu_device(gpu: Gpu, workspace_limit_bytes: int | None = None) -> KernelDevice:
    """Return the kernels of a card; the limit of a cuDNN workspace is None for TensorFlow's."""
    return KernelDevice(
        kind="gpu",
        allocator=ALLOCATOR,
        plan=partial(_plan_on_card, _make_rules(DnnCard(gpu, workspace_limit_bytes))),
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
    plan = rules.get(op.type, cpu.plan if op.type in _AS_ON_CPU else cpu.plan_unknown)(
        call
    )
    if (
        plan.lists is not ListUse.NO
    ):  # neither the list's tensor nor its elements in host memory
        away = [spec.dtype in HOST_TYPES for spec in op.outputs]
        if (call.dtype(0) or op.outputs[0].dtype) in HOST_TYPES:
            plan = replace(plan, rows_bytes=())
    else:
        away = [
            is_output_on_host(op, index, call.inputs)
            for index in range(len(plan.outputs))
        ]
        if all(away) and away:
            plan = replace(plan, before_bytes=(), after_bytes=(), modelled=True)
        shared = (output.way is Way.ALIAS for output in plan.outputs)
        away = [
            is_away and not is_shared
            for is_away, is_shared in zip(away, shared, strict=True)
        ]
    outputs = zip(plan.outputs, away, strict=True)
    return replace(
        plan,
        outputs=tuple(ELSEWHERE if is_away else output for output, is_away in outputs),
    )


def _plan_pooling(call: Call, capability: tuple[int, int]) -> MemoryPlan:
    """Allocate the result, copies in cuDNN's layout, and tensors that cuDNN requires but does not read.

    Two spatial axes: cuDNN reads NHWC and NCHW directly (``pooling_ops_common.cc``), and the gradient of
    an average in NHWC has TensorFlow's own kernel (``RunAvePoolBackwardNHWC``). Three axes: TensorFlow
    always calls cuDNN in NCDHW, so a node in NDHWC copies its tensors (``cudnn_pooling_gpu.cc``). The
    gradient of an average has neither the pooled tensor nor the result, so it allocates both. On cards
    without bfloat16 a pooling casts all its tensors to float32 (``IsBF16NotSupportedInOps``).
    """
    channels_first = call.attr("data_format") in ("NCHW", "NCDHW")
    match call.op.type:
        case (
            "MaxPool3DGrad"
        ):  # of the input, the output, and the gradient of the output
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
    if call.op.outputs[0].dtype == "bfloat16" and capability < (8, 0):
        copies = [2 * size for size in (*casts, *copies)]
    return plan_allocation(call, after_bytes=copies)


def _plan_cross_entropy(call: Call) -> MemoryPlan:
    """Allocate a product of the size of the logits, which is summed to the loss.

    ``SoftmaxXentEigenImpl``: Eigen evaluates the product, and the logarithms of the sums, into
    temporaries of the device's allocator, after scratch, loss and gradient.
    """
    return replace(cpu.plan(call), after_bytes=(call.input_size(0), call.size(0)))


def _plan_copy_to_host(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(ELSEWHERE,) * len(call.op.outputs))


def _make_rules(card: DnnCard) -> dict[str, Rule]:
    blocks = gpu_reduction.blocks_in_flight(card.gpu)
    return assign_rules(
        OP_TYPES,
        allocating=plan_allocation,
        scans=partial(plan_allocation, after_bytes=(gpu_reduction.CUB_BYTES,)),
        **{
            direction: partial(cudnn.plan_convolution, card=card, direction=direction)
            for direction in ("forward", "input_gradient", "filter_gradient")
        },
        depthwise=partial(cudnn.plan_depthwise, card=card),
        batch_norm=cudnn.plan_batch_norm,
        pooling=partial(_plan_pooling, capability=card.gpu.compute_capability),
        sum_of_squares=partial(gpu_reduction.plan_sum_of_squares, blocks=blocks),
        softmax=gpu_reduction.plan_softmax,
        bias_gradient=gpu_reduction.plan_bias_gradient,
        top_k=gpu_reduction.plan_top_k,
        cross_entropy=_plan_cross_entropy,
        inverse_fft=lambda call: plan_allocation(
            call, after_bytes=(call.input_size(0),)
        ),
        einsum=plan_einsum,
        factorization=plan_factorization,
        select=cpu.plan_select,
        recurrent=cudnn.plan_recurrent_layer,
        recurrent_gradient=cudnn.plan_recurrent_gradient,
        copy_to_card=plan_allocation,
        copy_to_host=_plan_copy_to_host,
    ) | dict.fromkeys(
        cpu.REDUCTIONS, partial(gpu_reduction.plan_reduction, blocks=blocks)
    )
