"""A compiled module as records: instructions, schedule, buffers and live ranges.

XLA gives every value of the module a *logical buffer* and places the logical buffers in *allocations*.
Normally all temporaries share one allocation, each at its own offset, and reuse bytes if their live
ranges do not overlap. The *heap trace* lists these ranges in the order of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import MOST_BYTES, check_size


class HeapAction(Choice):
    """An action of the compiler's heap simulator on a logical buffer."""

    ALLOC = "alloc"
    FREE = "free"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One HLO instruction."""

    id: int
    name: str
    opcode: str
    target: str  # target of a custom call; empty for others
    # element type and shape of each array of the result, by shape index; ``()`` is the index of a
    # result that is no tuple
    shapes: Mapping[tuple[int, ...], tuple[str, tuple[int, ...]]]
    op_name: str  # the framework's op that it was made from; empty if there is none
    op_type: str
    source: str  # ``file:line`` in XLA's metadata; empty if there is none
    parameter: int | None  # number of the parameter; None for other instructions
    tuple_index: int  # index of a ``get-tuple-element``; 0 for others
    operands: tuple[int, ...]
    calls: tuple[int, ...]
    computation: int
    fusion_kind: str = ""  # ``kLoop``, ``kInput`` or ``kCustom`` for a fusion; empty for others
    axes: tuple[int, ...] = ()  # the reduced axes of a reduction, the order of a transposition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalBuffer:
    """One value: ``size_bytes`` at ``shape_index`` of the result of ``instruction``."""

    id: int
    size_bytes: int
    instruction: int
    shape_index: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The position of a logical buffer in its allocation."""

    buffer: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAllocation:
    """One block of memory of the compiled module."""

    index: int
    size_bytes: int
    parameter: int | None  # number of the module's parameter; None for others
    is_live_out: bool  # whether it contains a part of the result
    is_constant: bool  # whether it lies in the executable
    is_thread_local: bool  # whether it lies on the stack of a kernel's thread
    is_tuple: bool  # whether it is a table of addresses
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapEvent:
    """One step of the heap simulator."""

    action: HeapAction  # whether ``buffer`` begins, ends, or begins in the bytes of ``shares_with``
    buffer: int
    shares_with: int | None  # the logical buffer whose bytes it reuses; None otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapTrace:
    """The heap simulator's steps for one allocation, in the order of the schedule."""

    events: tuple[HeapEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A part of the result that may be written into a parameter's buffer."""

    output_index: tuple[int, ...]
    parameter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hlo:
    """A module, and its buffer assignment if it is compiled."""

    name: str
    entry: int
    roots: Mapping[int, int]  # computation -> the instruction that makes its result
    instructions: Mapping[int, Instruction]
    # computation -> its instructions in execution order; empty if not compiled
    schedule: Mapping[int, tuple[int, ...]]
    buffers: Mapping[int, LogicalBuffer]
    allocations: tuple[BufferAllocation, ...]
    traces: tuple[HeapTrace, ...]
    aliases: tuple[Alias, ...]


_MOST_PARAMETERS = 1 << 20  # of one computation


def check_hlo(hlo: Hlo) -> None:
    """Check references and limits of a module.

    XLA writes instructions and computations after those that they use
    (``HloComputation::CreateFromProto`` and ``HloModule::CreateFromProto`` refuse others). A
    damaged file may contain cycles.

    Raises:
        ValueError: The module contradicts itself.
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
    """Check that each value begins once and then ends once."""
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
