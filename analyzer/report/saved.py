"""A finished estimate in its folder: kept with its tables, and opened without predicting anew.

What is opened is what was saved, to the byte, or nothing: the file with the tables names the version
that made it and a digest of every file that the estimate was made of and of the report. Where any
of them is another, the estimate has to be predicted anew.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from msgspec import convert

from analyzer.contract.run import Failure
from analyzer.errors import AnalyzerError
from analyzer.findings.analysis import analyse
from analyzer.graph.build import build_graph
from analyzer.measure.build import structure_of
from analyzer.model import Device, Finding, Kind, Recording, Severity, Step, StepConfig
from analyzer.parse.logdir import RUN_FILE
from analyzer.parse.run import read_run
from analyzer.parse.tables import read_facts, read_tables, write_tables
from analyzer.report.files import output_file
from analyzer.report.result import Result
from analyzer.schema import ALLOCATIONS, EVENTS
from analyzer.version import __version__

if TYPE_CHECKING:
    import networkx as nx

TABLES_FILE: Final = "prediction.npz"
"""The predicted tables, beside the report that was made of them."""

REPORT_JSON: Final = "report.json"
REPORT_HTML: Final = "report.html"

_FORMAT: Final = 1
_DAMAGED: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged zip, array or JSON raises."""
_SCHEMAS: Final = {"allocations": ALLOCATIONS, "events": EVENTS}


def keep_result(result: Result, folder: Path) -> None:
    """Leave the tables of an estimate in its folder, which holds its report already."""
    recording = result.recording
    facts = {
        "format": _FORMAT,
        "analyzer": __version__,
        "files": {
            file.name: _digest(file)
            for file in sorted(folder.iterdir())
            if file.is_file() and file.name not in (TABLES_FILE, REPORT_HTML)
        },
    }
    tables = {"allocations": recording.allocations, "events": recording.events}
    with output_file(folder / TABLES_FILE) as temporary:
        write_tables(temporary, tables, facts)


def open_kept(folder: Path) -> tuple[Result | None, str]:
    """Return the estimate that ``folder`` keeps.

    Returns:
        The result, None where it has to be predicted anew; and why, empty where nothing was kept.
    """
    file = folder / TABLES_FILE
    if not file.is_file():
        return None, ""
    try:
        facts = read_facts(file)
        if facts["format"] != _FORMAT or facts["analyzer"] != __version__:
            return None, f"it was saved by version {facts['analyzer']!s:.20}"
        if any(
            _digest(folder / Path(name).name) != digest for name, digest in facts["files"].items()
        ):
            return None, "a file of it was changed since"
        document = json.loads((folder / REPORT_JSON).read_bytes())
        return _result(folder, document, read_tables(file, _SCHEMAS)), ""
    except (AnalyzerError, *_DAMAGED):
        return None, f"its {TABLES_FILE} is damaged"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _result(folder: Path, document: dict[str, Any], tables: dict[str, pd.DataFrame]) -> Result:
    """Return the result that a document and its tables are; refuse those that differ.

    Raises:
        ValueError: the document says something else than the tables.
    """
    recording = Recording(
        kind=Kind(document["kind"]),
        target=document["target"],
        device=Device(**document["device"]),
        step_config=StepConfig(**document["step"]),
        allocator=document["allocator"],
        steps=tuple(
            Step(
                index=row["index"],
                number=row["number"],
                first=row["first_instant"],
                last=row["last_instant"],
            )
            for row in document["steps"]
        ),
        make_graph=partial(_graph, folder),
        warnings=tuple(document["warnings"]),
        versions=document["versions"],
        error=None if document["error"] is None else convert(document["error"], Failure),
        **tables,
    )
    analysis = analyse(recording)
    peak, told = analysis.peak, document["peak"]
    if (peak.requested_bytes, peak.allocated_bytes, peak.requested_instant) != (
        told["requested_bytes"],
        told["allocated_bytes"],
        told["instant"],
    ) or analysis.categories != document["categories_at_peak"]:
        raise ValueError("the tables are of another estimate than the report")
    findings = tuple(_finding(row) for row in document["findings"])
    return Result(replace(analysis, findings=findings), document, folder)


def _finding(row: dict[str, Any]) -> Finding:
    values = {**row, "severity": Severity(row["severity"]), "evidence": tuple(row["evidence"])}
    return Finding(**values)


def _graph(folder: Path) -> nx.MultiDiGraph:
    """Return the graph that lies in the folder, read when first asked for."""
    structure = structure_of(read_run(folder / RUN_FILE))
    assert structure is not None
    return build_graph(structure)
