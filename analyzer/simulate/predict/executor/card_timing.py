"""What takes time on the host when a step runs on a card: launches, and copies that are waited for.

A kernel on a card only launches what it computes, so the executor counts it as inexpensive
(``OpKernel::OpKernel`` in ``op_kernel.cc``) and one thread runs all of them in line. A copy between the
memories is another matter: its kernel (``RecvOp``, an ``AsyncOpKernel``) returns at once, and when the
copy is over the ``EventMgr``'s one thread that calls back hands each node that waited for it to the pool
(``ExecutorState::ScheduleReady`` without a queue in line). What follows a copy therefore runs on another
thread, beside what was ready before it. So do kernels that wait for a number from the card.

In a process's first step some kernels hold their thread up by far more than any copy: those that
TensorFlow compiles when they are first run (``COMPILED_AT_FIRST``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.model.graph.ops import op_types
from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, VariableAccess, Way
from analyzer.simulate.predict.executor.measured_rates import measured
from analyzer.simulate.predict.graph.edges import INEXPENSIVE, Wiring

LAUNCH_SECONDS: Final = measured("launch_s")
CONVOLUTION_SECONDS: Final = measured("convolution_launch_s")
HANDED_ON_SECONDS: Final = measured("cheap_s")

_NUMBERS: Final = op_types(
    """
    Where Unique UniqueV2 DynamicPartition SegmentSum SegmentProd SegmentMax SegmentMin SegmentMean
    """
)
"""Types whose kernel waits for a number that is copied back from the card."""

COMPILED_AT_FIRST: Final = op_types(
    """
    Atan2 BitwiseAnd BitwiseOr BitwiseXor Ceil Digamma Elu Erf Erfc Exp Expm1 Floor FloorMod Invert
    LeftShift Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Neg NextAfter OnesLike
    Polygamma Pow Reciprocal Relu RightShift Rint Round Rsqrt SelectV2 Selu Sigmoid Sign Softplus
    Softsign Sqrt Square SquaredDifference TruncateDiv Xdivy Xlog1py Xlogy ZerosLike Zeta
    """
)
"""Types whose kernel the wheel for cards has as a program and not as code: LLVM and ptxas make it when
it is first run, once for each element type (``kernels/mlir_generated``, ``tf_jit_cache.cc``). Read off
the symbols of TensorFlow 2.21: these have no ``TYPE_GPU_DT_FLOAT_DT_FLOAT_kernel_blob``, as ``Mul``,
``AddV2`` and the like have."""

_PRECOMPILED: Final = frozenset({"bfloat16"})
"""Element types whose kernels are none of these."""

_RUN_BEFORE: Final = frozenset({"FloorMod int64", "FloorMod uint32"})
"""Kernels that a process has run before its first step: Keras' initializers draw their seeds with them
(``_cast_seed`` in ``keras/src/backend/tensorflow/random.py``)."""

_WAITS: Final = frozenset((COPY, COPY_BACK, *_NUMBERS))
"""Types whose kernel on a card is an ``AsyncOpKernel``: ``sendrecv_ops.h``, ``unique_op_gpu.cu.h``,
``segment_reduction_ops_impl.h``, ``where_op.cc``, ``dynamic_partition_op_gpu.cu.cc``."""


def launches_of(wiring: Wiring, plans: Sequence[MemoryPlan]) -> tuple[float, ...]:
    """Return for about how many seconds each node keeps its thread.

    Args:
        wiring: The graph.
        plans: What each node's kernel does.
    """
    return tuple(_seconds(op.type, plan) for op, plan in zip(wiring.ops, plans, strict=True))


def _seconds(kind: str, plan: MemoryPlan) -> float:
    if kind in INEXPENSIVE or plan.variable is VariableAccess.READ:
        return HANDED_ON_SECONDS
    return CONVOLUTION_SECONDS if "Conv" in kind else LAUNCH_SECONDS


def waits_of(wiring: Wiring) -> tuple[bool, ...]:
    """Return for each node whether it is waited for after its kernel returned; mostly not."""
    return tuple(op.type in _WAITS for op in wiring.ops)


def compiled_at_first(wiring: Wiring, plans: Sequence[MemoryPlan]) -> tuple[str, ...]:
    """Return for each node the kernel that is compiled where it has not run before; mostly none, "".

    Args:
        wiring: The graph.
        plans: What each node's kernel does.
    """
    return tuple(_compiled(op, plan) for op, plan in zip(wiring.ops, plans, strict=True))


def _compiled(op: Op, plan: MemoryPlan) -> str:
    on_host = not plan.outputs or plan.outputs[0].way is Way.NONE
    if op.type not in COMPILED_AT_FIRST or on_host or op.outputs[0].dtype in _PRECOMPILED:
        return ""
    kernel = f"{op.type} {op.outputs[0].dtype}"
    return "" if kernel in _RUN_BEFORE else kernel
