"""The purpose of variables that belong to no model and no optimizer.

A user-defined step may keep gradient accumulators, moving averages or momentum in plain variables. The
graph shows the values that are written into them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import Op, split_tensor
from analyzer.model.graph.buffer_sharing import ALIAS_OPS
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.phases import Phase
from analyzer.tracing.parse.run_folder import RunNote

_ADDS: Final = frozenset({"Add", "AddV2", "AddN"})
# Ops between a gradient and an accumulator: a scale or a change of dtype.
_SCALES: Final = frozenset({"Mul", "RealDiv", "DivNoNan", "Cast", "Neg", "Select", "SelectV2"})
_READS: Final = frozenset({"ReadVariableOp", "ResourceGather"})


def find_roles_of_state(note: RunNote, structure: GraphIndex) -> dict[int, tuple[str, str]]:
    """Return category and role of the note's plain state variables, by their index in it."""
    users = _find_users_of_state(note, structure)
    accumulators = {
        number
        for number, found in users.items()
        if any(_accumulates(structure, op, found) for op in _select_writers(found))
    }
    sums = {op.name for number in accumulators for op in users[number] if op.type in _READS}
    roles = {}
    for number, found in users.items():
        if number in accumulators:
            roles[number] = Category.GRADIENT.value, "gradient accumulator"
        elif note.variables[number].shape == ():
            continue
        elif any(_is_of_update(structure, op, sums) for op in _select_writers(found)):
            roles[number] = Category.OPTIMIZER_STATE.value, "optimizer state"
        else:
            roles[number] = Category.PARAMETER.value, "not trainable"
    return roles


def _find_users_of_state(note: RunNote, structure: GraphIndex) -> dict[int, list[Op]]:
    """Return the ops that use each plain state variable, by its index in the note."""
    arguments = {
        op.attrs.get("index"): op.name for op in structure.ops.values() if op.type == "_Arg"
    }
    return {
        number: _users(structure, arguments[variable.argument])
        for number, variable in enumerate(note.variables)
        if variable.role == "state" and variable.argument in arguments
    }


def _select_writers(users: list[Op]) -> list[Op]:
    return [op for op in users if not op.type.startswith(tuple(_READS))]


def _is_of_update(structure: GraphIndex, writer: Op, sums: set[str]) -> bool:
    """Say whether ``writer`` writes a value that depends on gradients or their sums.

    One op writes an accumulator and another one reads it, so that no edge connects the gradients with
    the result of their sum.
    """
    if structure.phases[writer.name] is not Phase.FORWARD:
        return True
    queue = deque(split_tensor(tensor)[0] for tensor in writer.inputs)
    seen = set(queue)
    while queue and sums:
        name = queue.popleft()
        if name in sums:
            return True
        op = structure.ops.get(name)
        for tensor in op.inputs if op is not None else ():
            source = split_tensor(tensor)[0]
            if source not in seen:
                seen.add(source)
                queue.append(source)
    return False


def _users(structure: GraphIndex, handle: str) -> list[Op]:
    """Return the ops that use the handle, also through control flow."""
    users: list[Op] = []
    seen = {handle}
    queue = deque([handle])
    while queue:
        maker = structure.ops[queue.popleft()]
        for index in range(max(len(maker.outputs), 1)):
            for name in structure.consumers.get(f"{maker.name}:{index}", ()):
                if name in seen:
                    continue
                seen.add(name)
                if structure.ops[name].type in ALIAS_OPS:
                    queue.append(name)
                elif not structure.ops[name].attrs.get(
                    "_XlaMustCompile"
                ):  # its own ops are looked at
                    users.append(structure.ops[name])
    return users


def _accumulates(structure: GraphIndex, op: Op, users: list[Op]) -> bool:
    """Say whether ``op`` adds a gradient to the variable."""
    if len(op.inputs) < 2:
        return False
    if op.type == "AssignAddVariableOp":
        return _is_gradient(structure, op.inputs[1])
    if op.type != "AssignVariableOp":
        return False
    total = structure.ops.get(split_tensor(op.inputs[1])[0])
    if total is None or total.type not in _ADDS:
        return False
    reads = {user.name for user in users if user.type in _READS}
    terms = [tensor for tensor in total.inputs if split_tensor(tensor)[0] not in reads]
    return len(terms) < len(total.inputs) and any(_is_gradient(structure, t) for t in terms)


def _is_gradient(structure: GraphIndex, tensor: str, depth: int = 4) -> bool:
    """Say whether ``tensor`` is a gradient of a parameter, possibly scaled."""
    if tensor in structure.gradients:
        return True
    op = structure.ops.get(split_tensor(tensor)[0])
    if op is None or depth == 0 or op.type not in _SCALES | ALIAS_OPS:
        return False
    found = [source for source in op.inputs if _is_gradient(structure, source, depth - 1)]
    return len(found) == 1  # a product of two gradients is no gradient
