"""Compiled functions that are compiled in every step, because a value that changes is compiled in.

See ``compile_time_inputs`` for the reasons.
"""

from collections.abc import Mapping

from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op, split_tensor
from analyzer.model.recording.records import RecompiledFunction
from analyzer.tracing.parse.run_folder import CompiledNote, RunNote
from analyzer.tracing.xla.buffer_plan import BufferPlan


def find_recompiled_functions(
    note: RunNote, plans: Mapping[str, BufferPlan]
) -> tuple[RecompiledFunction, ...]:
    """Return the functions of a step that are compiled in every step.

    ``plans`` are memory plans by the name of the op that calls the function. The module's parameters
    are the tensors that are not compiled in, then the variables.
    """
    ops = {op.name: op for op in note.ops}
    variables = {
        row.argument: row for row in note.variables if row.argument is not None
    }
    recompiled = []

    for one in note.compiled:
        plan = next((plans[name] for name in one.ops if name in plans), None)
        if plan is None or not one.fixed:
            continue
        given = _find_arguments(ops, one)
        fixed = [(given[index], why) for index, why in one.fixed if index < len(given)]
        handles = [argument for argument in given if argument in variables]
        tensors = len(plan.parameters) - len(handles)
        places = (parameter - tensors for parameter in plan.aliases.values())
        updated = {handles[place] for place in places if 0 <= place < len(handles)}
        changing = [(argument, why) for argument, why in fixed if argument in updated]
        fed = [argument for argument, _ in fixed if 0 <= argument < len(note.inputs)]

        if changing or fed:
            rows = [variables[argument] for argument, _ in changing]
            recompiled.append(
                RecompiledFunction(
                    op=one.ops[0],
                    because=changing[0][1] if changing else one.fixed[0][1],
                    variables=tuple(row.path for row in rows),
                    variable_bytes=sum(row.size_bytes or 0 for row in rows),
                    inputs=tuple(note.inputs[argument].name for argument in fed),
                    compilations=one.compilations,
                )
            )

    return tuple(recompiled)


def _find_arguments(ops: Mapping[str, Op], one: CompiledNote) -> list[int]:
    """Return for each input of the call the step's argument behind it; -1 for none."""
    call = ops.get(one.ops[0])
    if call is None or not call.inputs:  # the step itself is the function
        return list(range(sum(op.type in ARGUMENT_TYPES for op in ops.values())))
    found = []

    for tensor in call.inputs:
        source = ops.get(split_tensor(tensor)[0])
        while source is not None and source.type == "Identity" and source.inputs:
            source = ops.get(split_tensor(source.inputs[0])[0])
        is_argument = source is not None and source.type in ARGUMENT_TYPES
        found.append(
            int(source.attrs["index"]) if source is not None and is_argument else -1
        )

    return found
