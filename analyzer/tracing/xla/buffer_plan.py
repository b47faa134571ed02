"""The memory plan of a compiled module: its allocations and the values in them over time.

XLA's buffer assignment decides everything before the module runs. *Parameters* are the caller's buffers.
*Aliased* results reuse a parameter's memory if the caller gives it up, as TensorFlow does for a variable
without other references; *handed on* results are an unchanged parameter (on a card;
``AliasPassthroughParams``). *Live out* results are allocated when the module runs and passed to the
caller; *temporaries*, normally one large buffer, are freed after it. Constants lie in the executable and
thread-local buffers on a stack, outside the allocator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import tensor_bytes
from analyzer.model.errors import AccountingError
from analyzer.tracing.parse.hlo import FREE, SHARE, Hlo, Instruction

ARGUMENTS: Final = "XLA_Args"
"""tf2xla's name of the op of the module's parameters and of their copies."""
_REACH: Final = (
    64  # limit of the search for an instruction that names the framework's op
)


class ValueUse(Choice):
    """The kind of an allocation."""

    PARAMETER = "parameter"
    OUTPUT = "output"
    TEMPORARY = "temporary"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread_local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A value that lies in an allocation for some time.

    It holds its bytes from ``first`` to before ``last``; of values that share bytes, the last one does.
    """

    size_bytes: int
    offset_bytes: int
    first: int
    last: int
    # end of the last of the values that reuse its bytes without a gap, such as a loop's values in
    # each iteration; ``last`` without such a value
    until: int
    instruction: str
    opcode: (
        str  # of the HLO instruction that makes it; for a custom call with its target
    )
    op_name: str  # the framework's op; empty if XLA names none
    op_type: str
    dtype: str
    shape: tuple[int, ...] | None  # None for a tuple
    argument: int | None = (
        None  # number of the parameter that it copies; None for others
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRegion:
    """One allocation of the module."""

    index: int
    size_bytes: int
    use: ValueUse
    results: tuple[int, ...]  # indexes of the results in it; empty if unknown
    is_tuple: bool
    dtype: str  # of its only value or result; empty and None if it has several
    shape: tuple[int, ...] | None
    op_name: str
    holders: tuple[
        Holder, ...
    ] = ()  # the values in a region of temporaries, in order of ``first``
    moments: int = 0  # number of moments that ``first`` and ``last`` count

    @property
    def peak_bytes(self) -> int:
        """Maximum of the bytes that hold a value; the rest is gaps."""
        return max(occupied_bytes(self), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPlan:
    """The memory plan of one module on one device."""

    module: str
    platform: str  # the device, such as ``cpu`` or a card's name
    regions: tuple[PlanRegion, ...]
    parameters: tuple[int, ...]  # sizes of the parameters and of the results
    aliases: dict[int, int]  # result -> parameter whose memory it may reuse
    outputs: tuple[int, ...]
    handed_on: Mapping[int, int] = field(
        default_factory=dict
    )  # result -> parameter that it is

    @property
    def temporaries(self) -> tuple[PlanRegion, ...]:
        """The allocations that are freed after the module."""
        return tuple(one for one in self.regions if one.use is ValueUse.TEMPORARY)


def occupied_bytes(region: PlanRegion) -> list[int]:
    """Return the bytes that hold a value at each moment of a region."""
    change = [0] * (region.moments + 1)
    for holder in region.holders:
        change[holder.first] += holder.size_bytes
        change[holder.last] -= holder.size_bytes

    return list(accumulate(change[: region.moments]))


def build_plan(hlo: Hlo, *, platform: str) -> BufferPlan:
    """Return the memory plan of a compiled module for a device, or raise an AccountingError."""
    root = hlo.instructions[hlo.roots[hlo.entry]]
    indexes = (
        [(part,) for part in range(root.parts)]
        if root.shapes[()][0] == "tuple"
        else [()]
    )
    makers = [_find_maker(hlo, root, index) for index in indexes]
    buffers = {value: number for number, value in hlo.buffers.items()}
    results: dict[int, list[int]] = {}

    for result, (maker, index) in enumerate(makers):
        if (maker.id, index) in buffers:
            results.setdefault(buffers[maker.id, index], []).append(result)

    parameters = sorted(
        one.parameter
        for one in hlo.instructions.values()
        if one.computation == hlo.entry and one.parameter is not None
    )
    sizes = {
        one.parameter_number: one.size
        for one in hlo.allocations
        if one.is_entry_computation_parameter
    }
    handed_on = {
        result: parameter
        for result, parameter in hlo.aliases.items()
        if result < len(makers) and makers[result][0].parameter == parameter
    }
    plan = BufferPlan(
        module=hlo.name,
        platform=platform,
        regions=tuple(
            _make_region(hlo, allocation, results) for allocation in hlo.allocations
        ),
        parameters=tuple(sizes.get(number, 0) for number in parameters),
        aliases={one: of for one, of in hlo.aliases.items() if one not in handed_on},
        handed_on=handed_on,
        outputs=tuple(
            tensor_bytes(*maker.shapes.get(index, ("", ()))) or 0
            for maker, index in makers
        ),
    )

    for region in plan.temporaries:
        if region.peak_bytes > region.size_bytes:
            raise AccountingError(
                f"values of {region.peak_bytes} B overlap in a buffer of {region.size_bytes} B of the "
                f"module {plan.module}"
            )

    return plan


def _find_maker(
    hlo: Hlo, found: Instruction, index: tuple[int, ...]
) -> tuple[Instruction, tuple[int, ...]]:
    """Return the instruction that makes a value, skipping those that only rename it."""
    while found.operands:
        source = hlo.instructions[found.operands[0]]
        if found.opcode == "tuple" and index and index[0] < len(found.operands):
            found, index = hlo.instructions[found.operands[index[0]]], index[1:]
        elif found.opcode == "get-tuple-element":
            found, index = source, (found.tuple_index, *index)
        elif found.opcode == "bitcast":
            found = source
        else:
            break

    return found, index


def _make_region(
    hlo: Hlo, allocation: Any, results: Mapping[int, list[int]]
) -> PlanRegion:
    uses = {
        ValueUse.PARAMETER: allocation.is_entry_computation_parameter,
        ValueUse.CONSTANT: allocation.is_constant,
        ValueUse.THREAD_LOCAL: allocation.is_thread_local,
        ValueUse.OUTPUT: allocation.maybe_live_out,
        ValueUse.TEMPORARY: True,
    }
    use = next(use for use, holds in uses.items() if holds)
    values = {part.logical_buffer_id for part in allocation.assigned}
    own = values if len(values) == 1 else values & results.keys()
    dtype, shape, op_name = "", None, ""

    if len(own) == 1 and not allocation.is_tuple:
        instruction, index = hlo.buffers[next(iter(own))]
        maker = hlo.instructions[instruction]
        dtype, shape = maker.shapes.get(index, ("", ()))
        is_result = use is ValueUse.OUTPUT
        op_name = (_find_named_instruction(hlo, maker) if is_result else maker).op_name

    holders, moments = (
        _find_holders(hlo, allocation) if use is ValueUse.TEMPORARY else ((), 0)
    )

    return PlanRegion(
        index=allocation.index,
        size_bytes=allocation.size,
        use=use,
        results=tuple(
            sorted(result for value in values for result in results.get(value, ()))
        ),
        is_tuple=allocation.is_tuple,
        dtype=dtype,
        shape=shape,
        op_name=op_name,
        holders=holders,
        moments=moments,
    )


def _find_holders(hlo: Hlo, allocation: Any) -> tuple[tuple[Holder, ...], int]:
    """Return the values in a temporary allocation, and the number of moments.

    The heap trace is in the order of the schedule. Its allocations may have been merged since, so they
    are identified by their values instead of their numbers.
    """
    place = {part.logical_buffer_id: part for part in allocation.assigned}
    events = [event for event in hlo.heap_events if event.buffer_id in place]
    moments = max(len(events), 1)
    replayed, group = _replay_events(events)
    spans = [span for span in replayed if span[2] > span[1]]
    until: dict[tuple[int, int], int] = {}

    for buffer, first, last in sorted(spans, key=lambda span: -span[1]):
        owner = group.get(buffer, buffer)
        until[owner, first] = until.get((owner, last), last)

    spans.sort(key=lambda span: (span[1], span[0]))
    holders = []

    for buffer, first, last in spans:
        instruction, index = hlo.buffers[buffer]
        maker = hlo.instructions[instruction]
        dtype, shape = maker.shapes.get(index, ("", ()))
        named = _find_named_instruction(hlo, maker)
        holders.append(
            Holder(
                size_bytes=place[buffer].size,
                offset_bytes=place[buffer].offset,
                first=first,
                last=last,
                until=until[group.get(buffer, buffer), first],
                instruction=maker.name,
                opcode=f"{maker.opcode} {maker.target}".strip(),
                op_name=named.op_name,
                op_type=named.op_type,
                dtype=dtype,
                shape=None if dtype == "tuple" else shape,
                argument=named.parameter if named.computation == hlo.entry else None,
            )
        )

    return tuple(holders), moments


def _replay_events(
    events: Sequence[Any],
) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
    """Return the spans (buffer, first moment, last moment) in which buffers hold their memory.

    The second result maps each buffer to the first one of those that share its memory.
    """
    group: dict[int, int] = {}
    spans: list[tuple[int, int, int]] = []
    alive: dict[int, list[int]] = {}
    since: dict[int, int] = {}

    for moment, event in enumerate(events):
        buffer = event.buffer_id
        if event.kind != FREE:
            shared = event.share_with_canonical_id
            group[buffer] = group.get(shared, shared) if event.kind == SHARE else buffer
            members = alive.setdefault(group[buffer], [])
            if members:
                spans.append((members[-1], since.pop(members[-1]), moment))
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

    spans += [(buffer, first, max(len(events), 1)) for buffer, first in since.items()]
    return spans, group


def _find_named_instruction(hlo: Hlo, instruction: Instruction) -> Instruction:
    """Return the instruction, or a related one that names a framework's op.

    Compiler passes make instructions without a name, such as copies. Use the nearest named instruction
    that they call or read, or else the first of the module's parameters among them.
    """
    seen: set[int] = set()
    queue = deque([instruction])
    argument: Instruction | None = None

    while queue and len(seen) < _REACH:
        found = queue.popleft()
        if found.id in seen:
            continue
        seen.add(found.id)

        if found.opcode == "parameter":
            if argument is None and found.computation == hlo.entry:
                argument = found
            continue

        if found.op_name and found.op_name != ARGUMENTS:
            return found
        roots = [hlo.roots[called] for called in found.calls if called in hlo.roots]
        queue += [hlo.instructions[number] for number in (*roots, *found.operands)]

    return argument or instruction
