"""The ops of the functions that ran, with the phase of each from the calls that made it.

``GradientTape.gradient`` and ``Optimizer.apply`` are wrapped while a function is traced: the ops that a
graph gets in such a call are of the backward pass or of the update. So are custom gradients, which have
no name scope of the tape. Other ops are of the update if they read a gradient and lead to none, or if
only the update reads them, such as the decayed momentum. All others are forward. A function that an op
calls has the op's phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from analyzer.capture.graph import plain_graphs as graphs
from analyzer.capture.graph.data_sizes import infer_executed_outputs
from analyzer.capture.private_names import list_concrete_functions
from analyzer.model.contract.run_note import ARGUMENT_TYPES, Op
from analyzer.model.graph.graph_index import (
    Phase,
    ScopeTable,
    find_inlined,
    find_phase_by_scope,
    list_outputs,
    reach,
    remove_rewrite,
)

# Graph -> the calls that made ops of it: the phase, and the number of ops before and after the call.
PhaseCalls: TypeAlias = Mapping[Any, Sequence[tuple[Phase, int, int]]]

# Op types that run a function with each batch of a data set (``for batch in dataset``).
_DATASET_LOOPS = frozenset({"ReduceDataset", "ScanDataset"})


@dataclass(frozen=True)
class RanGraph:
    """The graph of a function that ran, the executor's graphs, and the prefix of its ops.

    ``given`` are the tensors of a call.
    """

    graph: Any
    partitions: Sequence[Any] = ()
    prefix: str = ""
    given: Sequence[Any] = ()

    @cached_property
    def sources(self) -> dict[str, str]:
        """``file:line`` of the ops that have one."""
        return graphs.find_sources(self.graph)

    def list_loops(self) -> Iterator[RanGraph]:
        """Yield the bodies of loops over a data set, which have runs of their own."""
        known = graphs.collect_function_graphs(self.graph)

        for loop in graphs.list_ops(self.graph):
            if loop.type in _DATASET_LOOPS:
                body = known[loop.get_attr("f").name]
                yield RanGraph(body, prefix=f"{self.prefix}{loop.name}/")

    def read_ops(self) -> list[Op]:
        """Return the ops of the executor's graphs, else of the traced one."""
        if not self.partitions:
            return graphs.read_traced_ops(self.graph, self.sources)

        outputs = infer_executed_outputs(self.graph, self.partitions, self.given)
        return graphs.read_executed_ops(self.partitions, outputs, self.sources)


def list_ran_graphs(
    functions: Iterable[tuple[Any, Sequence[Any]]],
) -> list[RanGraph]:
    """Return the latest graphs of some ``tf.function`` objects, given with their executor's graphs."""
    found: dict[str, RanGraph] = {}

    for function, partitions in functions:
        prefix = f"{getattr(function.python_function, '__name__', 'function')}/"
        while prefix in found:
            prefix = f"{prefix[:-1]}_1/"

        for concrete in list_concrete_functions(function)[-1:]:
            own = RanGraph(concrete.graph, partitions, prefix)
            found |= {one.prefix: one for one in (own, *own.list_loops())}

    return list(found.values())


def add_prefix(op: Op, prefix: str) -> Op:
    """Return an op of a function beside the step, which has other arguments than the step."""
    return replace(
        op,
        name=prefix + op.name,
        inputs=tuple(prefix + name for name in op.inputs),
        control_inputs=tuple(prefix + name for name in op.control_inputs),
        attrs={} if op.type in ARGUMENT_TYPES else op.attrs,
    )


class PhaseFinder:
    """Finds phases and gradients of ops, from the observations of the functions' traces.

    Args:
        calls: The calls that made ops of the backward pass or of the update.
        gradients: Graph -> the names of gradients of parameters.
        scopes: The owners of name scopes.
    """

    def __init__(
        self,
        calls: PhaseCalls,
        gradients: Mapping[Any, dict[str, bool]],
        scopes: Mapping[str, tuple[str, str]],
    ) -> None:
        self._calls = calls
        self._scopes = ScopeTable(scopes)
        self._gradients = gradients

    def mark(self, graph: Any, ops: Iterable[Op]) -> tuple[list[Op], set[str]]:
        """Return the ops of a graph with their phases, and the gradients of parameters."""
        inner = graphs.collect_function_graphs(graph)
        known: dict[str, bool] = {}

        for function in inner.values():
            known |= self._gradients.get(function, {})

        phases = self._find_phases(inner)
        marked = []

        for op in ops:
            phase = find_inlined(remove_rewrite(op.name), phases)
            phase = phase or find_phase_by_scope(op.name, self._scopes)
            marked.append(replace(op, phase=phase.value))

        tensors = (tensor for op in marked for tensor in list_outputs(op))
        return marked, {tensor for tensor in tensors if find_inlined(tensor, known)}

    def _find_phases(self, inner: Mapping[str, Any]) -> dict[str, Phase]:
        """Return the phase of each op of the graphs, by name; empty if no trace was observed."""
        phases: dict[str, Phase] = {}
        inherited: dict[str, Phase] = {}
        is_observed = any(graph in self._calls for graph in inner.values())

        for name, graph in inner.items() if is_observed else ():
            makers = self._gradients.get(graph, ())
            own = _find_own_phases(
                graph,
                self._calls.get(graph, ()),
                {tensor.partition(":")[0] for tensor in makers},
            )

            for op in graph.get_operations():
                phase = own.get(op.name) or inherited.get(name, Phase.FORWARD)
                phases.setdefault(op.name, phase)

                for callee in graphs.list_callees(op):
                    inherited.setdefault(callee, phase)

        return phases


def _find_own_phases(
    graph: Any, calls: Iterable[tuple[Phase, int, int]], makers: set[str]
) -> dict[str, Phase]:
    """Return the phases of the ops of a graph that are not forward; ``makers`` make gradients."""
    ops = graph.get_operations()
    producers = {op.name: [tensor.op.name for tensor in op.inputs] for op in ops}
    consumers = defaultdict(list)

    for consumer, names in producers.items():
        for name in names:
            consumers[name].append(consumer)

    after = reach(makers, consumers.__getitem__)
    before = reach(makers, lambda name: producers.get(name, []))
    phases = dict.fromkeys(after - before, Phase.UPDATE)

    # of a penalty on gradients
    phases |= dict.fromkeys(after & before, Phase.BACKWARD)

    for phase, first, end in calls:
        phases |= dict.fromkeys([op.name for op in ops[first:end]], phase)

    for name in reversed(producers):
        if {phases.get(user) for user in consumers[name]} == {Phase.UPDATE}:
            phases.setdefault(name, Phase.UPDATE)

    return phases
