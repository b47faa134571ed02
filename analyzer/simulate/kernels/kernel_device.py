"""A device's kernels as one value: what each op does to the memory of that device.

The prediction takes one of these and asks nothing else about the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.graph_note import Op
from analyzer.simulate.kernels.cpu import cpu_kernels as cpu
from analyzer.simulate.kernels.shared import tensor_list_kernels as lists
from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan
from analyzer.simulate.kernels.shared.op_call import Call

HANDLE_BYTES: Final = 200
"""A resource handle: what ``VarHandleOp`` allocates for it (``sizeof(ResourceHandle)``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDevice:
    """The kernels of one device.

    Attributes:
        kind: ``cpu`` or ``gpu``.
        allocator: TensorFlow's name of the device's allocator.
        plan: What one run of an op's kernel does to the device's memory.
        held_bytes: Bytes on the device of output 0 of an op whose output something outside the step
            holds: a constant, an argument.
        handle_bytes: Bytes on the device of a variable's handle.
        scratch_bytes: Bytes that TensorFlow takes when it makes the device, and keeps.
        host_dtypes: Element types of variables that live in the host's memory instead.
        is_cheap: Whether every kernel counts as cheap, so that the executor dispatches none.
    """

    kind: str
    allocator: str
    plan: Callable[[Call], MemoryPlan]
    held_bytes: Callable[[Op], int]
    handle_bytes: int
    scratch_bytes: int = 0
    host_dtypes: frozenset[str] = frozenset()
    is_cheap: bool


def _held_on_cpu(op: Op) -> int:
    spec = op.outputs[0]
    if spec.dtype == "variant" and op.type in ("Const", "HostConst"):
        return lists.HANDLE_BYTES  # an empty list, made beforehand
    return HANDLE_BYTES if spec.dtype == "resource" else spec.size_bytes or 0


CPU: Final = KernelDevice(
    kind="cpu",
    allocator="bfc_cpu_allocator_for_gpu",
    plan=cpu.plan,
    held_bytes=_held_on_cpu,
    handle_bytes=HANDLE_BYTES,
    is_cheap=False,
)
"""The CPU, under the allocator that TensorFlow uses where it is a BFC allocator."""
