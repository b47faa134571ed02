"""From a compiled module's buffer assignment to its memory plan."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from analyzer.model.contract.fields import ITEM_BYTES
from analyzer.model.errors import AccountingError
from analyzer.tracing.parse.hlo_module import (
    BufferAllocation,
    HeapAction,
    HeapEvent,
    Hlo,
    Instruction,
    Slice,
)
from analyzer.tracing.xla.buffer_plan import ARGUMENTS, BufferPlan, Holder, PlanRegion, ValueUse

_REACH: Final = 64
"""Limit of the search for an instruction that names the framework's op."""


def build_plan(hlo: Hlo, *, platform: str) -> BufferPlan:
    """Return the memory plan of a compiled module.

    Args:
        hlo: The module with its buffer assignment.
        platform: The device that it was compiled for.

    Raises:
        AccountingError: A value lies outside its allocation, or the heap trace does not match it.
    """
    entry = [i for i in hlo.instructions.values() if i.computation == hlo.entry]
    makers = _result_makers(hlo)
    results = _find_results_of_buffers(hlo, makers)
    parameters = sorted(i.parameter for i in entry if i.parameter is not None)
    sizes = {a.parameter: a.size_bytes for a in hlo.allocations if a.parameter is not None}
    aliases, handed_on = _find_aliases(hlo, makers)
    plan = BufferPlan(
        module=hlo.name,
        platform=platform,
        regions=tuple(_region(hlo, allocation, results) for allocation in hlo.allocations),
        parameters=tuple(sizes.get(number, 0) for number in parameters),
        aliases=aliases,
        handed_on=handed_on,
        outputs=tuple(_size(hlo.instructions[maker], index) for maker, index in makers),
        schedule=tuple(hlo.instructions[number].name for number in hlo.schedule.get(hlo.entry, ())),
    )
    _check_temporaries(plan)
    return plan


def _find_results_of_buffers(
    hlo: Hlo, makers: Sequence[tuple[int, tuple[int, ...]]]
) -> dict[int, list[int]]:
    """Return the module's results by the number of their buffer."""
    numbers = {(b.instruction, b.shape_index): b.id for b in hlo.buffers.values()}
    results: dict[int, list[int]] = {}
    for result, maker in enumerate(makers):
        if maker in numbers:
            results.setdefault(numbers[maker], []).append(result)
    return results


def _find_aliases(
    hlo: Hlo, makers: Sequence[tuple[int, tuple[int, ...]]]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return result -> parameter: results that reuse its memory, and results that are it."""
    aliases: dict[int, int] = {}
    handed_on: dict[int, int] = {}
    for alias in hlo.aliases:
        result = alias.output_index[0] if alias.output_index else 0
        aliases[result] = alias.parameter
    for result, parameter in aliases.items():
        if result < len(makers) and hlo.instructions[makers[result][0]].parameter == parameter:
            handed_on[result] = parameter
    reused = {result: of for result, of in aliases.items() if result not in handed_on}
    return reused, handed_on


def _check_temporaries(plan: BufferPlan) -> None:
    """Refuse a plan with more bytes of values in a temporary region than it has."""
    for region in plan.temporaries:
        if region.peak_bytes > region.size_bytes:
            raise AccountingError(
                f"values of {region.peak_bytes} B overlap in a buffer of {region.size_bytes} B of the "
                f"module {plan.module}"
            )


def _use(allocation: BufferAllocation) -> ValueUse:
    if allocation.parameter is not None:
        return ValueUse.PARAMETER
    if allocation.is_constant:
        return ValueUse.CONSTANT
    if allocation.is_thread_local:
        return ValueUse.THREAD_LOCAL
    return ValueUse.OUTPUT if allocation.is_live_out else ValueUse.TEMPORARY


def _region(hlo: Hlo, allocation: BufferAllocation, results: Mapping[int, list[int]]) -> PlanRegion:
    use = _use(allocation)
    made = {part.buffer for part in allocation.slices}
    one = hlo.buffers[next(iter(made))] if len(made) == 1 else None
    dtype, shape, op_name = "", None, ""
    if one is not None and not allocation.is_tuple:
        maker = hlo.instructions[one.instruction]
        dtype, shape = maker.shapes.get(one.shape_index, ("", ()))
        op_name = maker.op_name
    holders, moments = _holders(hlo, allocation) if use is ValueUse.TEMPORARY else ((), 0)
    return PlanRegion(
        index=allocation.index,
        size_bytes=allocation.size_bytes,
        use=use,
        parameter=allocation.parameter,
        results=tuple(sorted(result for buffer in made for result in results.get(buffer, ()))),
        is_live_out=allocation.is_live_out,
        is_tuple=allocation.is_tuple,
        dtype=dtype,
        shape=shape,
        op_name=op_name,
        holders=holders,
        moments=moments,
    )


def _holders(hlo: Hlo, allocation: BufferAllocation) -> tuple[tuple[Holder, ...], int]:
    """Return the values in a temporary allocation, and the number of moments.

    The heap trace is in the order of the schedule. Its allocations may have been merged since, so they
    are identified by their values instead of their numbers.
    """
    place = {part.buffer: part for part in allocation.slices}
    events = [e for trace in hlo.traces for e in trace.events if e.buffer in place]
    traced = {event.buffer for event in events}
    moments = max(len(events), 1)
    group: dict[int, int] = {}
    spans = [(buffer, 0, moments) for buffer in _find_untraced(hlo, allocation, traced)]
    spans += _replay_events(events, group)
    spans = [span for span in spans if span[2] > span[1]]
    until: dict[tuple[int, int], int] = {}
    for buffer, first, last in sorted(spans, key=lambda span: -span[1]):
        first_of = group.get(buffer, buffer)
        until[first_of, first] = until.get((first_of, last), last)
    return (
        tuple(
            replace(
                _holder(hlo, place[buffer], first, last),
                handed_until=until[group.get(buffer, buffer), first],
            )
            for buffer, first, last in sorted(spans, key=lambda span: (span[1], span[0]))
        ),
        moments,
    )


def _replay_events(
    events: Sequence[HeapEvent], group: dict[int, int]
) -> list[tuple[int, int, int]]:
    """Return (buffer, first moment, last moment) of each span in which a buffer holds its memory.

    Args:
        events: The heap trace of one allocation.
        group: Receives buffer -> first buffer of those that share its memory.
    """
    spans: list[tuple[int, int, int]] = []
    alive: dict[int, list[int]] = {}
    since: dict[int, int] = {}
    for moment, event in enumerate(events):
        buffer = event.buffer
        if event.action is not HeapAction.FREE:
            shared = event.shares_with
            first = buffer if shared is None else group.get(shared, shared)
            group[buffer] = first
            members = alive.setdefault(first, [])
            if members:
                spans.append((members[-1], since.pop(members[-1]), moment))
            members.append(buffer)
            since[buffer] = moment
            continue
        members = alive[group.get(buffer, buffer)]
        if members[-1] == buffer:
            spans.append((buffer, since.pop(buffer), moment))
            members.pop()
            if members:
                since[members[-1]] = moment
        else:
            members.remove(buffer)
    spans += [(buffer, first, max(len(events), 1)) for buffer, first in since.items()]
    return spans


def _find_untraced(hlo: Hlo, allocation: BufferAllocation, traced: set[int]) -> list[int]:
    """Return the values without heap trace; of overlapping ones the largest.

    They lie in allocations that were merged into this one. Their lifetimes are unknown, so they count as
    alive throughout.
    """
    found: list[tuple[int, int, int]] = []
    parts = [part for part in allocation.slices if part.buffer not in traced]
    for part in sorted(parts, key=lambda part: (-part.size_bytes, part.offset_bytes)):
        end = part.offset_bytes + part.size_bytes
        if all(end <= low or part.offset_bytes >= high for low, high, _ in found):
            found.append((part.offset_bytes, end, part.buffer))
    return [buffer for _, _, buffer in found]


def _holder(hlo: Hlo, part: Slice, first: int, last: int) -> Holder:
    value = hlo.buffers[part.buffer]
    maker = hlo.instructions[value.instruction]
    dtype, shape = maker.shapes.get(value.shape_index, ("", ()))
    named = _find_named_instruction(hlo, maker)
    return Holder(
        buffer=part.buffer,
        size_bytes=part.size_bytes,
        offset_bytes=part.offset_bytes,
        first=first,
        last=last,
        instruction=maker.name,
        opcode=f"{maker.opcode} {maker.target}".strip(),
        op_name=named.op_name,
        op_type=named.op_type,
        argument=named.parameter if named.computation == hlo.entry else None,
        source=named.source,
        dtype=dtype,
        shape=None if dtype == "tuple" else shape,
    )


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


def _result_makers(hlo: Hlo) -> list[tuple[int, tuple[int, ...]]]:
    """Return for each result the instruction that makes it, and the index in its output."""
    root = hlo.instructions[hlo.roots[hlo.entry]]
    if root.shapes[()][0] != "tuple":
        return [_maker(hlo, root, ())]
    count = sum(1 for index in root.shapes if len(index) == 1)
    return [_maker(hlo, root, (place,)) for place in range(count)]


def _maker(hlo: Hlo, found: Instruction, index: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the instruction that makes a value, skipping those that only rename it."""
    while found.operands:
        if found.opcode == "tuple" and index and index[0] < len(found.operands):
            found, index = hlo.instructions[found.operands[index[0]]], index[1:]
        elif found.opcode == "get-tuple-element":
            index = (found.tuple_index, *index)
            found = hlo.instructions[found.operands[0]]
        elif found.opcode == "bitcast":
            found = hlo.instructions[found.operands[0]]
        else:
            break
    return found.id, index


def _size(maker: Instruction, index: tuple[int, ...]) -> int:
    dtype, shape = maker.shapes.get(index, ("", ()))
    return ITEM_BYTES.get(dtype, 0) * math.prod(shape)
