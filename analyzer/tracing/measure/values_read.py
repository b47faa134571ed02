"""Ops on a simulated card whose value decides the control flow or a size.

No kernel computes values on a simulated card, so that a value read back is 0. A branch, loop, assertion
or result size that depends on it is then wrong, and the reader has to know. Values that TensorFlow
computes in host memory (32-bit integers, shapes) are correct, and gradients count as finite.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from analyzer.model.contract.graph_note import Op, read_op_types, split_tensor
from analyzer.model.contract.run_note import STEP_WITH_ALL
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.tracing.parse.run_folder import RunNote

_TYPES: Final = read_op_types("model/graph/graph_op_types.toml")["types"]
_SIZED: Final = _TYPES["sized_by_values"]

_DECIDE: Final = {
    **dict.fromkeys(("Switch", "RefSwitch"), 1),
    **dict.fromkeys(
        ("LoopCond", "Assert", "If", "StatelessIf", "Case", "StatelessCase"), 0
    ),
    **dict.fromkeys(_SIZED, 0),
}
"""Op type -> the input whose value decides the control flow or the size."""

_TRUTHS_IN: Final = {"TensorScatterUpdate": (0, 2), "Fill": (1,)}
"""Op type -> the inputs that contain the values of its result."""

_TRANSPARENT, _KNOWN = _TYPES["pass_values"], _TYPES["known_values"]
_RECEIVES: Final = ("_Recv", "_HostRecv")
_NUMBER: Final = re.compile(r"/_\d+$")
_ON_HOST: Final = ("int32", "string", "resource", "variant")
_MOST_NAMED: Final = 3  # ops in the warning


def warn_about_values(
    structure: GraphIndex | None, note: RunNote | None = None
) -> list[str]:
    """Return a warning about these ops; empty if there are none.

    The capture knows them, unless the step ran eagerly, compiled or in a script.
    """
    if note is not None and note.unknown_values is not None:
        return (
            [_describe_unknown_values(note.unknown_values)]
            if note.unknown_values
            else []
        )
    found = find_value_dependent_ops(structure) if structure is not None else []
    if not found:
        return []
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    named = ", ".join(found[:_MOST_NAMED])

    return [
        f"Values of the simulated card decide branches, loops or sizes in {named}{more}. No kernel "
        "computed them, so they count as 0 and the memory may be wrong."
    ]


def _describe_unknown_values(decisions: Mapping[str, str]) -> str:
    """Return a warning that names the ops whose unknown values decide."""
    names = [f"{name} ({decides})" for name, decides in decisions.items()]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    text = (
        f"A simulated card lacks values that depend on the weights: {', '.join(names[:_MOST_NAMED])}"
        f"{more}. Step {STEP_WITH_ALL} ran as if they select everything, the other steps as if they "
        "select nothing: the peaks of the steps are the range"
    )
    if any("loop" in decides for decides in decisions.values()):
        text += ", without further trips of a loop"
    return f"{text}."


def find_value_dependent_ops(structure: GraphIndex) -> list[str]:
    """Return the ops that decide by a value of the card, as ``name at file:line``."""
    found: dict[str, None] = {}
    for op in structure.ops.values():
        at = _DECIDE.get(op.type, len(op.inputs))
        if at >= len(op.inputs):
            continue
        is_sized = op.type in _SIZED
        found_on_card = (
            source.outputs[min(index, len(source.outputs) - 1)].dtype not in _ON_HOST
            for source, index in _find_sources(structure, op.inputs[at])
            if source.type not in _KNOWN and source.outputs
        )

        if (is_sized and "GPU" in op.device) or any(found_on_card):
            maker = None if is_sized else _find_maker(structure, op.inputs[at])
            named = maker or op
            found[f"{named.name} at {named.source}" if named.source else named.name] = (
                None
            )

    return list(found)


def _find_sources(structure: GraphIndex, tensor: str) -> Iterator[tuple[Op, int]]:
    """Yield the outputs of ops that a decision depends on, following comparisons and copies."""
    queue, seen = [tensor], set()
    while queue:
        name = queue.pop()
        if name in seen or name.startswith("^"):
            continue
        seen.add(name)
        op = _find_maker(structure, name)
        if op is None:
            continue
        is_truth = (
            op.type in _TRUTHS_IN and op.outputs and op.outputs[0].dtype == "bool"
        )

        if op.type in _TRANSPARENT:
            queue.extend(op.inputs)
        elif is_truth:
            queue.extend(
                op.inputs[at] for at in _TRUTHS_IN[op.type] if at < len(op.inputs)
            )
        else:
            yield op, split_tensor(name)[1] if structure.spec(name) is not None else 0


def _find_maker(structure: GraphIndex, tensor: str) -> Op | None:
    """Return the op that makes a tensor; for a tensor sent to the host, the op before the copy.

    The partitioner names the receiving op after the sending one (``graph_partition.cc``).
    """
    op = structure.ops.get(split_tensor(tensor)[0])
    if op is None or op.type not in _RECEIVES:
        return op
    return structure.ops.get(_NUMBER.sub("", op.name), op)
