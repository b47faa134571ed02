"""Buffers of a process, references to them, and TensorLists (the stacks and arrays of loops).

A list is a small host tensor (its *handle*) whose elements are references to other tensors; an element
that was never set has no buffer. A kernel changes a list in place if nothing else uses it. Otherwise it
makes a new list that shares the elements (``ForwardInputOrCreateNewList`` in
``tensorflow/core/kernels/list_kernels.cc``). A freed list releases its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from analyzer.model.graph.graph_index import Label
from analyzer.simulate.kernels.op_call import ListUse, MemoryPlan

if TYPE_CHECKING:
    from analyzer.simulate.predict.ledger import Ledger

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
Tensor: TypeAlias = Buffer | None


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
        inputs: list[Tensor],
        index: int,
    ) -> None:
        self._ledger = ledger
        self._node = node
        self._plan = plan
        self._inputs = inputs  # a list that the kernel changes in place is removed
        self._index = index
        self.temporaries: list[Tensor] = []  # to release at the kernel's end

    def compute(self) -> list[Tensor]:
        """Run the kernel and return its outputs."""
        return _KERNELS[self._plan.lists](self)

    def _new(self) -> list[Tensor]:
        """``EmptyTensorList``, and ``TensorListReserve`` with its elements unset."""
        return [self._make_list([])]

    def _push(self) -> list[Tensor]:
        value = self._take_value()
        handle, elements = self._change_list()
        elements.append(value)

        return [handle]

    def _pop(self) -> list[Tensor]:
        elements = self._elements_of(self._inputs[0])
        element = self._read(elements[-1] if elements else None, elements, 1)
        handle, own = self._change_list()

        if own:
            self._ledger.release(own.pop())

        return [handle, element]

    def _set(self) -> list[Tensor]:
        value = self._take_value()
        handle, own = self._change_list()
        index = self._index

        own += [None] * (index + 1 - len(own))
        self._ledger.release(own[index])
        own[index] = value

        return [handle]

    def _get(self) -> list[Tensor]:
        elements = self._elements_of(self._inputs[0])
        element = next(iter(elements[self._index : self._index + 1]), None)

        return [self._read(element, elements, 0)]

    def _stack(self) -> list[Tensor]:
        first, *others = (output.size_bytes for output in self._plan.outputs)
        elements = self._elements_of(self._inputs[0])
        sizes = [first or _element_bytes(elements) * len(elements), *others]

        outputs: list[Tensor] = [
            self._ledger.allocate(size, self._node, index, OUTPUT)
            for index, size in enumerate(sizes)
        ]

        if None in elements:
            # One tensor of zeros replaces every unset element.
            zeros = _element_bytes(elements) or first // len(elements)
            self.temporaries.append(self._allocate(zeros))

        return outputs

    def _unstack(self) -> list[Tensor]:
        """Copy each row of a tensor into an unset element of a list, or into a new list."""
        if self._plan.value:
            handle, own = self._change_list()
        else:
            own = []
            handle = self._make_list(own)

        for size_bytes in self._plan.rows_bytes:
            index = _find_unset(own)
            own[index : index + 1] = [self._allocate(size_bytes)]

        return [handle]

    def _resize(self) -> list[Tensor]:
        handle, _ = self._change_list()
        return [handle]

    def _zeros(self) -> list[Tensor]:
        """Make zeros for each set element (``TensorListZerosLike``)."""
        elements = self._elements_of(self._inputs[0])
        zeros = [one and self._allocate(one.size_bytes) for one in elements]

        return [self._make_list(zeros)]

    def _add(self) -> list[Tensor]:
        """Sum lists element by element; share an element that only one list has.

        ``TensorListBinaryAdd``; ``AddNOp<Device, Variant>`` (``aggregate_ops.cc``) adds one by one.
        """
        total = _share_all(self._elements_of(self._inputs[0]))
        for source in self._inputs[1:]:
            pairs = zip_longest(total, self._elements_of(source))
            total = [self._sum(mine, other) for mine, other in pairs]

        return [self._make_list(total)]

    def _pack(self) -> list[Tensor]:
        """Make an optional, which holds all inputs."""
        return [self._make_list(_share_all(self._inputs))]

    def _unpack(self) -> list[Tensor]:
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
        value = share(self._inputs[self._plan.value or 0])
        if value is None:
            return self._allocate(0)

        return value

    def _read(self, element: Tensor, others: Sequence[Tensor], output: int) -> Tensor:
        if element is not None:
            return share(element)

        size_bytes = self._plan.outputs[output].size_bytes or _element_bytes(others)
        return self._ledger.allocate(size_bytes, self._node, output, OUTPUT)

    def _change_list(self) -> tuple[Buffer, list[Tensor]]:
        """Return a list to change: the first input itself if nothing else uses it, else a copy."""
        source = self._inputs[0]
        if source is not None and source.references == 1:
            self._inputs[0] = None
            source.elements = source.elements or []

            return source, source.elements

        elements = _share_all(self._elements_of(source))

        return self._make_list(elements), elements

    def _make_list(self, elements: list[Tensor]) -> Buffer:
        size_bytes = self._plan.outputs[0].size_bytes
        handle = self._ledger.allocate(size_bytes, self._node, 0, OUTPUT)
        handle.elements = elements

        return handle

    def _elements_of(self, handle: Tensor) -> Sequence[Tensor]:
        if handle is None:
            return ()

        return handle.elements or ()


def _share_all(elements: Sequence[Tensor]) -> list[Tensor]:
    return [share(element) for element in elements]


def _find_unset(elements: list[Tensor]) -> int:
    """Return the index of the first element that was never set, or of the place after the last."""
    if None in elements:
        return elements.index(None)

    return len(elements)


def _element_bytes(elements: Sequence[Tensor]) -> int:
    return next((one.size_bytes for one in elements if one is not None), 0)


_KERNELS: dict[ListUse, Callable[[ListCall], list[Tensor]]] = {
    use: getattr(ListCall, f"_{use.name.lower()}")
    for use in ListUse
    if use is not ListUse.NO
}
