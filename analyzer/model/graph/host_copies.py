"""Tensors of a GPU step in the card's memory or in the host's, and the copies between them.

A GPU kernel may read or write a tensor in host memory (``HostMemory`` in its registration): shapes,
axes, resource handles, lists, and most ``int32`` tensors ("a special GPU kernel for int32":
``cwise_op_*.cc``, ``constant_op.cc``, ``pack_op.cc``). The lists come from the registrations in
``tensorflow/core/kernels``, because TensorFlow's CPU build does not contain them.

TensorFlow inserts a copy for a kernel that reads in the other memory (``EnsureMemoryTypes`` in
``memory_types.cc``, or ``_Send`` and ``_Recv`` of the partitioner). Between CPU devices of one
process both ends of such a pair share one buffer (``IntraProcessRendezvous``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from analyzer.model.contract.graph_note import (
    ARGUMENT_TYPES,
    RESULT_TYPES,
    Op,
    TensorSpec,
    op_types,
    split_tensor,
)
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import GraphIndex

VARIABLES_ON_HOST: Final = frozenset({"int32", "string"})
"""Element types of variables that lie in host memory in a GPU step: ``VarHandleOp`` and
``AssignVariableOp`` have only host kernels for them."""

COPY: Final = "_Recv"  # op type of a copy from the host to the card
COPY_BACK: Final = "_HostRecv"  # op type of a copy from the card to the host

HOST_TYPES: Final = frozenset({"int32", "resource", "variant", "string", ""})
"""Element types that lie in host memory, except outputs of ``DEVICE_INT32`` ops."""

DEVICE_INT32: Final = op_types(
    """
    ArgMax ArgMin Bincount Cast CropAndResize DenseBincount DynamicPartition DynamicStitch Gather
    GatherNd GatherV2 Multinomial OneHot ParallelDynamicStitch RandomUniformInt ResourceGather
    ResourceGatherNd Select SelectV2 SparseToDense StatelessMultinomial StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2 Tile TopKV2 Transpose Unique UniqueV2
    """
)
"""Op types that make ``int32`` tensors on the card: indices, casts, moves of elements."""

_DEVICE_INT32_INPUTS: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(
        op_types("Bincount Cast DenseBincount SparseToDense Tile TopKV2 Transpose Unique UniqueV2"),
        (0,),
    ),
    "CTCLossV2": (1, 2, 3),
    "CropAndResize": (2,),
    **dict.fromkeys(
        op_types(
            """
            DynamicPartition InTopKV2 ResourceGather ResourceGatherNd ResourceScatterAdd
            ResourceScatterDiv ResourceScatterMax ResourceScatterMin ResourceScatterMul
            ResourceScatterNdAdd ResourceScatterNdUpdate ResourceScatterSub
            ResourceScatterUpdate SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum
            SparseSoftmaxCrossEntropyWithLogits TensorScatterAdd TensorScatterUpdate
            UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum
            """
        ),
        (1,),
    ),
    **dict.fromkeys(op_types("Gather GatherNd GatherV2 MatMul ReverseSequence ScatterNd"), (0, 1)),
    "OneHot": (0, 2, 3),
    **dict.fromkeys(
        op_types(
            """
            Select SelectV2 SparseSegmentMean SparseSegmentMeanGrad SparseSegmentSqrtN
            SparseSegmentSum SparseSegmentSumGrad
            """
        ),
        (1, 2),
    ),
}
"""Inputs of type ``int32`` that the kernel reads on the card; it reads all others on the host."""

_SHAPES: Final = op_types(
    """
    Shape ShapeN Size Rank VariableShape TensorListLength TensorListElementShape
    BroadcastGradientArgs BroadcastArgs ConcatOffset LoopCond StatelessRandomGetAlg
    VarIsInitializedOp InvertPermutation DataFormatDimMap DataFormatVecPermute
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg
    """
)
"""Op types whose outputs always lie in host memory."""

_COMPARISONS: Final = op_types("Equal NotEqual Less LessEqual Greater GreaterEqual")
"""Op types with host kernels for ``int32``; their result is also in host memory."""

_HOST_INPUTS: Final[dict[str, tuple[int, ...]]] = {
    "Switch": (1,),
    "RefSwitch": (1,),
    "LoopCond": (0,),
    "If": (0,),
    "StatelessIf": (0,),
    "StatelessRandomGetKeyCounter": (0,),
    "StatelessRandomGetKeyCounterAlg": (0,),
    "Case": (0,),
    "Assert": (0, 1, 2, 3, 4, 5, 6, 7),
}
"""Inputs of other types that the kernel reads on the host, such as conditions of control flow."""

HOST_ONLY: Final = op_types(
    """
    AsString Assert BoostedTreesBucketize DecodeBmp DecodeCompressed DecodeCSV DecodeGif
    DecodeImage DecodeJpeg DecodePng DecodeRaw EagerPyFunc EditDistance EncodeJpeg EncodePng
    HashTableV2 IteratorGetNext IteratorGetNextSync ListDiff LookupTableFindV2 LookupTableInsertV2
    LookupTableSizeV2 MakeIterator MutableHashTableV2 OptionalGetValue OptionalHasValue ParseExampleV2
    PrintV2 PyFunc PyFuncStateless RaggedTensorToTensor RaggedRange RaggedGather RandomGamma
    RandomPoissonV2 RandomShuffle ReadFile RegexReplace RngReadAndSkip SetSize SparseCross
    SparseReduceSum SparseTensorSliceDataset StatelessRandomGammaV2 StringFormat StringJoin StringLower
    StringSplitV2 StringToHashBucketFast StringToNumber StaticRegexReplace UnicodeDecode
    WriteScalarSummary WriteSummary CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss
    LogUniformCandidateSampler LearnedUnigramCandidateSampler UniformCandidateSampler
    """
)
"""Op types without a GPU kernel; the placer puts them on the host."""


def runs_on_host(op: Op) -> bool:
    """Say whether the op runs on the host: the user placed it there, or it has no GPU kernel."""
    return op.type in HOST_ONLY or "CPU" in op.device.upper()


def is_output_on_host(op: Op, index: int, inputs: Sequence[TensorSpec | None]) -> bool:
    """Say whether an output lies in host memory; ``inputs`` are None if unknown."""
    dtype = op.outputs[index].dtype if index < len(op.outputs) else ""
    if runs_on_host(op) or op.type in _SHAPES or op.type == COPY_BACK:
        return True
    if op.type in _COMPARISONS:
        return bool(inputs) and inputs[0] is not None and inputs[0].dtype in HOST_TYPES
    if dtype not in HOST_TYPES:
        return False
    return dtype != "int32" or op.type not in (*DEVICE_INT32, COPY)


def is_input_on_host(op: Op, index: int, inputs: Sequence[TensorSpec | None]) -> bool:
    """Say whether the kernel reads an input in host memory; ``inputs`` are None if unknown."""
    spec = inputs[index]
    if op.type in (COPY, COPY_BACK):
        return op.type == COPY
    if op.attrs.get("_XlaMustCompile"):  # its arguments lie on the card, except handles
        return spec is None or spec.dtype == "resource"
    if runs_on_host(op) or spec is None or index in _HOST_INPUTS.get(op.type, ()):
        return True
    if spec.dtype == "int32":
        return index not in _DEVICE_INT32_INPUTS.get(op.type, ())
    if spec.dtype in HOST_TYPES:
        return True
    return op.type in RESULT_TYPES  # the caller copies it if necessary


def insert_host_copies(ops: Iterable[Op]) -> list[Op]:
    """Return the graph with one copy of each tensor that a kernel reads in the other memory."""
    listed = list(ops)
    by_name = {op.name: op for op in listed}

    def spec(tensor: str) -> TensorSpec | None:
        name, output = split_tensor(tensor)
        source = by_name.get(name)
        return source.outputs[output] if source and output < len(source.outputs) else None

    inputs = {op.name: tuple(spec(tensor) for tensor in op.inputs) for op in listed}
    result: list[Op] = []
    copies: dict[str, str] = {}
    for op in listed:
        feeds = list(op.inputs)
        for index, tensor in enumerate(op.inputs):
            name, output = split_tensor(tensor)
            source, kind = by_name.get(name), inputs[op.name][index]
            if source is None or kind is None:
                continue
            reads_host = is_input_on_host(op, index, inputs[op.name])
            if is_output_on_host(source, output, inputs[name]) == reads_host:
                continue
            if reads_host and op.type in RESULT_TYPES:
                continue
            if tensor not in copies:
                place = "host" if reads_host else "gpu"
                copies[tensor] = f"{name}/copy_to_{place}_{output}"
                result.append(
                    Op(
                        name=copies[tensor],
                        type=COPY_BACK if reads_host else COPY,
                        inputs=(tensor,),
                        outputs=(kind,),
                        device=op.device,
                        source=source.source,
                    )
                )
            feeds[index] = f"{copies[tensor]}:0"
        result.append(op if tuple(feeds) == op.inputs else replace(op, inputs=tuple(feeds)))
    return result


_SENDS: Final = op_types("_Send _HostSend")
_RECEIVES: Final = op_types("_Recv _HostRecv")
_CPU: Final = "device:CPU:"


def join_device_edges(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return the graph with a direct edge for each pair of send and receive between CPUs."""
    listed = tuple(ops)
    sends = {key: op for op in listed if op.type in _SENDS and op.inputs and (key := _key(op))}
    receives = {
        op.name: sends[key] for op in listed if op.type in _RECEIVES and (key := _key(op)) in sends
    }
    if not receives:
        return listed
    gone = {*receives, *(send.name for send in receives.values())}

    def source(tensor: str) -> str:
        """Return the tensor of an input, following all pairs of send and receive."""
        for _ in receives:
            send = receives.get(tensor.rpartition(":")[0])
            if send is None:
                break
            tensor = send.inputs[0]
        return tensor

    def waits(op: Op) -> tuple[str, ...]:
        names = (source(f"{name}:0").rpartition(":")[0] for name in op.control_inputs)
        return tuple(dict.fromkeys(name for name in names if name not in gone))

    return tuple(
        replace(op, inputs=tuple(map(source, op.inputs)), control_inputs=waits(op))
        for op in listed
        if op.name not in gone
    )


def _key(op: Op) -> tuple[str, str, str] | None:
    """Return the common key of a pair; None if one of its devices is no CPU."""
    sent, received = (str(op.attrs.get(name, "")) for name in ("send_device", "recv_device"))
    if _CPU not in sent or _CPU not in received:
        return None
    return str(op.attrs.get("tensor_name", "")), sent, received


PACKED_ROLE: Final = "gradients packed for the all-reduce"
REDUCED_ROLE: Final = "all-reduced gradients"

COLLECTIVES: Final = frozenset(
    {"CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3", "NcclAllReduce"}
)
_VIEWS: Final = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims"})
_PACKS: Final = frozenset({"Concat", "ConcatV2", "Pack", "AddN"})
_SPLITS: Final = frozenset({"Split", "SplitV", "Unpack"})


def find_all_reduce_roles(structure: GraphIndex) -> dict[str, str]:
    """Return the role of each tensor that is a buffer of an all-reduce."""
    roles: dict[str, str] = {}
    for op in structure.ops.values():
        if op.type not in COLLECTIVES:
            continue
        roles.update(dict.fromkeys(_outputs(structure, op.name), REDUCED_ROLE))
        packed = _follow_views(structure, op.inputs[0]) if op.inputs else ""
        source = structure.ops.get(split_tensor(packed)[0]) if packed else None
        if source is not None and source.type in _PACKS:
            roles[packed] = PACKED_ROLE
        for user in _users(structure, op.name):
            if structure.ops[user].type in _SPLITS:
                roles.update(dict.fromkeys(_outputs(structure, user), REDUCED_ROLE))
    return roles


def _outputs(structure: GraphIndex, name: str) -> list[str]:
    return [f"{name}:{index}" for index in range(len(structure.ops[name].outputs))]


def _follow_views(structure: GraphIndex, tensor: str) -> str:
    seen: set[str] = set()
    while tensor not in seen:
        seen.add(tensor)
        op = structure.ops.get(split_tensor(tensor)[0])
        if op is None or op.type not in _VIEWS or not op.inputs:
            break
        tensor = op.inputs[0]
    return tensor


def _users(structure: GraphIndex, name: str) -> list[str]:
    """Return the ops that use an op's outputs, following views."""
    users, queue, seen = [], _outputs(structure, name), set()
    while queue:
        for user in structure.consumers.get(queue.pop(), ()):
            if user in seen or user not in structure.ops:
                continue
            seen.add(user)
            users.append(user)
            if structure.ops[user].type in _VIEWS:
                queue.extend(_outputs(structure, user))
    return users


ITERATOR: Final = "IteratorGetNext"  # op type that takes the next batch of a data set
INPUT_TYPES: Final = ARGUMENT_TYPES | {ITERATOR, "Placeholder"}
"""Op types whose outputs are inputs of the step."""

MOVES: Final = op_types(
    "Cast Transpose ConjugateTranspose Reverse ReverseV2 DeepCopy Copy CopyHost"
)
"""Op types that copy their first input."""

SCALES: Final = op_types("Add AddV2 Sub Mul Div RealDiv DivNoNan")
"""Op types of two inputs that copy one if the other is a scalar."""


def find_copies_of_inputs(structure: GraphIndex) -> dict[str, str]:
    """Return the copies of the step's inputs: tensor -> op type that made it."""
    queue = deque(
        f"{name}:{index}"
        for name, op in structure.ops.items()
        if op.type in INPUT_TYPES
        for index, spec in enumerate(op.outputs)
        if spec.dtype not in ("resource", "variant", "")
    )
    copies: dict[str, str] = {}
    seen = set(queue)
    while queue:
        tensor = queue.popleft()
        for name in structure.consumers.get(tensor, ()):
            op = structure.ops[name]
            made = f"{name}:0"
            if made in seen or not op.outputs or not _is_copy(op, tensor, structure):
                continue
            seen.add(made)
            queue.append(made)
            if op.type not in ALIAS_OPS and op.type != COPY:
                copies[made] = op.type
    return copies


def _is_copy(op: Op, tensor: str, structure: GraphIndex) -> bool:
    """Say whether the first output of ``op`` contains all of ``tensor``."""
    if op.type in ALIAS_OPS or op.type in MOVES or op.type == COPY:
        return op.inputs[0] == tensor
    if op.type not in SCALES:
        return False
    other = next((one for one in op.inputs if one != tensor), "")
    spec = structure.spec(other)
    return spec is not None and spec.shape == ()
