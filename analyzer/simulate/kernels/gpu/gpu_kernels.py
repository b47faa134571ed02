"""A GPU's kernels: what each op type does to the card's memory.

Most kernels hand on, take over and allocate as the CPU's do: that part is the base class' or the
shared op's (``ReshapeOp``, ``ConcatBaseOp``, ``AddNOp``), and the element-wise kernels, which MLIR
generates, ask to reuse an input through the same ``forward_input`` (``tf_framework_c_interface.cc``).
This table holds what differs: cuDNN's and CUB's temporaries, and tensors that stay in host memory
(``host_copies``). Products go through cuBLAS, whose workspace is its own and outside
the pool.

The rules are read from TensorFlow's source and held against its GPU runtime on cards that are not there;
none was measured on a GPU. An op type that is in neither table is taken to allocate every output anew,
and is reported as unmodelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.host_copies import (
    COPY,
    COPY_BACK,
    HOST_TYPES,
    VARIABLES_ON_HOST,
    is_output_on_host,
    runs_on_host,
)
from analyzer.model.graph.ops import op_types
from analyzer.simulate.kernels.cpu import cpu_kernels as cpu
from analyzer.simulate.kernels.cpu import onednn
from analyzer.simulate.kernels.gpu import cudnn_convolution as gpu_convolution
from analyzer.simulate.kernels.gpu import cudnn_rnn as gpu_rnn
from analyzer.simulate.kernels.gpu import gpu_pooling, gpu_reduction
from analyzer.simulate.kernels.gpu.cudnn_convolution import Capability
from analyzer.simulate.kernels.kernel_device import KernelDevice
from analyzer.simulate.kernels.shared import tensor_list_kernels as lists
from analyzer.simulate.kernels.shared.memory_plan import ListUse, MemoryPlan, Output, Way
from analyzer.simulate.kernels.shared.op_call import Call, allocate, allocate_all, forward

ALLOCATOR: Final = "GPU_0_bfc"
"""TensorFlow's name of the first card's allocator."""

SCRATCH_BYTES: Final = 1028
"""What Eigen's reductions may use on the card: a kilobyte and a counter, made with the device
(``BaseGPUDevice::InitScratchBuffers``; ``kGpuScratchSize``)."""

_ELSEWHERE: Final = Output(Way.NONE, elsewhere=True)

_ALLOCATING: Final = op_types(
    """
    _Recv _HostRecv MatMul _FusedMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 MaxPoolGrad MaxPoolGradV2
    UnsortedSegmentMin UnsortedSegmentProd SegmentMax SegmentMin SegmentMean
    SegmentProd SparseSegmentMean SparseSegmentSqrtN SparseSegmentSumGrad SparseSegmentMeanGrad Gather
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    CTCLossV2 TensorScatterUpdate TensorScatterAdd SparseToDense Cross
    AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB ImageProjectiveTransformV3
    Softsign SoftmaxCrossEntropy Cumsum Cumprod CumulativeLogsumexp DataFormatDimMap DataFormatVecPermute
    """
)
"""Kernels without temporaries of note. ``MatMul`` is cuBLAS'; poolings over two axes in NHWC
are cuDNN's own since version 7.3 and need no copies; segment sums add atomically into the output; sums
along an axis are one kernel whose blocks scan on the chip (``scan_ops_gpu.h``)."""

_SCANS: Final = op_types(
    """
    Where DynamicPartition Unique UniqueV2 Bincount
    DenseBincount HistogramFixedWidth
    """
)

_AS_ON_CPU: Final = (
    (cpu.ALIASES | cpu.UNARY | cpu.BINARY | cpu.IN_PLACE | cpu.SCATTERS | cpu.GATHERS)
    - op_types(
        """
    Cholesky MatrixInverse Dawsn Expint FresnelCos FresnelSin Spence BesselI0 BesselI1 BesselJ0
    BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1
    """
    )
    | cpu.NOTHING
    | cpu.CONSTANT
    | frozenset(lists.RULES)
    | op_types(
        """
    AddN ZerosLike Select Switch RefSwitch Merge SparseSoftmaxCrossEntropyWithLogits
    SoftmaxCrossEntropyWithLogits ReadVariableOp AssignVariableOp RGBToHSV Cast Transpose
    ConjugateTranspose BroadcastTo Tile Concat ConcatV2 Pack Slice StridedSlice Split SplitV Unpack
    ArgMax ArgMin AvgPool BroadcastGradientArgs Bucketize CompareAndBitpack ConcatOffset DepthToSpace
    Diag DiagPart
    DynamicStitch Empty ExtractImagePatches Fill FusedBatchNormGradV3 GatherNd GatherV2 InTopKV2
    InvertPermutation LinSpace LRN LRNGrad MatrixBandPart MatrixDiagPartV3 MatrixDiagV3
    MatrixSetDiagV3 MaxPool MaxPoolGradGrad MaxPoolV2 MaxPoolWithArgmax MirrorPad MirrorPadGrad
    Multinomial OneHot Pad PadV2 ParallelDynamicStitch RandomStandardNormal RandomUniform
    RandomUniformInt Range Rank ResizeBicubic ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
    ResizeNearestNeighborGrad ReverseSequence ReverseV2 Roll ScatterNd
    SegmentSum Shape ShapeN Size SpaceToBatchND BatchToSpaceND SpaceToDepth SparseSegmentSum
    StatelessMultinomial StatelessRandomGetAlg StatelessRandomGetKeyCounter
    StatelessRandomGetKeyCounterAlg StatelessRandomNormalV2 StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StatelessTruncatedNormalV2 StatelessRandomUniform StatelessRandomNormal
    StatelessTruncatedNormal TruncatedNormal UnsortedSegmentMax UnsortedSegmentSum VariableShape
    RngReadAndSkip StatefulStandardNormalV2 StatefulUniform StatefulTruncatedNormal
    StatefulUniformFullInt StatefulUniformInt StridedSliceGrad TemporaryVariable
    TensorListElementShape TensorListLength VarIsInitializedOp IteratorGetNext OptionalHasValue
    Angle Betainc ComplexAbs CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage Dilation2D
    Dilation2DBackpropFilter Dilation2DBackpropInput FFT FFT2D FFT3D RFFT RFFT2D RFFT3D Imag Real
    FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
    ImageProjectiveTransformV2 LowerBound UpperBound Polygamma PopulationCount
    QuantizeAndDequantizeV2 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad IFFT IFFT2D IFFT3D
    SparseTensorDenseMatMul MatrixTriangularSolve ScaleAndTranslateGrad
    """
    )
)
"""Op types whose kernel on a card asks for what the CPU's does: one class serves both, or both only
allocate their outputs. What cuSOLVER computes is not among them: it works on copies."""


def gpu_device(capability: Capability, multiprocessors: int) -> KernelDevice:
    """Return the kernels of a card.

    Args:
        capability: Its compute capability, which decides the layout that cuDNN computes in.
        multiprocessors: How many it has, which decides into how many parts a sum is split.
    """
    rules = _rules(capability, gpu_reduction.blocks_in_flight(capability, multiprocessors))

    def plan(call: Call) -> MemoryPlan:
        return _on_card(call, rules)

    return KernelDevice(
        kind="gpu",
        allocator=ALLOCATOR,
        plan=plan,
        held_bytes=_held_bytes,
        handle_bytes=0,
        scratch_bytes=SCRATCH_BYTES,
        host_dtypes=VARIABLES_ON_HOST,
        is_cheap=True,
    )


def _held_bytes(op: Op) -> int:
    if runs_on_host(op) or is_output_on_host(op, 0, ()):
        return 0
    return op.outputs[0].size_bytes or 0


def _on_card(call: Call, rules: dict[str, Callable[[Call], MemoryPlan]]) -> MemoryPlan:
    """Return the op's plan with everything left out that lies in host memory."""
    op = call.op
    if runs_on_host(op):
        return MemoryPlan(outputs=tuple(_ELSEWHERE for _ in op.outputs))
    rule = rules.get(op.type) or (cpu.plan if op.type in _AS_ON_CPU else _plan_unknown)
    plan = rule(call)
    if not plan.outputs:
        return plan
    if plan.lists is not ListUse.NO:
        return _list_on_card(call, plan)
    host = [is_output_on_host(op, index, call.inputs) for index in range(len(plan.outputs))]
    if not any(host):
        return plan
    outputs = tuple(
        _ELSEWHERE if is_host and output.way is not Way.ALIAS else output
        for output, is_host in zip(plan.outputs, host, strict=True)
    )
    if not all(host):
        return replace(plan, outputs=outputs)
    return replace(
        plan, outputs=outputs, before_bytes=(), scratch_bytes=(), after_bytes=(), modelled=True
    )


def _list_on_card(call: Call, plan: MemoryPlan) -> MemoryPlan:
    """Leave out a list's own tensor, and elements that lie in host memory."""
    first = call.op.outputs[0].dtype
    outputs = tuple(
        _ELSEWHERE if spec.dtype in HOST_TYPES else output
        for spec, output in zip(call.op.outputs, plan.outputs, strict=True)
    )
    given = call.inputs[0].dtype if call.inputs and call.inputs[0] is not None else first
    rows_bytes = () if given in HOST_TYPES else plan.rows_bytes
    return replace(plan, outputs=outputs, rows_bytes=rows_bytes)


def _plan_allocating(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=allocate_all(call))


def _plan_unknown(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=allocate_all(call), modelled=False)


def _plan_inverse_fourier(call: Call) -> MemoryPlan:
    """CuFFT destroys the input of a transform to real numbers: a copy of it (``FFTGPUBase``)."""
    return MemoryPlan(outputs=allocate_all(call), after_bytes=(call.input_size(0),))


def _plan_cross_entropy(call: Call) -> MemoryPlan:
    """A product of the logits' size is summed to the loss (``SoftmaxXentEigenImpl``).

    Eigen evaluates it into a temporary of the device's allocator, and the logarithms of the sums into
    another, after scratch, loss and gradient are there.
    """
    plan = cpu.plan(call)
    return replace(plan, after_bytes=(call.input_size(0), call.size(0)))


def _plan_unary(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(forward(call, (0,)),))


def _plan_einsum(call: Call) -> MemoryPlan:
    """Transpose operands and result where needed, as on the CPU; the product is cuBLAS'."""
    plan = onednn.plan_einsum(call)
    return replace(plan, scratch_bytes=(), after_bytes=())


def _plan_select(call: Call) -> MemoryPlan:
    """The generated ``SelectV2`` may take over either value, broadcast or not."""
    return MemoryPlan(outputs=(forward(call, (1, 2)),))


def _plan_swap_in(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(allocate(call),))


def _plan_swap_out(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=tuple(_ELSEWHERE for _ in call.op.outputs))


def _rules(capability: Capability, blocks: int) -> dict[str, Callable[[Call], MemoryPlan]]:
    def conv(rule: Callable[[Call, Capability], MemoryPlan]) -> Callable[[Call], MemoryPlan]:
        return lambda call: rule(call, capability)

    forward_rule, depthwise = (
        conv(gpu_convolution.plan_convolution),
        conv(gpu_convolution.plan_depthwise),
    )
    input_rule = conv(gpu_convolution.plan_input_gradient)
    filter_rule = conv(gpu_convolution.plan_filter_gradient)
    norm = conv(gpu_convolution.plan_batch_norm)
    rules: dict[str, Callable[[Call], MemoryPlan]] = dict.fromkeys(_ALLOCATING, _plan_allocating)
    rules |= dict.fromkeys(_SCANS, gpu_reduction.plan_scan)
    rules |= dict.fromkeys(cpu.REDUCTIONS, lambda call: gpu_reduction.plan_reduction(call, blocks))
    rules |= dict.fromkeys(("Conv2D", "Conv3D", "_FusedConv2D"), forward_rule)
    rules |= dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), input_rule)
    rules |= dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), filter_rule)
    rules |= dict.fromkeys(
        (
            "DepthwiseConv2dNative",
            "DepthwiseConv2dNativeBackpropInput",
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        depthwise,
    )
    rules |= dict.fromkeys(("MaxPool3D", "AvgPool3D"), conv(gpu_pooling.plan_pool_3d))
    rules |= dict.fromkeys(("FusedBatchNormV3", "_FusedBatchNormEx"), norm)
    rules |= {
        "AvgPoolGrad": conv(gpu_pooling.plan_average_pool_gradient),
        "AvgPool3DGrad": conv(gpu_pooling.plan_average_pool_3d_gradient),
        "MaxPool3DGrad": conv(gpu_pooling.plan_max_pool_3d_gradient),
        "L2Loss": lambda call: gpu_reduction.plan_sum_of_squares(call, blocks),
        "Softmax": gpu_reduction.plan_softmax,
        "LogSoftmax": gpu_reduction.plan_softmax,
        "BiasAddGrad": gpu_reduction.plan_bias_gradient,
        "TopKV2": gpu_reduction.plan_top_k,
        "SoftmaxCrossEntropyWithLogits": _plan_cross_entropy,
        "IRFFT": _plan_inverse_fourier,
        "IRFFT2D": _plan_inverse_fourier,
        "IRFFT3D": _plan_inverse_fourier,
        "Einsum": _plan_einsum,
        "SelectV2": _plan_select,
        "CudnnRNN": gpu_rnn.plan_forward,
        "CudnnRNNV2": gpu_rnn.plan_forward,
        "CudnnRNNV3": gpu_rnn.plan_forward,
        "CudnnRNNBackprop": gpu_rnn.plan_backward,
        "CudnnRNNBackpropV2": gpu_rnn.plan_backward,
        "CudnnRNNBackpropV3": gpu_rnn.plan_backward,
        "_CopyFromHostToGpu": _plan_swap_in,
        "_CopyFromGpuToHost": _plan_swap_out,
        COPY: _plan_allocating,
        COPY_BACK: _plan_swap_out,
    }
    return rules
