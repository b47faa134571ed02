"""Run folders and other places of traces: the search for traces, and the note with its files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from analyzer.tracing.parse.buffer_plan import BufferPlan, Plans

RUN_FILE = "run.json"  # name of the capture's note
GRAPH_FILE = "graph.json.gz"

_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")


# End of the names of files that the profiler derives from a trace; they have no memory events.
_PRODUCTS = re.compile(
    r"(trace|memory_viewer)\.json|(kernel_stats|overview_page|tensorflow_stats|input_pipeline|op_profile"
    r"|pod_viewer|hlo_proto|op_stats|tf_data_bottleneck_analysis)\.(pb|json)"
)


# Ends of the names of the files in which XLA dumps the buffers of a module.
_ASSIGNMENTS = ("buffer-assignment.txt", "memory-usage-report.txt")


def is_assignment(path: Path) -> bool:
    """Say whether a file is a dump of XLA's buffers, by its name."""
    return path.name.endswith(_ASSIGNMENTS) and path.is_file()


def is_trace(path: Path) -> bool:
    """Say whether ``path`` has the name of a trace file or of a file that may be one."""
    is_profile = "memory_profile.json" in path.name
    return is_profile or path.name.endswith((".pb", ".pb.gz", ".xplane", ".gz"))


def suggest_command(path: Path) -> str:
    """Return the use of a file or folder that is no trace; empty if it is unknown."""
    if path.is_dir():
        source = min(path.glob("*.py"), default=None)
        return "" if source is None else f"Name the model in a file: {source}:name."

    if _PRODUCTS.search(path.name):
        trace = min(path.parent.glob("*.xplane.pb*"), default="the .xplane.pb")
        return f"Open {trace}: this file of the profiler has no memory events."

    return {
        ".json": "A report has no events. Give its run folder, such as traces/NAME.",
        ".zip": "Unpack it, and name the folder.",
        ".log": f"`analyze oom {path}` explains a log.",
        ".txt": f"`analyze oom {path}` explains a log.",
    }.get(path.suffix, "")


def find_traces(path: Path) -> list[Path]:
    """Return the trace files of the newest run at ``path``, one for each host, sorted by name.

    ``path`` is a trace file, a run folder, a folder of a profiler run, or a logdir with
    ``plugins/profile/RUN/HOST.xplane.pb`` in it. A TraceError says that there is none.
    """
    if path.is_file():
        return [path]

    if not path.is_dir():
        raise TraceError(
            f"There is no {path}.",
            "Name an .xplane.pb, run folder or logdir.",
        )

    runs = list_runs(path)
    if runs:
        return _list_files(runs[-1])

    check_note(path)
    raise TraceError(
        f"{path} holds no trace.",
        suggest_command(path)
        or "Expected an .xplane.pb in it or under plugins/profile/RUN/; capture one with "
        "`analyze trace MODEL`.",
    )


def list_runs(path: Path) -> list[Path]:
    """Return the folders of the runs in a run folder or a logdir, the newest last."""
    for pattern in ("", "plugins/profile/*/", "*/plugins/profile/*/"):
        found = {file.parent for file in path.glob(f"{pattern}*.xplane.pb*")}
        runs = [folder for folder in sorted(found) if _list_files(folder)]
        if runs:
            return runs

    return []


def find_run(path: Path, name: str) -> Path:
    """Return the folder of the run of a logdir with a name, or raise a TraceError."""
    runs = list_runs(path)
    for run in runs:
        if run.name == name:
            return run

    names = ", ".join(run.name for run in runs)
    raise TraceError(
        f"{path} has no run {name!r}.",
        f"It has {names}." if runs else "Name a logdir with plugins/profile/RUN in it.",
    )


def _list_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.xplane.pb*"))
    return [file for file in files if file.name.endswith(_SUFFIXES) and file.is_file()]


def find_run_file(trace: Path, name: str = RUN_FILE) -> Path | None:
    """Return the capture's note beside ``trace``, or None for a trace of another program."""
    return next(
        (f / name for f in list(trace.parents)[:5] if (f / name).is_file()),
        None,
    )


def check_note(path: Path) -> None:
    """Raise TraceError if a run folder has a graph and no note."""
    if (path / GRAPH_FILE).is_file() and not (path / RUN_FILE).is_file():
        raise TraceError(
            f"{path} is a run folder without {RUN_FILE}.",
            "Copy the whole folder, or capture it with `analyze trace MODEL`.",
        )


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
    from analyzer.tracing.parse.buffer_plan import read_plan

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
        raise TraceError(f"{path} is damaged ({error}).", DAMAGED) from None

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
