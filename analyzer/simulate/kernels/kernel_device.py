"""The kernels of a device: all that the prediction knows about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.graph_note import Op
from analyzer.model.contract.run_note import VariableNote
from analyzer.simulate.kernels.cpu import cpu_kernels as cpu
from analyzer.simulate.kernels.shared import tensor_list_kernels as lists
from analyzer.simulate.kernels.shared.op_call import Call, MemoryPlan

HANDLE_BYTES: Final = 200
"""Bytes that ``VarHandleOp`` allocates for a resource handle (``sizeof(ResourceHandle)``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDevice:
    """The kernels of one device."""

    kind: str
    allocator: str  # TensorFlow's name of the device's allocator
    plan: Callable[[Call], MemoryPlan]
    held_bytes: Callable[
        [Op], int
    ]  # of a constant or an argument, held outside the step
    handle_bytes: int
    scratch_bytes: int = (
        0  # bytes that TensorFlow allocates with the device and never frees
    )
    host_dtypes: frozenset[str] = (
        frozenset()
    )  # element types of variables in host memory
    is_cheap: bool  # whether the executor gives no kernel to another thread

    def holds(self, variable: VariableNote) -> bool:
        """Say whether a variable of the step lies in this device's memory."""
        is_elsewhere = self.kind != "cpu" and "CPU" in variable.device
        return not is_elsewhere and variable.dtype not in self.host_dtypes


def _count_held_bytes(op: Op) -> int:
    spec = op.outputs[0]
    if spec.dtype == "variant" and op.type in ("Const", "HostConst"):
        return lists.HANDLE_BYTES  # an empty list
    return HANDLE_BYTES if spec.dtype == "resource" else spec.size_bytes or 0


CPU: Final = KernelDevice(
    kind="cpu",
    allocator="bfc_cpu_allocator_for_gpu",
    plan=cpu.plan,
    held_bytes=_count_held_bytes,
    handle_bytes=HANDLE_BYTES,
    is_cheap=False,
)
"""The CPU with its BFC allocator (``TF_CPU_ALLOCATOR_USE_BFC=1``)."""
