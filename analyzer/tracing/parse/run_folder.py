"""The capture's note, with the graph and the plans that it names."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from analyzer.model.contract.graph_note import (
    GraphFile,
    Op,
    TracedGraph,
    check_tensor,
    read_graph_file,
)
from analyzer.model.contract.reading import read_regular_file, sibling_file, unpack
from analyzer.model.contract.run_note import (
    DAMAGED,
    CompiledFunction,
    RunFile,
    read_run_file,
)
from analyzer.model.errors import TraceError
from analyzer.model.graph.host_copies import join_device_edges
from analyzer.tracing.parse.hlo import Hlo, read_hlo


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNote(CompiledFunction):
    """A compiled function of the step with its files; None for those that are absent."""

    hlo: Hlo | None = None  # the content of ``plan``


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote(RunFile):
    """``run.json`` with the content of the files that it names."""

    ops: tuple[Op, ...] = ()  # the executed graph; empty for an eager step
    traced: tuple[TracedGraph, ...] = ()
    inside: tuple[
        Op, ...
    ] = ()  # the traced ops of functions that run as one op; see ``compiled``
    compiled: tuple[CompiledNote, ...] = ()


def read_run(path: Path) -> RunNote:
    """Read ``run.json`` and its files; a TraceError says that one is damaged or too new."""
    run = read_run_file(path)
    try:
        for tensor in (*run.gradients, *run.nested_gradients):
            check_tensor(tensor)
        graph = (
            read_graph_file(sibling_file(path, run.graph))
            if run.graph
            else GraphFile(ops=())
        )
        compiled = tuple(
            CompiledNote(
                **_get_fields(row),
                hlo=read_hlo(unpack(read_regular_file(sibling_file(path, row.plan))))
                if row.plan
                else None,
            )
            for row in run.xla
        )
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} is damaged ({error}).", hint=DAMAGED) from None

    return RunNote(
        **_get_fields(run),
        ops=join_device_edges(graph.ops),
        traced=graph.traced,
        inside=graph.inside,
        compiled=compiled,
    )


def _get_fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
