"""What every reader of a compiled module relies on, checked once where the module is read.

XLA writes the instructions of a computation, and the computations of a module, so that what is used
comes before what uses it (``HloComputation::CreateFromProto`` and ``HloModule::CreateFromProto`` refuse
others). A damaged file need not: it may read what is not there, or itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.model.contract.element_sizes import check_size
from analyzer.model.contract.fields import MOST_BYTES
from analyzer.tracing.parse.hlo_module import (
    BufferAllocation,
    HeapAction,
    HeapEvent,
    Hlo,
    Instruction,
)

_MOST_PARAMETERS = 1 << 20  # of one computation


def check_hlo(hlo: Hlo) -> None:
    """Check that a module names only what it holds, and that its numbers are within bounds.

    Raises:
        ValueError: it contradicts itself.
    """
    seen: set[int] = set()
    for instruction in hlo.instructions.values():
        _check_instruction(hlo, instruction, seen)
        seen.add(instruction.id)
    for root in hlo.roots.values():
        _require(root in seen, f"instruction {root}, a result, is not there")
    _require(hlo.entry in hlo.roots, f"computation {hlo.entry}, the entry, is not there")
    for number in (n for order in hlo.schedule.values() for n in order):
        _require(number in seen, f"instruction {number} of the schedule is not there")
    for buffer in hlo.buffers.values():
        _check_bytes(buffer.size_bytes)
    for allocation in hlo.allocations:
        _check_allocation(allocation)
    for trace in hlo.traces:
        _check_heap(trace.events)
    _check_aliases(hlo)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_bytes(size_bytes: int) -> None:
    _require(0 <= size_bytes <= MOST_BYTES, f"a buffer of {size_bytes} B")


def _check_instruction(hlo: Hlo, one: Instruction, seen: set[int]) -> None:
    for dtype, shape in one.shapes.values():
        _require(all(axis >= 0 for axis in shape), f"instruction {one.id} has a negative axis")
        check_size(dtype, shape)
    for operand in one.operands:
        _require(operand in seen, f"instruction {one.id} reads {operand}, which is not before it")
    _require(
        one.parameter is None or 0 <= one.parameter < _MOST_PARAMETERS,
        f"instruction {one.id} is parameter {one.parameter}",
    )
    if one.opcode == "tuple":
        count = sum(1 for index in one.shapes if len(index) == 1)
        _require(len(one.operands) == count, f"tuple {one.id} does not fit its shape")
    if one.opcode == "get-tuple-element":
        _require(len(one.operands) == 1, f"instruction {one.id} reads no tuple")
        whole = hlo.instructions[one.operands[0]]
        _require((one.tuple_index,) in whole.shapes, f"instruction {one.id} reads beyond a tuple")


def _check_allocation(allocation: BufferAllocation) -> None:
    _check_bytes(allocation.size_bytes)
    number = allocation.parameter
    _require(number is None or 0 <= number < _MOST_PARAMETERS, f"parameter {number}")
    for part in allocation.slices:
        _require(
            part.offset_bytes >= 0
            and part.size_bytes >= 0
            and part.offset_bytes + part.size_bytes <= allocation.size_bytes,
            f"value {part.buffer} lies outside of allocation {allocation.index}",
        )


def _check_heap(events: Iterable[HeapEvent]) -> None:
    """Check that each value begins before it ends, and neither of it twice."""
    alive: set[int] = set()
    for event in events:
        begins = event.action is not HeapAction.FREE
        _require(begins != (event.buffer in alive), f"value {event.buffer} begins or ends twice")
        if begins:
            alive.add(event.buffer)
        else:
            alive.remove(event.buffer)


def _check_aliases(hlo: Hlo) -> None:
    root = hlo.instructions[hlo.roots[hlo.entry]]
    count = max(sum(1 for index in root.shapes if len(index) == 1), 1)
    for alias in hlo.aliases:
        result = alias.output_index[0] if alias.output_index else 0
        _require(0 <= result < count, f"result {result} is not there")
        _require(0 <= alias.parameter < _MOST_PARAMETERS, f"parameter {alias.parameter}")
