"""The functions of a step that XLA compiled, from its dump."""

from pathlib import Path
from typing import Any, TypeAlias

from analyzer.capture.graph import plain_graphs
from analyzer.capture.xla.xla_dumps import list_dumps, read_dumped_plan
from analyzer.model.contract.graph_note import Op
from analyzer.model.contract.run_note import CompiledFunction

CompiledPlan: TypeAlias = tuple[CompiledFunction, bytes]
"""A function that XLA compiled, and its module (HloProto) with the buffer assignment."""


def is_compiled(function: Any) -> bool:
    """Say whether XLA compiles a concrete function as a whole."""
    return bool(function.function_def.attr["_XlaMustCompile"].b)


def read_compiled_functions(
    function: Any, dump: Path
) -> tuple[list[CompiledPlan], list[Op]]:
    """Return the functions of a step that ran and that XLA compiled, from its dump; and their ops."""
    callers: dict[str, list[str]] = {}
    if is_compiled(function):
        own = plain_graphs.decode_name(function.name)
        callers[own] = [own]

    callers |= plain_graphs.find_compiled_calls(function.graph)
    compiled = []
    for name, ops in callers.items():
        plan, platform = read_dumped_plan(dump, name)
        if plan:
            note = CompiledFunction(
                ops=tuple(ops),
                function=name,
                platform=platform,
                compilations=len(list_dumps(dump, name)),
            )
            compiled.append((note, plan))

    names = [note.function for note, _ in compiled]
    return compiled, plain_graphs.read_inner_ops(function, names)
