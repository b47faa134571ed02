"""A step's graph ready to be executed: numbered nodes with their edges, and the plans of their kernels.

The order of a node's out-edges decides the order of execution; here it is that of the listing. A node
keeps up to eight out-edges in order; more lie in a hash set of pointers, whose order differs between
processes (``edgeset.h``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

from analyzer.model.contract.run_note import (
    ARGUMENT_TYPES,
    CONSTANTS,
    RESULT_TYPES,
    Op,
    op_types,
    read_op_types,
    split_tensor,
)
from analyzer.model.errors import InputError
from analyzer.simulate.kernels.cpu_kernels import (
    Call,
    KernelDevice,
    MemoryPlan,
    plan_unknown,
)
from analyzer.tracing.parse.run_folder import RunNote

TYPES = read_op_types("simulate/predict/executor_op_types.toml")["types"]

# Op types that pass their first input to the output that the second input selects.
SWITCHES = op_types("Switch RefSwitch _SwitchN")

MERGES = op_types("Merge RefMerge")
ENTERS = op_types("Enter RefEnter")
EXITS = op_types("Exit RefExit")
NEXT = op_types("NextIteration RefNextIteration")

ORDERED_EDGES = 8  # out-edges that a node keeps in order (``EdgeSet::kInline``)


# Default number of steps. The second may differ from the first (trials of algorithms), the third from
# the second (chunks). Gradient accumulation needs more: a counter decides a branch.
STEPS = 3

_HANDLE_SOURCES = ARGUMENT_TYPES | {"VarHandleOp"}

# Op types whose output lives outside the step: a kernel's constant, or an argument in Python.
_HELD = CONSTANTS | ARGUMENT_TYPES | {"Placeholder"}


class Prepared:
    """A step's graph ready to be executed.

    Attributes:
        threads: Inter-op threads.
        assumed: Outcomes of branches and loops by name.
        inputs: For each node, the (node, output) behind each data input.
        control: For each node, the nodes that it waits for.
        waits_for: For each node, the number of inputs that make it ready.
        data_out: For each node, its data edges as (node, output, input), in order of creation.
        control_out: For each node, the nodes that wait for it, in order of creation.
        plans: The memory plan of each node's kernel.
        handles: For each node, the node that brings in the variable handle of its first input, or -1.
        variable_of: The number in the note of the variable of each handle.
        held_bytes: Bytes of each node's output that lives outside the step.
    """

    def __init__(self, note: RunNote, device: KernelDevice) -> None:
        self.note = note
        self.device = device
        self.threads = max(note.threads.inter_op, 1)
        self.steps = STEPS if note.steps_wanted is None else note.steps_wanted
        self.assumed: Mapping[str, int] = note.assumed

        self.ops = note.ops
        self.inputs, self.control = _resolve_inputs(self.ops)

        # A merge passes on the first input that arrives.
        self.waits_for = [
            1 if op.type in MERGES else len(data) + len(control)
            for op, data, control in zip(
                self.ops, self.inputs, self.control, strict=True
            )
        ]
        self.data_out: list[list[tuple[int, int, int]]] = [[] for _ in self.ops]
        self.control_out: list[list[int]] = [[] for _ in self.ops]

        for node, feeds in enumerate(self.inputs):
            for slot, (source, output) in enumerate(feeds):
                self.data_out[source].append((node, output, slot))

            for source in self.control[node]:
                self.control_out[source].append(node)

        self.plans = [self._plan(node) for node in range(len(self.ops))]
        self.handles: list[int] = []
        self.variable_of: dict[int, int] = {}
        self.held_bytes: dict[int, int] = {}
        self._find_memory_outside()

    def assume(self, assumed: Mapping[str, int]) -> Prepared:
        """Return the step with other outcomes of branches and loops."""
        other = copy(self)
        other.assumed = assumed

        return other

    def _plan(self, node: int) -> MemoryPlan:
        """Return the memory plan of a node's kernel.

        A rule relies on TensorFlow's op registry: number of inputs and outputs, ranks, attributes. An op
        without these is handled like an op without a rule: each output counts as allocated.
        """
        op = self.ops[node]
        read = {output for _, output, _ in self.data_out[node]}
        if op.type in RESULT_TYPES and read:
            raise InputError(
                f"The graph is damaged: an op reads the result {op.name[:80]!r}."
            )

        feeds = self.inputs[node]
        inputs = tuple(self.ops[source].outputs[output] for source, output in feeds)
        call = Call(op, inputs)

        try:
            plan = self.device.plan(call)
            if _fits(plan, call, max(read, default=-1)):
                return plan
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            pass

        return plan_unknown(call)

    def _find_memory_outside(self) -> None:
        """Find the handles of variables, and the outputs that live outside the step."""
        arguments = {}

        for node, op in enumerate(self.ops):
            feeds = self.inputs[node]
            self.handles.append(self._find_handle(*feeds[0]) if feeds else -1)

            if op.type in ARGUMENT_TYPES:
                arguments[int(op.attrs["index"])] = node

            if op.type in _HELD and op.outputs:
                size_bytes = self.device.held_bytes(op)
                if size_bytes:
                    self.held_bytes[node] = size_bytes

        for number, row in enumerate(self.note.variables):
            # An argument is one variable: the first of two that name it.
            node = arguments.pop(-1 if row.argument is None else row.argument, -1)
            if node >= 0:
                self.variable_of[node] = number

    def _find_handle(self, node: int, output: int) -> int:
        """Trace an input of type resource back to the argument that brings in the handle; else -1."""
        if self.ops[node].outputs[output].dtype != "resource":
            return -1

        while self.ops[node].type not in _HANDLE_SOURCES and self.inputs[node]:
            node = self.inputs[node][0][0]

        return node

    def find_variable(self, node: int) -> int:
        """Return the number in the note of the variable behind a node's first input; -1 for none."""
        return self.variable_of.get(self.handles[node], -1)

    def find_variables(self, node: int) -> Iterator[int]:
        """Yield the same for every input."""
        for feed in self.inputs[node]:
            yield self.variable_of.get(self._find_handle(*feed), -1)


def _resolve_inputs(
    ops: Sequence[Op],
) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Return each node's data inputs (node, output) and control inputs; refuse impossible ones."""
    number = {op.name: index for index, op in enumerate(ops)}
    inputs: list[list[tuple[int, int]]] = []
    control: list[list[int]] = []

    for op in ops:
        try:
            tensors = [split_tensor(tensor) for tensor in op.inputs]
            inputs.append([(number[name], output) for name, output in tensors])
            control.append([number[name] for name in op.control_inputs])
        except KeyError as error:
            missing = str(error)[:80]
            raise InputError(
                f"The graph is damaged: an input names the missing op {missing}."
            ) from None

    for op, feeds in zip(ops, inputs, strict=True):
        for source, output in feeds:
            count = len(ops[source].outputs)
            if output >= count:
                raise InputError(
                    f"The graph is damaged: {op.name[:80]!r} reads output {output} of "
                    f"{ops[source].name[:80]!r}, which has {count}."
                )

        if op.type in ENTERS and "frame_name" not in op.attrs:
            name = op.name[:80]
            raise InputError(
                f"The graph is damaged: {name!r} enters a loop without a name."
            )

    return inputs, control


def _fits(plan: MemoryPlan, call: Call, last_read: int) -> bool:
    """Say whether an op has the inputs of its plan, and the plan the outputs that are read."""
    inputs = [plan.value]
    for output in plan.outputs:
        inputs += output.inputs

    return last_read < len(plan.outputs) and max(inputs) <= len(call.inputs)
