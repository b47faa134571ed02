"""Variables and TensorLists (the stacks and arrays of loops) of a step, buffer by buffer.

A list is a small host tensor (its *handle*) whose elements are references to other tensors; an element
that was never set has no buffer. A kernel changes a list in place if nothing else uses it. Otherwise it
makes a new list that shares the elements (``ForwardInputOrCreateNewList`` in
``tensorflow/core/kernels/list_kernels.cc``). A freed list releases its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from analyzer.simulate.kernels.shared.op_call import ListUse, MemoryPlan

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger


UNSET: Final = -1  # an element that was never set; reading it returns zeros

_OUTPUT, _TEMP = "output", "temp"


@dataclass(frozen=True, slots=True)
class ListCall:
    """A run of a list's kernel."""

    node: int
    plan: MemoryPlan
    buffers: list[int]  # its inputs; a list that it changes in place is removed
    index: int | None  # the value of its second input, an index or a count; None if unknown


class TensorLists:
    """The buffers of a step's lists by handle; methods of kernels return their output buffers."""

    def __init__(self, owner: Ledger) -> None:
        self._owner = owner
        self.elements: dict[int, list[int]] = {}

    def end(self, handle: int) -> None:
        """Release the elements of a list that is freed."""
        self._release(self.elements.pop(handle))

    def compute(self, call: ListCall) -> tuple[list[int], list[int]]:
        """Run a list's kernel; return its outputs, and temporaries to release when it ends."""
        outputs = _KERNELS[call.plan.lists](self, call)
        elements = self._of(call.buffers[0]) if call.plan.lists is ListUse.STACK else ()
        if UNSET not in elements:
            return outputs, []
        # One tensor of zeros replaces every unset element of a stack.
        zeros = self._element_bytes(elements) or call.plan.outputs[0].size_bytes // len(elements)
        return outputs, [self._temporary(call, zeros)]

    def _new(self, call: ListCall) -> list[int]:
        """``EmptyTensorList``, and ``TensorListReserve`` with its elements unset."""
        return [self._handle(call, [UNSET] * (call.index or 0))]

    def _push(self, call: ListCall) -> list[int]:
        value = self._value(call)
        handle = self._own(call)
        self.elements[handle].append(value)
        return [handle]

    def _pop(self, call: ListCall) -> list[int]:
        elements = self._of(call.buffers[0])
        element = self._read(call, elements[-1] if elements else UNSET, elements, 1)
        handle = self._own(call)
        own = self.elements[handle]
        self._release([own.pop()] if own else [])
        return [handle, element]

    def _set(self, call: ListCall) -> list[int]:
        value = self._value(call)
        handle = self._own(call)
        own, index = self.elements[handle], call.index
        if index is None or index < 0:
            index = own.index(UNSET) if UNSET in own else len(own)
        own += [UNSET] * (index + 1 - len(own))
        old, own[index] = own[index], value
        self._release([old])
        return [handle]

    def _get(self, call: ListCall) -> list[int]:
        elements, index = self._of(call.buffers[0]), call.index
        element = next((e for e in reversed(elements) if e != UNSET), UNSET)
        if index is not None and 0 <= index < len(elements):
            element = elements[index]
        return [self._read(call, element, elements, 0)]

    def _stack(self, call: ListCall) -> list[int]:
        first, *others = (output.size_bytes for output in call.plan.outputs)
        elements = self._of(call.buffers[0])
        sizes = [first or self._element_bytes(elements) * len(elements), *others]
        return [self._owner.allocate(call.node, size, k, _OUTPUT) for k, size in enumerate(sizes)]

    def _unstack(self, call: ListCall) -> list[int]:
        """Copy each row of a tensor into an unset element of a list, or into a new list."""
        handle = self._own(call) if call.plan.value else self._handle(call, [])
        own = self.elements[handle]
        for size_bytes in call.plan.rows_bytes:
            index = own.index(UNSET) if UNSET in own else len(own)
            own[index : index + 1] = [self._temporary(call, size_bytes)]
        return [handle]

    def _resize(self, call: ListCall) -> list[int]:
        handle = self._own(call)
        own = self.elements[handle]
        count = len(own) if call.index is None else max(call.index, 0)
        self._release(own[count:])
        own[count:] = [UNSET] * (count - len(own))
        return [handle]

    def _zeros(self, call: ListCall) -> list[int]:
        """Make zeros for each set element (``TensorListZerosLike``)."""
        sizes, elements = self._owner.buffers.size_bytes, self._of(call.buffers[0])
        made = [UNSET if one == UNSET else self._temporary(call, sizes[one]) for one in elements]
        return [self._handle(call, made)]

    def _add(self, call: ListCall) -> list[int]:
        """Sum lists element by element; share an element that only one list has.

        ``TensorListBinaryAdd``; ``AddNOp<Device, Variant>`` (``aggregate_ops.cc``) adds one by one.
        """
        total = self._share(self._of(call.buffers[0]))
        for source in call.buffers[1:]:
            pairs = zip_longest(total, self._of(source), fillvalue=UNSET)
            total = [self._sum(call, mine, other) for mine, other in pairs]
        return [self._handle(call, total)]

    def _pack(self, call: ListCall) -> list[int]:
        """Make an optional, which holds all inputs."""
        return [self._handle(call, self._share(call.buffers))]

    def _unpack(self, call: ListCall) -> list[int]:
        count = len(call.plan.outputs)
        elements = [*self._of(call.buffers[0])[:count]]
        return self._share(elements + [UNSET] * (count - len(elements)))

    def _sum(self, call: ListCall, mine: int, other: int) -> int:
        if UNSET in (mine, other):
            return mine if other == UNSET else self._share([other])[0]
        made = self._temporary(call, self._owner.buffers.size_bytes[mine])
        self._owner.release(mine)
        return made

    def _temporary(self, call: ListCall, size_bytes: int) -> int:
        return self._owner.allocate(call.node, size_bytes, UNSET, _TEMP)

    def _value(self, call: ListCall) -> int:
        """Return the input that becomes an element, with a reference for the list."""
        value = call.buffers[call.plan.value or 0]
        return self._temporary(call, 0) if value < 0 else self._share([value])[0]  # 0: empty

    def _read(self, call: ListCall, element: int, others: Sequence[int], output: int) -> int:
        if element != UNSET:
            return self._share([element])[0]
        size_bytes = call.plan.outputs[output].size_bytes or self._element_bytes(others)
        return self._owner.allocate(call.node, size_bytes, output, _OUTPUT)

    def _element_bytes(self, elements: Sequence[int]) -> int:
        return next((self._owner.buffers.size_bytes[e] for e in elements if e != UNSET), 0)

    def _own(self, call: ListCall) -> int:
        """Return a list to change: the first input itself if nothing else uses it, else a copy."""
        source = call.buffers[0]
        if source >= 0 and self._owner.references[source] == 1:
            call.buffers[0] = NO_BUFFER
            self.elements.setdefault(source, [])
            return source
        return self._handle(call, self._share(self._of(source)))

    def _share(self, elements: Sequence[int]) -> list[int]:
        for element in elements:
            if element != UNSET:
                self._owner.references[element] += 1
        return list(elements)

    def _release(self, elements: Sequence[int]) -> None:
        for element in elements:
            if element != UNSET:
                self._owner.release(element)

    def _of(self, handle: int) -> Sequence[int]:
        return self.elements.get(handle, ())

    def _handle(self, call: ListCall, elements: list[int]) -> int:
        handle = self._owner.allocate(call.node, call.plan.outputs[0].size_bytes, 0, _OUTPUT)
        self.elements[handle] = elements
        return handle


_KERNELS: Final[dict[ListUse, Callable[[TensorLists, ListCall], list[int]]]] = {
    use: getattr(TensorLists, f"_{use.name.lower()}") for use in ListUse if use is not ListUse.NO
}


NO_BUFFER: Final = -1
NO_NODE: Final = -1


@dataclass(slots=True)
class Buffers:
    """Buffers in order of birth, one entry each."""

    size_bytes: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)  # instants; ``dies`` is -1 while the buffer lives
    dies: list[int] = field(default_factory=list)
    # node that requested it; -1 for buffers from before the step
    node: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)  # output of that node; -1 for a temporary
    # number of the variable whose value it is or became; -1 for none
    variable: list[int] = field(default_factory=list)
    # instant from which it is that variable's value; -1 for none
    turned: list[int] = field(default_factory=list)
    region: list[str] = field(default_factory=list)


class VariableValues:
    """The buffer of each variable's value, and when a write copies it.

    Follows ``resource_variable_ops.cc`` and ``training_op_helpers.h``. A variable that is read or
    written in part is in *copy-on-read* mode from then on: each read copies. ``of_nodes`` has the
    number of the variable behind the first input of each node; -1 for none.
    """

    def __init__(self, owner: Ledger, of_nodes: Sequence[int], sizes_bytes: Sequence[int]) -> None:
        self._owner = owner
        self._of_nodes = of_nodes
        self._sizes_bytes = sizes_bytes
        self.copied_on_read: set[int] = set()  # variables in copy-on-read mode
        self._sharers: dict[int, list[int]] = {}
        self.buffers: list[int] = []

    def add(self, shares: Mapping[int, int], buffer: int | None) -> None:
        """Add the next variable, with its first buffer or with that of an earlier variable."""
        if buffer is None:
            number = len(self.buffers)
            buffer = self.buffers[shares[number]]
            self._owner.references[buffer] += 1
            self._sharers.setdefault(buffer, [shares[number]]).append(number)
        self.buffers.append(buffer)

    def read(self, node: int) -> int:
        """Return the buffer that a read of the node's variable returns."""
        variable = self._of_nodes[node]
        if variable < 0:
            return NO_BUFFER
        if variable in self.copied_on_read:
            return self._owner.allocate(node, self._sizes_bytes[variable], 0, "output")
        buffer = self.buffers[variable]
        self._owner.references[buffer] += 1
        return buffer

    def copy_before_update(self, node: int, variable: int) -> None:
        """Copy a value before an update if a reader still holds it."""
        if variable >= 0 and (variable in self.copied_on_read or self._is_shared(variable)):
            self._copy(node, variable)

    def begin_copy_on_read(self, node: int) -> None:
        """Set copy-on-read mode at the first partial read or write; copy a value in use."""
        variable = self._of_nodes[node]
        if variable < 0 or variable in self.copied_on_read:
            return
        self.copied_on_read.add(variable)
        if self._is_shared(variable):
            self._copy(node, variable)

    def assign(self, node: int, value: int) -> None:
        """Make a buffer the variable's value; copy it instead in copy-on-read mode."""
        variable = self._of_nodes[node]
        if variable in self.copied_on_read:
            self._copy(node, variable)
        elif variable >= 0:
            if value < 0:
                value = self._owner.allocate(NO_NODE, 0, NO_NODE, "")
            self._owner.references[value] += 1
            self.replace(variable, value)

    def replace(self, variable: int, buffer: int) -> None:
        """Make a buffer the variable's value and release the old one."""
        old, table = self.buffers[variable], self._owner.buffers
        self.buffers[variable] = buffer
        sharers = self._sharers.get(old, ())
        if sharers and table.variable[old] == variable:
            # A shared buffer stays the value of the other variable.
            others = [other for other in sharers if self.buffers[other] == old]
            table.variable[old] = others[0] if others else variable
        if table.born[buffer] >= 0 or table.variable[buffer] < 0:
            table.variable[buffer] = variable
            table.turned[buffer] = max(self._owner.instants - 1, 0)
        self._owner.release(old)

    def _is_shared(self, variable: int) -> bool:
        return self._owner.references[self.buffers[variable]] != 1

    def _copy(self, node: int, variable: int) -> None:
        size_bytes = self._sizes_bytes[variable]
        self.replace(variable, self._owner.allocate(node, size_bytes, NO_NODE, "temp"))
