"""Buffers with reference counts: the allocations and frees of a process, instant by instant.

An input of a waiting op holds one reference to its tensor's buffer. When the op runs, its outputs are
allocated while all inputs are still held; then the inputs are released. An op may reuse a buffer if its
input holds the only reference.

A TensorList (the stack or array of a loop) is a small host tensor, its *handle*, whose elements are
references to other tensors; an element that was never set has no buffer. A kernel changes a list in
place if nothing else uses it. Otherwise it makes a new list that shares the elements
(``ForwardInputOrCreateNewList`` in ``tensorflow/core/kernels/list_kernels.cc``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import RESULT_TYPES
from analyzer.model.graph.graph_index import Label
from analyzer.model.recording.records import WORKSPACE
from analyzer.simulate.kernels.cpu_kernels import (
    Effect,
    MemoryPlan,
    Output,
    Way,
)

if TYPE_CHECKING:
    from analyzer.simulate.predict.prepared_step import Prepared

OUTPUT, TEMPORARY = "output", "temp"  # regions of buffers
NO_NODE = -1


@dataclass(slots=True, eq=False)
class Buffer:
    """A buffer; one without bytes is no allocation."""

    size_bytes: int
    born: int  # an instant; ``dies`` is None while the buffer lives
    node: int = NO_NODE  # node that requested it
    output: int = -1  # output of that node; -1 for a temporary
    region: str = ""
    references: int = 1
    dies: int | None = None
    variable: int = -1  # number of the variable whose value it is or became
    value_since: int = -1  # instant from which it is that value; -1 for its birth
    # of a TensorList; None for one that was never set
    elements: list[Buffer | None] | None = None
    # category and role, if the graph does not tell them
    label: Label | None = None


# The buffer of a tensor; None for a missing input, or a result in other memory.
Tensor = Buffer | None
Tensors = list[Tensor]


_Tensor = TypeVar("_Tensor", bound=Tensor)


def share(buffer: _Tensor) -> _Tensor:
    """Add a reference to a buffer, if there is one, and return it."""
    if buffer is not None:
        buffer.references += 1

    return buffer


class ListCall:
    """One run of a list's kernel; ``index`` is the number of the iteration, as in most loops."""

    def __init__(
        self,
        ledger: Ledger,
        node: int,
        plan: MemoryPlan,
        inputs: Tensors,
        index: int,
    ) -> None:
        self._ledger = ledger
        self._node = node
        self._plan = plan
        self._inputs = inputs  # a list that the kernel changes in place is removed
        self._index = index

    def _new(self) -> Tensors:
        """``EmptyTensorList``, and ``TensorListReserve`` with its elements unset."""
        return [self._make_list([])]

    def _push(self) -> Tensors:
        value = self._take_value()
        handle, elements = self._change_list()
        elements.append(value)

        return [handle]

    def _pop(self) -> Tensors:
        elements = self._elements_of(self._inputs[0])
        element = self._share_element(elements[-1] if elements else None, elements, 1)
        handle, own = self._change_list()

        if own:
            self._ledger.release(own.pop())

        return [handle, element]

    def _set(self) -> Tensors:
        value = self._take_value()
        handle, own = self._change_list()
        index = self._index

        own += [None] * (index + 1 - len(own))
        self._ledger.release(own[index])
        own[index] = value

        return [handle]

    def _get(self) -> Tensors:
        elements = self._elements_of(self._inputs[0])
        element = next(iter(elements[self._index : self._index + 1]), None)

        return [self._share_element(element, elements, 0)]

    def _stack(self) -> Tensors:
        first, *others = (output.size_bytes for output in self._plan.outputs)
        elements = self._elements_of(self._inputs[0])
        sizes = [first or _element_bytes(elements) * len(elements), *others]

        return [
            self._ledger.allocate(size, self._node, index, OUTPUT)
            for index, size in enumerate(sizes)
        ]

    def _unstack(self) -> Tensors:
        """Copy each row of a tensor into an unset element of a list, or into a new list."""
        if self._plan.value:
            handle, own = self._change_list()
        else:
            own = []
            handle = self._make_list(own)

        for row in self._plan.outputs[1:]:
            unset = [*own, None].index(None)
            own[unset : unset + 1] = [self._allocate(row.size_bytes)]

        return [handle]

    def _resize(self) -> Tensors:
        handle, _ = self._change_list()
        return [handle]

    def _zeros(self) -> Tensors:
        """Make zeros for each set element (``TensorListZerosLike``)."""
        elements = self._elements_of(self._inputs[0])
        zeros = [one and self._allocate(one.size_bytes) for one in elements]

        return [self._make_list(zeros)]

    def _add(self) -> Tensors:
        """Sum lists element by element; share an element that only one list has.

        ``TensorListBinaryAdd``; ``AddNOp<Device, Variant>`` (``aggregate_ops.cc``) adds one by one.
        """
        total = _share_all(self._elements_of(self._inputs[0]))
        for source in self._inputs[1:]:
            pairs = zip_longest(total, self._elements_of(source))
            total = [self._sum(mine, other) for mine, other in pairs]

        return [self._make_list(total)]

    def _pack(self) -> Tensors:
        """Make an optional, which holds all inputs."""
        return [self._make_list(_share_all(self._inputs))]

    def _unpack(self) -> Tensors:
        count = len(self._plan.outputs)
        elements = _share_all(self._elements_of(self._inputs[0])[:count])
        return elements + [None] * (count - len(elements))

    def _sum(self, mine: Tensor, other: Tensor) -> Tensor:
        if mine is None or other is None:
            return mine or share(other)

        total = self._allocate(mine.size_bytes)
        self._ledger.release(mine)

        return total

    def _allocate(self, size_bytes: int) -> Buffer:
        return self._ledger.allocate(size_bytes, self._node)

    def _take_value(self) -> Buffer:
        """Return the input that becomes an element, with a reference for the list."""
        return share(self._inputs[self._plan.value]) or self._allocate(0)

    def _share_element(
        self, element: Tensor, others: Sequence[Tensor], output: int
    ) -> Tensor:
        if element is not None:
            return share(element)

        size_bytes = self._plan.outputs[output].size_bytes or _element_bytes(others)
        return self._ledger.allocate(size_bytes, self._node, output, OUTPUT)

    def _change_list(self) -> tuple[Buffer, Tensors]:
        """Return a list to change: the first input itself if nothing else uses it, else a copy."""
        source = self._inputs[0]
        if source is not None and source.references == 1:
            self._inputs[0] = None
            source.elements = source.elements or []

            return source, source.elements

        elements = _share_all(self._elements_of(source))

        return self._make_list(elements), elements

    def _make_list(self, elements: Tensors) -> Buffer:
        size_bytes = self._plan.outputs[0].size_bytes
        handle = self._ledger.allocate(size_bytes, self._node, 0, OUTPUT)
        handle.elements = elements

        return handle

    def _elements_of(self, handle: Tensor) -> Sequence[Tensor]:
        if handle is None:
            return ()

        return handle.elements or ()


def _share_all(elements: Sequence[Tensor]) -> Tensors:
    return [share(element) for element in elements]


def _element_bytes(elements: Sequence[Tensor]) -> int:
    return next((one.size_bytes for one in elements if one is not None), 0)


_LIST_KERNELS: dict[Effect, Callable[[ListCall], Tensors]] = {
    effect: getattr(ListCall, f"_{effect.name.lower()}")
    for effect in Effect
    if effect not in (Effect.NONE, Effect.READ, Effect.ASSIGN, Effect.UPDATE)
}


class Ledger:
    """Runs nodes in memory: allocates, forwards and frees buffers."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._plans = prepared.plans
        self.buffers: list[Buffer] = []
        self.instants = 0  # number of allocations and frees so far
        self.ran: list[int] = []  # nodes in the order in which they ran in this step
        self.values: list[Buffer] = []  # the buffer of each variable's value
        self.held: dict[int, Buffer] = {}  # outputs that live outside the step, by node
        self._returned: list[Buffer] = []

    def hold(
        self,
        size_bytes: int,
        category: Category,
        role: str,
        node: int = NO_NODE,
    ) -> Buffer:
        """Return a buffer that lives outside the step."""
        buffer = self.allocate(size_bytes, node, 0 if node >= 0 else -1, "")
        buffer.label = category, role

        return buffer

    def add_variable(self, size_bytes: int, shared: Tensor) -> None:
        """Add the next variable with its value, which it may share with others until it is written."""
        buffer = share(shared) or self.allocate(size_bytes, region="")
        if buffer.variable < 0:
            buffer.variable = len(self.values)

        self.values.append(buffer)

    def end_step(self) -> None:
        """Release the step's results."""
        for buffer in self._returned:
            self.release(buffer)

        self._returned = []

    def allocate(
        self,
        size_bytes: int,
        node: int = NO_NODE,
        output: int = -1,
        region: str = TEMPORARY,
    ) -> Buffer:
        """Return a new buffer with one reference."""
        buffer = Buffer(size_bytes, self.instants, node, output, region)
        self.buffers.append(buffer)

        if size_bytes:
            self.instants += 1

        return buffer

    def release(self, buffer: Tensor) -> None:
        """Drop a reference; free the buffer with the last one."""
        if buffer is None:
            return

        buffer.references -= 1
        if buffer.references:
            return

        if buffer.elements is not None:
            for element in buffer.elements:
                self.release(element)

        if buffer.size_bytes:
            buffer.dies = self.instants
            self.instants += 1

    def compute(
        self,
        node: int,
        inputs: Tensors,
        iteration: int,
    ) -> tuple[Tensors, Tensors]:
        """Run an op in an iteration; return its outputs, and the buffers that it uses until its end."""
        self.ran.append(node)
        if node in self.held:
            return [share(self.held[node])], []

        if self._prepared.ops[node].type in RESULT_TYPES:
            self._returned += [buffer for buffer in inputs if buffer is not None]
            return [], []

        plan = self._plans[node]
        temporaries = self.allocate_temporaries(node, plan.before_bytes)

        if plan.effect in _LIST_KERNELS:
            call = ListCall(self, node, plan, inputs, iteration)
            outputs = _LIST_KERNELS[plan.effect](call)
        elif plan.effect is Effect.READ:
            outputs = [self._read(node)]
        else:
            outputs = []
            for number, output in enumerate(plan.outputs):
                outputs.append(self._make_output(node, number, output, inputs))

        temporaries += self.allocate_temporaries(node, plan.after_bytes)
        workspace_bytes = plan.workspaces_bytes[0]
        if workspace_bytes:
            temporaries.append(self.allocate(workspace_bytes, node, region=WORKSPACE))

        if plan.effect is Effect.UPDATE:
            # The parameter and its slots (``ResourceApplyAdam``).
            for variable in self._prepared.find_variables(node):
                self._copy_before_update(node, variable)
        elif plan.effect is Effect.ASSIGN:
            self._assign(node, inputs[plan.value])

        return outputs, [*temporaries, *inputs]

    def allocate_temporaries(
        self,
        node: int,
        sizes_bytes: Iterable[int],
    ) -> Tensors:
        """Return temporaries of these sizes."""
        return [self.allocate(size, node) for size in sizes_bytes]

    def _make_output(
        self,
        node: int,
        index: int,
        output: Output,
        inputs: Tensors,
    ) -> Tensor:
        way = output.way
        if way is Way.NONE:
            return None

        if way is Way.ALIAS:
            candidates = (inputs[source] for source in output.inputs)
            return share(next((one for one in candidates if one is not None), None))

        if way is Way.FORWARD:
            for source in output.inputs:
                buffer = inputs[source]
                if buffer is not None and buffer.references == 1:
                    inputs[source] = None
                    return buffer

        return self.allocate(output.size_bytes, node, index, output.region)

    # The values of variables follow ``resource_variable_ops.cc`` and ``training_op_helpers.h``.

    def _read(self, node: int) -> Tensor:
        variable = self._prepared.find_variable(node)
        return share(self.values[variable]) if variable >= 0 else None

    def _copy_before_update(self, node: int, variable: int) -> None:
        """Copy a value before an update if a reader still holds it."""
        if variable >= 0 and self.values[variable].references > 1:
            size_bytes = self.values[variable].size_bytes
            self._replace(variable, self.allocate(size_bytes, node))

    def _assign(self, node: int, value: Tensor) -> None:
        """Make a tensor the variable's value."""
        variable = self._prepared.find_variable(node)
        if variable >= 0:
            self._replace(variable, share(value) or self.allocate(0))

    def _replace(self, variable: int, buffer: Buffer) -> None:
        """Make a buffer the variable's value and release the old one."""
        old = self.values[variable]
        self.values[variable] = buffer

        if buffer.variable < 0:
            buffer.variable = variable
            buffer.value_since = max(self.instants - 1, 0)

        self.release(old)
