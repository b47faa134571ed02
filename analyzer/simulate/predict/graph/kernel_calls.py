"""From ops to what each op's kernel does: shapes, small constants and variables looked up once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, Op, TensorSpec
from analyzer.model.errors import TraceError
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan
from analyzer.simulate.kernels.shared.op_call import Call, allocate_all
from analyzer.simulate.kernels.shared.xla_call import plan_compiled
from analyzer.simulate.predict.graph.edges import Wiring
from analyzer.tracing.xla.buffer_plan import BufferPlan

_LONGEST_REASON: Final = 200
"""Letters kept of why a rule does not fit."""
_HANDLE_SOURCES = (*ARGUMENT_TYPES, "VarHandleOp")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What every node's kernel does.

    Attributes:
        plans: For each node, its plan.
        handles: For each node, the node whose output is the variable handle in its first input;
            -1 for none.
        arguments: For each call of a compiled function, the same for every input.
        unmodelled: Nodes whose type has no rule, or whose type's rule does not fit them.
        misfits: Of those the latter, each with why.
    """

    plans: list[MemoryPlan]
    handles: list[int]
    arguments: dict[int, list[int]]
    unmodelled: list[int]
    misfits: dict[int, str]


def plan_kernels(
    wiring: Wiring,
    *,
    threads: int,
    device: KernelDevice = CPU,
    compiled: Mapping[str, BufferPlan] | None = None,
) -> Kernels:
    """Return what every node's kernel does.

    Args:
        wiring: The graph.
        threads: Intra-op threads of the device.
        device: The device's kernels.
        compiled: Memory plans of the XLA-compiled functions, by the name of the op that calls one.
    """
    xla_plans = compiled or {}
    constants = [_constant(wiring, node) for node in range(len(wiring.ops))]
    plans: list[MemoryPlan] = []
    misfits: dict[int, str] = {}
    for node, op in enumerate(wiring.ops):
        feeds = wiring.inputs[node]
        call = Call(
            op=op,
            inputs=tuple(_spec(wiring, feed) for feed in feeds),
            values=tuple(constants[source] for source, _ in feeds),
            threads=threads,
            unused=_unused(wiring, node),
        )
        xla_plan = xla_plans.get(op.name)
        used = max((output for _, output, _ in wiring.data_out[node]), default=-1)
        if xla_plan is not None:
            plans.append(plan_compiled(call, xla_plan, on_host=device.kind == CPU.kind))
            if why := _unfit(op, plans[-1], used):
                raise _misfit(op, why)
            continue
        if op.type in RESULT_TYPES and used >= 0:
            raise _misfit(op, "what it returns is read")
        plan, why = _plan(device, call, used)
        plans.append(plan)
        if why:
            misfits[node] = why
    return Kernels(
        plans=plans,
        handles=_handles(wiring),
        arguments={
            node: _argument_handles(wiring, node)
            for node, plan in enumerate(plans)
            if plan.compiled is not None
        },
        unmodelled=[node for node, plan in enumerate(plans) if not plan.modelled],
        misfits=misfits,
    )


def _plan(device: KernelDevice, call: Call, used: int) -> tuple[MemoryPlan, str]:
    """Return the plan of one op by its kernel's rule, and why the rule does not fit it; mostly empty.

    A rule relies on what TensorFlow's op registry guarantees: the number of inputs and outputs, their
    ranks, the attributes. Where an op has them otherwise, its outputs are taken to be allocated, as
    those of a type without a rule are: it is counted and told, and the rest is still predicted.

    Args:
        device: The device's kernels.
        call: The op.
        used: The last of its outputs that another op reads; -1 for none.

    Raises:
        TraceError: an output is read that the op does not have.
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
    """Say how a plan speaks of inputs that its op lacks, or not of an output that is read."""
    if used >= len(plan.outputs):
        return f"output {used} is read"
    last = max((index for output in plan.outputs for index in output.inputs), default=-1)
    if max(last, -1 if plan.value is None else plan.value) >= len(op.inputs):
        return f"it has {len(op.inputs)} inputs"
    return ""


def _misfit(op: Op, why: str) -> TraceError:
    return TraceError(
        f"The graph is damaged: its op {op.name[:80]!r} does not fit the type "
        f"{op.type[:80]!r} ({why}).",
        hint="Estimate again.",
    )


def _unused(wiring: Wiring, node: int) -> frozenset[int]:
    count = len(wiring.ops[node].outputs)
    if count < 2 and wiring.data_out[node]:
        return frozenset()
    return frozenset(range(count)) - {output for _, output, _ in wiring.data_out[node]}


def _spec(wiring: Wiring, feed: tuple[int, int]) -> TensorSpec | None:
    source, output = feed
    outputs = wiring.ops[source].outputs
    return outputs[output] if output < len(outputs) else None


def _constant(wiring: Wiring, node: int) -> tuple[int, ...] | None:
    op = wiring.ops[node]
    value = op.attrs.get("value") if op.type in ("Const", "HostConst") else None
    if not isinstance(value, dict) or "values" not in value:
        return None
    values: Sequence[object] = value["values"]
    return tuple(int(x) for x in values if isinstance(x, (int, float)))


def _handles(wiring: Wiring) -> list[int]:
    """Follow each first input of type resource back to the argument that brought the handle in."""
    found: dict[int, int] = {}
    handles = []
    for node in range(len(wiring.ops)):
        spec = _spec(wiring, wiring.inputs[node][0]) if wiring.inputs[node] else None
        is_handle = spec is not None and spec.dtype == "resource"
        handles.append(_origin(wiring, wiring.inputs[node][0][0], found) if is_handle else -1)
    return handles


def _argument_handles(wiring: Wiring, node: int) -> list[int]:
    found: dict[int, int] = {}
    handles = []
    for feed in wiring.inputs[node]:
        spec = _spec(wiring, feed)
        is_handle = spec is not None and spec.dtype == "resource"
        handles.append(_origin(wiring, feed[0], found) if is_handle else -1)
    return handles


def _origin(wiring: Wiring, node: int, found: dict[int, int]) -> int:
    path: list[int] = []
    while node not in found and wiring.ops[node].type not in _HANDLE_SOURCES:
        path.append(node)
        if not wiring.inputs[node]:
            break
        node = wiring.inputs[node][0][0]
    origin = found.get(node, node)
    for step in path:
        found[step] = origin
    return origin
