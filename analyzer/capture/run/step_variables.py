"""Every variable of the step: whose it is, and where its bytes lie at a given moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import decode_name, get_shape
from analyzer.capture.private_names import (
    get_device_parts,
    get_functions,
    get_gradient_accumulators,
    get_keras_value,
    get_uncast_variable,
)
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.tensor_addresses import find_variable_address
from analyzer.capture.targets.keras_api import (
    get_layer_classes,
    get_metric_classes,
    get_optimizer_classes,
    get_optimizer_variables,
)
from analyzer.capture.targets.step_program import Program
from analyzer.model.contract.categories import Category
from analyzer.model.contract.element_sizes import REHOMED_ELEMENTS
from analyzer.model.contract.run_note import VariableNote

_CALLERS = frozenset({"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"})
# Ops that read or write parts of a variable. They switch it to copy-on-read, after which reading it
# copies the whole of it (resource_variable_ops.cc, EnsureSparseVariableAccess): so it is not read.
_IN_PART = (
    "ResourceGather",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)


@dataclass
class StepVariables:
    """Collects variables and snapshots of their addresses.

    Attributes:
        program: The step whose variables they are.
        function: The step's concrete function, None where it runs eagerly.
        snapshots: For each moment the address of each variable, None where unknown.
    """

    program: Program
    function: Any = None
    snapshots: list[list[int | None]] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    _variables: list[Any] = field(default_factory=list)
    _owners: list[tuple[Category, str, str]] = field(default_factory=list)
    _unread: set[int] = field(default_factory=set)

    @property
    def raw(self) -> list[Any]:
        """The ``tf.Variable`` behind each row."""
        return self._variables

    def rehome_small(self) -> None:
        """Give small variables a buffer of TensorFlow's own.

        On a CPU a variable made from a Python number may share NumPy's memory, where no allocator
        sees it; on a GPU it never does. Whether it does depends on the address that NumPy happened
        to get, so that the same step would be counted now with it and now without.
        """
        self.refresh()
        for variable in self._variables:
            if "CPU" not in variable.device.upper():
                continue
            if variable.dtype.is_numpy_compatible and variable.dtype not in (tf.bool, tf.string):
                count = variable.shape.num_elements()
                if count is not None and count <= REHOMED_ELEMENTS:
                    value = variable.read_value()
                    variable.assign(tf.add(value, tf.zeros_like(value)))

    def values(self) -> dict[int, Any]:
        """Return a copy of each variable's value, outside TensorFlow's allocators."""
        self.refresh()
        return {
            id(variable): variable.numpy()
            for variable in self._variables
            if variable.dtype.is_numpy_compatible and variable.is_initialized()
        }

    def restore(self, values: dict[int, Any]) -> None:
        """Give the variables back the values they had; those made since (slots) become zero."""
        self.refresh()
        for variable in self._variables:
            if id(variable) in values:
                # A copy, or the variable would live on in NumPy's memory.
                variable.assign(tf.raw_ops.DeepCopy(x=tf.constant(values[id(variable)])))
            elif variable.dtype.is_floating or variable.dtype.is_integer:
                variable.assign(tf.zeros_like(variable))

    def refresh(self) -> None:
        """Look for variables again: optimizers make theirs in the first step."""
        for model in self.program.models:
            for variable in model.variables:
                self._add(variable, Category.PARAMETER, "")
            for variable in getattr(model, "metrics_variables", []):
                self._add(variable, Category.CONSTANT, "metric")
            for variable in getattr(model, "unused_variables", []):
                self._add(variable, Category.CONSTANT, "loaded, but not used")
        for optimizer in self.program.optimizers:
            self._add_optimizer(optimizer)
        if self.function is not None:  # it says which variables it captures
            captured = list(self.function.variables)
        elif self.program.function is not None:  # not traced yet
            captured = []
        else:  # a step run from Python may use any
            captured = _live_variables()
        unknown = [
            variable for variable in captured if id(get_raw_variable(variable)) not in self._known
        ]
        if unknown:
            self._add_by_owner(unknown)
        if self.function is not None and not self._unread:
            self._unread = _used_in_part(self.function)

    def snapshot(self) -> None:
        """Note where each variable's bytes lie now.

        Before the first step any variable can be read without a copy; after it, those that the step
        writes in part cannot.
        """
        self.refresh()
        unread = self._unread if self.snapshots else set()
        self.snapshots.append(
            [
                None if id(variable) in unread else find_variable_address(variable)
                for variable in self._variables
            ]
        )

    def rows(self) -> tuple[VariableNote, ...]:
        """Return one record a variable, in the order of the snapshots' columns."""
        indexes = self._argument_indexes()
        return tuple(
            VariableNote(
                path=path,
                dtype=variable.dtype.name,
                shape=get_shape(variable),
                category=category,
                role=role,
                trainable=bool(variable.trainable),
                argument=indexes.get(id(variable)),
            )
            for variable, (category, role, path) in zip(self._variables, self._owners, strict=True)
        )

    def _argument_indexes(self) -> dict[int, int]:
        """Return each captured variable's index among the function's arguments."""
        if self.function is None:
            return {}
        by_handle = {id(variable.handle): id(variable) for variable in self._variables}
        given = len(self.function.inputs) - len(self.function.captured_inputs)
        return {
            by_handle[id(handle)]: given + index
            for index, handle in enumerate(self.function.captured_inputs)
            if id(handle) in by_handle
        }

    def _add(self, variable: Any, category: Category, role: str, path: str = "") -> None:
        raw = get_raw_variable(variable)
        if raw is None or id(raw) in self._known:
            return
        self._known[id(raw)] = len(self._variables)
        self._variables.append(raw)
        name = path or str(getattr(variable, "path", "") or raw.name.removesuffix(":0"))
        self._owners.append((category, role, name))
        for number, part in enumerate(get_device_parts(raw)):
            if id(part) in self._known:
                continue
            self._known[id(part)] = len(self._variables) if number else self._known[id(raw)]
            if number:
                self._variables.append(part)
                self._owners.append((category, role, f"{name}/replica_{number}"))

    def _add_optimizer(self, optimizer: Any) -> None:
        accumulators = get_gradient_accumulators(optimizer)
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None:
            accumulators = [*accumulators, *get_gradient_accumulators(inner)]
        for variable in accumulators:
            if variable is not None:
                self._add(variable, Category.GRADIENT, "gradient accumulator")
        for variable in get_optimizer_variables(optimizer):
            self._add(variable, Category.OPTIMIZER_STATE, "")

    def _add_by_owner(self, variables: list[Any]) -> None:
        """Tell the owner of variables that no model or optimizer of the program holds.

        A step made by hand need not name its model: whatever Keras object holds the variable is
        looked up among the live objects.
        """
        wanted = {id(get_raw_variable(variable)) for variable in variables}
        optimizers, metrics, layers = (
            get_optimizer_classes(),
            get_metric_classes(),
            get_layer_classes(),
        )
        for thing in find_live_objects((*optimizers, *metrics, *layers)):
            kind = type(thing)
            if issubclass(kind, optimizers):
                if any(id(get_raw_variable(v)) in wanted for v in get_optimizer_variables(thing)):
                    self.program.optimizers.append(thing)
                    self._add_optimizer(thing)
            elif issubclass(kind, metrics):
                for variable in thing.variables:
                    if id(get_raw_variable(variable)) in wanted:
                        self._add(variable, Category.CONSTANT, "metric")
            else:
                for variable in thing.variables:
                    if id(get_raw_variable(variable)) in wanted:
                        self._add(variable, Category.PARAMETER, "")
        for variable in variables:
            # Left over: a plain tf.Variable. A trainable one is a parameter; the graph tells an
            # accumulator of gradients from other state (measure/attribution).
            if variable.trainable:
                self._add(variable, Category.PARAMETER, "")
            else:
                self._add(variable, Category.CONSTANT, "state")


def _live_variables() -> list[Any]:
    return [thing for thing in find_live_objects(tf.Variable) if hasattr(thing, "handle")]


def get_raw_variable(variable: Any) -> Any:
    """Return the ``tf.Variable`` behind a Keras variable."""
    if isinstance(variable, tf.Variable):
        # Keras 2 puts a variable that is cast on reading around the real one.
        inner = get_uncast_variable(variable)
        return inner if isinstance(inner, tf.Variable) else variable
    value = getattr(variable, "value", None)
    raw = get_keras_value(variable)
    if isinstance(raw, tf.Variable):
        return raw
    return value if isinstance(value, tf.Variable) else None


def _used_in_part(function: Any) -> set[int]:
    """Return ids of the captured variables that an op of the function reads or writes in part.

    What XLA compiles is left out: it runs no such op, and switches no variable to copy-on-read.
    """
    if function.function_def.attr["_XlaMustCompile"].b:
        return set()
    graphs = [function.graph]
    seen = {id(function.graph)}
    handles: set[str] = set()
    while graphs:
        graph = graphs.pop()
        for op in graph.get_operations():
            if op.type.startswith(_IN_PART) and graph is function.graph:
                handles.add(op.inputs[0].name)
        for nested in _nested_graphs(graph):
            if id(nested) not in seen:
                seen.add(id(nested))
                graphs.append(nested)
                if any(op.type.startswith(_IN_PART) for op in nested.get_operations()):
                    handles.add("*")
    if not handles:
        return set()
    by_handle = {id(variable.handle): id(variable) for variable in function.variables}
    return {
        by_handle[id(outside)]
        for outside, inside in function.graph.captures
        if id(outside) in by_handle and ("*" in handles or inside.name in handles)
    }


def _nested_graphs(graph: Any) -> list[Any]:
    """Return the graphs of the functions that the graph's ops call, but for what XLA compiles."""
    functions = {decode_name(name): f for name, f in get_functions(graph).items()}
    called: set[str] = set()
    for op in graph.get_operations():
        if "Call" not in op.type and op.type not in _CALLERS:
            continue
        attrs = op.node_def.attr
        if "_XlaMustCompile" in attrs and attrs["_XlaMustCompile"].b:
            continue
        for attr in attrs.values():
            if attr.HasField("func"):
                called.add(attr.func.name)
            called.update(function.name for function in attr.list.func)
    found = (getattr(functions.get(name), "graph", None) for name in sorted(called))
    return [nested for nested in found if nested is not None]
