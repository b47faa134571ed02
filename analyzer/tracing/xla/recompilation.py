"""Compiled functions that are compiled in every step, because a value that changes is compiled in.

See ``compile_time_inputs`` for the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.model.contract.fields import tensor_bytes
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op, split_tensor
from analyzer.model.recording.records import RecompiledFunction
from analyzer.tracing.parse.run_folder import CompiledNote, RunNote
from analyzer.tracing.xla.buffer_plan import BufferPlan


def find_recompiled_functions(
    note: RunNote, plans: Mapping[str, BufferPlan]
) -> tuple[RecompiledFunction, ...]:
    """Return the functions of a step that are compiled in every step.

    ``plans`` are memory plans by the name of the op that calls the function.
    """
    by_name = {op.name: op for op in note.ops}
    recompiled = []
    for one in note.compiled:
        plan = next((plans[name] for name in one.ops if name in plans), None)
        if plan is not None and one.fixed:
            recompiled.append(_describe_changes(note, one, plan, _find_arguments(by_name, one)))
    return tuple(function for function in recompiled if function is not None)


def _describe_changes(
    note: RunNote, one: CompiledNote, plan: BufferPlan, given: list[int]
) -> RecompiledFunction | None:
    """Return a function with its compiled-in inputs that change; None if none does.

    The module's parameters are the tensors that are not compiled in, then the variables. ``given``: the
    step's argument behind each input of the call; -1 for none.
    """
    by_argument = {row.argument: row for row in note.variables if row.argument is not None}
    fixed = [(index, why) for index, why in one.fixed if index < len(given)]
    handles = [index for index, argument in enumerate(given) if argument in by_argument]
    tensors = len(plan.parameters) - len(handles)
    updated = {
        given[handles[parameter - tensors]]
        for parameter in plan.aliases.values()
        if 0 <= parameter - tensors < len(handles)
    }
    changing = [(given[index], why) for index, why in fixed if given[index] in updated]
    fed = [given[index] for index, _ in fixed if 0 <= given[index] < len(note.inputs)]
    if not changing and not fed:
        return None
    rows = [by_argument[argument] for argument, _ in changing]
    return RecompiledFunction(
        op=one.ops[0],
        because=changing[0][1] if changing else one.fixed[0][1],
        variables=tuple(row.path for row in rows),
        variable_bytes=sum(tensor_bytes(row.dtype, row.shape) or 0 for row in rows),
        inputs=tuple(note.inputs[argument].name for argument in fed),
        compilations=one.compilations,
    )


def _find_arguments(by_name: Mapping[str, Op], one: CompiledNote) -> list[int]:
    """Return for each input of the call the step's argument behind it; -1 for none."""
    op = by_name.get(one.ops[0])
    if op is None or not op.inputs:  # the step itself is the function
        return list(range(sum(op.type in ARGUMENT_TYPES for op in by_name.values())))
    found = []
    for tensor in op.inputs:
        source = by_name.get(split_tensor(tensor)[0])
        while source is not None and source.type == "Identity" and source.inputs:
            source = by_name.get(split_tensor(source.inputs[0])[0])
        is_argument = source is not None and source.type in ARGUMENT_TYPES
        found.append(int(source.attrs["index"]) if source is not None and is_argument else -1)
    return found
