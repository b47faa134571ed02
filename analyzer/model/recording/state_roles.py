"""The purpose of variables that belong to no model and no optimizer.

A user-defined step may keep gradient accumulators, moving averages or momentum in plain variables. The
graph shows the values that are written into them.
"""

from typing import Final

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import Op, split_tensor
from analyzer.model.contract.run_note import RunFile
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.phases import Phase
from analyzer.model.graph.reachability import reach

_ADDS: Final = frozenset({"Add", "AddV2", "AddN"})
# Ops between a gradient and an accumulator: a scale or a change of dtype.
_SCALES: Final = frozenset(
    {"Mul", "RealDiv", "DivNoNan", "Cast", "Neg", "Select", "SelectV2"}
)
_READS: Final = frozenset({"ReadVariableOp", "ResourceGather"})


def find_roles_of_state(
    note: RunFile, structure: GraphIndex
) -> dict[int, tuple[str, str]]:
    """Return category and role of the note's plain state variables, by their index in it."""
    handles = find_handles(structure)
    users = {
        number: _find_users(structure, handles[variable.argument])
        for number, variable in enumerate(note.variables)
        if variable.role == "state" and variable.argument in handles
    }
    writers = {
        number: [op for op in found if not op.type.startswith(tuple(_READS))]
        for number, found in users.items()
    }
    accumulators = {
        number
        for number, found in writers.items()
        if any(_accumulates(structure, op, users[number]) for op in found)
    }
    sums = {
        op.name for number in accumulators for op in users[number] if op.type in _READS
    }
    roles = {}

    for number, found in writers.items():
        if number in accumulators:
            roles[number] = Category.GRADIENT.value, "gradient accumulator"
        elif note.variables[number].shape != ():
            is_updated = any(_is_of_update(structure, op, sums) for op in found)
            roles[number] = (
                (Category.OPTIMIZER_STATE.value, "optimizer state")
                if is_updated
                else (Category.PARAMETER.value, "not trainable")
            )

    return roles


def find_handles(structure: GraphIndex) -> dict[object, str]:
    """Return the argument ops by index."""
    return {
        op.attrs.get("index"): op.name
        for op in structure.ops.values()
        if op.type == "_Arg"
    }


def _is_of_update(structure: GraphIndex, writer: Op, sums: set[str]) -> bool:
    """Say whether ``writer`` writes a value that depends on gradients or their sums.

    One op writes an accumulator and another one reads it: no edge connects gradients and their sum.
    """
    if structure.phases[writer.name] is not Phase.FORWARD:
        return True

    def find_sources(name: str) -> set[str]:
        op = structure.ops.get(name)
        return (
            set() if op is None else {split_tensor(tensor)[0] for tensor in op.inputs}
        )

    sources = reach(find_sources(writer.name), find_sources) if sums else set()
    return not sums.isdisjoint(sources)


def _find_users(structure: GraphIndex, handle: str) -> list[Op]:
    """Return the ops that use the handle, also through control flow.

    For a function that XLA compiles, these are its ops, not the call.
    """

    def pass_on(name: str) -> list[str]:
        return structure.users_of(name) if structure.ops[name].type in ALIAS_OPS else []

    users = (structure.ops[name] for name in reach(structure.users_of(handle), pass_on))

    return [
        op
        for op in users
        if not (op.type in ALIAS_OPS or op.attrs.get("_XlaMustCompile"))
    ]


def _accumulates(structure: GraphIndex, op: Op, users: list[Op]) -> bool:
    """Say whether ``op`` adds a gradient to the variable."""
    if len(op.inputs) < 2:
        return False
    if op.type == "AssignAddVariableOp":
        return _is_gradient(structure, op.inputs[1])
    total = structure.ops.get(split_tensor(op.inputs[1])[0])
    if op.type != "AssignVariableOp" or total is None or total.type not in _ADDS:
        return False
    reads = {user.name for user in users if user.type in _READS}
    terms = [tensor for tensor in total.inputs if split_tensor(tensor)[0] not in reads]

    return len(terms) < len(total.inputs) and any(
        _is_gradient(structure, t) for t in terms
    )


def _is_gradient(structure: GraphIndex, tensor: str, depth: int = 4) -> bool:
    """Say whether ``tensor`` is a gradient of a parameter, possibly scaled."""
    if tensor in structure.gradients:
        return True
    op = structure.ops.get(split_tensor(tensor)[0])
    if op is None or depth == 0 or op.type not in _SCALES | ALIAS_OPS:
        return False
    found = [
        source for source in op.inputs if _is_gradient(structure, source, depth - 1)
    ]

    return len(found) == 1  # a product of two gradients is no gradient
