"""Reader of XLA's HloProto: instructions, buffers and live ranges of a compiled module.

XLA gives every value of the module a *logical buffer* and places the logical buffers in *allocations*.
Normally all temporaries share one allocation, each at its own offset, and reuse bytes if their live
ranges do not overlap. The *heap trace* lists these ranges in the order of the schedule.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from analyzer.model.contract.fields import MOST_BYTES, check_size
from analyzer.model.errors import TraceError
from analyzer.tracing.parse.protobuf import (
    TEXTS,
    decode_text,
    message_class,
    read_schema,
)

_ELEMENT_TYPES: Final = dict(enumerate(TEXTS["xla_types"].split(), 1))
"""XLA's number of an element type -> TensorFlow's name."""

_MOST_PARAMETERS: Final = 1 << 20  # of one computation
ALLOC, FREE, SHARE = range(
    3
)  # kinds of heap events (``HeapSimulatorTrace`` in ``hlo.proto``)

HloProto: Any = message_class("analyzer.hlo", read_schema("hlo"), "Hlo")
"""The message class of a module and, if compiled, its buffer assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One HLO instruction."""

    id: int
    name: str
    opcode: str
    target: str  # target of a custom call; empty for others
    # shape index -> element type and shape of an array; ``()`` is that of a result that is no tuple
    shapes: Mapping[tuple[int, ...], tuple[str, tuple[int, ...]]]
    op_name: str  # the framework's op that it was made from; empty if there is none
    op_type: str
    parameter: int | None  # number of the parameter; None for other instructions
    tuple_index: int  # index of a ``get-tuple-element``; 0 for others
    operands: tuple[int, ...]
    calls: tuple[int, ...]
    computation: int

    @property
    def parts(self) -> int:
        """Number of parts of a tuple, 0 for another result."""
        return sum(1 for index in self.shapes if len(index) == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hlo:
    """A module, and its buffer assignment if it is compiled."""

    name: str
    entry: int
    roots: Mapping[int, int]  # computation -> the instruction that makes its result
    instructions: Mapping[int, Instruction]
    # logical buffer -> the instruction that makes its value, and the shape index in its result
    buffers: Mapping[int, tuple[int, tuple[int, ...]]]
    allocations: tuple[Any, ...]  # messages ``Allocation``, by index
    heap_events: tuple[Any, ...]  # messages ``HeapEvent``, in the order of the schedule
    aliases: Mapping[
        int, int
    ]  # result -> the parameter into whose buffer it may be written


def read_hlo(content: bytes) -> Hlo:
    """Read an HloProto; a TraceError says that it is none, lacks a part or contradicts itself."""
    try:
        hlo = _read(HloProto.FromString(content))
        for fault in _find_faults(hlo):
            raise ValueError(fault)
    except (DecodeError, KeyError, ValueError, IndexError) as error:
        raise TraceError(
            f"The compiled module cannot be read ({type(error).__name__}: {error}).",
            hint="Repeat the estimate.",
        ) from None

    return hlo


def _read(proto: Any) -> Hlo:
    module, assignment = proto.hlo_module, proto.buffer_assignment
    instructions = {}

    for computation in module.computations:
        for raw in computation.instructions:
            instructions[raw.id] = _read_instruction(raw, computation.id)

    by_name = {one.name: one.id for one in instructions.values()}
    buffers = {}

    for raw in assignment.logical_buffers:
        name = decode_text(raw.defined_at.instruction_name)
        maker = instructions[by_name[name] if name else raw.defined_at.instruction_id]
        buffers[raw.id] = maker.id, tuple(raw.defined_at.shape_index)

    aliases = {}
    for entry in module.input_output_alias.entries:
        result = entry.output_shape_index[0] if entry.output_shape_index else 0
        aliases[result] = entry.parameter_number

    traces = assignment.heap_simulator_traces

    return Hlo(
        name=decode_text(module.name),
        entry=module.entry_computation_id,
        roots={
            computation.id: computation.root_id for computation in module.computations
        },
        instructions=instructions,
        buffers=buffers,
        allocations=tuple(
            sorted(assignment.buffer_allocations, key=lambda one: one.index)
        ),
        heap_events=tuple(event for trace in traces for event in trace.events),
        aliases=aliases,
    )


def _read_instruction(raw: Any, computation: int) -> Instruction:
    opcode = decode_text(raw.opcode)
    return Instruction(
        id=raw.id,
        name=decode_text(raw.name),
        opcode=opcode,
        target=decode_text(raw.custom_call_target),
        shapes=dict(_read_shapes(raw.shape, ())),
        op_name=decode_text(raw.metadata.op_name),
        op_type=decode_text(raw.metadata.op_type),
        parameter=raw.parameter_number if opcode == "parameter" else None,
        tuple_index=raw.tuple_index,
        operands=tuple(raw.operand_ids),
        calls=tuple(raw.called_computation_ids),
        computation=computation,
    )


def _read_shapes(
    shape: Any, index: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[str, tuple[int, ...]]]]:
    dtype = _ELEMENT_TYPES.get(shape.element_type, f"type {shape.element_type}")
    yield index, (dtype, tuple(shape.dimensions))
    for position, inner in enumerate(shape.tuple_shapes):
        yield from _read_shapes(inner, (*index, position))


def _find_faults(hlo: Hlo) -> Iterator[str]:
    """Yield the contradictions of a module; after the first one the others mean nothing.

    XLA writes instructions and computations after those that they use (``CreateFromProto`` of
    ``HloComputation`` and ``HloModule`` refuse others). A damaged file may contain cycles.
    """
    seen: set[int] = set()
    for one in hlo.instructions.values():
        yield from _find_faults_of_instruction(hlo, one, seen)
        seen.add(one.id)

    for number in hlo.roots.values():
        if number not in seen:
            yield f"instruction {number}, a result, is not there"

    if hlo.entry not in hlo.roots:
        yield f"computation {hlo.entry}, the entry, is not there"
    yield from _find_faults_of_buffers(hlo)
    results = max(hlo.instructions[hlo.roots[hlo.entry]].parts, 1)
    parameters = [one.parameter_number for one in hlo.allocations]
    yield from _find_outside("result", hlo.aliases, results)
    yield from _find_outside(
        "parameter", (*hlo.aliases.values(), *parameters), _MOST_PARAMETERS
    )


def _find_outside(kind: str, numbers: Iterable[int], end: int) -> Iterator[str]:
    return (
        f"{kind} {number} is not there" for number in numbers if not 0 <= number < end
    )


def _find_faults_of_instruction(
    hlo: Hlo, one: Instruction, seen: set[int]
) -> Iterator[str]:
    for dtype, shape in one.shapes.values():
        if any(axis < 0 for axis in shape):
            yield f"instruction {one.id} has a negative axis"
        check_size(dtype, shape)

    for operand in one.operands:
        if operand not in seen:
            yield f"instruction {one.id} reads {operand}, which is not before it"

    if not 0 <= (one.parameter or 0) < _MOST_PARAMETERS:
        yield f"instruction {one.id} is parameter {one.parameter}"
    if one.opcode == "tuple" and len(one.operands) != one.parts:
        yield f"tuple {one.id} does not fit its shape"

    if one.opcode == "get-tuple-element" and (
        len(one.operands) != 1
        or (one.tuple_index,) not in hlo.instructions[one.operands[0]].shapes
    ):
        yield f"instruction {one.id} reads beyond a tuple"


def _find_faults_of_buffers(hlo: Hlo) -> Iterator[str]:
    for allocation in hlo.allocations:
        yield from _find_outside("size", [allocation.size], MOST_BYTES + 1)
        for part in allocation.assigned:
            if part.logical_buffer_id not in hlo.buffers:
                yield f"value {part.logical_buffer_id} is not there"
            is_inside = part.offset >= 0 and part.size >= 0
            if not is_inside or part.offset + part.size > allocation.size:
                yield f"value {part.logical_buffer_id} lies outside of allocation {allocation.index}"

    alive: set[int] = set()
    for event in hlo.heap_events:
        shared = (
            event.share_with_canonical_id if event.kind == SHARE else event.buffer_id
        )
        if not {event.buffer_id, shared} <= hlo.buffers.keys():
            yield f"value {event.buffer_id} is not there"
        if (event.kind != FREE) == (event.buffer_id in alive):
            yield f"value {event.buffer_id} begins or ends twice"
        alive ^= {event.buffer_id}
