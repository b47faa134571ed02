"""The graph as the executor holds it: numbered nodes and their edges.

The order of a node's out-edges decides the order of execution; here it is that of the listing. A node
keeps up to eight out-edges in order; more lie in a hash set of pointers, whose order differs between
processes (``edgeset.h``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.graph_note import (
    Op,
    TensorSpec,
    op_types,
    read_op_types,
    split_tensor,
)
from analyzer.model.errors import InputError

TYPES: Final = read_op_types("simulate/predict/executor_op_types.toml")["types"]

SWITCHES: Final = op_types("Switch RefSwitch _SwitchN")
"""Op types that pass their first input to the output that the second input selects."""

MERGES: Final = op_types("Merge RefMerge")
ENTERS: Final = op_types("Enter RefEnter")
EXITS: Final = op_types("Exit RefExit")
NEXT: Final = op_types("NextIteration RefNextIteration")

_CONTROL_FLOW: Final = SWITCHES | MERGES | ENTERS | EXITS

ORDERED_EDGES: Final = 8  # out-edges that a node keeps in order (``EdgeSet::kInline``)


@dataclass(frozen=True)
class Wiring:
    """Numbered nodes with their edges."""

    ops: Sequence[Op]
    inputs: list[
        list[tuple[int, int]]
    ]  # for each node, the (node, output) behind each data input
    control: list[list[int]]
    # for each node, its data edges as (node, output, input), in order of creation
    data_out: list[list[tuple[int, int, int]]]
    control_out: list[
        list[int]
    ]  # for each node, the nodes that wait for it, in order of creation
    roots: list[int]

    @property
    def has_control_flow(self) -> bool:
        """Whether the graph has branches or loops."""
        return any(op.type in _CONTROL_FLOW for op in self.ops)

    def specs(self, node: int) -> list[TensorSpec]:
        """Return dtype and shape of each data input."""
        return [
            self.ops[source].outputs[output] for source, output in self.inputs[node]
        ]


def wire(ops: Sequence[Op]) -> Wiring:
    """Number the nodes and rebuild their edges; refuse an impossible graph."""
    inputs, control = _resolve_inputs(ops)
    data_out: list[list[tuple[int, int, int]]] = [[] for _ in ops]
    control_out: list[list[int]] = [[] for _ in ops]

    for node in range(len(ops)):
        for slot, (source, output) in enumerate(inputs[node]):
            data_out[source].append((node, output, slot))

        for source in control[node]:
            control_out[source].append(node)

    roots = [node for node in range(len(ops)) if not inputs[node] and not control[node]]
    return Wiring(ops, inputs, control, data_out, control_out, roots)


def _resolve_inputs(
    ops: Sequence[Op],
) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Return each node's data inputs (node, output) and control inputs; refuse impossible ones."""
    number = {op.name: index for index, op in enumerate(ops)}
    inputs: list[list[tuple[int, int]]] = []
    control: list[list[int]] = []

    for op in ops:
        try:
            tensors = [split_tensor(tensor) for tensor in op.inputs]
            inputs.append([(number[name], output) for name, output in tensors])
            control.append([number[name] for name in op.control_inputs])
        except KeyError as error:
            missing = str(error)[:80]
            message = f"The graph is damaged: an input names the missing op {missing}."
            raise InputError(message) from None

    for op, feeds in zip(ops, inputs, strict=True):
        for source, output in feeds:
            count = len(ops[source].outputs)
            if output >= count:
                raise InputError(
                    f"The graph is damaged: {op.name[:80]!r} reads output {output} of "
                    f"{ops[source].name[:80]!r}, which has {count}."
                )

        if op.type in ENTERS and "frame_name" not in op.attrs:
            name = op.name[:80]
            raise InputError(
                f"The graph is damaged: {name!r} enters a loop without a name."
            )

    return inputs, control
