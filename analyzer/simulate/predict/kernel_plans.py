"""The memory plans of all kernels of a graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, Op
from analyzer.model.errors import TraceError
from analyzer.simulate.kernels.kernel_device import KernelDevice
from analyzer.simulate.kernels.shared.op_call import (
    Call,
    MemoryPlan,
    VariableAccess,
    allocate_all,
)
from analyzer.simulate.predict.wiring import Wiring

_HANDLE_SOURCES: Final = (*ARGUMENT_TYPES, "VarHandleOp")


@dataclass(frozen=True, slots=True)
class Kernels:
    """Memory plans of every node's kernel."""

    plans: list[MemoryPlan]
    # for each node, the node that brings in the variable handle of its first input; -1 for none
    handles: list[int]
    # for each op that updates variables, the same for every input
    arguments: dict[int, list[int]]
    # nodes without a rule, or that do not fit the rule of their type
    unmodelled: list[int]


def plan_kernels(wiring: Wiring, device: KernelDevice) -> Kernels:
    """Return the memory plan of every node's kernel."""
    ops = wiring.ops
    constants = [_read_constant(op) for op in ops]
    plans: list[MemoryPlan] = []

    for node, op in enumerate(ops):
        read = {output for _, output, _ in wiring.data_out[node]}
        call = Call(
            op=op,
            inputs=tuple(wiring.specs(node)),
            values=tuple(constants[source] for source, _ in wiring.inputs[node]),
            unused=frozenset(range(len(op.outputs))) - read,
        )
        last_read = max(read, default=-1)

        if op.type in RESULT_TYPES and read:
            raise _damage(op, "an op reads its result")

        plans.append(_plan(device, call, last_read))

    return Kernels(
        plans=plans,
        handles=[
            _find_handle(wiring, feeds[0]) if feeds else -1 for feeds in wiring.inputs
        ],
        arguments={
            node: [_find_handle(wiring, feed) for feed in wiring.inputs[node]]
            for node, plan in enumerate(plans)
            if plan.variable is VariableAccess.UPDATE
        },
        unmodelled=[node for node, plan in enumerate(plans) if not plan.modelled],
    )


def _plan(device: KernelDevice, call: Call, last_read: int) -> MemoryPlan:
    """Return the plan of one op.

    A rule relies on TensorFlow's op registry: number of inputs and outputs, ranks, attributes. An op
    without these is handled like an op without a rule: each output counts as allocated.
    """
    try:
        plan = device.plan(call)
        if not _find_misfit(call.op, plan, last_read):
            return plan
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        pass

    plain = MemoryPlan(outputs=allocate_all(call), modelled=False)
    if damage := _find_misfit(call.op, plain, last_read):
        raise _damage(call.op, damage)
    return plain


def _find_misfit(op: Op, plan: MemoryPlan, last_read: int) -> str:
    """Return why a plan does not fit its op: a missing input, or a missing output that is read."""
    if last_read >= len(plan.outputs):
        return f"output {last_read} is read"

    inputs = [index for output in plan.outputs for index in output.inputs]
    if plan.value is not None:
        inputs.append(plan.value)
    if max(inputs, default=-1) >= len(op.inputs):
        return f"it has {len(op.inputs)} inputs"
    return ""


def _damage(op: Op, why: str) -> TraceError:
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
    if wiring.ops[node].outputs[output].dtype != "resource":
        return -1

    while wiring.ops[node].type not in _HANDLE_SOURCES and wiring.inputs[node]:
        node = wiring.inputs[node][0][0]

    return node
