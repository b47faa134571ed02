"""Reader of XLA's HloProto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from analyzer.model.errors import TraceError
from analyzer.tracing.parse.hlo_module import (
    Alias,
    BufferAllocation,
    HeapAction,
    HeapEvent,
    HeapTrace,
    Hlo,
    Instruction,
    LogicalBuffer,
    Slice,
    check_hlo,
)
from analyzer.tracing.parse.hloproto import Hlo as _Proto
from analyzer.tracing.parse.protobuf import decode_text

_TYPES: Final = """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 tuple opaque
    complex64 bfloat16 token complex128 float8_e5m2 float8_e4m3fn int4 uint4
"""
ELEMENT_TYPES: Final = dict(enumerate(_TYPES.split(), 1))
"""XLA's number of an element type (``xla/xla_data.proto``) -> TensorFlow's name."""


_ACTIONS: Final = (HeapAction.ALLOC, HeapAction.FREE, HeapAction.SHARE)


def read_hlo(content: bytes, module: bytes = b"") -> Hlo:
    """Read an HloProto.

    Args:
        module: A serialized HloModuleProto that replaces the one in ``content``. TensorFlow's
            ``optimized_hlo_proto_serialized`` stage contains the buffer assignment of the compiled
            module but a module from before the last passes; ``optimized_hlo_serialized`` is the
            right module.

    Raises:
        TraceError: It is no HloProto, or names a missing instruction or buffer.
    """
    proto = _Proto()
    try:
        proto.ParseFromString(content)
        if module:
            proto.hlo_module.Clear()
            proto.hlo_module.ParseFromString(module)
        hlo = _hlo(proto)
        check_hlo(hlo)
    except (DecodeError, KeyError, ValueError, IndexError) as error:
        raise TraceError(
            f"The compiled module cannot be read ({type(error).__name__}: {error}).",
            hint="Repeat the estimate.",
        ) from None
    return hlo


def _hlo(proto: Any) -> Hlo:
    module, assignment = proto.hlo_module, proto.buffer_assignment
    files = _sources(module.stack_frame_index)
    instructions = {
        raw.id: _instruction(raw, computation.id, files)
        for computation in module.computations
        for raw in computation.instructions
    }
    by_name = {instruction.name: instruction.id for instruction in instructions.values()}
    buffers = {raw.id: _buffer(raw, instructions, by_name) for raw in assignment.logical_buffers}
    return Hlo(
        name=decode_text(module.name),
        entry=module.entry_computation_id,
        roots={computation.id: computation.root_id for computation in module.computations},
        instructions=instructions,
        schedule={
            entry.key: tuple(entry.value.instruction_ids) for entry in module.schedule.sequences
        },
        buffers=buffers,
        allocations=tuple(
            sorted(
                (_allocation(raw, buffers) for raw in assignment.buffer_allocations),
                key=lambda allocation: allocation.index,
            )
        ),
        traces=tuple(
            HeapTrace(events=tuple(_event(event, buffers) for event in trace.events))
            for trace in assignment.heap_simulator_traces
        ),
        aliases=tuple(
            Alias(
                output_index=tuple(entry.output_shape_index),
                parameter=entry.parameter_number,
            )
            for entry in module.input_output_alias.entries
        ),
    )


def _instruction(raw: Any, computation: int, files: list[str]) -> Instruction:
    metadata = raw.metadata
    source = ""
    if metadata.source_file:
        source = f"{decode_text(metadata.source_file)}:{metadata.source_line}"
    elif 0 < metadata.stack_frame_id <= len(files):
        source = files[metadata.stack_frame_id - 1]
    opcode = decode_text(raw.opcode)
    return Instruction(
        id=raw.id,
        name=decode_text(raw.name),
        opcode=opcode,
        target=decode_text(raw.custom_call_target),
        shapes=dict(_shapes(raw.shape, ())),
        op_name=decode_text(metadata.op_name),
        op_type=decode_text(metadata.op_type),
        source=source,
        parameter=raw.parameter_number if opcode == "parameter" else None,
        tuple_index=raw.tuple_index,
        operands=tuple(raw.operand_ids),
        calls=tuple(raw.called_computation_ids),
        computation=computation,
        fusion_kind=decode_text(raw.fusion_kind),
        axes=tuple(raw.dimensions),
    )


def _shapes(
    shape: Any, index: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[str, tuple[int, ...]]]]:
    dtype = ELEMENT_TYPES.get(shape.element_type, f"type {shape.element_type}")
    shapes = [(index, (dtype, tuple(shape.dimensions)))]
    for position, inner in enumerate(shape.tuple_shapes):
        shapes += _shapes(inner, (*index, position))
    return shapes


def _sources(frames: Any) -> list[str]:
    """Return ``file:line`` of each stack frame, in order; frames are numbered from 1."""
    names = [decode_text(name) for name in frames.file_names]
    found = []
    for frame in frames.stack_frames:
        at = frame.file_location_id - 1
        if not 0 <= at < len(frames.file_locations):
            found.append("")
            continue
        location = frames.file_locations[at]
        is_known = 0 < location.file_name_id <= len(names)
        found.append(f"{names[location.file_name_id - 1]}:{location.line}" if is_known else "")
    return found


def _buffer(
    raw: Any, instructions: Mapping[int, Instruction], by_name: Mapping[str, int]
) -> LogicalBuffer:
    name = decode_text(raw.defined_at.instruction_name)
    instruction = by_name[name] if name else raw.defined_at.instruction_id
    if instruction not in instructions:
        raise KeyError(f"instruction {instruction}")
    return LogicalBuffer(
        id=raw.id,
        size_bytes=raw.size,
        instruction=instruction,
        shape_index=tuple(raw.defined_at.shape_index),
    )


def _allocation(raw: Any, buffers: Mapping[int, LogicalBuffer]) -> BufferAllocation:
    return BufferAllocation(
        index=raw.index,
        size_bytes=raw.size,
        parameter=raw.parameter_number if raw.is_entry_computation_parameter else None,
        is_live_out=raw.maybe_live_out,
        is_constant=raw.is_constant,
        is_thread_local=raw.is_thread_local,
        is_tuple=raw.is_tuple,
        slices=tuple(
            Slice(
                buffer=buffers[part.logical_buffer_id].id,
                offset_bytes=part.offset,
                size_bytes=part.size,
            )
            for part in raw.assigned
        ),
    )


def _event(raw: Any, buffers: Mapping[int, LogicalBuffer]) -> HeapEvent:
    action = _ACTIONS[raw.kind]
    return HeapEvent(
        action=action,
        buffer=buffers[raw.buffer_id].id,
        shares_with=buffers[raw.share_with_canonical_id].id if action is HeapAction.SHARE else None,
    )
