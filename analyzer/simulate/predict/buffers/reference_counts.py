"""Buffers with reference counts: what each op's turn allocates and frees, instant by instant.

A consumer's input slot holds one reference to the buffer of the tensor it waits for. When the op
runs, its outputs come into being while all inputs are still held; then the input slots are cleared;
then the outputs go to their consumers' slots. A buffer whose only reference is the slot of the op
that runs may be taken over by that op's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analyzer.model.recording.schema import TRIAL
from analyzer.simulate.kernels.shared.memory_plan import (
    ListUse,
    MemoryPlan,
    Output,
    Trial,
    VariableAccess,
    Way,
)
from analyzer.simulate.kernels.shared.xla_call import TABLE, CompiledCall
from analyzer.simulate.predict.buffers.tensor_lists import TensorLists
from analyzer.tracing.xla.compile_trials import CompileTrial

NO_BUFFER: Final = -1
NO_NODE: Final = -1

# Looked up here once: the lookup of an enumeration's member costs more than what follows from it.
_NO_LIST: Final = ListUse.NO
_READ, _UPDATE, _ASSIGN, _IN_PART = (
    VariableAccess.READ,
    VariableAccess.UPDATE,
    VariableAccess.ASSIGN,
    VariableAccess.IN_PART,
)
_ALLOCATE, _FORWARD, _ALIAS = Way.ALLOCATE, Way.FORWARD, Way.ALIAS


@dataclass(slots=True)
class Buffers:
    """What lived, one entry for each buffer, in order of birth.

    Attributes:
        size_bytes: Bytes asked for.
        born, dies: Instants; ``dies`` is -1 while it lives.
        node: Op that asked for it; -1 for what was there before the step.
        output: Output of that op that it holds; -1 for a temporary.
        variable: Number of the variable whose value it is or became; -1 for none.
        turned: Instant from which it is that variable's value; -1 for none.
        region: The allocator's word for it.
    """

    size_bytes: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)
    dies: list[int] = field(default_factory=list)
    node: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    variable: list[int] = field(default_factory=list)
    turned: list[int] = field(default_factory=list)
    region: list[str] = field(default_factory=list)


class Running:
    """The machine where ops take time: what an op uses is released when it ends.

    Args:
        ledger: Where the buffers are.

    Attributes:
        has_tried: Whether the op that was started last tried a library's algorithms, which takes long.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.references = ledger.references
        self._in_use: list[int] = []
        self.retain = ledger.retain
        self.release = ledger.release
        self.has_tried = False

    def compute(self, node: int, buffers: list[int], index: int | None = None) -> list[int]:
        """Start the node on these input buffers and return its output buffers.

        Args:
            node: Number of the node.
            buffers: Number of the buffer on each input.
            index: Value of the second input where a TensorList's kernel is told it; else None.
        """
        tried = self._ledger.trials
        outputs, self._in_use = self._ledger.begin(node, buffers, index)
        self.has_tried = self._ledger.trials > tried
        return outputs

    def take(self) -> list[int]:
        """Return what the op that was started last uses until it ends."""
        in_use, self._in_use = self._in_use, []
        return in_use


class Ledger:
    """The machine that the executor drives.

    Args:
        plans: For each node, what its kernel does.
        variables: For each node, the number of the variable behind its first input; -1 for none.
        sizes_bytes: For each variable, bytes of its value.
        held_bytes: For each node whose output something outside the step holds (a constant in its
            kernel, an argument in Python), the output's bytes.
        results: Nodes that hand a tensor to the caller, who holds it until the next step is over.
        shares: Variable -> an earlier variable whose buffer it has until one of them is written.
        arguments: For each call of a compiled function, the variable behind each input; -1 for none.
        ran_before: Whether the step has run before: variables that it reads or writes in part are
            then in copy-on-read mode already.

    Attributes:
        buffers: What lived.
        values: The buffer of each variable.
        held: The buffer of each node whose output something outside the step holds.
        instants: Allocations and frees so far.
        ran: Nodes in the order in which they ran since the last step began.
        trials: How often algorithms were tried on a copy so far.
    """

    def __init__(
        self,
        plans: Sequence[MemoryPlan],
        variables: Sequence[int],
        sizes_bytes: Sequence[int],
        held_bytes: Mapping[int, int],
        results: frozenset[int],
        shares: Mapping[int, int] | None = None,
        arguments: Mapping[int, Sequence[int]] | None = None,
        *,
        ran_before: bool = False,
    ) -> None:
        self._plans = plans
        self._variables = variables
        self._results = results
        self._arguments = arguments or {}
        self._returned: list[int] = []
        self._kept: list[int] = []
        self.buffers = Buffers()
        self.references: list[int] = []
        self.instants = 0
        self.trials = 0
        self._sizes_bytes = list(sizes_bytes)
        self.lists = TensorLists(self)
        self._sharers: dict[int, list[int]] = {}
        self._copied_on_read: set[int] = set()
        self._tried: set[tuple[object, ...]] = set()
        self._compiled: set[CompileTrial] = set()
        if ran_before:
            self._tried = {plan.trial.key for plan in plans if plan.trial is not None}
            self._compiled = {t for plan in plans if plan.compiled for t in plan.compiled.trials}
            self._copied_on_read = {
                variables[node]
                for node, plan in enumerate(plans)
                if plan.variable is VariableAccess.IN_PART and variables[node] >= 0
            }
        self.values: list[int] = []
        for number, size in enumerate(sizes_bytes):
            self.values.append(self._first_value(number, size, shares or {}))
        self.held = {node: self._resident(size, node=node) for node, size in held_bytes.items()}
        self.ran: list[int] = []

    def _first_value(self, number: int, size_bytes: int, shares: Mapping[int, int]) -> int:
        if number not in shares:
            return self._resident(size_bytes, variable=number)
        buffer = self.values[shares[number]]
        self.references[buffer] += 1
        self._sharers.setdefault(buffer, [shares[number]]).append(number)
        return buffer

    def end_step(self) -> None:
        """Let go of the results of the step before: Python holds a step's until the next returns."""
        for buffer in self._kept:
            self.release(buffer)
        self._kept, self._returned = self._returned, []

    def had_results(self) -> None:
        """Put the like of the last step's results before the first: it was not the first."""
        sizes = self.buffers.size_bytes
        for buffer, count in Counter(self._kept).items():
            if sizes[buffer] and self.references[buffer] == count:  # nothing else holds it
                before = self.allocate(NO_NODE, sizes[buffer], NO_NODE, "")
                self.buffers.born[before] = -1
                self.instants -= 1

    def retain(self, buffer: int) -> None:
        """Add a reference."""
        self.references[buffer] += 1

    def release(self, buffer: int) -> None:
        """Drop a reference; without any left the buffer is freed."""
        self.references[buffer] -= 1
        if self.references[buffer]:
            return
        if buffer in self.lists.elements:
            self.lists.end(buffer)
        if self.buffers.size_bytes[buffer]:
            self.buffers.dies[buffer] = self.instants
            self.instants += 1

    def compute(self, node: int, buffers: list[int], index: int | None = None) -> list[int]:
        """Run one op: allocate, forward, alias, update its variable; then clear its inputs.

        Args:
            node: Number of the node.
            buffers: Number of the buffer on each input.
            index: Value of the second input where a TensorList's kernel is told it; else None.
        """
        outputs, in_use = self.begin(node, buffers, index)
        references = self.references
        for buffer in in_use:
            if references[buffer] > 1:
                references[buffer] -= 1
            else:
                self.release(buffer)
        return outputs

    def begin(
        self, node: int, buffers: list[int], index: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Run one op up to where its kernel has all that it asks for.

        Args:
            node: The op.
            buffers: Its inputs.
            index: For a TensorList's kernel, the value of its second input; None where not known.

        Returns:
            Its output buffers, and the temporaries and inputs to release when it ends, in order.
        """
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
            outputs = [self._output(node, 0, plan.outputs[0], buffers)]
            return outputs, [buffer for buffer in buffers if buffer >= 0]
        variable = plan.variable
        if variable is _IN_PART:
            self._begin_copying_on_read(node)
        temporaries = self._ask_before(node, plan)
        if plan.compiled is not None:
            outputs = self._compute_compiled(node, plan, plan.compiled, buffers)
        elif plan.lists is not _NO_LIST:
            outputs, more = self.lists.compute(node, plan, buffers, index)
            temporaries += more
        elif variable is _READ:
            outputs = [self._read(node)]
        elif plan.amid_bytes:
            outputs, more = self._outputs_about(node, plan, buffers)
            temporaries += more
        else:
            outputs = [
                self._output(node, index, output, buffers)
                for index, output in enumerate(plan.outputs)
            ]
        temporaries += self._ask_after(node, plan)
        if variable is _UPDATE:
            self._copy_on_write(node)
        elif variable is _ASSIGN:
            self._assign(node, buffers[plan.value or 0])
        temporaries += [buffer for buffer in buffers if buffer >= 0]
        return outputs, temporaries

    def _ask_before(self, node: int, plan: MemoryPlan) -> list[int]:
        """Return the temporaries that a kernel asks for before its outputs."""
        held = [self.allocate(node, size, NO_NODE, "temp") for size in plan.before_bytes]
        for size in plan.scratch_bytes:
            self.release(self.allocate(node, size, NO_NODE, "temp"))
        if plan.trial is not None and plan.trial.is_early and not plan.after_bytes:
            self._try(node, plan.trial)
        return held

    def _ask_after(self, node: int, plan: MemoryPlan) -> list[int]:
        """Return the temporaries that a kernel asks for after its outputs; tries what is not tried."""
        held: list[int] = []
        for left, size in enumerate(plan.after_bytes, start=1 - len(plan.after_bytes)):
            if plan.trial is not None and plan.trial.is_early and not left:
                self._try(node, plan.trial)
            held.append(self.allocate(node, size, NO_NODE, "temp"))
        if plan.trial is not None:
            self._try(node, plan.trial)
        return held

    def _outputs_about(
        self, node: int, plan: MemoryPlan, buffers: list[int]
    ) -> tuple[list[int], list[int]]:
        """Return a node's outputs, and the temporaries that it asks for before the last of them.

        Args:
            node: The node.
            plan: What its kernel asks for.
            buffers: Number of the buffer on each of its inputs.
        """
        last = max(n for n, output in enumerate(plan.outputs) if output.way is _ALLOCATE)
        outputs: list[int] = []
        temporaries: list[int] = []
        for index, output in enumerate(plan.outputs):
            if index == last:
                temporaries = [
                    self.allocate(node, size, NO_NODE, "temp") for size in plan.amid_bytes
                ]
            outputs.append(self._output(node, index, output, buffers))
        return outputs, temporaries

    def _try(self, node: int, trial: Trial) -> None:
        """Ask for what the first call of a kind tries algorithms with, and give it back."""
        if trial.key in self._tried:
            return
        self._tried.add(trial.key)
        copy = self.allocate(node, trial.copy_bytes, NO_NODE, TRIAL)
        self.release(self.allocate(node, trial.scratch_bytes, NO_NODE, "temp"))
        self.release(copy)
        self.trials += trial.copy_bytes > 0

    def _try_compiling(self, node: int, trial: CompileTrial) -> None:
        """Ask for what XLA tries an instruction with, at the first: two results, one of them kept."""
        if trial in self._compiled:
            return
        self._compiled.add(trial)
        held = [self.allocate(node, size, NO_NODE, "temp") for size in trial.operands_bytes]
        for _ in range(2):
            held += [self.allocate(node, size, NO_NODE, "temp") for size in trial.results_bytes]
            if trial.scratch_bytes:
                self.release(self.allocate(node, trial.scratch_bytes, NO_NODE, "temp"))
        for buffer in held:
            self.release(buffer)

    def _compute_compiled(
        self, node: int, plan: MemoryPlan, compiled: CompiledCall, buffers: list[int]
    ) -> list[int]:
        """Ask for results and temporaries; new values take the old ones' buffers where they may.

        Args:
            node: The node.
            plan: What its kernel asks for.
            compiled: The requests in it.
            buffers: Number of the buffer on each of its inputs.
        """
        for trial in compiled.trials:
            self._try_compiling(node, trial)
        outputs = [NO_BUFFER] * len(plan.outputs)
        tables: list[int] = []
        temporaries: list[int] = []
        for size_bytes, output in compiled.requests:
            buffer = self.allocate(
                node, size_bytes, max(output, NO_NODE), "temp" if output < 0 else "output"
            )
            if output >= 0:
                outputs[output] = buffer
            else:
                (tables if output == TABLE else temporaries).append(buffer)
        adopted = []
        for source, size_bytes in compiled.updates:
            variable = self._arguments.get(node, ())[source]
            if variable < 0:
                continue
            if compiled.holds_constants and source in compiled.recompiled:
                self.references[self.values[variable]] += 1  # for as long as the process lives
            if self.references[self.values[variable]] > 1:
                adopted.append((variable, self.allocate(node, size_bytes, NO_NODE, "output")))
        for index, made in enumerate(plan.outputs):
            if made.way is _ALIAS:
                outputs[index] = self._hand_on(node, made.inputs[0], buffers)
        for buffer in temporaries:
            self.release(buffer)
        for variable, fresh in adopted:
            old = self.values[variable]
            self._become(variable, fresh)
            self.release(old)
        for buffer in tables:
            self.release(buffer)
        return outputs

    def _hand_on(self, node: int, source: int, buffers: list[int]) -> int:
        """Return the buffer of a compiled call's argument, or of its variable's value, once more held.

        Args:
            node: The node.
            source: Its input.
            buffers: Number of the buffer on each of its inputs.
        """
        variable = self._arguments.get(node, ())[source]
        buffer = buffers[source] if variable < 0 else self.values[variable]
        if buffer >= 0:
            self.references[buffer] += 1
        return buffer

    def _output(self, node: int, index: int, output: Output, buffers: list[int]) -> int:
        way = output.way
        if way is _ALLOCATE:
            return self.allocate(node, output.size_bytes, index, output.region)
        if way is _FORWARD:
            for source in output.inputs:
                buffer = buffers[source]
                if buffer >= 0 and self.references[buffer] == 1:
                    buffers[source] = NO_BUFFER
                    return buffer
            return self.allocate(node, output.size_bytes, index, output.region)
        if way is _ALIAS:
            buffer = next((b for b in (buffers[s] for s in output.inputs) if b >= 0), NO_BUFFER)
            if buffer >= 0:
                self.references[buffer] += 1
            return buffer
        return NO_BUFFER

    def allocate(self, node: int, size_bytes: int, output: int, region: str) -> int:
        """Ask for a buffer and return it, with one reference.

        Args:
            node: Number of the node that asks.
            size_bytes: Bytes asked for.
            output: Index of the node's output that it is for.
            region: TensorFlow's type of the request: ``output`` or ``temp``.
        """
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

    def size_bytes(self, buffer: int) -> int:
        """Return the bytes of a buffer."""
        return self.buffers.size_bytes[buffer]

    def _resident(self, size_bytes: int, *, variable: int = -1, node: int = NO_NODE) -> int:
        buffer = self.allocate(node, size_bytes, 0 if node >= 0 else NO_NODE, "")
        self.instants = 0
        self.buffers.born[buffer] = -1
        self.buffers.variable[buffer] = variable
        return buffer

    def _read(self, node: int) -> int:
        variable = self._variables[node]
        if variable < 0:
            return NO_BUFFER
        if variable in self._copied_on_read:
            return self.allocate(node, self._sizes_bytes[variable], 0, "output")
        buffer = self.values[variable]
        self.references[buffer] += 1
        return buffer

    def _copy_on_write(self, node: int) -> None:
        variable = self._variables[node]
        is_free = variable < 0 or self.references[self.values[variable]] == 1
        if is_free and variable not in self._copied_on_read:
            return
        self._copy(node, variable)

    def _begin_copying_on_read(self, node: int) -> None:
        variable = self._variables[node]
        if variable < 0 or variable in self._copied_on_read:
            return
        self._copied_on_read.add(variable)
        if self.references[self.values[variable]] != 1:
            self._copy(node, variable)

    def _copy(self, node: int, variable: int) -> None:
        old = self.values[variable]
        fresh = self.allocate(node, self._sizes_bytes[variable], NO_NODE, "temp")
        self._become(variable, fresh)
        self.release(old)

    def _assign(self, node: int, value: int) -> None:
        variable = self._variables[node]
        if variable < 0:
            return
        if variable in self._copied_on_read:
            self._copy(node, variable)
            return
        old = self.values[variable]
        if value < 0:
            value = self.allocate(NO_NODE, 0, NO_NODE, "")
        self.references[value] += 1
        self._become(variable, value)
        self.release(old)

    def _become(self, variable: int, buffer: int) -> None:
        old = self.values[variable]
        self.values[variable] = buffer
        sharers = self._sharers.get(old, ())
        if sharers and self.buffers.variable[old] == variable:
            # The value of two variables stays that of the other one.
            left = [other for other in sharers if self.values[other] == old]
            self.buffers.variable[old] = left[0] if left else variable
        if self.buffers.born[buffer] >= 0 or self.buffers.variable[buffer] < 0:
            self.buffers.variable[buffer] = variable
            self.buffers.turned[buffer] = max(self.instants - 1, 0)
