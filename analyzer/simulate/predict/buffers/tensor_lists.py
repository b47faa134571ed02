"""TensorLists: the stacks and arrays of loops, element by element.

A list is a small host tensor (its *handle*) whose elements are references to other tensors; an element
that was never set has no buffer. A kernel changes a list in place if nothing else uses it. Otherwise it
makes a new list that shares the elements (``ForwardInputOrCreateNewList`` in
``tensorflow/core/kernels/list_kernels.cc``). A freed list releases its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from analyzer.simulate.kernels.shared.op_call import ListUse, MemoryPlan

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger

NO_BUFFER: Final = -1
UNSET: Final = -1
"""An element that was never set; reading it returns zeros."""

_OUTPUT, _TEMP = "output", "temp"


_Result = tuple[list[int], list[int]]
"""Output buffers, and temporaries to release when the kernel ends."""


@dataclass(frozen=True, slots=True)
class ListCall:
    """A run of a list's kernel.

    Attributes:
        buffers: Its inputs; a list that it changes in place is removed.
        index: The value of its second input, an index or a count; None if unknown.
    """

    node: int
    plan: MemoryPlan
    buffers: list[int]
    index: int | None


class TensorLists:
    """The lists of a step.

    Attributes:
        elements: Handle of a list -> buffers of its elements.
    """

    def __init__(self, owner: Ledger) -> None:
        self._owner = owner
        self.elements: dict[int, list[int]] = {}

    def end(self, handle: int) -> None:
        """Release the elements of a list that is freed."""
        for element in self.elements.pop(handle):
            if element != UNSET:
                self._owner.release(element)

    def compute(self, call: ListCall) -> _Result:
        """Run a list's kernel."""
        return _KERNELS[call.plan.lists](self, call)

    def _new(self, call: ListCall) -> _Result:
        """``EmptyTensorList``, and ``TensorListReserve`` with its elements unset."""
        return [self._handle(call, [UNSET] * (call.index or 0))], []

    def _push(self, call: ListCall) -> _Result:
        value = self._value(call)
        handle = self._own(call)
        self.elements[handle].append(value)
        return [handle], []

    def _pop(self, call: ListCall) -> _Result:
        elements = self._of(call.buffers[0])
        last = elements[-1] if elements else UNSET
        element = self._read(call, last, elements, 1)
        handle = self._own(call)
        own = self.elements[handle]
        if own:
            popped = own.pop()
            if popped != UNSET:
                self._owner.release(popped)
        return [handle, element], []

    def _set(self, call: ListCall) -> _Result:
        value = self._value(call)
        handle = self._own(call)
        own = self.elements[handle]
        index = call.index
        if index is None or index < 0:
            index = own.index(UNSET) if UNSET in own else len(own)
        own += [UNSET] * (index + 1 - len(own))
        old, own[index] = own[index], value
        if old != UNSET:
            self._owner.release(old)
        return [handle], []

    def _get(self, call: ListCall) -> _Result:
        elements, index = self._of(call.buffers[0]), call.index
        if index is None or not 0 <= index < len(elements):
            element = next((e for e in reversed(elements) if e != UNSET), UNSET)
        else:
            element = elements[index]
        return [self._read(call, element, elements, 0)], []

    def _stack(self, call: ListCall) -> _Result:
        """Join all elements into one tensor; one tensor of zeros replaces every unset element."""
        elements = self._of(call.buffers[0])
        size_bytes = self._element_bytes(elements)
        whole = call.plan.outputs[0].size_bytes or size_bytes * len(elements)
        outputs = [self._owner.allocate(call.node, whole, 0, _OUTPUT)]
        outputs += [
            self._owner.allocate(call.node, output.size_bytes, number, _OUTPUT)
            for number, output in enumerate(call.plan.outputs[1:], start=1)
        ]
        if UNSET not in elements:
            return outputs, []
        zeros = size_bytes or whole // len(elements)
        return outputs, [self._owner.allocate(call.node, zeros, UNSET, _TEMP)]

    def _unstack(self, call: ListCall) -> _Result:
        """Copy each row of a tensor into an element (``TensorListFromTensor`` aligns every row)."""
        handle = self._handle(call, [])
        self.elements[handle] = [
            self._owner.allocate(call.node, size_bytes, UNSET, _TEMP)
            for size_bytes in call.plan.rows_bytes
        ]
        return [handle], []

    def _resize(self, call: ListCall) -> _Result:
        handle = self._own(call)
        own = self.elements[handle]
        count = len(own) if call.index is None else max(call.index, 0)
        for element in own[count:]:
            if element != UNSET:
                self._owner.release(element)
        own[count:] = [UNSET] * (count - len(own))
        return [handle], []

    def _zeros(self, call: ListCall) -> _Result:
        """Make zeros for each set element (``TensorListZerosLike``)."""
        made = [
            UNSET
            if element == UNSET
            else self._owner.allocate(call.node, self._owner.size_bytes(element), UNSET, _TEMP)
            for element in self._of(call.buffers[0])
        ]
        return [self._handle(call, made)], []

    def _add(self, call: ListCall) -> _Result:
        """Sum lists element by element; share an element that only one list has.

        ``TensorListBinaryAdd``. Several lists are added one after the other (``AddNOp<Device, Variant>``
        in ``aggregate_ops.cc``).
        """
        total = list(self._of(call.buffers[0]))
        self._share(total)
        for source in call.buffers[1:]:
            total = [
                self._sum(call.node, mine, other)
                for mine, other in zip_longest(total, self._of(source), fillvalue=UNSET)
            ]
        return [self._handle(call, total)], []

    def _pack(self, call: ListCall) -> _Result:
        """Make an optional, which holds all inputs."""
        self._share(call.buffers)
        return [self._handle(call, list(call.buffers))], []

    def _unpack(self, call: ListCall) -> _Result:
        elements = self._of(call.buffers[0])
        outputs = [
            elements[k] if k < len(elements) else UNSET for k in range(len(call.plan.outputs))
        ]
        self._share(outputs)
        return outputs, []

    def _sum(self, node: int, mine: int, other: int) -> int:
        if other == UNSET:
            return mine
        if mine == UNSET:
            self._owner.references[other] += 1
            return other
        made = self._owner.allocate(node, self._owner.size_bytes(mine), UNSET, _TEMP)
        self._owner.release(mine)
        return made

    def _value(self, call: ListCall) -> int:
        """Return the input that becomes an element, with a reference for the list."""
        value = call.buffers[call.plan.value or 0]
        if value < 0:  # an empty tensor
            return self._owner.allocate(call.node, 0, UNSET, _TEMP)
        self._owner.references[value] += 1
        return value

    def _read(self, call: ListCall, element: int, others: Sequence[int], output: int) -> int:
        if element != UNSET:
            self._owner.references[element] += 1
            return element
        size_bytes = call.plan.outputs[output].size_bytes or self._element_bytes(others)
        return self._owner.allocate(call.node, size_bytes, output, _OUTPUT)

    def _element_bytes(self, elements: Sequence[int]) -> int:
        return next((self._owner.size_bytes(e) for e in elements if e != UNSET), 0)

    def _own(self, call: ListCall) -> int:
        """Return a list to change: the first input itself if nothing else uses it, else a copy."""
        source = call.buffers[0]
        if source >= 0 and self._owner.references[source] == 1:
            call.buffers[0] = NO_BUFFER
            self.elements.setdefault(source, [])
            return source
        elements = list(self._of(source))
        self._share(elements)
        return self._handle(call, elements)

    def _share(self, elements: Sequence[int]) -> None:
        for element in elements:
            if element != UNSET:
                self._owner.references[element] += 1

    def _of(self, handle: int) -> Sequence[int]:
        return self.elements.get(handle, ())

    def _handle(self, call: ListCall, elements: list[int]) -> int:
        handle = self._owner.allocate(call.node, call.plan.outputs[0].size_bytes, 0, _OUTPUT)
        self.elements[handle] = elements
        return handle


_Kernel = Callable[[TensorLists, ListCall], _Result]
_KERNELS: Final[dict[ListUse, _Kernel]] = {
    ListUse.NEW: TensorLists._new,
    ListUse.PUSH: TensorLists._push,
    ListUse.POP: TensorLists._pop,
    ListUse.SET: TensorLists._set,
    ListUse.GET: TensorLists._get,
    ListUse.STACK: TensorLists._stack,
    ListUse.UNSTACK: TensorLists._unstack,
    ListUse.RESIZE: TensorLists._resize,
    ListUse.ZEROS: TensorLists._zeros,
    ListUse.ADD: TensorLists._add,
    ListUse.PACK: TensorLists._pack,
    ListUse.UNPACK: TensorLists._unpack,
}
