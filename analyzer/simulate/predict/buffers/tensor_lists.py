"""TensorLists: what a loop's stacks and arrays hold, element by element.

A list is a small tensor on the host whose elements are references to other tensors; an element that was
never set has no buffer. A kernel that changes a list changes it in place where nothing else uses it, and
else makes another one that shares the elements (``ForwardInputOrCreateNewList`` in
``tensorflow/core/kernels/list_kernels.cc``). What refers to a tensor alone are its elements' references:
a list that ends lets go of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final, Protocol

from analyzer.simulate.kernels.shared.memory_plan import ListUse, MemoryPlan

NO_BUFFER: Final = -1
UNSET: Final = -1
"""An element that was never set: reading it gives zeros."""

_OUTPUT, _TEMP = "output", "temp"


class ListOwner(Protocol):
    """What lists need of the ledger."""

    references: list[int]

    def allocate(self, node: int, size_bytes: int, output: int, region: str) -> int:
        """Ask for a buffer, handed over with one reference.

        Args:
            node: Number of the node that asks.
            size_bytes: Bytes asked for.
            output: Index of the node's output that it is for.
            region: TensorFlow's type of the request: ``output`` or ``temp``.
        """

    def size_bytes(self, buffer: int) -> int:
        """Return the bytes of a buffer."""

    def release(self, buffer: int) -> None:
        """Drop a reference."""


class TensorLists:
    """The lists that live.

    Args:
        books: Where the buffers are.

    Attributes:
        elements: The buffer of a list's own tensor (its *handle*) -> those of its elements.
    """

    def __init__(self, books: ListOwner) -> None:
        self._books = books
        self.elements: dict[int, list[int]] = {}

    def end(self, handle: int) -> None:
        """Let go of the elements of a list that no one uses any more."""
        for element in self.elements.pop(handle):
            if element != UNSET:
                self._books.release(element)

    def compute(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """Run a list's kernel.

        Args:
            node: The op.
            plan: What its kernel does.
            buffers: Its inputs; a list that is changed in place is taken out.
            index: The value of its second input, an index or a count; None where it is not known.

        Returns:
            Its outputs, and temporaries to release when it ends.
        """
        return _KERNELS[plan.lists](self, node, plan, buffers, index)

    def _new(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """``EmptyTensorList``, and ``TensorListReserve`` with its elements unset."""
        return [self._handle(node, plan, [UNSET] * (index or 0))], []

    def _push(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        value = self._value(node, plan, buffers)
        handle = self._own(node, plan, buffers)
        self.elements[handle].append(value)
        return [handle], []

    def _pop(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        elements = self._of(buffers[0])
        last = elements[-1] if elements else UNSET
        element = self._read(node, plan, last, elements, 1)
        handle = self._own(node, plan, buffers)
        own = self.elements[handle]
        if own:
            popped = own.pop()
            if popped != UNSET:
                self._books.release(popped)
        return [handle, element], []

    def _set(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        value = self._value(node, plan, buffers)
        handle = self._own(node, plan, buffers)
        own = self.elements[handle]
        if index is None or index < 0:
            index = own.index(UNSET) if UNSET in own else len(own)
        own += [UNSET] * (index + 1 - len(own))
        old, own[index] = own[index], value
        if old != UNSET:
            self._books.release(old)
        return [handle], []

    def _get(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        elements = self._of(buffers[0])
        if index is None or not 0 <= index < len(elements):
            element = next((e for e in reversed(elements) if e != UNSET), UNSET)
        else:
            element = elements[index]
        return [self._read(node, plan, element, elements, 0)], []

    def _stack(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """One tensor of all elements; a tensor of zeros stands in for those that are unset."""
        elements = self._of(buffers[0])
        size_bytes = self._element_bytes(elements)
        whole = plan.outputs[0].size_bytes or size_bytes * len(elements)
        outputs = [self._books.allocate(node, whole, 0, _OUTPUT)]
        outputs += [
            self._books.allocate(node, output.size_bytes, number, _OUTPUT)
            for number, output in enumerate(plan.outputs[1:], start=1)
        ]
        if UNSET not in elements:
            return outputs, []
        zeros = size_bytes or whole // len(elements)
        return outputs, [self._books.allocate(node, zeros, UNSET, _TEMP)]

    def _unstack(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """Copy each row: the kernel aligns them all (``TensorListFromTensor``)."""
        handle = self._handle(node, plan, [])
        self.elements[handle] = [
            self._books.allocate(node, size_bytes, UNSET, _TEMP) for size_bytes in plan.rows_bytes
        ]
        return [handle], []

    def _resize(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        handle = self._own(node, plan, buffers)
        own = self.elements[handle]
        count = len(own) if index is None else max(index, 0)
        for element in own[count:]:
            if element != UNSET:
                self._books.release(element)
        own[count:] = [UNSET] * (count - len(own))
        return [handle], []

    def _zeros(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """Zeros for each element that is set (``TensorListZerosLike``)."""
        made = [
            UNSET
            if element == UNSET
            else self._books.allocate(node, self._books.size_bytes(element), UNSET, _TEMP)
            for element in self._of(buffers[0])
        ]
        return [self._handle(node, plan, made)], []

    def _add(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """Sum lists element by element; one that is set in one list only is shared.

        ``TensorListBinaryAdd``; of several lists the second joins the first and so on
        (``AddNOp<Device, Variant>`` in ``aggregate_ops.cc``).
        """
        total = list(self._of(buffers[0]))
        self._share(total)
        for source in buffers[1:]:
            total = [
                self._sum(node, mine, other)
                for mine, other in zip_longest(total, self._of(source), fillvalue=UNSET)
            ]
        return [self._handle(node, plan, total)], []

    def _pack(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """Refer to all inputs: an optional."""
        self._share(buffers)
        return [self._handle(node, plan, list(buffers))], []

    def _unpack(
        self, node: int, plan: MemoryPlan, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        elements = self._of(buffers[0])
        given = [elements[k] if k < len(elements) else UNSET for k in range(len(plan.outputs))]
        self._share(given)
        return given, []

    def _sum(self, node: int, mine: int, other: int) -> int:
        if other == UNSET:
            return mine
        if mine == UNSET:
            self._books.references[other] += 1
            return other
        made = self._books.allocate(node, self._books.size_bytes(mine), UNSET, _TEMP)
        self._books.release(mine)
        return made

    def _value(self, node: int, plan: MemoryPlan, buffers: list[int]) -> int:
        """Return the input that joins a list, with a reference for the list."""
        value = buffers[plan.value or 0]
        if value < 0:  # a tensor without bytes
            return self._books.allocate(node, 0, UNSET, _TEMP)
        self._books.references[value] += 1
        return value

    def _read(
        self, node: int, plan: MemoryPlan, element: int, others: Sequence[int], output: int
    ) -> int:
        if element != UNSET:
            self._books.references[element] += 1
            return element
        size_bytes = plan.outputs[output].size_bytes or self._element_bytes(others)
        return self._books.allocate(node, size_bytes, output, _OUTPUT)

    def _element_bytes(self, elements: Sequence[int]) -> int:
        return next((self._books.size_bytes(e) for e in elements if e != UNSET), 0)

    def _own(self, node: int, plan: MemoryPlan, buffers: list[int]) -> int:
        """Return the first input's list to be changed: itself where no one else uses it."""
        source = buffers[0]
        if source >= 0 and self._books.references[source] == 1:
            buffers[0] = NO_BUFFER
            self.elements.setdefault(source, [])
            return source
        elements = list(self._of(source))
        self._share(elements)
        return self._handle(node, plan, elements)

    def _share(self, elements: Sequence[int]) -> None:
        for element in elements:
            if element != UNSET:
                self._books.references[element] += 1

    def _of(self, handle: int) -> Sequence[int]:
        return self.elements.get(handle, ())

    def _handle(self, node: int, plan: MemoryPlan, elements: list[int]) -> int:
        handle = self._books.allocate(node, plan.outputs[0].size_bytes, 0, _OUTPUT)
        self.elements[handle] = elements
        return handle


_Kernel = Callable[
    [TensorLists, int, MemoryPlan, list[int], int | None], tuple[list[int], list[int]]
]
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
