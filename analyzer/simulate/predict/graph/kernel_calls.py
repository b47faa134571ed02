"""Constants that TensorFlow folds, and the memory plans of all kernels of a graph.

The function runtime replaces each output up to 10 MiB of a stateless node whose inputs are all constants
(``constant_folding.cc``). Its bytes are then resident. A chain that ends in more runs in every step.
(Without folding, the resident bytes of an autoencoder are 5.8 % too low.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from analyzer.model.contract.graph_note import (
    ARGUMENT_TYPES,
    RESULT_TYPES,
    Op,
    op_types,
    split_tensor,
)
from analyzer.model.errors import TraceError
from analyzer.model.graph.reachability import reach
from analyzer.simulate.kernels.cpu.cpu_kernels import KNOWN_TYPES
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.kernels.shared.op_call import Call, MemoryPlan, VariableAccess, allocate_all
from analyzer.simulate.kernels.shared.xla_call import plan_compiled
from analyzer.simulate.predict.graph.edges import TYPES, Wiring
from analyzer.tracing.xla.buffer_plan import BufferPlan

_MOST_BYTES: Final = 10 << 20  # bytes of the largest folded result (``kMaxConstantSize``)
_CONSTANTS: Final = op_types("Const HostConst")
_SUFFIX: Final = "/__cf__"
_STATEFUL: Final = tuple(TYPES["stateful_beginnings"])
_STATELESS: Final = {kind for kind in KNOWN_TYPES if not kind.startswith(_STATEFUL)}
_FOLDED: Final = _STATELESS - TYPES["never_folded"] | {"EmptyTensorList"}
"""Stateless op types with a CPU kernel, without control flow (``IsConstantFoldable``)."""
_LISTS: Final = op_types("EmptyTensorList TensorListReserve")


def fold(ops: Sequence[Op]) -> list[Op]:
    """Return the graph with constants for outputs that can be computed beforehand.

    A constant replaces an output for its readers. The node disappears unless another node waits for
    it: then it still runs, and nothing reads its result (``ReplaceTensorWithConstant`` moves data
    edges only). Not modelled: constants of equal value become one (``OptimizeCSE``).
    """
    by_name = {op.name: op for op in ops}
    computed = _find_foldable(ops, by_name)
    if not computed:
        return list(ops)
    folded = {op.name for op in ops if op.type in _CONSTANTS} | computed.keys()
    running = [op for op in ops if op.name not in folded]
    needed = [name for op in running for name in op.control_inputs]
    read: dict[str, set[int]] = {}
    for name, output in {split_tensor(tensor) for op in running for tensor in op.inputs}:
        outputs = by_name[name].outputs if name in computed else ()
        if output < len(outputs) and (outputs[output].size_bytes or 0) <= _MOST_BYTES:
            read.setdefault(name, set()).add(output)
        else:
            needed.append(name)
    needed += [name for constant in read for name in computed[constant]]

    def find_needed(name: str) -> set[str]:
        return folded & {*by_name[name].control_inputs, *_parents_of(by_name[name])}

    remaining = reach(folded.intersection(needed), find_needed)
    moved: dict[tuple[str, int], str] = {}
    result = []
    for op in ops:
        for output in sorted(read.get(op.name, ())):
            is_gone = len(op.outputs) == 1 and op.name not in remaining
            name = op.name if is_gone else f"{op.name}{_SUFFIX}{output or ''}"
            moved[op.name, output] = name
            control = tuple(name for name in computed[op.name] if name in by_name)
            constant = Op(name, "Const", control_inputs=control, outputs=(op.outputs[output],))
            result.append(replace(constant, device=op.device, source=op.source))
        if op.name not in folded or op.name in remaining:
            result.append(op)
    return [_redirect(op, moved) if op.name not in folded else op for op in result]


def _find_foldable(ops: Sequence[Op], by_name: Mapping[str, Op]) -> dict[str, tuple[str, ...]]:
    """Return the foldable nodes, and what the constants of each wait for."""
    folded = {op.name for op in ops if op.type in _CONSTANTS}
    candidates = [op for op in ops if op.type in _FOLDED and op.inputs and _has_plain_outputs(op)]
    computed: dict[str, tuple[str, ...]] = {}
    count = -1
    while count != len(computed):
        count = len(computed)
        for op in candidates:
            parents = _parents_of(op)
            if op.name not in folded and parents <= folded:
                folded.add(op.name)
                own = (computed.get(p, by_name[p].control_inputs) for p in parents)
                computed[op.name] = tuple(dict.fromkeys(chain(op.control_inputs, *own)))
    return computed


def _has_plain_outputs(op: Op) -> bool:
    """Return whether all outputs are tensors of numbers; empty lists are constants also."""
    kinds = {spec.dtype for spec in op.outputs}
    return bool(kinds) and (op.type in _LISTS or not kinds & {"variant", "resource", "string"})


def _parents_of(op: Op) -> set[str]:
    return {split_tensor(tensor)[0] for tensor in op.inputs}


def _redirect(op: Op, moved: Mapping[tuple[str, int], str]) -> Op:
    inputs = [split_tensor(tensor) for tensor in op.inputs]
    if not any(tensor in moved for tensor in inputs):
        return op
    renamed = ((moved[t], 0) if t in moved else t for t in inputs)
    return replace(op, inputs=tuple(f"{name}:{k}" for name, k in renamed))


_LONGEST_REASON: Final = 200  # most characters of the reason why a rule does not fit
_HANDLE_SOURCES = (*ARGUMENT_TYPES, "VarHandleOp")


@dataclass(frozen=True, slots=True)
class Kernels:
    """Memory plans of every node's kernel."""

    plans: list[MemoryPlan]
    # for each node, the node that brings in the variable handle of its first input; -1 for none
    handles: list[int]
    # for each compiled function and each op that updates variables, the same for every input
    arguments: dict[int, list[int]]
    unmodelled: list[int]  # nodes without a rule, or that do not fit the rule of their type
    misfits: dict[int, str]  # nodes that do not fit the rule, with the reason


def plan_kernels(
    wiring: Wiring,
    *,
    threads: int,
    device: KernelDevice = CPU,
    compiled: Mapping[str, BufferPlan] | None = None,
) -> Kernels:
    """Return the memory plan of every node's kernel."""
    xla_plans, ops = compiled or {}, wiring.ops
    constants = [_read_constant(op) for op in ops]
    plans: list[MemoryPlan] = []
    misfits: dict[int, str] = {}
    for node, op in enumerate(ops):
        read = {output for _, output, _ in wiring.data_out[node]}
        call = Call(
            op=op,
            inputs=tuple(wiring.specs(node)),
            values=tuple(constants[source] for source, _ in wiring.inputs[node]),
            threads=threads,
            unused=frozenset(range(len(op.outputs))) - read,
        )
        xla_plan, used = xla_plans.get(op.name), max(read, default=-1)
        if xla_plan is not None:
            plans.append(plan_compiled(call, xla_plan, on_host=device.kind == CPU.kind))
            if why := _unfit(op, plans[-1], used):
                raise _misfit(op, why)
            continue
        if op.type in RESULT_TYPES and used >= 0:
            raise _misfit(op, "an op reads its result")
        plan, why = _plan(device, call, used)
        plans.append(plan)
        if why:
            misfits[node] = why
    return Kernels(
        plans=plans,
        handles=[_find_handle(wiring, feeds[0]) if feeds else -1 for feeds in wiring.inputs],
        arguments={
            node: [_find_handle(wiring, feed) for feed in wiring.inputs[node]]
            for node, plan in enumerate(plans)
            if plan.compiled is not None or plan.variable is VariableAccess.UPDATE
        },
        unmodelled=[node for node, plan in enumerate(plans) if not plan.modelled],
        misfits=misfits,
    )


def _plan(device: KernelDevice, call: Call, used: int) -> tuple[MemoryPlan, str]:
    """Return the plan of one op, and the reason why its rule does not fit; mostly empty.

    A rule relies on TensorFlow's op registry: number of inputs and outputs, ranks, attributes. An op
    without these is handled like an op without a rule: each output counts as allocated. ``used`` is
    the last of its outputs that another op reads; -1 for none.
    """
    try:
        plan = device.plan(call)
        why = _unfit(call.op, plan, used)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
    if not why:
        return plan, ""
    plain = MemoryPlan(outputs=allocate_all(call), modelled=False)
    if unfit := _unfit(call.op, plain, used):
        raise _misfit(call.op, unfit)
    return plain, why


def _unfit(op: Op, plan: MemoryPlan, used: int) -> str:
    """Return why a plan does not fit its op: a missing input, or a missing output that is read."""
    if used >= len(plan.outputs):
        return f"output {used} is read"
    last = max((index for output in plan.outputs for index in output.inputs), default=-1)
    if max(last, -1 if plan.value is None else plan.value) >= len(op.inputs):
        return f"it has {len(op.inputs)} inputs"
    return ""


def _misfit(op: Op, why: str) -> TraceError:
    return TraceError(
        f"The graph is damaged: its op {op.name[:80]!r} does not fit the type {op.type[:80]!r} ({why}).",
        hint="Estimate again.",
    )


def _read_constant(op: Op) -> tuple[int, ...] | None:
    value = op.attrs.get("value") if op.type in ("Const", "HostConst") else None
    if not isinstance(value, dict) or "values" not in value:
        return None
    values: Sequence[object] = value["values"]
    return tuple(int(x) for x in values if isinstance(x, (int, float)))


def _find_handle(wiring: Wiring, feed: tuple[int, int]) -> int:
    """Trace an input of type resource back to the argument that brings in the handle; else -1."""
    node, output = feed
    outputs = wiring.ops[node].outputs
    if output >= len(outputs) or outputs[output].dtype != "resource":
        return -1
    while wiring.ops[node].type not in _HANDLE_SOURCES and wiring.inputs[node]:
        node = wiring.inputs[node][0][0]
    return node
