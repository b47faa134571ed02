"""Buffers with reference counts: the allocations and frees of each op, instant by instant.

An input slot of a waiting op holds one reference to its tensor's buffer. When the op runs, its outputs
are allocated while all inputs are still held; then the input slots are cleared; then the outputs go to
the slots of their consumers. An op may reuse a buffer if its input slot holds the only reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from analyzer.model.recording.schema import TRIAL, WORKSPACE
from analyzer.simulate.kernels.shared.op_call import (
    ListUse,
    MemoryPlan,
    Output,
    Trial,
    VariableAccess,
    Way,
    Workspace,
)
from analyzer.simulate.kernels.shared.xla_call import TABLE, CompiledCall
from analyzer.simulate.predict.buffers.tensor_lists import (
    NO_BUFFER,
    NO_NODE,
    Buffers,
    ListCall,
    TensorLists,
    VariableValues,
)

if TYPE_CHECKING:
    from analyzer.simulate.predict.prepared_step import Prepared

# Global names: looking up an enumeration's member costs more than the branch that uses it.
_NO_LIST: Final = ListUse.NO
_READ, _UPDATE = VariableAccess.READ, VariableAccess.UPDATE
_ASSIGN, _IN_PART = VariableAccess.ASSIGN, VariableAccess.IN_PART
_ALLOCATE, _FORWARD, _ALIAS = Way.ALLOCATE, Way.FORWARD, Way.ALIAS


class Ledger:
    """Runs nodes in memory: allocates, forwards and frees buffers.

    ``shares_buffers``: variables that start with one buffer still share it. ``has_run``: the step
    has run before, so partially read or written variables are in copy-on-read mode, and algorithms
    have been tried. ``is_timed``: ops take time, and ``compute`` leaves their buffers to ``take``.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        shares_buffers: bool = False,
        has_run: bool = False,
        is_timed: bool = False,
    ) -> None:
        self._is_timed = is_timed
        self._in_use: list[int] = []
        self._plans = plans = prepared.kernels.plans
        self._results = prepared.results
        self._arguments = prepared.arguments
        self._returned: list[int] = []
        self._previous: list[int] = []
        self.buffers = Buffers()
        self.references: list[int] = []
        self.instants = 0  # number of allocations and frees so far
        self.trials = 0  # number of algorithm trials so far
        self.ran: list[int] = []  # nodes in the order in which they ran in this step
        self.lists = TensorLists(self)
        self._tried: set[tuple[object, ...]] = set()
        if has_run:
            self._tried = {plan.trial.key for plan in plans if plan.trial is not None}
        sizes_bytes = [owner.size_bytes for owner in prepared.owners]
        self._variables = VariableValues(self, prepared.variables, sizes_bytes)
        if has_run:
            in_part = zip(prepared.variables, plans, strict=True)
            self._variables.copied_on_read = {
                v for v, plan in in_part if v >= 0 and plan.variable is _IN_PART
            }
        shares = prepared.shares if shares_buffers else {}
        for number, size in enumerate(sizes_bytes):
            first = None if number in shares else self._add_resident(size, variable=number)
            self._variables.add(shares, first)
        self.values = self._variables.buffers  # the buffer of each variable's value
        # The buffer of each node's output that lives outside the step.
        self.held = {
            node: self._add_resident(size, node=node) for node, size in prepared.held_bytes.items()
        }
        self._copied = prepared.copied_bytes

    def begin_step(self) -> None:
        """Copy the NumPy arrays among the arguments (``NdarrayToTensor``)."""
        for node, size_bytes in self._copied.items():
            self.held[node] = self.allocate(node, size_bytes, 0, "")

    def end_step(self) -> None:
        """Release copies of NumPy arrays, and the results that Python held since the previous step."""
        for node in self._copied:
            self.release(self.held.pop(node))
        for buffer in self._previous:
            self.release(buffer)
        self._previous, self._returned = self._returned, []

    def add_previous_results(self) -> None:
        """Add buffers like the last step's results before the first step, as in a later step."""
        sizes = self.buffers.size_bytes
        for buffer, count in Counter(self._previous).items():
            if sizes[buffer] and self.references[buffer] == count:  # nothing else holds it
                before = self.allocate(NO_NODE, sizes[buffer], NO_NODE, "")
                self.buffers.born[before] = -1
                self.instants -= 1

    def release(self, buffer: int) -> None:
        """Drop a reference; free the buffer with the last one."""
        self.references[buffer] -= 1
        if self.references[buffer]:
            return
        if buffer in self.lists.elements:
            self.lists.end(buffer)
        if self.buffers.size_bytes[buffer]:
            self.buffers.dies[buffer] = self.instants
            self.instants += 1

    def compute(self, node: int, buffers: list[int], index: int | None = None) -> list[int]:
        """Run an op and return its output buffers; ``index`` as in ``ListCall``."""
        outputs, self._in_use = self._begin(node, buffers, index)
        if not self._is_timed:
            for buffer in self.take():
                self.release(buffer)
        return outputs

    def take(self) -> list[int]:
        """Return the buffers that the last op uses until it ends."""
        in_use, self._in_use = self._in_use, []
        return in_use

    # Complex: one branch for each kind of kernel; runs for every op of every schedule.
    def _begin(
        self, node: int, buffers: list[int], index: int | None
    ) -> tuple[list[int], list[int]]:
        """Run an op until its kernel has all its memory; return outputs, and buffers in use."""
        self.ran.append(node)
        held = self.held.get(node)
        if held is not None:
            self.references[held] += 1
            return [held], []
        if node in self._results:
            self._returned += [buffer for buffer in buffers if buffer >= 0]
            return [], []
        plan = self._plans[node]
        if plan.is_plain:
            outputs = [self._make_output(node, 0, plan.outputs[0], buffers)]
            return outputs, [buffer for buffer in buffers if buffer >= 0]
        variable = plan.variable
        if variable is _IN_PART:
            self._variables.begin_copy_on_read(node)
        temporaries = self._allocate_before(node, plan)
        if plan.compiled is not None:
            outputs = self._compute_compiled(node, plan, plan.compiled, buffers)
        elif plan.lists is not _NO_LIST:
            outputs, more = self.lists.compute(ListCall(node, plan, buffers, index))
            temporaries += more
        elif variable is _READ:
            outputs = [self._variables.read(node)]
        else:
            outputs = self._make_outputs(node, plan, buffers, temporaries)
        if plan.copy is not None:
            temporaries.append(self._make_output(node, NO_NODE, plan.copy, buffers))
        temporaries += self._allocate_after(node, plan)
        if variable is _UPDATE:
            for number in self._arguments[node]:  # parameter and slots (``ResourceApplyAdam``)
                self._variables.copy_before_update(node, number)
        elif variable is _ASSIGN:
            self._variables.assign(node, buffers[plan.value or 0])
        temporaries += [buffer for buffer in buffers if buffer >= 0]
        return outputs, temporaries

    def _allocate_temporaries(self, node: int, sizes_bytes: Iterable[int]) -> list[int]:
        return [self.allocate(node, size, NO_NODE, "temp") for size in sizes_bytes]

    def _allocate_before(self, node: int, plan: MemoryPlan) -> list[int]:
        temporaries = self._allocate_temporaries(node, plan.before_bytes)
        for size in plan.scratch_bytes:
            self.release(self.allocate(node, size, NO_NODE, "temp"))
        if plan.trial is not None and plan.trial.is_early and not plan.after_bytes:
            temporaries += self._call_library(node, plan.trial, plan.workspace)
        return temporaries

    def _allocate_after(self, node: int, plan: MemoryPlan) -> list[int]:
        """Return the temporaries that a kernel allocates after its outputs; call its library."""
        trial, sizes = plan.trial, plan.after_bytes
        if trial is None:
            return self._allocate_temporaries(node, sizes)
        is_early = trial.is_early  # before the last of these temporaries, or before the outputs
        temporaries = self._allocate_temporaries(node, sizes[:-1] if is_early else sizes)
        if sizes or not is_early:
            temporaries += self._call_library(node, trial, plan.workspace)
        return temporaries + self._allocate_temporaries(node, sizes[-1:] if is_early else ())

    def _make_outputs(
        self, node: int, plan: MemoryPlan, buffers: list[int], temporaries: list[int]
    ) -> list[int]:
        """Return a node's outputs; add the temporaries that it allocates before the last of them."""
        last = -1
        if plan.amid_bytes:
            last = max(n for n, output in enumerate(plan.outputs) if output.way is _ALLOCATE)
        outputs: list[int] = []
        for index, output in enumerate(plan.outputs):
            if index == last:
                temporaries += self._allocate_temporaries(node, plan.amid_bytes)
            outputs.append(self._make_output(node, index, output, buffers))
        return outputs

    def _call_library(self, node: int, trial: Trial, workspace: Workspace | None) -> list[int]:
        """Return the workspace of a call; before it, try the algorithms once for each shape."""
        if trial.key not in self._tried:
            self._tried.add(trial.key)
            copy = self.allocate(node, trial.copy_bytes, NO_NODE, TRIAL)
            least = min(trial.scratch_bytes)
            for size in trial.scratch_bytes:
                region = "temp" if size == least else TRIAL
                self.release(self.allocate(node, size, NO_NODE, region))
            self.release(copy)
            self.trials += trial.copy_bytes > 0
        if workspace is None or not workspace.bytes:
            return []
        return [self.allocate(node, workspace.bytes, NO_NODE, WORKSPACE)]

    def _compute_compiled(
        self, node: int, plan: MemoryPlan, compiled: CompiledCall, buffers: list[int]
    ) -> list[int]:
        """Run a compiled function; new values of variables reuse buffers that nobody else holds."""
        outputs = [NO_BUFFER] * len(plan.outputs)
        tables: list[int] = []
        temporaries: list[int] = []
        for size_bytes, output in compiled.requests:
            if output >= 0:
                outputs[output] = self.allocate(node, size_bytes, output, "output")
            else:
                buffer = self.allocate(node, size_bytes, NO_NODE, "temp")
                (tables if output == TABLE else temporaries).append(buffer)
        new_values = self._allocate_new_values(node, compiled)
        for index, output_plan in enumerate(plan.outputs):
            if output_plan.way is _ALIAS:  # of an argument, or of its variable's value
                source = output_plan.inputs[0]
                variable = self._arguments.get(node, ())[source]
                outputs[index] = buffers[source] if variable < 0 else self.values[variable]
                if outputs[index] >= 0:
                    self.references[outputs[index]] += 1
        for buffer in temporaries:
            self.release(buffer)
        for variable, buffer in new_values:
            self._variables.replace(variable, buffer)
        for buffer in tables:
            self.release(buffer)
        return outputs

    def _allocate_new_values(self, node: int, compiled: CompiledCall) -> list[tuple[int, int]]:
        """Return variable and new buffer for each updated variable whose buffer is held elsewhere."""
        new_values = []
        for source, size_bytes in compiled.updates:
            variable = self._arguments.get(node, ())[source]
            if variable < 0:
                continue
            if compiled.holds_constants and source in compiled.recompiled:
                self.references[self.values[variable]] += 1  # for as long as the process lives
            if self.references[self.values[variable]] > 1:
                new_values.append((variable, self.allocate(node, size_bytes, NO_NODE, "output")))
        return new_values

    def _make_output(self, node: int, index: int, output: Output, buffers: list[int]) -> int:
        way = output.way
        if way is _FORWARD:
            for source in output.inputs:
                buffer = buffers[source]
                if buffer >= 0 and self.references[buffer] == 1:
                    buffers[source] = NO_BUFFER
                    return buffer
        if way is _ALLOCATE or way is _FORWARD:
            return self.allocate(node, output.size_bytes, index, output.region)
        if way is _ALIAS:
            buffer = next((b for b in (buffers[s] for s in output.inputs) if b >= 0), NO_BUFFER)
            if buffer >= 0:
                self.references[buffer] += 1
            return buffer
        return NO_BUFFER

    def allocate(self, node: int, size_bytes: int, output: int, region: str) -> int:
        """Return a requested buffer with one reference; ``output`` is -1 for a temporary."""
        table = self.buffers
        table.size_bytes.append(size_bytes)
        table.born.append(self.instants if size_bytes else NO_BUFFER)
        table.dies.append(-1)
        table.node.append(node)
        table.output.append(output)
        table.variable.append(-1)
        table.turned.append(-1)
        table.region.append(region)
        self.references.append(1)
        if size_bytes:
            self.instants += 1
        return len(self.references) - 1

    def _add_resident(self, size_bytes: int, *, variable: int = -1, node: int = NO_NODE) -> int:
        buffer = self.allocate(node, size_bytes, 0 if node >= 0 else NO_NODE, "")
        self.instants = 0
        self.buffers.born[buffer] = -1
        self.buffers.variable[buffer] = variable
        return buffer
