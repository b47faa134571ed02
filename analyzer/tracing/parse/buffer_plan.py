"""The memory plan of a compiled module: its allocations and the values in them over time.

XLA's buffer assignment (HloProto) decides everything before the module runs. Every value is a *logical
buffer* in an *allocation*. *Results* are allocated when the module runs and passed to the caller;
*temporaries*, normally one large buffer, are freed after it. In it each value has its offset, and values
whose live ranges do not overlap reuse bytes. The *heap trace* lists these ranges in the order of the
schedule. Other allocations (parameters, constants, thread-local buffers) are outside the allocator.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from google.protobuf.message import DecodeError

from analyzer.model.errors import TraceError
from analyzer.model.graph.graph_index import is_float
from analyzer.tracing.parse.protobuf import (
    TEXTS,
    decode_text,
    message_class,
    read_schema,
)

# The message class of a module and, if compiled, its buffer assignment.
HloProto: Any = message_class("analyzer.hlo", read_schema("hlo"), "Hlo")

# tf2xla's name of the op of the module's parameters and of their copies.
ARGUMENTS = "XLA_Args"

# XLA's number of an element type -> TensorFlow's name.
_ELEMENT_TYPES = dict(enumerate(TEXTS["xla_types"].split(), 1))
_FREE, _SHARE = 1, 2  # kinds of heap events (``HeapSimulatorTrace`` in ``hlo.proto``)

# Limit of the search for an instruction that names the framework's op.
_REACH = 64

Axes = tuple[int, ...]  # of a tensor, or positions in nested tuples


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A value that lies in an allocation for some time.

    It holds its bytes from ``first`` to before ``last``; of values that share bytes, the last one does.
    """

    size_bytes: int
    offset_bytes: int
    first: int
    last: int
    instruction: str
    opcode: str  # of the instruction that makes it; for a custom call with its target
    op_name: str  # the framework's op; empty if XLA names none
    op_type: str
    dtype: str
    shape: Axes | None  # None for a tuple
    is_argument: bool  # whether it copies a parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRegion:
    """An allocation that the module requests: a result, or memory for temporaries."""

    size_bytes: int
    is_result: bool
    is_tuple: bool
    dtype: str  # of its only value or result; empty and None if it has several
    shape: Axes | None
    op_name: str
    holders: tuple[Holder, ...] = ()  # values of temporaries, in order of ``first``
    moments: int = 0  # number of moments that ``first`` and ``last`` count

    @property
    def occupied_bytes(self) -> list[int]:
        """The bytes that hold a value at each moment; the rest is gaps."""
        change = [0] * (self.moments + 1)

        for holder in self.holders:
            change[holder.first] += holder.size_bytes
            change[holder.last] -= holder.size_bytes

        return list(accumulate(change[: self.moments]))


# The memory plan of one module.
BufferPlan = tuple[PlanRegion, ...]

# Plans by the name of the module or of the calling op.
Plans = Mapping[str, BufferPlan]


def read_plan(content: bytes) -> BufferPlan:
    """Read an HloProto; a TraceError says that it is none or contradicts itself."""
    try:
        return _Module(HloProto.FromString(content)).plan()
    except (DecodeError, KeyError, ValueError, IndexError) as error:
        raise TraceError(
            f"The compiled module cannot be read ({type(error).__name__}: {error}).",
            "Repeat the capture.",
        ) from None


class _Module:
    """A module while it is read."""

    def __init__(self, proto: Any) -> None:
        self._assignment = proto.buffer_assignment
        self._entry = proto.hlo_module.entry_computation_id
        self._instructions: dict[int, Any] = {}
        self._roots: dict[int, int] = {}  # computation -> its result
        self._arguments: set[int] = set()

        for computation in proto.hlo_module.computations:
            self._roots[computation.id] = computation.root_id

            for one in computation.instructions:
                self._instructions[one.id] = one
                if one.opcode == b"parameter" and computation.id == self._entry:
                    self._arguments.add(one.id)

        by_name = {one.name: one for one in self._instructions.values()}

        # each logical buffer with the instruction that makes it, and its index in a tuple
        self._buffers: dict[int, tuple[Any, Axes]] = {}
        for buffer in self._assignment.logical_buffers:
            place = buffer.defined_at
            name = place.instruction_name
            maker = by_name[name] if name else self._instructions[place.instruction_id]
            self._buffers[buffer.id] = (maker, tuple(place.shape_index))

    def plan(self) -> BufferPlan:
        """Return the memory plan."""
        root = self._instructions[self._roots[self._entry]]
        made = [root]

        if root.opcode == b"tuple":
            made = [self._instructions[number] for number in root.operand_ids]

        results = {self._find_maker(one, ()) for one in made}
        allocations = [
            one
            for one in self._assignment.buffer_allocations
            if not (
                one.is_entry_computation_parameter
                or one.is_constant
                or one.is_thread_local
            )
        ]
        allocations.sort(key=lambda one: one.index)

        return tuple(self._make_region(one, results) for one in allocations)

    def _find_maker(
        self,
        one: Any,
        index: Axes,
    ) -> tuple[int, Axes]:
        """Return the instruction that makes a value, skipping those that only rename it."""
        for _ in self._instructions:
            if one.opcode == b"tuple" and index:
                one = self._instructions[one.operand_ids[index[0]]]
                index = index[1:]
            elif one.opcode == b"get-tuple-element":
                index = (one.tuple_index, *index)
                one = self._instructions[one.operand_ids[0]]
            elif one.opcode == b"bitcast":
                one = self._instructions[one.operand_ids[0]]
            else:
                break

        return one.id, index

    def _make_region(
        self,
        allocation: Any,
        results: set[tuple[int, Axes]],
    ) -> PlanRegion:
        values = []

        for part in allocation.assigned:
            end = part.offset + part.size
            if min(part.offset, part.size) < 0 or end > allocation.size:
                raise ValueError(
                    f"value {part.logical_buffer_id} lies outside of allocation {allocation.index}"
                )

            values.append(self._buffers[part.logical_buffer_id])

        is_result = allocation.maybe_live_out
        own = [(one, at) for one, at in values if (one.id, at) in results]
        chosen = values if len(values) == 1 else own
        dtype = ""

        shape = None
        op_name = ""

        if len(chosen) == 1 and not allocation.is_tuple:
            maker, index = chosen[0]
            dtype, shape = _read_shape(maker, index)

            named = self._find_named_instruction(maker) if is_result else maker
            op_name = decode_text(named.metadata.op_name)

        holders: tuple[Holder, ...] = ()
        moments = 0

        if not is_result:
            holders, moments = self._find_holders(allocation)

        region = PlanRegion(
            size_bytes=allocation.size,
            is_result=is_result,
            is_tuple=allocation.is_tuple,
            dtype=dtype,
            shape=shape,
            op_name=op_name,
            holders=holders,
            moments=moments,
        )

        if max(region.occupied_bytes, default=0) > allocation.size:
            raise ValueError(f"values overlap in a buffer of {allocation.size} B")

        return region

    def _find_holders(self, allocation: Any) -> tuple[tuple[Holder, ...], int]:
        """Return the values in a temporary allocation, and the number of moments.

        The heap trace is in the order of the schedule. Its allocations may have been merged since, so
        they are identified by their values instead of their numbers.
        """
        place = {part.logical_buffer_id: part for part in allocation.assigned}
        events = []

        for trace in self._assignment.heap_simulator_traces:
            events += [event for event in trace.events if event.buffer_id in place]

        spans = [span for span in _replay_events(events) if span[2] > span[1]]
        spans.sort(key=lambda span: (span[1], span[0]))
        holders = []

        for buffer, first, last in spans:
            maker, index = self._buffers[buffer]
            dtype, shape = _read_shape(maker, index)
            source = self._find_source(maker, index)
            named = self._find_named_instruction(source if _has_name(source) else maker)

            is_argument = named.id in self._arguments
            metadata = named.metadata

            # An op of numbers makes no indices.
            is_other = not is_float(dtype) and _read_shape(named, ())[0] != dtype
            if self._is_filled(source) or (is_other and not is_argument):
                metadata = type(metadata)()

            target = decode_text(maker.custom_call_target)
            opcode = f"{decode_text(maker.opcode)} {target}"

            holders.append(
                Holder(
                    size_bytes=place[buffer].size,
                    offset_bytes=place[buffer].offset,
                    first=first,
                    last=last,
                    instruction=decode_text(maker.name),
                    opcode=opcode.strip(),
                    op_name=decode_text(metadata.op_name),
                    op_type=decode_text(metadata.op_type),
                    dtype=dtype,
                    shape=None if dtype == "tuple" else shape,
                    is_argument=is_argument,
                )
            )

        return tuple(holders), max(len(events), 1)

    def _find_source(self, maker: Any, index: Sequence[int]) -> Any:
        """Return the instruction inside a fusion that makes a value; else the maker."""
        if maker.opcode != b"fusion":
            return maker

        root = self._instructions[self._roots[maker.called_computation_ids[0]]]
        if root.opcode == b"tuple" and index:
            return self._instructions[root.operand_ids[index[0]]]

        return root

    def _is_filled(self, source: Any) -> bool:
        """Say whether a value is one constant, repeated, which ops may share."""
        for _ in range(_REACH):
            if source.opcode not in (b"broadcast", b"copy", b"bitcast"):
                break

            source = self._instructions[source.operand_ids[0]]

        return bool(source.opcode == b"constant")

    def _find_named_instruction(self, instruction: Any) -> Any:
        """Return the instruction, or a related one that names a framework's op.

        Compiler passes make instructions without a name, such as copies. Use the nearest named
        instruction that they call, else that they read, else the first of the module's parameters
        among them. Equal constants of several ops are one, with the name of the first.
        """
        seen: set[int] = set()
        inner: deque[Any] = deque()
        queue = deque([instruction])
        argument = None

        while (inner or queue) and len(seen) < _REACH:
            read = inner or queue
            found = read.popleft()
            if found.id in seen or found.opcode == b"constant":
                continue

            seen.add(found.id)

            if found.opcode == b"parameter":
                if argument is None and found.id in self._arguments:
                    argument = found

                continue

            if _has_name(found):
                return found

            called = found.called_computation_ids
            roots = [self._roots[one] for one in called if one in self._roots]
            inner += [self._instructions[one] for one in roots]
            read += [self._instructions[one] for one in found.operand_ids]

        return argument or instruction


def _has_name(instruction: Any) -> bool:
    """Say whether an instruction names a framework's op."""
    return instruction.metadata.op_name not in (b"", ARGUMENTS.encode())


def _read_shape(maker: Any, index: Sequence[int]) -> tuple[str, Axes]:
    """Return element type and axes of a value in an instruction's result."""
    shape = maker.shape

    for position in index:
        shape = shape.tuple_shapes[position]

    number = shape.element_type

    return _ELEMENT_TYPES.get(number, f"type {number}"), tuple(shape.dimensions)


def _replay_events(
    events: Sequence[Any],
) -> list[tuple[int, int, int]]:
    """Return the spans (buffer, first moment, last moment) in which buffers hold their memory.

    Of buffers that share memory, the last one holds it.
    """
    group: dict[int, int] = {}
    spans: list[tuple[int, int, int]] = []
    alive: dict[int, list[int]] = {}
    since: dict[int, int] = {}

    for moment, event in enumerate(events):
        buffer = event.buffer_id

        if event.kind != _FREE:
            shared = event.share_with_canonical_id
            is_shared = event.kind == _SHARE
            group[buffer] = group.get(shared, shared) if is_shared else buffer
            members = alive.setdefault(group[buffer], [])

            for holder in members[-1:]:
                spans.append((holder, since.pop(holder), moment))

            members.append(buffer)
            since[buffer] = moment
            continue

        members = alive[group[buffer]]
        is_last = members[-1] == buffer
        members.remove(buffer)

        if is_last:
            spans.append((buffer, since.pop(buffer), moment))

            if members:
                since[members[-1]] = moment

    end = max(len(events), 1)
    spans += [(buffer, first, end) for buffer, first in since.items()]

    return spans
