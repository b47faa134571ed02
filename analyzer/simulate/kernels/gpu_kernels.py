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

from analyzer.cards import Gpu
from analyzer.model.contract.graph_note import Op, read_op_types
from analyzer.model.graph.host_copies import (
    VARIABLES_ON_HOST,
    is_output_on_host,
    runs_on_host,
)
from analyzer.simulate.kernels import cpu_kernels as cpu
from analyzer.simulate.kernels import cudnn_calls as cudnn
from analyzer.simulate.kernels.cudnn_algorithms import PASSES
from analyzer.simulate.kernels.op_call import (
    ELSEWHERE,
    Call,
    KernelDevice,
    MemoryPlan,
    Rule,
    Way,
    allocate_all,
    assign_rules,
    forward,
    plan_allocation,
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
        return plan_allocation(call, after_bytes=(call.input_size(0), call.size()))

    copies = (call.size(), call.input_size(1))

    return plan_allocation(call, after_bytes=2 * copies)


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
        direction: partial(cudnn.plan_convolution, gpu=gpu, direction=direction)
        for direction in PASSES
    }

    return assign_rules(
        OP_TYPES,
        allocating=plan_allocation,
        only_cpu_forwards=plan_allocation,
        **convolutions,
        batch_norm=_plan_batch_norm,
        deep_pooling=_plan_deep_pooling,
        recurrent=cudnn.plan_recurrent_layer,
        recurrent_gradient=cudnn.plan_recurrent_gradient,
        copy_to_host=_plan_copy_to_host,
    )
