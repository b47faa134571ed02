"""True values on the host for a step on a simulated card, whose kernels compute nothing.

A value may decide a size, a branch or the end of a loop. While the step is traced, the ops that lead
to such a value from the inputs are copied onto the host, and the deciding op reads the copy (its twin).
The original ops stay, so that the card's memory is unchanged. A value without a twin is recorded.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import find_op_line
from analyzer.capture.private_names import (
    FuncGraph,
    copy_op,
    find_free_name,
    find_host_inputs,
    get_branches,
    get_handle_spec,
    has_host_results,
    is_eager,
    is_host_only,
    is_stateful,
    keep_op,
    record_identity,
    stop_recording,
)
from analyzer.capture.targets.host_setup import (
    HOST,
    SetupValues,
    find_original,
    make_host_variable,
)
from analyzer.model.contract.run_note import op_types, read_op_types

# Op types whose value the executor has without a kernel of the card; a finite number is assumed.
IN_HOST_MEMORY = op_types(
    "Const Shape ShapeN Size Rank VariableShape TensorListLength IsFinite "
    "VarIsInitializedOp"
)

# Op types that the simulated card computes for shapes and truths (``kernels.c``).
_COMPUTED = op_types("Prod GatherV2 DynamicStitch All Any ConcatV2")
_TYPES = read_op_types("model/graph/graph_op_types.toml")["types"]

# Ops whose kernel reads the size of its result from the card -> the inputs that decide it.
SIZED = (
    dict.fromkeys(_TYPES["segments"], (1,))
    | {op_type: (2,) for op_type in _TYPES["segments"] if op_type.startswith("Sparse")}
    | dict.fromkeys(_TYPES["sized_by_values"], (0,))
    | {"DynamicPartition": (1,)}
    | {"SparseFillEmptyRows": (0, 2), "SparseSlice": (0, 2, 3, 4)}
    | {f"NonMaxSuppressionV{version}": (0, 1, 2, 3, 4) for version in (2, 3, 4)}
)
_BRANCHES = op_types("If StatelessIf Case StatelessCase")
_RANDOM = ("Random", "Truncated", "Multinomial", "ParameterizedTruncated")
_CALLS = op_types("While StatelessWhile PartitionedCall StatefulPartitionedCall")
_NOT_MOVED = _CALLS | {"Placeholder", "Const", "NoOp", "SymbolicGradient"}
_PYTHON = op_types("PyFunc PyFuncStateless EagerPyFunc")
ASSIGNMENTS = op_types("AssignVariableOp AssignAddVariableOp AssignSubVariableOp")
_ASSERTION = "AssertGuard"  # in the name of the branches around an assertion
_MOST_TWIN_BYTES = 1 << 30  # of the results of the twins of a step
_MOST_ASSUMED_BYTES = 1 << 30  # of a result on the host whose size is assumed
_INDICES_BYTES = 32  # of an element of such a result: up to four indices of int64
_PRODUCTS = ("MatMul", "BatchMatMul", "Einsum", "Conv", "DepthwiseConv")
_MOST_PRODUCTS = 10**10  # multiplications of the twins of a step: about a second

# Size up to which a constant of the card, or a variable's twin, keeps its value; a twin is free.
_SMALL_BYTES = 4096
_MOST_WEIGHT_BYTES = 1 << 26  # of a variable whose initial value is read

_TABLES = "_analyzer_twins"


# Types of host inputs that decide no size; cuDNN's own notes on a recurrent layer are int8.
_OPAQUE = (tf.resource, tf.variant, tf.int8)


class UnknownValueError(Exception):
    """A value depends on the weights or on another state."""


class NeedInlining(BaseException):
    """The value of an argument decides; only the caller of the function knows its twin."""


class _GraphTables:
    """Facts about the tensors of one graph, by name."""

    def __init__(self) -> None:
        self.twins: dict[str, Any] = {}  # None if there is no twin
        self.fixed: dict[str, bool] = {}
        self.moved: set[str] = set()  # ops that run on the host with true inputs
        self.arguments: dict[str, Callable[[], Any]] = {}
        self.captured: dict[str, Any] = {}  # placeholder -> tensor outside
        self.fixed_arguments: Callable[[str], bool] | None = None
        self.elements: dict[str, int] = {}  # at most, if unknown


def get_tables(graph: Any) -> _GraphTables:
    """Return the tables of a graph; they live as long as it does."""
    if not hasattr(graph, _TABLES):
        setattr(graph, _TABLES, _GraphTables())

    tables: _GraphTables = getattr(graph, _TABLES)
    return tables


class HostValues:
    """Gives deciding ops their true inputs while the step is traced.

    Args:
        arguments: Eager tensors and arrays in the order of the step's inputs.
        is_program: Whether a program itself calls the functions, instead of one step.
    """

    def __init__(
        self,
        setup: SetupValues,
        arguments: Sequence[Any],
        *,
        is_program: bool = False,
    ) -> None:
        self.setup = setup
        self.arguments = arguments
        self.is_program = is_program
        self.unknown: dict[str, str] = {}  # op -> what its value decides
        self.computed: dict[str, None] = {}  # ops whose true value decides
        self.depth = 0  # of functions that can be inlined
        self.created: list[
            tuple[Any, Any]
        ] = []  # in such a function, with their values
        self.inlined: set[Any] = set()  # functions whose arguments decide
        self.is_making = False  # of twins
        self.is_compiled = False  # inside a function that XLA compiles
        self.bytes = self.products = 0

        # Variable: whether unknown conditions are taken to be true
        self.assumed: Any = None
        self.followers: dict[int, Any] = {}  # id of a handle -> variable on the host
        self.followed: set[int] = set()  # variables whose followers are assigned to

        # of the function that a program calls: index of an argument -> variable on the host
        self.slots: dict[int, Any] = {}

        # id of a handle -> graph, op type and value of each assignment so far
        self.assigned: dict[int, list[tuple[Any, str, Any]]] = {}

    # ---- creation of ops ----------------------------------------------------------------------

    def create(
        self, old: Any, graph: Any, op_type: str, inputs: Any, *rest: Any, **named: Any
    ) -> Any:
        """Create an op; if its values decide, with true inputs."""

        def make(inputs: Any, **changed: Any) -> Any:
            return old(graph, op_type, inputs, *rest, **{**named, **changed})

        if self.is_compiled:
            if op_type in ASSIGNMENTS:
                self.forget_follower(id(self._find_handle(inputs[0])))

            return make(inputs)

        if self.is_making:
            op = make(inputs)
            get_tables(graph).moved.add(op.name)
            return op

        if op_type in ASSIGNMENTS:
            self._follow(graph, op_type, inputs)
        if op_type == "Assert":  # the card does not have the values to check
            return _make_true_assertion(make, graph, inputs)

        if op_type in _NOT_MOVED:
            return make(inputs)

        if op_type in _BRANCHES:
            is_assertion = _ASSERTION in (named.get("name") or "")
            first = inputs[0] if is_assertion else self._find_branch(graph, inputs[0])
            return make([first, *inputs[1:]])

        if is_host_only(op_type) or op_type in _PYTHON:
            return self._create_on_host(make, graph, inputs)

        op = make(inputs)
        sized = SIZED.get(op_type)
        if sized is not None:
            return self._move(make, op, sized, keep=True)

        # Shape inference evaluates constants, so that a kernel may read what only its inputs say.
        places = find_host_inputs(op_type)

        return self._move(make, op, places, keep=False)

    def _create_on_host(self, make: Any, graph: Any, inputs: Any) -> Any:
        """Create an op that TensorFlow runs on the host anyway."""
        inputs = [graph.capture(one) for one in inputs]
        is_true = True
        found = []

        for one in inputs:
            twin = one if one.dtype in (tf.resource, tf.variant) else self.find(one)
            is_true &= twin is not None
            found.append(one if twin is None else self.wait(graph, twin, one))

        with _place_on_host(graph) if is_true else nullcontext():
            op = make(found)

        if is_true:
            get_tables(graph).moved.add(op.name)
        elif not all(one.shape.is_fully_defined() for one in op.outputs):
            self.note_unknown(op, "a size")

        return op

    def _move(
        self,
        make: Any,
        op: Any,
        places: Sequence[int],
        *,
        keep: bool,
    ) -> Any:
        """Return an op with true inputs at some places instead of ``op``.

        ``keep``: ``op`` reads its size from the card. The other op then runs on the host, after ``op``,
        whose temporaries lie on the card.
        """
        graph = op.graph
        inputs = list(op.inputs)
        wanted = [
            place
            for place in places
            if place < len(inputs) and inputs[place].dtype not in _OPAQUE
        ]

        if not keep and all(map(self.is_fixed, (inputs[place] for place in wanted))):
            return op

        is_true = True
        is_sized = not all(one.shape.is_fully_defined() for one in op.outputs)

        for place in wanted:
            twin = self.find(inputs[place])
            if twin is not None:
                inputs[place] = self.wait(
                    graph, twin, inputs[place], decides=keep or is_sized
                )
                continue

            is_true = False

            # Gradients of loops take shapes from lists, which are true.
            if keep or (is_sized and not _is_derived(graph)):
                self.note_unknown(op, "a size" if keep else "a size without a bound")

            assumed = self._assume_input(op, place) if keep else None
            if assumed is None:
                return op

            inputs[place] = assumed

        name = find_free_name(op)
        if not keep:
            return make(inputs, name=name)

        keep_op(op)
        with _place_on_host(graph), tf.control_dependencies([op]):
            other = make(inputs, name=name)

        if is_true and len(wanted) == len(op.inputs):
            get_tables(graph).moved.add(other.name)

        return other

    def _find_branch(self, graph: Any, tensor: Any) -> Any:
        """Return the true value that selects a branch; an assumed one if it is unknown."""
        tensor = graph.capture(tensor)
        twin = self.find(tensor)

        if twin is not None:
            return self.wait(graph, twin, tensor)

        self.note_unknown(tensor.op, "a branch")

        if tensor.dtype == tf.bool:
            return self._read_assumed(graph)

        return tensor

    def wait(
        self, graph: Any, twin: Any, original: Any, *, decides: bool = True
    ) -> Any:
        """Return a twin that exists once the card has computed the original.

        ``decides``: not of an op whose result has a known shape, as after ``tf.repeat(x, 2)``.
        """
        if twin is original:
            return twin

        if decides:
            self.computed[original.op.name] = None

        if original.op.type != "Placeholder":
            keep_op(original.op)

        with self.making(graph), tf.control_dependencies([original.op]):
            late = tf.identity(twin)

        return link_gradient(late, original)

    def _assume_input(self, op: Any, place: int) -> Any:
        """Return an input with which an op selects none, or all; None if there is none."""
        tensor = op.inputs[place]
        selects_all = self._read_assumed(op.graph)
        with op.graph.as_default(), stop_recording():
            shape = tf.shape(tensor)

        with self.making(op.graph):
            return select_all_or_none(
                op.type,
                tensor,
                place,
                shape,
                selects_all,
                len(op.outputs),
            )

    def note_unknown(self, op: Any, decides: str) -> None:
        """Note that the unknown value of an op decides, with the line of the op."""
        line = find_op_line(op)
        self.unknown[f"{op.name} at {line}" if line else op.name] = decides

    def _read_assumed(self, graph: Any) -> Any:
        """Return whether unknown conditions are taken to be true."""
        if self.assumed is None:
            self.assumed = make_host_variable(False)

        with self.making(graph):
            return tf.raw_ops.ReadVariableOp(
                resource=graph.capture(self.assumed.handle), dtype=tf.bool
            )

    # ---- twins -----------------------------------------------------------------------------------

    def is_fixed(self, tensor: Any) -> bool:
        """Return whether a value follows from shapes, constants and loop counters alone."""
        graph = tensor.graph
        known = get_tables(graph).fixed

        if tensor.name not in known:
            known[tensor.name] = False  # in a cycle
            known[tensor.name] = self._decide_fixed(graph, tensor)

        return known[tensor.name]

    def _decide_fixed(self, graph: Any, tensor: Any) -> bool:
        op = tensor.op
        if op.type in IN_HOST_MEMORY:
            return True

        if op.type == "Placeholder":
            outer = find_captured(graph, tensor)
            if outer is not None:
                return not is_eager(outer) and self.is_fixed(outer)

            decide = get_tables(graph).fixed_arguments
            if decide is not None:
                return decide(tensor.name)

            # of gradients of loops, which keep shapes in lists
            return _is_derived(graph) and tensor.dtype in (tf.int32, tf.variant)

        if is_stateful(op) or not op.inputs:
            return False
        if op.type not in _COMPUTED and not has_host_results(op):
            return False

        return all(map(self.is_fixed, op.inputs))

    def find(self, tensor: Any) -> Any:
        """Return the tensor with the true value, on the host; None if there is none."""
        if self.is_fixed(tensor) and _can_be_read(tensor):
            return tensor

        known = get_tables(tensor.graph).twins
        if tensor.name not in known:
            try:
                twin = self._make(tensor)
            except UnknownValueError:
                twin = None

            known[tensor.name] = twin

        return known[tensor.name]

    def _require(self, tensor: Any) -> Any:
        twin = self.find(tensor)
        if twin is None:
            raise UnknownValueError

        return twin

    def _make(self, tensor: Any) -> Any:
        graph = tensor.graph
        op = tensor.op
        if op.name in get_tables(graph).moved or op.type == "OptionalHasValue":
            return tensor  # its kernel on a card writes it to the host's memory

        if op.type == "Placeholder":
            return self._find_argument(graph, tensor)

        if op.type == "ReadVariableOp":
            return self._read_variable(graph, op.inputs[0])

        if op.type == "ResourceGather":
            table = self._read_variable(graph, op.inputs[0])
            indices = self._require(op.inputs[1])

            with self.making(graph):
                return tf.gather(table, indices)

        if is_stateful(op) and not op.type.startswith(_RANDOM):
            if op.type == "IteratorGetNext":
                return tensor

            raise UnknownValueError

        if op.type in _BRANCHES:
            self._check_branches(op)

        inputs = [self._require(one) for one in op.inputs]
        self._check_cost(op)

        with self.making(graph):
            results = copy_op(op, inputs).outputs

        twins = get_tables(graph).twins
        twins.update(
            {own.name: one for own, one in zip(op.outputs, results, strict=True)}
        )

        return twins[tensor.name]

    def _find_argument(self, graph: Any, tensor: Any) -> Any:
        tables = get_tables(graph)
        if tensor.name in tables.arguments:
            return tables.arguments[tensor.name]()

        outer = find_captured(graph, tensor)
        if outer is not None and not is_eager(outer):
            twin = self._require(outer)
        elif outer is not None:
            twin = find_original(outer)
        elif not isinstance(graph.outer_graph, FuncGraph):  # the step's
            twin = self._find_given(graph, tensor)
        elif self.depth and not _is_derived(graph):
            raise NeedInlining
        else:
            twin = None

        if twin is None:
            raise UnknownValueError

        if not tf.is_tensor(twin):
            with tf.init_scope(), tf.device(HOST):
                twin = tf.constant(twin)

        return self._capture(graph, twin)

    def _find_given(self, graph: Any, tensor: Any) -> Any:
        """Return the host's value of an argument of the step; None if it is unknown."""
        names = [one.name for one in graph.inputs]
        place = names.index(tensor.name) if tensor.name in names else len(names)
        given = self.arguments[place] if place < len(self.arguments) else None

        if given is None or tensor.dtype in _OPAQUE:
            return None
        if tf.as_dtype(given.dtype) != tensor.dtype:
            return None

        value = find_original(given) if tf.is_tensor(given) else given

        return (
            self._read_slot(graph, tensor, place, value) if self.is_program else value
        )

    def _read_slot(self, graph: Any, tensor: Any, place: int, value: Any) -> Any:
        """Return the value that an argument has at each call; None if it is unknown."""
        if value is not None and place not in self.slots:
            self.slots[place] = make_host_variable(value, shape=tf.TensorShape(None))

        slot = self.slots.get(place)
        if slot is None or slot.dtype != tensor.dtype:
            return None

        twin = self._read_host_variable(graph, slot)
        twin.set_shape(tensor.shape)

        return twin

    def _capture(self, graph: Any, twin: Any) -> Any:
        """Return a twin as an argument of a graph; a complete graph gets no other arguments."""
        is_new = all(outside is not twin for outside, _ in graph.captures)
        if is_new and not _is_open(graph):
            raise UnknownValueError

        if is_eager(twin) and isinstance(graph.outer_graph, FuncGraph):
            # else the outer graph takes the card's
            twin = self._capture(graph.outer_graph, twin)

        with self.making(graph):
            return graph.capture(twin)

    def _check_cost(self, op: Any) -> None:
        """Raise UnknownValueError if the twins of the step would cost too much."""
        size_bytes = sum(
            self._bound_elements(one) * max(one.dtype.size or 1, 1)
            for one in op.outputs
        )

        if size_bytes <= _SMALL_BYTES:
            return

        self.bytes += size_bytes

        if op.type.startswith(_PRODUCTS):
            sizes = [self._bound_elements(one) for one in (*op.inputs, *op.outputs)]

            # of a product exactly; for a convolution at least
            self.products += round(math.sqrt(math.prod(map(float, sizes[:3]))))

        if self.bytes > _MOST_TWIN_BYTES or self.products > _MOST_PRODUCTS:
            raise UnknownValueError

    def _check_branches(self, op: Any) -> None:
        """Raise UnknownValueError if a conditional cannot be copied, or would cost too much."""
        has_state = any(one.dtype == tf.resource for one in op.inputs)
        if op.type != "StatelessIf" or has_state:
            raise UnknownValueError

        for graph in get_branches(op):
            for inside in graph.get_operations():
                if inside.type in _BRANCHES:
                    self._check_branches(inside)
                elif inside.type in _CALLS:
                    raise UnknownValueError

                self._check_cost(inside)

    def _bound_elements(self, tensor: Any) -> int:
        """Return the elements of a tensor; if unknown, those of its largest source."""
        if is_eager(tensor):
            return int(tensor.shape.num_elements() or 1)

        known = get_tables(tensor.graph).elements
        if tensor.name not in known:
            known[tensor.name] = 1  # in a cycle
            count = tensor.shape.num_elements()

            if count is None:
                outer = find_captured(tensor.graph, tensor)
                sources = list(tensor.op.inputs) if outer is None else [outer]
                count = max(map(self._bound_elements, sources), default=1)

            known[tensor.name] = count

        return known[tensor.name]

    # ---- variables -------------------------------------------------------------------------------

    def _read_variable(self, graph: Any, handle: Any) -> Any:
        """Return a variable's initial value, or that of its follower on the host if it is small."""
        eager = self._find_handle(handle)
        if id(eager) in self.setup.initial and id(eager) not in self.followers:
            self._add_follower(eager)

        if id(eager) not in self.followers:  # an assigned value is unknown
            raise UnknownValueError

        return self._read_host_variable(graph, self.followers[id(eager)])

    def _read_host_variable(self, graph: Any, variable: Any) -> Any:
        handle = self._capture(graph, variable.handle)

        with self.making(graph):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)

    def _add_follower(self, eager: Any) -> None:
        """Let a variable on the host have another's true value; not that of a large one."""
        spec = get_handle_spec(eager)
        size_bytes = (spec.shape.num_elements() or 0) * spec.dtype.size

        if size_bytes > _MOST_WEIGHT_BYTES:
            return

        self.followers[id(eager)] = self.setup.read(eager)

        if size_bytes <= _SMALL_BYTES:
            self.followed.add(id(eager))
            for assignment in self.assigned.get(id(eager), ()):
                self._assign(id(eager), *assignment)

    def _follow(self, graph: Any, op_type: str, inputs: Any) -> None:
        """Assign the true value also to the follower of a variable."""
        eager = self._find_handle(inputs[0])
        if eager is None:
            return

        assignment = (graph, op_type, graph.capture(inputs[1]))
        self.assigned.setdefault(id(eager), []).append(assignment)

        if id(eager) in self.followed:
            self._assign(id(eager), *assignment)

    def _assign(self, variable: int, graph: Any, op_type: str, value: Any) -> None:
        """Assign to a follower, unless the graph is complete or the value is unknown."""
        follower = self.followers.get(variable)
        twin = self.find(value) if _is_open(graph) else None
        if twin is None or follower is None:
            self.forget_follower(variable)
            return

        with self.making(graph):
            handle = graph.capture(follower.handle)
            getattr(tf.raw_ops, op_type)(resource=handle, value=twin)

    def forget_follower(self, variable: int) -> None:
        """Let the value of a program's variable be unknown from now on."""
        if self.is_program:
            self.setup.initial.pop(variable, None)
            self.followers.pop(variable, None)
            self.followed.discard(variable)

    def _find_handle(self, handle: Any) -> Any:
        """Return the eager handle behind a captured one; None for another tensor."""
        while handle is not None and not is_eager(handle):
            handle = find_captured(handle.graph, handle)

        return handle

    @contextmanager
    def making(self, graph: Any) -> Iterator[None]:
        """Create ops of the block in a graph, on the host, without further twins."""
        before = self.is_making
        self.is_making = True

        try:
            with (
                graph.as_default(),
                _place_on_host(graph),
                graph.control_dependencies(None),
            ):
                with stop_recording():
                    yield
        finally:
            self.is_making = before


def _can_be_read(tensor: Any) -> bool:
    """Say whether the host reads the true value of a tensor that follows from shapes and constants.

    The card keeps only short constants (``copies.c``); Grappler may fold a longer value into one.
    """
    if (
        tensor.dtype in (tf.int32, tf.variant, tf.resource)
        or tensor.op.type == "IsFinite"
    ):
        return True

    elements = tensor.shape.num_elements()
    return elements is not None and elements * tensor.dtype.size <= _SMALL_BYTES


def find_captured(graph: Any, tensor: Any) -> Any:
    """Return the outer tensor of a captured placeholder; None for an argument."""
    if tensor.op.type != "Placeholder":
        return None

    names = get_tables(graph).captured
    if tensor.name not in names:  # captured before the trace
        names.update((inside.name, outside) for outside, inside in graph.captures)

    return names.get(tensor.name)


def _is_open(graph: Any) -> bool:
    """Say whether a graph is being traced."""
    current = tf.compat.v1.get_default_graph()
    while current is not graph and isinstance(current, FuncGraph):
        current = current.outer_graph

    return current is graph


def _is_derived(graph: Any) -> bool:
    """Say whether TensorFlow made a graph for a branch, a loop or a gradient."""
    return type(graph) is not FuncGraph


def select_all_or_none(
    op_type: str,
    tensor: Any,
    place: int,
    shape: Any,
    selects_all: Any,
    parts: int,
) -> Any:
    """Return an input with which an op selects all elements, or as few as it can.

    None if there is none, or if the host has no room for results that select all of ``tensor``.

    Args:
        parts: The number of results of a ``DynamicPartition``.
    """
    dtype = tensor.dtype
    elements = tensor.shape.num_elements() or 0
    if elements * _INDICES_BYTES > _MOST_ASSUMED_BYTES:
        return None

    if op_type in ("SparseFillEmptyRows", "SparseSlice"):  # they check the indices
        return None
    if op_type == "Where":
        return tf.cast(tf.fill(shape, selects_all), dtype)

    count = tf.reduce_prod(shape)
    numbers = tf.range(count)
    zeros = tf.zeros([count], tf.int32)

    if op_type.startswith("NonMaxSuppression"):
        if place > 1:
            return None
        if place == 1:
            return tf.fill(shape, tf.constant(dtype.max, dtype))

        lefts = tf.where(selects_all, numbers, zeros)[: shape[0]]  # of boxes of width 1
        return tf.cast(tf.stack([lefts, lefts, lefts + 1, lefts + 1], 1), dtype)

    if op_type == "DynamicPartition":  # all in the first part, or equal parts
        values = tf.where(selects_all, zeros, numbers * parts // tf.maximum(count, 1))
    else:  # all values or segments differ, or none
        values = tf.where(selects_all, numbers, zeros)

    return tf.cast(tf.reshape(values, shape), dtype)


@contextmanager
def _place_on_host(graph: Any) -> Iterator[None]:
    with graph.as_default(), tf.device(HOST):
        yield


def link_gradient(twin: Any, original: Any) -> Any:
    """Return a twin through which a gradient flows to the original."""
    if twin is not original and original.dtype.is_floating:
        record_identity(twin, original)

    return twin


def _make_true_assertion(make: Any, graph: Any, inputs: Any) -> Any:
    """Compute the inputs of an assertion that is always true."""
    with graph.as_default():
        is_true = tf.constant(True)
        with tf.control_dependencies([graph.capture(inputs[0])]):
            op = make([is_true, *inputs[1:]])

    keep_op(op)
    return op
