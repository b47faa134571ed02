"""Save the tables of a finished estimate in its folder, and read them back."""

import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import pandas as pd

from analyzer.explain.analysis import Analysis, analyse
from analyzer.model.choice import Category
from analyzer.model.contract.fields import MOST_BYTES
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.writing import DIGESTS_FILE
from analyzer.model.errors import TraceError
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.networkx_graph import build_graph
from analyzer.model.recording.records import REPORTED, Recording, Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS
from analyzer.report.output_files import output_file
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.parse.table_file import read_tables, write_tables
from analyzer.tracing.sources.graph_join import index_note_graph

TABLES_FILE: Final = "prediction.npz"  # the predicted tables, next to their report

_DAMAGED: Final = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError),
    *(TypeError, ValueError, zipfile.BadZipFile, zlib.error),
)
"""Errors of reading a damaged zip file, array or JSON."""
_SCHEMAS: Final = {"allocations": ALLOCATIONS, "events": EVENTS}


def save_tables(recording: Recording, folder: Path) -> None:
    """Write the tables of an estimate to its folder."""
    tables = {"allocations": recording.allocations, "events": recording.events}
    with output_file(folder / TABLES_FILE) as temporary:
        write_tables(temporary, tables)


def read_analysis(folder: Path, report: ReportFile) -> Analysis:
    """Return the analysis of the saved tables of a finished estimate."""
    try:
        return _analysis(folder, report, read_tables(folder / TABLES_FILE, _SCHEMAS))
    except _DAMAGED as error:
        raise TraceError(
            f"{folder / TABLES_FILE} is damaged ({error}).",
            hint=f"Remove {DIGESTS_FILE} next to it, then rerun `analyze estimate`.",
        ) from None


def _analysis(folder: Path, report: ReportFile, tables: dict[str, pd.DataFrame]) -> Analysis:
    _check(tables["allocations"], tables["events"], report)
    recording = Recording(
        **{name: getattr(report, name) for name in REPORTED},
        step_config=report.step,
        steps=tuple(
            Step(index=row.index, number=row.number, first=row.first_instant, last=row.last_instant)
            for row in report.steps
        ),
        make_graph=lambda: build_graph(_structure(folder)),
        make_tensor_links=lambda: _structure(folder).tensor_links(),
        uncertainty=report.uncertainty,
        **tables,
    )
    analysis = analyse(recording)
    peak, stated = analysis.peak, report.peak
    if (peak.requested_bytes, peak.allocated_bytes, peak.requested_instant) != (
        stated.requested_bytes,
        stated.allocated_bytes,
        stated.instant,
    ) or analysis.categories != report.categories_at_peak.by_category():
        raise ValueError("the tables belong to another estimate than the report")
    return replace(analysis, findings=report.findings)


def _check(allocations: pd.DataFrame, events: pd.DataFrame, report: ReportFile) -> None:
    count, rows = len(events), len(allocations)
    sizes = allocations[["requested_bytes", "allocated_bytes"]]
    instants = pd.Series(
        [at for step in report.steps for at in (step.first_instant, step.last_instant)]
    )
    born, dies = allocations["born"], allocations["dies"]
    checks = {
        "instants": born.between(-1, count - 1) & (born <= dies),
        "ends": dies.between(0, count),
        "sizes": sizes.ge(0).all(axis=1) & sizes.le(MOST_BYTES).all(axis=1),
        "turns": allocations["turns_at"].dropna().between(-1, count),
        "parts": allocations["part_of"].dropna().between(0, rows - 1),
        "steps": instants.between(-1, count),
        "categories": allocations["category"].isin([*map(str, Category)]),
        "events": events["kind"].between(-1, 1),
    }
    wrong = [name for name, is_valid in checks.items() if not is_valid.all()]
    if float(sizes.sum().sum()) >= 2**62:
        wrong.append("sums")
    if rows and report.allocator not in set(allocations["allocator"].unique()):
        wrong.append("allocator")
    if wrong:
        raise ValueError(f"its {', '.join(wrong)} are out of range")


def _structure(folder: Path) -> GraphIndex:
    structure = index_note_graph(read_run(folder / RUN_FILE))
    if structure is None:
        raise TraceError(
            f"{folder / RUN_FILE} has no graph, but the estimate next to it needs one.",
            hint="Run `analyze estimate` for this target.",
        )
    return structure
