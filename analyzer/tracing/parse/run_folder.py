"""The capture's note, with the graph and the plans that it names."""

from dataclasses import dataclass, field
from pathlib import Path

from analyzer.model.contract.reading import read_regular_file, sibling_file, unpack
from analyzer.model.contract.run_note import (
    DAMAGED,
    GraphFile,
    Op,
    RunFile,
    check_tensor,
    read_graph_file,
    read_run_file,
)
from analyzer.model.errors import TraceError
from analyzer.model.graph.graph_index import (
    NO_GRAPH,
    NO_LAYERS,
    GraphIndex,
    ScopeTable,
    build_graph_index,
)
from analyzer.tracing.parse.buffer_plan import BufferPlan, Plans, read_plan


@dataclass(frozen=True, kw_only=True)
class RunNote(RunFile):
    """``run.json`` with the content of the files that it names.

    ``is_captured`` is False for the empty note of a trace of another program.
    """

    is_captured: bool = True
    ops: tuple[Op, ...] = ()  # the executed graph; empty for an eager step
    inside: tuple[Op, ...] = ()  # the traced ops of functions that run as one op

    # The memory plans of such functions by the op that calls them.
    plans: Plans = field(default_factory=dict)


NO_NOTE = RunNote(is_captured=False)


def read_run(path: Path) -> RunNote:
    """Read ``run.json`` and its files; a TraceError says that one is damaged or too new."""
    run = read_run_file(path)

    try:
        for tensor in run.gradients:
            check_tensor(tensor)

        graph = GraphFile(ops=())
        if run.graph:
            graph = read_graph_file(sibling_file(path, run.graph))

        plans: dict[str, BufferPlan] = {}

        for row in run.xla:
            if row.plan:
                content = unpack(read_regular_file(sibling_file(path, row.plan)))
                plans |= dict.fromkeys(row.ops, read_plan(content))
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} is damaged ({error}).", hint=DAMAGED) from None

    return RunNote(
        **vars(run),
        ops=graph.ops,
        inside=graph.inside,
        plans=plans,
    )


def index_note_graph(note: RunNote) -> GraphIndex:
    """Return the indexed graph of a note, which is empty for an eager step."""
    if not note.ops:
        return NO_GRAPH

    names = {op.name for op in note.ops}

    return build_graph_index(
        [*note.ops, *(op for op in note.inside if op.name not in names)],
        gradients=note.gradients,
        scopes=ScopeTable(note.scopes or ({} if note.step.infers else NO_LAYERS)),
    )
