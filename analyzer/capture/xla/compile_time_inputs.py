"""Which inputs of a function XLA compiles in as values, so that it compiles anew when they change.

Some ops need an input's value when they are compiled: the shape of a ``Reshape``, the number of segments
of a sum. TensorFlow goes from them backwards through the graph (``compiler/tf2xla/const_analysis.cc``,
``BackwardsConstAnalysis``): whatever such a value is computed from has to be known too, except behind an
op that only looks at shapes. A function's arguments that it reaches are part of the compiled function's
key with their values (``compiler/jit/device_compilation_cluster_signature.cc``), variables included
(``kConstantResource``). A value that travels through a branch takes all of the branch's inputs with it:
so a variable that the step itself updates may become a constant of it, and every step is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer.capture.private_names import op_def_registry

_METADATA: Final = frozenset(
    {"Rank", "Shape", "ShapeN", "Size", "VariableShape"}
    | {"TensorListElementShape", "TensorListLength"}
)
"""Ops that look at a shape alone (``IsMetadataOp`` in ``compiler/tf2xla/kernels``)."""

_REDUCTIONS: Final = "Sum Prod Max Min Mean Any All EuclideanNorm"
_PADS: Final = "Pad PadV2 MirrorPad MirrorPadGrad"
_SEGMENTS: Final = (
    "SegmentSumV2 SegmentProdV2 SegmentMinV2 SegmentMaxV2 UnsortedSegmentSum UnsortedSegmentProd "
    "UnsortedSegmentMin UnsortedSegmentMax"
)
_FOURIER: Final = "RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D"
_RANDOM: Final = (
    "RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal ParameterizedTruncatedNormal "
    "StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal StatelessRandomUniformInt "
    "StatelessRandomUniformFullInt"
)
_RANDOM_BY_KEY: Final = (
    "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2 "
    "StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2"
)
_RANDOM_BY_STATE: Final = (
    "StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformInt "
    "StatefulUniformFullInt"
)
_INPUTS: Final = (
    ("ArgMax ArgMin", "dimension"),
    ("AvgPoolGrad AvgPool3DGrad", "orig_input_shape"),
    ("BatchToSpace", "crops"),
    ("BatchToSpaceND", "block_shape crops"),
    ("BroadcastArgs BroadcastGradientArgs", "s0 s1"),
    ("BroadcastTo Empty Fill ScatterNd Reshape", "shape dims"),
    ("Bincount DenseBincount ResizeBilinear ResizeNearestNeighbor TensorArrayV3", "size"),
    ("Concat", "concat_dim"),
    ("ConcatOffset", "concat_dim shape"),
    ("ConcatV2 Cumprod Cumsum CumulativeLogsumexp GatherV2 ReverseV2 Roll", "axis"),
    (
        "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput",
        "input_sizes",
    ),
    (
        "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter",
        "filter_sizes",
    ),
    ("DynamicStitch ParallelDynamicStitch", "indices"),
    ("EmptyTensorList", "element_shape max_num_elements"),
    ("ExpandDims", "dim"),
    (_FOURIER, "fft_length"),
    ("LinSpace", "start stop num"),
    ("ListDiff", "x y"),
    ("MatrixDiagPartV2 MatrixDiagPartV3", "k padding_value"),
    ("MatrixDiagV2 MatrixDiagV3", "k num_rows num_cols padding_value"),
    ("MatrixSetDiagV2 MatrixSetDiagV3 TopKV2", "k"),
    ("Multinomial", "num_samples"),
    ("NonMaxSuppressionV3 NonMaxSuppressionV4", "max_output_size"),
    ("OneHot", "depth"),
    (_PADS + " SpaceToBatch", "paddings"),
    ("Range", "start limit delta"),
    (_REDUCTIONS, "reduction_indices"),
    ("Reverse", "dims"),
    ("RngReadAndSkip", "alg"),
    ("RngSkip", "algorithm"),
    (_RANDOM, "shape"),
    (_RANDOM_BY_KEY, "shape alg"),
    (_RANDOM_BY_STATE, "shape algorithm"),
    (_SEGMENTS, "num_segments"),
    ("Slice", "begin size"),
    ("SpaceToBatchND", "block_shape paddings"),
    ("SparseToDense", "output_shape"),
    ("Split", "split_dim"),
    ("SplitV", "split_dim size_splits"),
    ("StridedSlice ResourceStridedSliceAssign TensorStridedSliceUpdate", "begin end strides"),
    ("StridedSliceGrad", "shape begin end strides"),
    ("TensorListReserve", "element_shape num_elements"),
    ("Tile", "multiples"),
    ("Transpose ConjugateTranspose", "perm"),
)
"""Op types and the inputs that they need to know (``CompileTimeConstantInput`` in the same folder)."""

_NEEDED: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(names.split()) for kinds, names in _INPUTS for kind in kinds.split()
}
_LOOPS: Final = frozenset({"While", "StatelessWhile"})
_HANDS_ON: Final = _LOOPS | {"IdentityN"}
_CALLS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass
class FixedInputs:
    """Finds the inputs of functions that XLA compiles in as values.

    Attributes:
        graphs: The graph of each function, by its name.
    """

    graphs: Mapping[str, Any]
    _known: dict[int, dict[int, str]] = field(default_factory=dict)

    def of(self, graph: Any) -> dict[int, str]:
        """Return argument -> the op that needs to know it, by type and name, for a function's graph."""
        if id(graph) not in self._known:
            self._known[id(graph)] = {}  # a function that calls itself
            self._known[id(graph)] = self._found(graph)
        return self._known[id(graph)]

    def _found(self, graph: Any) -> dict[int, str]:
        because: dict[str, str] = {}
        arguments = {tensor.op.name: index for index, tensor in enumerate(graph.inputs)}
        found: dict[int, str] = {}
        # A function's graph lists an op behind those that it uses.
        for op in reversed(graph.get_operations()):
            if op.type in _METADATA:
                continue
            if op.name in arguments:
                if op.name in because:
                    found[arguments[op.name]] = because[op.name]
            elif op.name in because:
                for tensor in op.inputs:
                    because.setdefault(_source(tensor).op.name, because[op.name])
            else:
                for index, why in self._needed(op):
                    because.setdefault(_source(op.inputs[index]).op.name, why)
        return dict(sorted(found.items()))

    def _needed(self, op: Any) -> Iterator[tuple[int, str]]:
        """Yield the inputs of an op whose values have to be known, and which op needs them."""
        attrs = op.node_def.attr
        if op.type in _CALLS:
            yield from self._of_function(attrs["f"])
        elif op.type in ("If", "StatelessIf"):
            for branch in ("then_branch", "else_branch"):
                yield from _shifted(self._of_function(attrs[branch]))
        elif op.type in ("Case", "StatelessCase"):
            for function in attrs["branches"].list.func:
                yield from _shifted(self._of_name(function.name))
        elif op.type in _LOOPS:
            yield from self._of_loop(attrs)
        elif op.type in _NEEDED:
            why = f"{op.type} {op.name}"
            yield from ((index, why) for index in _positions(op, _NEEDED[op.type]))

    def _of_loop(self, attrs: Any) -> Iterator[tuple[int, str]]:
        """Yield what a loop needs to know and hands on from iteration to iteration unchanged."""
        body = self.graphs.get(attrs["body"].func.name)
        if body is None:
            return
        for part in ("cond", "body"):
            for index, why in self._of_function(attrs[part]):
                if index < len(body.outputs) and body.outputs[index] is body.inputs[index]:
                    yield index, why

    def _of_function(self, attr: Any) -> Iterator[tuple[int, str]]:
        yield from self._of_name(attr.func.name)

    def _of_name(self, name: str) -> Iterator[tuple[int, str]]:
        graph = self.graphs.get(name)
        if graph is not None:
            yield from self.of(graph).items()


def _source(tensor: Any) -> Any:
    """Return the tensor that an ``IdentityN`` or a loop hands on (``IsConstTraversableOpType``).

    A loop counts as handing each of its inputs on by itself, whatever its body does with them.
    """
    while tensor.op.type in _HANDS_ON:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _shifted(found: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """A branch's arguments follow the condition among the inputs."""
    return ((index + 1, why) for index, why in found)


def _positions(op: Any, names: frozenset[str]) -> Iterator[int]:
    definition = op_def_registry.get(op.type)
    at = 0
    for argument in definition.input_arg if definition is not None else ():
        count = 1
        if argument.number_attr:
            count = int(op.node_def.attr[argument.number_attr].i)
        elif argument.type_list_attr:
            count = len(op.node_def.attr[argument.type_list_attr].list.type)
        if argument.name in names:
            yield from range(at, at + count)
        at += count
