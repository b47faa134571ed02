"""The variables of a step: owner, and address at each snapshot."""

import ctypes
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import (
    get_inner_graphs,
    get_shape,
    list_callees,
)
from analyzer.capture.private_names import (
    HostVariable,
    get_classes,
    get_device_parts,
    get_gradient_accumulators,
    get_keras_value,
    get_variables,
    has_own_handle,
    is_eager,
)
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.targets.step_program import Program
from analyzer.model.contract.fields import SMALL_ELEMENTS, Category
from analyzer.model.contract.run_note import (
    ACCUMULATOR_ROLE,
    LOADED_ROLE,
    STATE_ROLE,
    UNUSED_ROLE,
    VariableNote,
)
from analyzer.tracing.parse.event_columns import MARKER_PREFIX

# Ops that access parts of a variable. They switch it to copy-on-read, and each later read copies all
# of it (``EnsureSparseVariableAccess`` in ``resource_variable_ops.cc``); so it is not read.
_SPARSE_ACCESS = (
    "ResourceGather",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)


class StepVariables:
    """Collects the variables of a step and snapshots of their addresses.

    ``function`` is the concrete function; None if the step runs eagerly.
    """

    def __init__(self, program: Program, function: Any = None) -> None:
        self.program = program
        self.function = function
        self.snapshots: list[list[int | None]] = []  # None: an unknown address
        self.raw: list[Any] = []  # the ``tf.Variable`` of each row
        self._known: set[int] = set()
        self._owners: list[tuple[Category, str, str]] = []
        self._unread: set[int] | None = None  # None: not searched for yet
        self._last: dict[int, int | None] = {}  # addresses known before ``forget``

    def forget(self) -> None:
        """Drop the variables and the function, so that they live as long as the program needs them."""
        for addresses in self.snapshots:
            for variable, address in zip(self.raw, addresses, strict=False):
                self._last[id(variable)] = address or self._last.get(id(variable))

        self.function = None
        for held in (self.raw, self.program.models, self.program.optimizers):
            held.clear()

        self.snapshots.clear()
        self._owners.clear()
        self._known.clear()

    def rehome_small(self) -> None:
        """Move small variables on the CPU into buffers of TensorFlow's allocator.

        A variable made from a Python number may share NumPy's memory, which no allocator counts. This
        depends on NumPy's address, so equal steps would be measured differently.
        """
        self.refresh()

        for variable in self.raw:
            count = variable.shape.num_elements()
            is_small = count is not None and count <= SMALL_ELEMENTS
            is_number = variable.dtype.is_numpy_compatible and variable.dtype != tf.bool

            if is_small and is_number and "CPU" in variable.device.upper():
                value = variable.read_value()
                variable.assign(tf.add(value, tf.zeros_like(value)))

    def values(self) -> dict[int, Any]:
        """Return a NumPy copy of each variable's value, by identity."""
        self.refresh()
        return {
            id(variable): variable.numpy()
            for variable in self.raw
            if variable.dtype.is_numpy_compatible and variable.is_initialized()
        }

    def restore(self, values: dict[int, Any]) -> None:
        """Restore the variables' values; variables made since (slots) become zero."""
        self.refresh()

        for variable in self.raw:
            if id(variable) in values:
                # A copy, or the variable would stay in NumPy's memory.
                variable.assign(
                    tf.raw_ops.DeepCopy(x=tf.constant(values[id(variable)]))
                )
            elif variable.dtype.is_floating or variable.dtype.is_integer:
                variable.assign(tf.zeros_like(variable))

    def refresh(self) -> None:
        """Find new variables; optimizers make theirs in the first step."""
        for model in self.program.models:
            metrics = getattr(model, "metrics_variables", ())
            unused = getattr(model, "unused_variables", ())
            self._add(model.variables, Category.PARAMETER)
            self._add(metrics, Category.CONSTANT, "metric")
            self._add(unused, Category.CONSTANT, UNUSED_ROLE)

        for optimizer in self.program.optimizers:
            self._add_optimizer(optimizer)

        captured: list[Any] = []  # of a function that is not traced yet

        if self.function is not None:
            captured = list(self.function.variables)
            if self._unread is None:
                self._unread = _find_sparse_variables(self.function)

        # a program may use any, outside its steps too
        if self.program.function is None:
            variables = find_live_objects(tf.Variable)
            # a variable of a strategy has a handle on each device
            captured += [
                one for one in variables if hasattr(get_device_parts(one)[0], "handle")
            ]

        unknown = []
        for one in captured:
            if id(get_raw_variable(one)) not in self._known:
                unknown.append(one)

        if unknown:
            self._add_by_owner(unknown)

    def snapshot(self) -> None:
        """Note the current address of each variable, and mark the moment in the trace.

        After the first step, variables with sparse access cannot be read without a copy. The steps of
        a program follow others.
        """
        name = f"{MARKER_PREFIX}snapshot"
        with tf.profiler.experimental.Trace(name, index=len(self.snapshots)):
            self.refresh()
            is_later = self.snapshots or self.program.function is None
            unread = (self._unread or ()) if is_later else ()
            addresses: list[int | None] = []

            for one in self.raw:
                address = self._last.get(id(one))
                if id(one) not in unread:
                    address = find_variable_address(one)

                # Not copied again; the unread variables of a function are known before.
                if address is None and self.function is None:
                    self._unread = {*(self._unread or ()), id(one)}

                addresses.append(address)

            self.snapshots.append(addresses)

    def rows(self, trained: Collection[int] = ()) -> tuple[VariableNote, ...]:
        """Return a record for each variable, in the order of the snapshots' columns.

        A plain variable is a parameter if its id is in ``trained``.
        """
        arguments: dict[int, int] = {}  # index of a captured variable's handle
        if self.function is not None:
            handles = self.function.captured_inputs
            given = len(self.function.inputs) - len(handles)
            for index, handle in enumerate(handles, given):
                arguments[id(handle)] = index

        rows = []
        for variable, owner in zip(self.raw, self._owners, strict=True):
            category, role, path = owner
            first = get_device_parts(variable)[0]
            is_trained = id(variable) in trained or (not trained and variable.trainable)
            if role == STATE_ROLE and is_trained:
                category, role = Category.PARAMETER, ""
            if hasattr(variable, "analyzer_loaded"):
                role = LOADED_ROLE

            rows.append(
                VariableNote(
                    path=path,
                    dtype=variable.dtype.name,
                    shape=get_shape(variable),
                    category=category,
                    role=role,
                    argument=arguments.get(id(first.handle)) if arguments else None,
                    device=variable.device,
                )
            )

        return tuple(rows)

    def _add(
        self,
        variables: Iterable[Any],
        category: Category,
        role: str = "",
    ) -> None:
        """Add new variables, and their copies on other devices."""
        for variable in variables:
            raw = get_raw_variable(variable)
            if raw is None or isinstance(raw, HostVariable) or id(raw) in self._known:
                continue

            name = str(getattr(variable, "path", "") or raw.name.removesuffix(":0"))
            first, *copies = get_device_parts(raw)
            self._known.add(id(first))

            for number, part in enumerate([raw, *copies]):
                if id(part) not in self._known or part is raw:
                    ending = f"/replica_{number}" if number else ""
                    self._known.add(id(part))
                    self.raw.append(part)
                    self._owners.append((category, role, f"{name}{ending}"))

    def _add_optimizer(self, optimizer: Any) -> None:
        for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            sums = None if one is None else get_gradient_accumulators(one)
            held = [variable for variable in sums or () if variable is not None]
            self._add(held, Category.GRADIENT, ACCUMULATOR_ROLE)

        self._add(get_variables(optimizer), Category.OPTIMIZER_STATE)

    def _add_by_owner(self, variables: list[Any]) -> None:
        """Add variables that no model or optimizer of the program holds, with their owners.

        A step of the user need not name its model, so the owners are searched among live Keras objects.
        """
        wanted = {id(get_raw_variable(variable)) for variable in variables}
        optimizers = (  # Keras 2 has two generations
            *get_classes("optimizers.Optimizer"),
            *get_classes("optimizers.legacy.Optimizer"),
        )
        metrics = get_classes("metrics.Metric")
        layers = get_classes("layers.Layer")

        for thing in find_live_objects((*optimizers, *metrics, *layers)):
            is_optimizer = issubclass(type(thing), optimizers)
            owned: list[Any] = []

            with suppress(AttributeError):  # its constructor failed
                owned = get_variables(thing)

            used = [one for one in owned if id(get_raw_variable(one)) in wanted]
            if is_optimizer and used:
                self.program.optimizers.append(thing)
                self._add_optimizer(thing)
            elif issubclass(type(thing), metrics):
                self._add(used, Category.CONSTANT, "metric")
            elif not is_optimizer:
                self._add(used, Category.PARAMETER)

        # Plain variables, which the attribution names by their shapes and users.
        self._add(variables, Category.CONSTANT, STATE_ROLE)


def get_raw_variable(variable: Any) -> Any:
    """Return the ``tf.Variable`` behind a Keras variable; None if there is none."""
    if isinstance(variable, tf.Variable):
        # Keras 2 wraps a variable to cast its value, larq to quantize it: both share its handle.
        inner = () if has_own_handle(variable) else vars(variable).values()
        return next((one for one in inner if isinstance(one, tf.Variable)), variable)

    values = (get_keras_value(variable), getattr(variable, "value", None))
    return next((one for one in values if isinstance(one, tf.Variable)), None)


def _find_sparse_variables(function: Any) -> set[int]:
    """Return the ids of captured variables with sparse access by an op.

    Functions that XLA compiles are excluded, because they switch no variable to copy-on-read.
    """
    if function.function_def.attr["_XlaMustCompile"].b:
        return set()

    accessed = _find_sparse_handles(function.graph)
    by_handle = {
        id(part.handle): id(part)
        for variable in function.variables
        for part in get_device_parts(variable)
    }
    sparse = set()

    for outside, inside in function.graph.captures:
        if id(outside) in by_handle and inside.name in accessed:
            sparse.add(by_handle[id(outside)])

    return sparse


def _find_sparse_handles(graph: Any) -> set[str]:
    """Return the handles in a graph that its ops, or functions that it calls, access sparsely.

    Functions that XLA compiles are left out. An ``If`` has its condition before the arguments.
    """
    functions = get_inner_graphs(graph)
    found = set()

    for op in graph.get_operations():
        if op.type.startswith(_SPARSE_ACCESS):
            found.add(op.inputs[0].name)

        callees = set(list_callees(op))
        if not callees or op.node_def.attr["_XlaMustCompile"].b:
            continue

        for name in callees:
            nested = functions.get(name)
            if nested is None:
                continue

            handles = _find_sparse_handles(nested)
            pairs = zip(reversed(op.inputs), reversed(nested.inputs), strict=False)
            found |= {outer.name for outer, inner in pairs if inner.name in handles}

    return found


_WITHOUT_BYTES = (tf.string, tf.resource, tf.variant)

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def find_address(tensor: Any) -> int | None:
    """Return the address of an eager tensor's first byte; None for strings, resources, empty tensors.

    TensorFlow copies and allocates nothing. ``DLTensor`` begins with the address, and TensorFlow sets
    its ``byte_offset`` to 0 (``tensorflow/c/eager/dlpack.cc``).
    """
    if (
        not tf.is_tensor(tensor)
        or not is_eager(tensor)
        or tensor.dtype in _WITHOUT_BYTES
    ):
        return None  # DLPack would crash the process

    try:
        capsule = tf.experimental.dlpack.to_dlpack(tensor)
    except (tf.errors.OpError, TypeError, ValueError, RuntimeError):
        return None

    pointer = _get_pointer(capsule, b"dltensor")
    return ctypes.c_uint64.from_address(pointer).value or None


def find_variable_address(variable: Any) -> int | None:
    """Return the address of a ``tf.Variable``'s buffer; None if it holds no plain tensor.

    None also if each read is a copy, as after an assignment to a part.
    """
    try:
        with tf.device(variable.device):  # reading on another device copies
            value = variable.read_value()
            again = variable.read_value()
    except (tf.errors.OpError, ValueError, AttributeError):
        return None

    address = find_address(value)
    return address if address == find_address(again) else None
