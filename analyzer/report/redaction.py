"""Remove names and paths from a result, so that it can be shared."""

import re
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
from msgspec.structs import replace as replace_fields

from analyzer.explain.all_findings import collect
from analyzer.model.graph.buffer_sharing import NO_SHARING
from analyzer.model.graph.graph_index import NO_GRAPH
from analyzer.report.document import build_document
from analyzer.report.result import Result

_COLUMNS = ("op", "layer", "tensor", "variable", "instruction")

# Parts of names that TensorFlow chooses.
_PUBLIC = frozenset({"gradient_tape", "while", "cond", "then", "else", "body"})

_OUTPUT = re.compile(r":\d+\Z")
_NUMBER = re.compile(r"_\d+$")
_REDACTED = "redacted"


def redact_result(result: Result) -> Result:
    """Return a result without names of layers, ops and variables, and without paths and notes.

    Each part of a name becomes a letter with a number, the same one everywhere. Sizes, shapes,
    categories and op types stay. Findings are made again from the redacted tables.
    """
    analysis = result.analysis
    rename = _make_renamer({str(name) for name in analysis.rows["op_type"].unique()})
    recording = analysis.recording
    error = recording.error

    recording = replace(
        recording,
        target=replace_fields(
            recording.target,
            text=_REDACTED,
            name=_REDACTED,
            trace="",
            kind="",
        ),
        step_config=replace(recording.step_config, options=()),
        events=_redact_table(recording.events, rename),
        allocations=_redact_table(recording.allocations, rename),
        structure=NO_GRAPH,
        sharing=NO_SHARING,
        compilations={},
        warnings=(),
        notes=(),
        error=None if error is None else replace(error, message=_REDACTED, where=None),
        watch=None,
    )

    rows, alive = (
        _redact_table(table, rename) for table in (analysis.rows, analysis.alive)
    )
    redacted = replace(
        analysis,
        recording=recording,
        rows=rows,
        alive=alive,
        findings=(),
    )

    analysis = collect(redacted)

    return Result(lambda: analysis, build_document(analysis))


def _make_renamer(op_types: set[str]) -> Callable[[str], str]:
    """Return the function that redacts a name part by part, injectively."""
    known: dict[str, str] = {}

    def rename(name: str) -> str:
        output = _OUTPUT.search(name)
        end = output[0] if output else ""
        parts = name.removesuffix(end).split("/")

        for place, part in enumerate(parts):
            if part and part not in _PUBLIC and _NUMBER.sub("", part) not in op_types:
                parts[place] = known.setdefault(part, f"n{len(known) + 1}")

        return "/".join(parts) + end

    return rename


def _redact_table(table: pd.DataFrame, rename: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with its names replaced and its source lines removed."""
    changed = {
        column: table[column].cat.rename_categories(lambda name: rename(str(name)))
        for column in _COLUMNS
        if column in table
    }

    if "waits_for" in table:
        changed["waits_for"] = table["waits_for"].map(rename)
    if "source" in table:
        changed["source"] = pd.Categorical([""] * len(table))

    return table.assign(**changed)
