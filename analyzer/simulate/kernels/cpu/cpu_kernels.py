"""CPU kernels: what each op type allocates, forwards, aliases and holds.

The rules are read from TensorFlow's kernels (``tensorflow/core/kernels``, and the headers of the 2.21
wheel) and were checked against the allocator's events. An op type without a rule is assumed to
allocate each output, and is reported as unmodelled.
"""

from __future__ import annotations

import math
from typing import Final

from analyzer.model.graph.ops import op_types
from analyzer.simulate.kernels.cpu import native_convolution as native
from analyzer.simulate.kernels.cpu import onednn
from analyzer.simulate.kernels.shared import data_movement as layout
from analyzer.simulate.kernels.shared import tensor_list_kernels as lists
from analyzer.simulate.kernels.shared.memory_plan import (
    ListUse,
    MemoryPlan,
    Output,
    VariableAccess,
    Way,
)
from analyzer.simulate.kernels.shared.op_call import (
    Call,
    alias,
    allocate,
    allocate_all,
    forward,
    plan_allocation,
    plan_forward,
    rule_table,
)

ALIASES: Final = op_types(
    """
    _EagerConst _ParallelConcatStart Assign AssignAdd AssignSub Bitcast CheckNumerics
    CheckNumericsV2 Copy DebugIdentityV2 DestroyTemporaryVariable EnsureShape Enter Exit
    ExpandDims Identity IdentityN LoopCond NextIteration OptimizationBarrier
    PlaceholderWithDefault PreventGradient RefEnter Reshape Snapshot Squeeze StopGradient
    XlaSharding
    """
)
"""Kernels that pass on the buffer of their input (``IdentityOp``, ``ReshapeOp``: ``set_output``).
Grappler makes a large ``AddN`` of ``TemporaryVariable``, ``Assign``, ``AssignAdd`` and
``DestroyTemporaryVariable``: one buffer to which each addend is added."""

UNARY: Final = op_types(
    """
    _UnaryOpsComposition Abs Acos Acosh Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1
    BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Ceil
    Cholesky ClipByValue Conj Cos Cosh Dawsn Digamma Elu Erf Erfc Erfinv Exp Expint Expm1
    FakeQuantWithMinMaxArgs Floor FresnelCos FresnelSin Inv Invert IsFinite IsInf IsNan
    LeakyRelu Lgamma Log Log1p LogicalNot LogSoftmax MatrixInverse Ndtri Neg OnesLike
    Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softmax Softplus
    Softsign Spence Sqrt Square Tan Tanh TensorScatterAdd TensorScatterMax TensorScatterMin
    TensorScatterSub TensorScatterUpdate ZerosLike
    """
)
"""Kernels that forward input 0: ``forward_input_or_allocate_output({0}, ...)``, most of them element by
element. If the output has another type (``IsFinite``), no input fits and the kernel allocates.
(``TensorScatterOp``; ``LinearAlgebraOp::PrepareOutputs``.)"""

BINARY: Final = op_types(
    """
    Add AddV2 ApproximateEqual Atan2 BiasAdd BitwiseAnd BitwiseOr BitwiseXor Complex Div
    DivNoNan EluGrad Equal FloorDiv FloorMod Greater GreaterEqual Igamma Igammac InvGrad
    LeakyReluGrad LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul
    MulNoNan NextAfter NotEqual Pow RealDiv ReciprocalGrad Relu6Grad ReluGrad RightShift
    RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference Sub
    TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
    """
)
"""Element-wise kernels of two tensors, which forward input 0 or 1. A broadcast input has fewer elements
than the output and does not fit (``BinaryOp``, ``BinaryElementWiseOp``, ``BiasOp``)."""

ALLOCATING_ANYWHERE: Final = op_types(
    """
    Angle ArgMax ArgMin AvgPool BatchToSpaceND Betainc BroadcastGradientArgs Bucketize
    CompareAndBitpack ComplexAbs ConcatOffset CropAndResize CropAndResizeGradBoxes
    CropAndResizeGradImage DepthToSpace Diag DiagPart Dilation2D Dilation2DBackpropFilter
    Dilation2DBackpropInput DynamicStitch Empty ExtractImagePatches FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel FFT FFT2D FFT3D Fill
    FusedBatchNormGradV3 GatherNd GatherV2 IFFT IFFT2D IFFT3D Imag ImageProjectiveTransformV2
    InTopKV2 InvertPermutation IteratorGetNext LinSpace LowerBound LRN LRNGrad MatrixBandPart
    MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 MatrixTriangularSolve MaxPool
    MaxPoolGradGrad MaxPoolV2 MaxPoolWithArgmax MirrorPad MirrorPadGrad Multinomial OneHot
    OptionalHasValue Pad PadV2 ParallelDynamicStitch Polygamma PopulationCount
    QuantizeAndDequantizeV2 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad
    RandomStandardNormal RandomUniform RandomUniformInt Range Rank Real ResizeBicubic
    ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad
    ReverseSequence ReverseV2 RFFT RFFT2D RFFT3D RngReadAndSkip Roll ScaleAndTranslateGrad
    ScatterNd SegmentSum Shape ShapeN Size SpaceToBatchND SpaceToDepth SparseSegmentSum
    SparseTensorDenseMatMul StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform
    StatefulUniformFullInt StatefulUniformInt StatelessMultinomial StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2
    StridedSliceGrad TemporaryVariable TensorListElementShape TensorListLength TruncatedNormal
    UnsortedSegmentMax UnsortedSegmentSum UpperBound VariableShape VarIsInitializedOp
    """
)
"""Kernels that allocate each output (``allocate_output``) on a CPU and on a GPU, no temporaries."""

_ALLOCATING: Final = op_types(
    """
    _FusedBatchNormEx _FusedConv2D _TensorToHashBucketFast AdjustContrastv2 AdjustHue
    AdjustSaturation AsString AvgPool3D AvgPool3DGrad AvgPoolGrad BiasAddGrad Bincount
    CombinedNonMaxSuppression Conv2D Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 Cross
    CTCGreedyDecoder CTCLoss CTCLossV2 Cumprod Cumsum CumulativeLogsumexp DenseBincount
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput DynamicPartition Einsum ExtractVolumePatches
    FusedBatchNormV3 HSVToRGB ImageProjectiveTransformV3 IRFFT IRFFT2D IRFFT3D L2Loss
    LogMatrixDeterminant LookupTableFindV2 LookupTableSizeV2 Lu MatrixDeterminant
    MatrixLogarithm MatrixSolve MaxPool3D NonMaxSuppressionV3 NonMaxSuppressionV4
    NonMaxSuppressionV5 NthElement Qr RaggedGather RaggedRange RaggedTensorToSparse
    RaggedTensorToTensor RandomGamma RandomGammaGrad RandomPoissonV2 RandomShuffle ResizeArea
    ResizeBicubicGrad SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd
    SegmentProdV2 SegmentSumV2 SelfAdjointEigV2 SparseFillEmptyRows SparseFillEmptyRowsGrad
    SparseReduceSum SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad
    SparseSegmentSqrtN SparseSegmentSqrtNGrad SparseSegmentSumGrad SparseSlice SparseSoftmax
    SparseTensorDenseAdd SparseToDense StatefulRandomBinomial StatelessRandomBinomial
    StatelessRandomGammaV3 StatelessRandomPoisson StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessShuffle StringLength
    StringToHashBucketFast StringToHashBucketStrong StringToNumber Svd TopKV2 Unique UniqueV2
    UniqueWithCounts UniqueWithCountsV2 UnsortedSegmentMin UnsortedSegmentProd Where
    """
)
"""Kernels that only allocate their outputs on a CPU. Eigen's products and convolutions take their
temporaries from the C heap, which TensorFlow's allocator does not see."""

_ONEDNN_ALLOCATING: Final = op_types(
    """
    _FusedMish _MklFusedMish _MklLayerNorm _MklLeakyRelu _MklNativeAvgPool _MklNativeAvgPool3D
    _MklNativeAvgPool3DGrad _MklNativeAvgPoolGrad _MklNativeConcatV2
    _MklNativeConv2DBackpropFilter _MklNativeConv2DBackpropFilterWithBias
    _MklNativeConv2DBackpropInput _MklNativeConv3DBackpropFilterV2
    _MklNativeConv3DBackpropInputV2 _MklNativeDepthwiseConv2dNative
    _MklNativeDepthwiseConv2dNativeBackpropFilter _MklNativeDepthwiseConv2dNativeBackpropInput
    _MklNativeFusedBatchNormEx _MklNativeFusedBatchNormGradV3 _MklNativeFusedBatchNormV3
    _MklNativeFusedDepthwiseConv2dNative _MklNativeFusedMatMul _MklNativeMaxPool
    _MklNativeMaxPool3D _MklNativeMaxPool3DGrad _MklNativeMaxPoolGrad _MklSwish _MklTanh
    """
)
"""oneDNN kernels without a notable scratchpad: products and gradients of convolutions use the buffers
given; activations write a new output (``mkl_eltwise_activation_base_op.h``)."""

REDUCTIONS: Final = op_types("Sum Mean Prod Max Min All Any EuclideanNorm _MklNativeReduce")

IN_PLACE: Final = op_types(
    """
    AssignAddVariableOp AssignSubVariableOp ResourceApplyAdadelta ResourceApplyAdagrad
    ResourceApplyAdagradV2 ResourceApplyAdam ResourceApplyAdaMax ResourceApplyAdamWithAmsgrad
    ResourceApplyCenteredRMSProp ResourceApplyFtrl ResourceApplyFtrlV2
    ResourceApplyGradientDescent ResourceApplyKerasMomentum ResourceApplyMomentum
    ResourceApplyProximalGradientDescent ResourceApplyRMSProp
    """
)
"""Kernels that write into the variable's buffer, and copy it first if a read of it is still alive
(``PrepareToUpdateVariable``, ``training_op_helpers.h`` 233 to 262)."""

SCATTERS: Final = op_types(
    """
    ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin
    ResourceScatterMul ResourceScatterNdAdd ResourceScatterNdMax ResourceScatterNdMin
    ResourceScatterNdSub ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate
    ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad ResourceSparseApplyAdagradV2
    ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2
    ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum ResourceSparseApplyRMSProp
    ResourceStridedSliceAssign
    """
)
"""Kernels that write parts of a variable. The first one switches the variable to *copy-on-read mode* for
good: each read copies it, and so does each assignment (``EnsureSparseVariableAccess``, same header,
44 to 103; ``ReadVariableOp``, ``AssignVariableOp``)."""

GATHERS: Final = op_types("ResourceGather ResourceGatherNd")
"""Kernels that read parts of a variable under its lock. They also switch it to copy-on-read mode
(``ResourceGatherOp::Compute``, ``ResourceGatherNdOp::Compute`` in ``resource_variable_ops.cc``)."""

NOTHING: Final = op_types(
    "NoOp ControlTrigger _Retval _DeviceRetval Assert PrintV2 _SOURCE DestroyResourceOp"
)
CONSTANT: Final = op_types("Const HostConst _Arg _DeviceArg VarHandleOp Placeholder ImmutableConst")


def plan(call: Call) -> MemoryPlan:
    """Return the memory plan of one run of the op's CPU kernel."""
    rule = _RULES.get(call.op.type)
    if rule is not None:
        return rule(call)
    return MemoryPlan(outputs=allocate_all(call), modelled=False)


def _plan_alias(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=tuple(alias(index) for index in range(len(call.op.outputs))))


def _plan_unary(call: Call) -> MemoryPlan:
    return plan_forward(call, (0,))


def _plan_binary(call: Call) -> MemoryPlan:
    return plan_forward(call, (0, 1))


def plan_nothing(call: Call) -> MemoryPlan:
    """Allocate nothing: the outputs are made elsewhere, or there are none."""
    return MemoryPlan(outputs=tuple(Output(Way.NONE) for _ in call.op.outputs))


def _plan_add_n(call: Call) -> MemoryPlan:
    """Forward any input (``AddNOp``)."""
    if len(call.inputs) == 1:
        return MemoryPlan(outputs=(alias(),))
    if lists.is_list(call):
        return MemoryPlan(outputs=(Output(Way.NONE),), lists=ListUse.ADD)
    return plan_forward(call, range(len(call.inputs)))


def _plan_zeros_like(call: Call) -> MemoryPlan:
    """Forward the input (``ZerosLikeOp``); of a list, make zeros for each element."""
    if lists.is_list(call):
        return MemoryPlan(outputs=(Output(Way.NONE),), lists=ListUse.ZEROS)
    return plan_forward(call, (0,))


def plan_select(call: Call) -> MemoryPlan:
    """Forward either value that has the size of the result, broadcast or not (``SelectV2Op``)."""
    return plan_forward(call, (1, 2))


def _plan_python(call: Call) -> MemoryPlan:
    """Copy each array that Python returns, or hold it if it is aligned for Eigen.

    ``NdarrayToTensor`` gives the array to ``TF_NewTensor``, which allocates a tensor if the array
    does not begin on 64 bytes (``py_func.cc``, ``ndarray_tensor.cc``, ``tf_tensor.cc``).
    """
    return MemoryPlan(outputs=allocate_all(call), borrows=True)


def _plan_histogram(call: Call) -> MemoryPlan:
    """Allocate an int32 for the bin of each value (``HistogramFixedWidthFunctor``)."""
    return plan_allocation(call, after_bytes=(4 * math.prod(call.shape(0) or (0,)),))


def _plan_rgb_to_hsv(call: Call) -> MemoryPlan:
    """Allocate the range of colours of each pixel as a temporary (``RGBToHSVOp``)."""
    return plan_allocation(call, after_bytes=(call.size() // 3,))


def _plan_switch(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=tuple(alias() for _ in call.op.outputs))


def _plan_merge(call: Call) -> MemoryPlan:
    """Pass on the input that arrived; allocate its index only if it is used (``MergeOp``)."""
    arrived = Output(Way.ALIAS, inputs=tuple(range(len(call.inputs))))
    if len(call.op.outputs) == 1:
        return MemoryPlan(outputs=(arrived,))
    index = Output(Way.NONE) if 1 in call.unused else allocate(call, 1)
    return MemoryPlan(outputs=(arrived, index))


def _plan_cross_entropy(call: Call) -> MemoryPlan:
    """Allocate one number a row as scratch, and the loss; forward the logits to the gradient.

    ``SparseSoftmaxXentWithLogitsOp``, ``SoftmaxXentWithLogitsOp``.
    """
    return MemoryPlan(
        outputs=(allocate(call, 0), forward(call, (0,), 1)), before_bytes=(call.size(0),)
    )


def plan_all_reduce(call: Call) -> MemoryPlan:
    """Forward the input to the sum, and allocate a buffer for each part that others send.

    A ring: the tensor is cut into as many chunks as there are devices. Each chunk, except the one
    that a device sends first, is received into a buffer of its own before it is added. All buffers
    are allocated at the start (``RingReducer::InitRingField``: ``TempChunk`` if ``do_recv``).
    """
    group = call.attr("group_size")
    if group is None and len(call.values) > 1 and call.values[1]:
        group = call.values[1][0]  # from the second version on, the number of devices is an input
    if not isinstance(group, int) or group < 1:
        return MemoryPlan(outputs=allocate_all(call), modelled=False)
    chunk_bytes = -(-call.size() // group)
    return MemoryPlan(
        outputs=(forward(call, (0,)),), after_bytes=(chunk_bytes,) * (min(group, 1024) - 1)
    )


def _plan_read(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(Output(Way.ALIAS),), variable=VariableAccess.READ)


def _plan_assign(call: Call) -> MemoryPlan:
    """Make the value's buffer the variable's (``AssignVariableOp``)."""
    return MemoryPlan(variable=VariableAccess.ASSIGN, value=1)


def _plan_update(call: Call) -> MemoryPlan:
    return MemoryPlan(variable=VariableAccess.UPDATE)


def _plan_in_part(call: Call) -> MemoryPlan:
    """Read or write parts of a variable."""
    return MemoryPlan(outputs=allocate_all(call), variable=VariableAccess.IN_PART)


_RULES: Final = lists.RULES | rule_table(
    (_plan_alias, ALIASES),
    (_plan_unary, UNARY),
    (_plan_binary, BINARY),
    (plan_allocation, ALLOCATING_ANYWHERE | _ALLOCATING | _ONEDNN_ALLOCATING),
    (layout.plan_reduction, REDUCTIONS),
    (_plan_update, IN_PLACE),
    (_plan_in_part, SCATTERS | GATHERS),
    (plan_nothing, NOTHING | CONSTANT),
    (_plan_add_n, "AddN"),
    (plan_all_reduce, "CollectiveReduce CollectiveReduceV2 CollectiveReduceV3"),
    (_plan_zeros_like, "ZerosLike"),
    (plan_select, "Select SelectV2"),
    (_plan_python, "PyFunc PyFuncStateless EagerPyFunc"),
    (_plan_switch, "Switch RefSwitch _SwitchN"),
    (_plan_merge, "Merge"),
    (_plan_cross_entropy, "SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits"),
    (_plan_read, "ReadVariableOp"),
    (_plan_assign, "AssignVariableOp"),
    (_plan_histogram, "HistogramFixedWidth"),
    (_plan_rgb_to_hsv, "RGBToHSV"),
    (layout.plan_cast, "Cast _MklCast"),
    (layout.plan_transpose, "Transpose _MklTranspose ConjugateTranspose"),
    (layout.plan_same_or_copy, "BroadcastTo Tile"),
    (layout.plan_concat, "Concat ConcatV2"),
    (layout.plan_pack, "Pack"),
    (layout.plan_slice, "Slice"),
    (layout.plan_strided_slice, "StridedSlice"),
    (layout.plan_split, "Split SplitV"),
    (layout.plan_unpack, "Unpack"),
    (native.plan_filter_gradient, "Conv2DBackpropFilter"),
    (native.plan_input_gradient, "Conv2DBackpropInput"),
    (native.plan_matmul, "MatMul _FusedMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3"),
    (native.plan_max_pool_gradient, "MaxPoolGrad"),
    (
        onednn.plan_convolution,
        "_MklNativeConv2D _MklNativeConv3D _MklNativeFusedConv2D _MklNativeFusedConv3D"
        " _MklNativeConv2DWithBias _MklNativePadWithConv2D _MklNativePadWithFusedConv2D",
    ),
    (onednn.plan_matmul, "_MklMatMul"),
    (onednn.plan_batch_matmul, "_MklBatchMatMul _MklBatchMatMulV2 _MklFusedBatchMatMulV2"),
    (onednn.plan_einsum, "_MklEinsum"),
    (_plan_unary, "_MklSoftmax"),  # ``MklSoftmaxOp`` forwards the logits
)
