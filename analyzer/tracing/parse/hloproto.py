"""A protobuf schema of the fields of XLA's HloProto that the package reads.

Field numbers are those of ``xla/service/hlo.proto`` and ``xla/xla_data.proto``.
"""

from __future__ import annotations

from typing import Any, Final

from analyzer.tracing.parse.protobuf import message_class, read_schema

_MESSAGES: Final = read_schema(
    """
    Shape element_type=2:int64 dimensions=3:int64[] tuple_shapes=4:Shape[]
    OpMetadata op_type=1:bytes op_name=2:bytes
    Instruction name=1:bytes opcode=2:bytes shape=3:Shape metadata=7:OpMetadata
        parameter_number=9:int64 fusion_kind=11:bytes tuple_index=13:int64 dimensions=14:int64[]
        custom_call_target=28:bytes id=35:int64 operand_ids=36:int64[]
        called_computation_ids=38:int64[]
    Computation name=1:bytes instructions=2:Instruction[] id=5:int64 root_id=6:int64
    InstructionSequence instruction_ids=1:int64[]
    ScheduleEntry key=1:int64 value=2:InstructionSequence
    Schedule sequences=1:ScheduleEntry[]
    AliasEntry output_shape_index=1:int64[] parameter_number=2:int64
    InputOutputAlias entries=1:AliasEntry[]
    Module name=1:bytes computations=3:Computation[] entry_computation_id=6:int64
        schedule=7:Schedule input_output_alias=8:InputOutputAlias
    Location instruction_name=2:bytes shape_index=3:int64[] instruction_id=4:int64
    LogicalBuffer id=1:int64 size=2:int64 defined_at=3:Location
    Assigned logical_buffer_id=1:int64 offset=2:int64 size=3:int64
    Allocation index=1:int64 size=2:int64 is_thread_local=3:bool
        is_entry_computation_parameter=5:bool parameter_number=6:int64 maybe_live_out=7:bool
        assigned=9:Assigned[] is_tuple=11:bool is_constant=12:bool
    HeapEvent kind=1:int64 buffer_id=2:int64 instruction_name=4:bytes
        share_with_canonical_id=5:int64
    HeapTrace events=1:HeapEvent[]
    BufferAssignment logical_buffers=1:LogicalBuffer[] buffer_allocations=3:Allocation[]
        heap_simulator_traces=4:HeapTrace[]
    Hlo hlo_module=1:Module buffer_assignment=3:BufferAssignment
    """
)

Hlo: Any = message_class("analyzer.hlo", _MESSAGES, "Hlo")
"""The message class of an ``HloProto``: a module and, if compiled, its buffer assignment."""
