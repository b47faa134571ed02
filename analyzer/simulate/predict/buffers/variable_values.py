"""Variables of a step: the buffer of each value, and when a write copies it.

Follows ``ResourceVariable`` ops in TensorFlow's ``resource_variable_ops.cc`` and
``training_op_helpers.h``. A variable that is read or written in part is in *copy-on-read* mode from
then on: each read copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from analyzer.simulate.predict.buffers.reference_counts import Ledger

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
    """The buffer of each variable's value.

    ``of_nodes`` has the number of the variable behind the first input of each node; -1 for none.
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

    def copy_before_update(self, node: int) -> None:
        """Copy a value before an update if a reader still holds it."""
        variable = self._of_nodes[node]
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
