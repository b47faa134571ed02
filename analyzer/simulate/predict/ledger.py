"""Buffers with reference counts: the allocations and frees of a process, instant by instant.

An input of a waiting op holds one reference to its tensor's buffer. When the op runs, its outputs are
allocated while all inputs are still held; then the inputs are released. An op may reuse a buffer if its
input holds the only reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import RESULT_TYPES
from analyzer.model.recording.records import WORKSPACE
from analyzer.simulate.kernels.op_call import (
    ListUse,
    Output,
    VariableAccess,
    Way,
)
from analyzer.simulate.predict.buffers import (
    NO_NODE,
    TEMPORARY,
    Buffer,
    ListCall,
    Tensor,
    share,
)

if TYPE_CHECKING:
    from analyzer.simulate.predict.prepared_step import Prepared


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

    def begin_step(self) -> None:
        """Forget the order of the step before."""
        self.ran.clear()

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
        inputs: list[Tensor],
        iteration: int,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Run an op in an iteration; return its outputs, and the buffers that it uses until its end."""
        self.ran.append(node)
        if node in self.held:
            return [share(self.held[node])], []

        if self._prepared.ops[node].type in RESULT_TYPES:
            self._returned += [buffer for buffer in inputs if buffer is not None]
            return [], []

        plan = self._plans[node]
        temporaries = self.allocate_temporaries(node, plan.before_bytes)

        if plan.lists is not ListUse.NO:
            call = ListCall(self, node, plan, inputs, iteration)
            outputs = call.compute()
            temporaries += call.temporaries
        elif plan.variable is VariableAccess.READ:
            outputs = [self._read(node)]
        else:
            outputs = []
            for number, output in enumerate(plan.outputs):
                outputs.append(self._make_output(node, number, output, inputs))

        temporaries += self.allocate_temporaries(node, plan.after_bytes)
        workspace_bytes = plan.workspaces_bytes[0]
        if workspace_bytes:
            workspace = self.allocate(workspace_bytes, node, region=WORKSPACE)
            temporaries.append(workspace)

        if plan.variable is VariableAccess.UPDATE:
            # The parameter and its slots (``ResourceApplyAdam``).
            for variable in self._prepared.find_variables(node):
                self._copy_before_update(node, variable)
        elif plan.variable is VariableAccess.ASSIGN:
            self._assign(node, inputs[plan.value or 0])

        return outputs, [*temporaries, *inputs]

    def allocate_temporaries(
        self,
        node: int,
        sizes_bytes: Iterable[int],
    ) -> list[Tensor]:
        """Return temporaries of these sizes."""
        return [self.allocate(size, node) for size in sizes_bytes]

    def _make_output(
        self,
        node: int,
        index: int,
        output: Output,
        inputs: list[Tensor],
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
