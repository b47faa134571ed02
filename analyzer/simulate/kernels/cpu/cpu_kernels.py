"""The CPU's kernels: what each op type does to memory.

Rules are read from TensorFlow's kernels (``tensorflow/core/kernels``; the headers of the 2.21 wheel
where they hold the code) and were held against the allocator's own events. An op type that is not
in the tables is taken to allocate every output anew, and is reported as unmodelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from analyzer.model.graph.ops import op_types
from analyzer.simulate.kernels.cpu import native_convolution as convolution
from analyzer.simulate.kernels.cpu import onednn
from analyzer.simulate.kernels.cpu.all_reduce import plan_all_reduce
from analyzer.simulate.kernels.shared import data_movement as layout
from analyzer.simulate.kernels.shared import tensor_list_kernels as lists
from analyzer.simulate.kernels.shared.memory_plan import (
    ListUse,
    MemoryPlan,
    Output,
    VariableAccess,
    Way,
)
from analyzer.simulate.kernels.shared.op_call import Call, alias, allocate, allocate_all, forward

Rule = Callable[[Call], MemoryPlan]

ALIASES: Final = op_types(
    """
    Identity IdentityN StopGradient PreventGradient CheckNumerics CheckNumericsV2 EnsureShape
    Reshape Squeeze ExpandDims Bitcast PlaceholderWithDefault Enter Exit NextIteration
    RefEnter LoopCond Snapshot _ParallelConcatStart OptimizationBarrier Copy DebugIdentityV2
    _EagerConst XlaSharding Assign AssignAdd AssignSub DestroyTemporaryVariable
    """
)
"""Kernels that hand on their input's buffer (``IdentityOp``, ``ReshapeOp``: ``set_output``). The
last four are what grappler makes of a large ``AddN``: one buffer that each addend is added to."""

UNARY: Final = op_types(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh BesselI0e BesselI1e Ceil Conj Cos Cosh Digamma Elu
    Erf Erfc Erfinv Exp Expm1 Floor Inv Invert LeakyRelu Lgamma Log Log1p LogicalNot
    LogSoftmax Ndtri Neg OnesLike Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin
    Sinh Softmax Softplus Softsign Sqrt Square Tan Tanh ZerosLike _UnaryOpsComposition
    ClipByValue IsFinite IsInf IsNan
    BesselI0 BesselI1 BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1
    Cholesky Dawsn Expint FakeQuantWithMinMaxArgs FresnelCos FresnelSin MatrixInverse Spence
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate
    """
)
"""Kernels that write into their first input where it is free: ``forward_input_or_allocate_output({0},
...)``, most of them element by element. Where the output has another type (``IsFinite``) the forward
finds no fitting input and allocates. (``TensorScatterOp``; ``LinearAlgebraOp::PrepareOutputs``.)"""

BINARY: Final = op_types(
    """
    Add AddV2 ApproximateEqual Atan2 BitwiseAnd BitwiseOr BitwiseXor Complex Div DivNoNan
    Equal EluGrad FloorDiv FloorMod Greater GreaterEqual Igamma Igammac InvGrad LeakyReluGrad
    LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul MulNoNan NextAfter
    NotEqual Pow RealDiv ReciprocalGrad Relu6Grad ReluGrad RightShift RsqrtGrad SeluGrad
    SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference Sub TanhGrad TruncateDiv
    TruncateMod Xdivy Xlog1py Xlogy Zeta BiasAdd
    """
)
"""Element-wise kernels of two tensors: inputs 0 and 1 are tried in turn; one that is broadcast has
fewer elements than the output and cannot be taken over (``BinaryOp``, ``BinaryElementWiseOp``,
``BiasOp`` whose second input never fits)."""

ALLOCATING: Final = op_types(
    """
    ArgMax ArgMin AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BiasAddGrad Bincount
    BroadcastGradientArgs Bucketize CompareAndBitpack ConcatOffset Conv2D Conv3D Conv3DBackpropFilterV2
    Conv3DBackpropInputV2 CropAndResize Cumprod Cumsum CumulativeLogsumexp DepthToSpace
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Diag DiagPart DynamicPartition DynamicStitch Empty
    ExtractImagePatches Fill FusedBatchNormGradV3 FusedBatchNormV3 GatherNd GatherV2 InTopKV2
    InvertPermutation L2Loss LinSpace LRN LRNGrad MatrixBandPart MatrixDiagPartV3 MatrixDiagV3
    MatrixSetDiagV3 MaxPool MaxPoolGradGrad MaxPoolV2 MirrorPad MirrorPadGrad Multinomial
    OneHot Pad PadV2 ParallelDynamicStitch RandomShuffle RandomStandardNormal RandomUniform
    RandomUniformInt Range Rank ResizeBicubic ResizeBilinear ResizeBilinearGrad
    ResizeNearestNeighbor ResizeNearestNeighborGrad
    ReverseSequence ReverseV2 Roll ScatterNd SegmentSum Shape ShapeN Size SpaceToBatchND
    BatchToSpaceND SpaceToDepth SparseSegmentSum StatelessMultinomial StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormalV2
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessTruncatedNormalV2
    StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal TopKV2
    TruncatedNormal Unique UniqueV2 UnsortedSegmentMax UnsortedSegmentSum VariableShape Where
    _FusedBatchNormEx _FusedConv2D RngReadAndSkip StatefulStandardNormalV2 StatefulUniform
    StridedSliceGrad TemporaryVariable TensorListElementShape TensorListLength
    VarIsInitializedOp IteratorGetNext OptionalHasValue Einsum
    AdjustContrastv2 AdjustHue AdjustSaturation Angle AsString Betainc CTCGreedyDecoder CTCLoss
    CTCLossV2 CombinedNonMaxSuppression ComplexAbs CropAndResizeGradBoxes CropAndResizeGradImage
    Cross DenseBincount Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput
    ExtractVolumePatches FFT FFT2D FFT3D FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel HSVToRGB IFFT IFFT2D IFFT3D
    IRFFT IRFFT2D IRFFT3D Imag ImageProjectiveTransformV2 ImageProjectiveTransformV3
    LogMatrixDeterminant LookupTableFindV2 LookupTableSizeV2 LowerBound Lu MatrixDeterminant
    MatrixLogarithm MatrixSolve MatrixTriangularSolve MaxPool3D MaxPoolWithArgmax
    NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 NthElement Polygamma
    PopulationCount Qr QuantizeAndDequantizeV2 QuantizeAndDequantizeV4
    QuantizeAndDequantizeV4Grad RFFT RFFT2D RFFT3D RaggedGather RaggedRange
    RaggedTensorToSparse RaggedTensorToTensor RandomGamma RandomGammaGrad RandomPoissonV2 Real
    ResizeArea ResizeBicubicGrad ScaleAndTranslateGrad SegmentMax SegmentMaxV2 SegmentMean
    SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSumV2 SelfAdjointEigV2
    SparseFillEmptyRows SparseFillEmptyRowsGrad SparseReduceSum SparseReorder SparseReshape
    SparseSegmentMean SparseSegmentMeanGrad SparseSegmentSqrtN SparseSegmentSqrtNGrad
    SparseSegmentSumGrad SparseSlice SparseSoftmax SparseTensorDenseAdd
    SparseTensorDenseMatMul SparseToDense StatefulRandomBinomial StatefulTruncatedNormal
    StatefulUniformFullInt StatefulUniformInt StatelessRandomBinomial StatelessRandomGammaV3
    StatelessRandomPoisson StatelessRandomUniformFullIntV2 StatelessRandomUniformFullInt
    StatelessRandomUniformInt StatelessShuffle StringLength StringToHashBucketFast
    StringToHashBucketStrong StringToNumber Svd UniqueWithCounts UniqueWithCountsV2
    UnsortedSegmentMin UnsortedSegmentProd UpperBound _TensorToHashBucketFast
    """
)
"""Kernels whose outputs are always new buffers (``allocate_output``), without temporaries that
TensorFlow's allocator sees: Eigen's products and convolutions take theirs from the C heap."""

ONEDNN_ALLOCATING: Final = op_types(
    """
    _MklNativeFusedMatMul _MklNativeAvgPool _MklNativeAvgPoolGrad _MklNativeMaxPool
    _MklNativeMaxPoolGrad _MklNativeAvgPool3D _MklNativeAvgPool3DGrad _MklNativeMaxPool3D
    _MklNativeMaxPool3DGrad _MklNativeConv2DBackpropFilter
    _MklNativeConv2DBackpropFilterWithBias _MklNativeConv2DBackpropInput
    _MklNativeConv3DBackpropFilterV2 _MklNativeConv3DBackpropInputV2
    _MklNativeDepthwiseConv2dNative _MklNativeDepthwiseConv2dNativeBackpropFilter
    _MklNativeDepthwiseConv2dNativeBackpropInput _MklNativeFusedDepthwiseConv2dNative
    _MklSwish _MklLeakyRelu _MklNativeFusedBatchNormV3 _MklNativeFusedBatchNormGradV3
    _MklNativeFusedBatchNormEx _MklTanh _MklNativeConcatV2 _MklLayerNorm _FusedMish
    _MklFusedMish
    """
)
"""oneDNN kernels without a scratchpad of note: products and the gradients of convolutions run on
buffers they are given; activations write a new output (``mkl_eltwise_activation_base_op.h``)."""

REDUCTIONS: Final = op_types(
    """
    Sum Mean Prod Max Min All Any EuclideanNorm _MklNativeReduce
    """
)

IN_PLACE: Final = op_types(
    """
    AssignAddVariableOp AssignSubVariableOp ResourceApplyAdam ResourceApplyAdagradV2
    ResourceApplyGradientDescent ResourceApplyMomentum ResourceApplyKerasMomentum
    ResourceApplyRMSProp ResourceApplyFtrlV2 ResourceApplyAdaMax ResourceApplyAdadelta
    ResourceApplyAdagrad ResourceApplyAdamWithAmsgrad ResourceApplyCenteredRMSProp
    ResourceApplyFtrl ResourceApplyProximalGradientDescent
    """
)
"""Kernels that write into the variable's buffer, after copying it where a read of it is still held
(``PrepareToUpdateVariable``, ``training_op_helpers.h`` 233 to 262)."""

SCATTERS: Final = op_types(
    """
    ResourceScatterAdd ResourceScatterSub ResourceScatterUpdate ResourceScatterMul
    ResourceScatterDiv ResourceScatterMax ResourceScatterMin ResourceScatterNdAdd
    ResourceScatterNdUpdate ResourceStridedSliceAssign ResourceSparseApplyAdagradV2
    ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub ResourceSparseApplyAdadelta
    ResourceSparseApplyAdagrad ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl
    ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum
    ResourceSparseApplyRMSProp
    """
)
"""Kernels that write parts of a variable. The first one puts the variable into *copy-on-read mode* for
good: each read of it is a copy, and so is each value assigned (``EnsureSparseVariableAccess``, the same
header, 44 to 103; ``ReadVariableOp``, ``AssignVariableOp``)."""

GATHERS: Final = op_types("ResourceGather ResourceGatherNd")
"""Kernels that read parts of a variable under its lock: they put it into copy-on-read mode too
(``ResourceGatherOp::Compute``, ``ResourceGatherNdOp::Compute`` in ``resource_variable_ops.cc``)."""

NOTHING: Final = op_types(
    """
    NoOp ControlTrigger _Retval _DeviceRetval Assert PrintV2 _SOURCE DestroyResourceOp
    """
)
CONSTANT: Final = op_types(
    """
    Const HostConst _Arg _DeviceArg VarHandleOp Placeholder ImmutableConst
    """
)


def plan(call: Call) -> MemoryPlan:
    """Return what one run of the op's CPU kernel does to memory."""
    rule = _RULES.get(call.op.type)
    if rule is not None:
        return rule(call)
    return MemoryPlan(outputs=allocate_all(call), modelled=False)


def _plan_alias(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=tuple(alias(index) for index in range(len(call.op.outputs))))


def _plan_unary(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(forward(call, (0,)),))


def _plan_binary(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(forward(call, (0, 1)),))


def _plan_allocating(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=allocate_all(call))


def _plan_nothing(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=tuple(Output(Way.NONE) for _ in call.op.outputs))


def _plan_add_n(call: Call) -> MemoryPlan:
    """Take over any input that is free (``AddNOp``)."""
    if len(call.inputs) == 1:
        return MemoryPlan(outputs=(alias(),))
    if lists.is_list(call):
        return MemoryPlan(outputs=(Output(Way.NONE),), lists=ListUse.ADD)
    return MemoryPlan(outputs=(forward(call, range(len(call.inputs))),))


def _plan_zeros_like(call: Call) -> MemoryPlan:
    """Take over the input (``ZerosLikeOp``); zeros for each element of a list."""
    if lists.is_list(call):
        return MemoryPlan(outputs=(Output(Way.NONE),), lists=ListUse.ZEROS)
    return _plan_unary(call)


def _plan_select(call: Call) -> MemoryPlan:
    """Take over either value that has the result's size, broadcast or not (``SelectV2Op``)."""
    return MemoryPlan(outputs=(forward(call, (1, 2)),))


def _plan_python(call: Call) -> MemoryPlan:
    """Copy each array that Python returns, or hold it as it is where it lies on Eigen's alignment.

    ``NdarrayToTensor`` hands the array to ``TF_NewTensor``, which asks for a tensor of its own where the
    array does not begin on 64 bytes (``py_func.cc``, ``ndarray_tensor.cc``, ``tf_tensor.cc``).
    """
    return MemoryPlan(outputs=allocate_all(call), borrows=True)


def _plan_histogram(call: Call) -> MemoryPlan:
    """Note each value's bin (``HistogramFixedWidthFunctor``): an int32 a value."""
    bins_bytes = 4 * math.prod(call.shape(0) or (0,))
    return MemoryPlan(outputs=allocate_all(call), after_bytes=(bins_bytes,) if bins_bytes else ())


def _plan_rgb_to_hsv(call: Call) -> MemoryPlan:
    """Keep each pixel's range of colours beside the result (``RGBToHSVOp``)."""
    range_bytes = call.size() // 3
    return MemoryPlan(outputs=allocate_all(call), after_bytes=(range_bytes,) if range_bytes else ())


def _plan_switch(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=tuple(alias() for _ in call.op.outputs))


def _plan_merge(call: Call) -> MemoryPlan:
    """Hand on the input that arrived; its index is made only where it is used (``MergeOp``)."""
    arrived = Output(Way.ALIAS, inputs=tuple(range(len(call.inputs))))
    if len(call.op.outputs) == 1:
        return MemoryPlan(outputs=(arrived,))
    return MemoryPlan(
        outputs=(arrived, Output(Way.NONE) if 1 in call.unused else allocate(call, 1))
    )


def _plan_sparse_cross_entropy(call: Call) -> MemoryPlan:
    """A row of scratch, the loss, and a gradient in the logits' buffer where that is free."""
    return MemoryPlan(
        outputs=(allocate(call, 0), forward(call, (0,), 1)), before_bytes=(call.size(0),)
    )


def _plan_cross_entropy(call: Call) -> MemoryPlan:
    """As the sparse one (``SoftmaxXentWithLogitsOp``), whose scratch is a column."""
    return _plan_sparse_cross_entropy(call)


def _plan_read(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(Output(Way.ALIAS),), variable=VariableAccess.READ)


def _plan_assign(call: Call) -> MemoryPlan:
    """The variable adopts the value's buffer (``AssignVariableOp``)."""
    return MemoryPlan(variable=VariableAccess.ASSIGN, value=1)


def _plan_update(call: Call) -> MemoryPlan:
    return MemoryPlan(variable=VariableAccess.UPDATE)


def _plan_in_part(call: Call) -> MemoryPlan:
    """The kernel reads or writes parts of a variable."""
    return MemoryPlan(outputs=allocate_all(call), variable=VariableAccess.IN_PART)


# Long: a table, one op type a line.
def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = dict.fromkeys(ALIASES, _plan_alias)
    rules |= dict.fromkeys(UNARY, _plan_unary)
    rules |= dict.fromkeys(BINARY, _plan_binary)
    rules |= dict.fromkeys(ALLOCATING | ONEDNN_ALLOCATING, _plan_allocating)
    rules |= dict.fromkeys(REDUCTIONS, layout.plan_reduction)
    rules |= dict.fromkeys(IN_PLACE, _plan_update)
    rules |= dict.fromkeys(SCATTERS | GATHERS, _plan_in_part)
    rules |= dict.fromkeys(NOTHING | CONSTANT, _plan_nothing)
    rules |= lists.RULES
    rules |= {
        "AddN": _plan_add_n,
        "CollectiveReduce": plan_all_reduce,
        "CollectiveReduceV2": plan_all_reduce,
        "CollectiveReduceV3": plan_all_reduce,
        "ZerosLike": _plan_zeros_like,
        "Select": _plan_select,
        "SelectV2": _plan_select,
        "PyFunc": _plan_python,
        "PyFuncStateless": _plan_python,
        "EagerPyFunc": _plan_python,
        "Switch": _plan_switch,
        "RefSwitch": _plan_switch,
        "_SwitchN": _plan_switch,
        "Merge": _plan_merge,
        "SparseSoftmaxCrossEntropyWithLogits": _plan_sparse_cross_entropy,
        "SoftmaxCrossEntropyWithLogits": _plan_cross_entropy,
        "ReadVariableOp": _plan_read,
        "AssignVariableOp": _plan_assign,
        "HistogramFixedWidth": _plan_histogram,
        "RGBToHSV": _plan_rgb_to_hsv,
        "Cast": layout.plan_cast,
        "_MklCast": layout.plan_cast,
        "Transpose": layout.plan_transpose,
        "_MklTranspose": layout.plan_transpose,
        "ConjugateTranspose": layout.plan_transpose,
        "BroadcastTo": layout.plan_same_or_copy,
        "Tile": layout.plan_same_or_copy,
        "Concat": layout.plan_concat,
        "ConcatV2": layout.plan_concat,
        "Pack": layout.plan_pack,
        "Slice": layout.plan_slice,
        "StridedSlice": layout.plan_strided_slice,
        "Split": layout.plan_split,
        "SplitV": layout.plan_split,
        "Unpack": layout.plan_unpack,
        "Conv2DBackpropFilter": convolution.plan_filter_gradient,
        "Conv2DBackpropInput": convolution.plan_input_gradient,
        "MatMul": convolution.plan_matmul,
        "_FusedMatMul": convolution.plan_matmul,
        "BatchMatMul": convolution.plan_matmul,
        "BatchMatMulV2": convolution.plan_matmul,
        "BatchMatMulV3": convolution.plan_matmul,
        "MaxPoolGrad": convolution.plan_max_pool_gradient,
        "_MklNativeConv2D": onednn.plan_convolution,
        "_MklNativeConv3D": onednn.plan_convolution,
        "_MklNativeFusedConv2D": onednn.plan_convolution,
        "_MklNativeFusedConv3D": onednn.plan_convolution,
        "_MklNativeConv2DWithBias": onednn.plan_convolution,
        "_MklNativePadWithConv2D": onednn.plan_convolution,
        "_MklNativePadWithFusedConv2D": onednn.plan_convolution,
        "_MklMatMul": onednn.plan_matmul,
        "_MklBatchMatMul": onednn.plan_batch_matmul,
        "_MklBatchMatMulV2": onednn.plan_batch_matmul,
        "_MklFusedBatchMatMulV2": onednn.plan_batch_matmul,
        "_MklEinsum": onednn.plan_einsum,
        "_MklSoftmax": onednn.plan_softmax,
    }
    return rules


_RULES: Final = _rules()
