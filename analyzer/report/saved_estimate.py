"""A finished estimate in its folder: kept with its tables, and opened without predicting anew.

What is opened is what was saved, to the byte, or nothing: the file with the tables names the version
that made it and a digest of every file that the estimate was made of and of the report. Where any
of them is another, the estimate has to be predicted anew.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from analyzer.contract.categories import Category
from analyzer.contract.fields import MOST_BYTES
from analyzer.contract.kept_tables import KEPT_FORMAT, KeptFacts
from analyzer.contract.reading import beside, file_bytes
from analyzer.contract.report.report_file import ReportFile
from analyzer.contract.report.writing import read_report
from analyzer.errors import AnalyzerError
from analyzer.findings.analysis import analyse
from analyzer.graph.networkx_graph import build_graph
from analyzer.measure.measured_recording import structure_of
from analyzer.parse.logdir import RUN_FILE
from analyzer.parse.run_folder import read_run
from analyzer.parse.table_file import read_facts, read_tables, write_tables
from analyzer.recording.records import Recording, Step
from analyzer.recording.schema import ALLOCATIONS, EVENTS
from analyzer.report.exports.output_files import output_file
from analyzer.report.result import Result
from analyzer.version import __version__

if TYPE_CHECKING:
    import networkx as nx

TABLES_FILE: Final = "prediction.npz"
"""The predicted tables, beside the report that was made of them."""

REPORT_JSON: Final = "report.json"
REPORT_HTML: Final = "report.html"

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
    facts = KeptFacts(
        format=KEPT_FORMAT,
        analyzer=__version__,
        files={
            file.name: _digest(file)
            for file in sorted(folder.iterdir())
            if file.is_file() and file.name not in (TABLES_FILE, REPORT_HTML)
        },
    )
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
        if facts.format != KEPT_FORMAT or facts.analyzer != __version__:
            return None, f"it was saved by version {facts.analyzer:.20}"
        if any(_digest(beside(file, name)) != digest for name, digest in facts.files.items()):
            return None, "a file of it was changed since"
        report = read_report(folder / REPORT_JSON)
        return _result(folder, report, read_tables(file, _SCHEMAS)), ""
    except (AnalyzerError, *_DAMAGED):
        return None, f"its {TABLES_FILE} is damaged"


def _digest(file: Path) -> str:
    return hashlib.sha256(file_bytes(file)).hexdigest()


def _result(folder: Path, report: ReportFile, tables: dict[str, pd.DataFrame]) -> Result:
    """Return the result that a report and its tables are; refuse those that differ.

    Raises:
        ValueError: the report says something else than the tables.
    """
    _check(tables["allocations"], tables["events"], report)
    recording = Recording(
        kind=report.kind,
        target=report.target,
        device=report.device,
        step_config=report.step,
        allocator=report.allocator,
        steps=tuple(
            Step(index=row.index, number=row.number, first=row.first_instant, last=row.last_instant)
            for row in report.steps
        ),
        make_graph=partial(_graph, folder),
        warnings=report.warnings,
        versions=report.versions,
        notes=report.notes,
        unmodelled=report.unmodelled,
        uncertainty=report.uncertainty,
        **tables,
    )
    analysis = analyse(recording)
    peak, told = analysis.peak, report.peak
    if (peak.requested_bytes, peak.allocated_bytes, peak.requested_instant) != (
        told.requested_bytes,
        told.allocated_bytes,
        told.instant,
    ) or analysis.categories != report.categories_at_peak.by_category():
        raise ValueError("the tables are of another estimate than the report")
    return Result(replace(analysis, findings=report.findings), report, folder)


def _check(allocations: pd.DataFrame, events: pd.DataFrame, report: ReportFile) -> None:
    """Check that the tables hold what a prediction can, so that nobody after this has to.

    Raises:
        ValueError: an instant, a size, a category or a step lies beyond what there is.
    """
    count, rows = len(events), len(allocations)
    born, dies = (allocations[name].to_numpy(dtype=np.int64) for name in ("born", "dies"))
    sizes = allocations[["requested_bytes", "allocated_bytes"]].to_numpy(dtype=np.int64)
    instants = [step.first_instant for step in report.steps]
    instants += [step.last_instant for step in report.steps]
    holds = {
        "instants": _within(born, -1, count - 1) and bool((born <= dies).all()),
        "ends": _within(dies, 0, count),
        "sizes": _within(sizes, 0, MOST_BYTES) and float(sizes.sum(dtype=np.float64)) < 2**62,
        "turns": _within(_known(allocations["turns_at"]), -1, count),
        "parts": _within(_known(allocations["part_of"]), 0, rows - 1),
        "steps": _within(np.asarray(instants, dtype=np.int64), -1, count),
        "categories": set(allocations["category"].unique()) <= set(map(str, Category)),
        "events": _within(events["kind"].to_numpy(dtype=np.int64), -1, 1),
        "allocator": rows == 0 or report.allocator in set(allocations["allocator"].unique()),
    }
    if wrong := [name for name, is_held in holds.items() if not is_held]:
        raise ValueError(f"its {', '.join(wrong)} lie beyond what a prediction holds")


def _known(column: pd.Series[int]) -> np.ndarray:
    known: np.ndarray = column.dropna().to_numpy(dtype=np.int64)
    return known


def _within(values: np.ndarray, low: int, high: int) -> bool:
    return bool(((values >= low) & (values <= high)).all())


def _graph(folder: Path) -> nx.MultiDiGraph:
    """Return the graph that lies in the folder, read when first asked for."""
    structure = structure_of(read_run(folder / RUN_FILE))
    assert structure is not None
    return build_graph(structure)
