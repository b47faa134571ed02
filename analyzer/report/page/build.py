"""Build the report page: one HTML file with its style, its script and its data.

Text of a trace reaches the page in two ways only, and both keep it text: through the template, which
escapes it, and as compressed data, which the script shows by ``textContent``.
The page also lists the lines of the user's code that own the most bytes at the peak, with their text.

The page numbers *states*: state 0 is before the first event, state ``i + 1`` is after event ``i``. A
buffer is alive at state ``s`` if ``born <= s < dies``, so all columns are unsigned numbers. The header
has instants, as in ``steps``: state minus 1.
"""

from __future__ import annotations

import base64
import gzip
import json
import linecache
import os
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.contract.child_messages import TargetKind
from analyzer.model.contract.fields import Category
from analyzer.model.contract.report_file import (
    DiffFile,
    ProgramFigures,
    ReportFile,
    plain_report,
)
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.recording.records import (
    Recording,
    TextNumbers,
    category_codes,
    category_sums,
    earlier_categories,
    main_allocator_rows,
    weigh,
)
from analyzer.model.units import format_bytes
from analyzer.report import report_sections
from analyzer.report.actions import change_items
from analyzer.report.answer import (
    CATEGORY_LABELS,
    answer_tone,
    error_line,
    list_details,
    list_reasons,
    list_shares,
    notices_of,
    step_words,
    versions_line,
)
from analyzer.report.diff_sections import diff_document
from analyzer.report.render.page_shell import asset, fill_page, templates_of, writable
from analyzer.report.render.sections import (
    Section,
    Table,
    TableColumn,
)

_MOST = 5  # lines
_MOST_CHARACTERS = 120  # of a line's text
_MOST_BYTES = 1 << 20  # of a file
_COLUMNS = (
    TableColumn("requested", "bytes"),
    TableColumn("line", "path"),
)


def source_lines_section(report: ReportFile) -> Section | None:
    """Return the lines with the most requested bytes; None if they do not divide the peak.

    A redacted report has no lines.
    """
    sizes: defaultdict[str, int] = defaultdict(int)
    for tensor in report.tensors_at_peak:
        sizes[tensor.source] += tensor.requested_bytes

    sizes.pop("", None)
    least = report.peak.requested_bytes // report_sections.LEAST_PARTS
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:_MOST]
    rows = tuple(
        (size, f"{line}  {_read_line(line)}".rstrip())
        for line, size in largest
        if size >= least
    )

    if len(rows) < 2:  # the call of ``fit`` owns all
        return None

    return Section(
        "Lines that own the most bytes at the peak",
        (Table(_COLUMNS, rows),),
    )


def _read_line(place: str) -> str:
    """Return the text of ``file.py:line``; empty if the file is not one of this folder's sources.

    A trace of someone else may name any file, so only Python files below this folder are read.
    """
    name, _, number = place.rpartition(":")

    try:
        folder = Path(os.path.realpath(os.getcwd()))
        path = Path(os.path.realpath(name))

        is_own = path.suffix == ".py" and folder in path.parents
        if not is_own or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ""
    except (OSError, ValueError):  # no current folder; a name with U+0000
        return ""

    text = linecache.getline(str(path), int(number) if number.isdecimal() else 0)

    return text.strip()[:_MOST_CHARACTERS]


_PAGE = "analyzer.report.page"

_FEWEST = 3  # readings in a chart

# of the tables that are HTML, for printing and readers without script
STATIC_ROWS = 25

_TENSORS = 5  # groups of equal tensors
_ALL_HOSTS = 10_000  # rows


def render(
    report: ReportFile,
    recording: Recording,
    *,
    comparison: DiffFile | None = None,
) -> str:
    """Return the report page as one HTML file; ``comparison`` is the difference to an earlier step."""
    header, columns = payload(report, recording, comparison)
    error = "" if report.error is None else report.error.message
    hosts = report.hosts
    static: list[Section] = []

    if comparison is not None:
        static += diff_document(comparison).sections[:2]

    static += report_sections.layer_sections(report, STATIC_ROWS)

    return fill_page(
        _PAGE,
        "assets/template.html",
        script=_script(),
        subtitle=", ".join(filter(None, (step_words(report), report.device.name))),
        footer=versions_line(report.versions),
        next_command=""
        if report.target.kind == TargetKind.TRACE
        else report.next_command,
        document=report,
        basis=report.kind.basis,
        tone=answer_tone(report),
        answer=report.answer,
        notices=notices_of(report),
        details=list(list_details(report)),
        reasons=list(list_reasons(report)),
        shares=list_shares(report),
        changes=change_items(report),
        tensors=report_sections.tensors_section(report, _TENSORS),
        source_lines=source_lines_section(report),
        error_line=error_line(error),
        what_if=report_sections.what_if_line(report),
        categories=CATEGORY_LABELS,
        comparison=comparison,
        hosts=hosts and report_sections.hosts_section(hosts, _ALL_HOSTS),
        static=static,
        steps_chart=steps_chart(report.program),
        packed=pack(header, columns),
    )


def render_inline(report: ReportFile, *, comparison: DiffFile | None = None) -> str:
    """Return a summary for a notebook, without script or style."""
    template = templates_of(_PAGE).get_template("assets/inline.html")

    text = template.render(
        document=report,
        comparison=comparison,
        basis=report.kind.basis,
        answer=report.answer,
        notices=notices_of(report),
        shares=list_shares(report),
        changes=change_items(report),
        title=report.target.name or "unnamed target",
    )

    return writable(text)


def steps_chart(program: ProgramFigures | None) -> tuple[str, str] | None:
    """Return the most bytes and the points of a chart of the allocator; None with too few readings.

    A point is a pair of shares of the width and the height, from the upper left corner.
    """
    readings = () if program is None else program.readings
    if len(readings) < _FEWEST:
        return None

    high = max(1, *(one.in_use_bytes for one in readings))
    first, end = readings[0].step, readings[-1].step
    places = (
        f"{(one.step - first) / max(end - first, 1):.4f},{1 - one.in_use_bytes / high:.4f}"
        for one in readings
    )

    return format_bytes(high), " ".join(places)


@cache
def _script() -> str:
    """Return the page's script: its files in the order of ``scripts.txt``."""
    names = asset(_PAGE, "assets/scripts.txt").split()
    parts = "\n".join(asset(_PAGE, name) for name in names)

    return f"(() => {{\n'use strict';\n{parts}\n}})();\n"


_UNSIGNED = ("u1", "u2", "u4")
_COMPRESSION_LEVEL = 6  # of gzip: zlib's default


class StringTable(TextNumbers):
    """Texts without duplicates and the number of each, which columns store; 0 is the empty text."""

    def encode(self, values: pd.Series[Any]) -> npt.NDArray[np.int64]:
        """Return the number of every value, shape (n,); a missing value is the empty text."""
        codes, texts = pd.factorize(values)
        numbers = [self.of(str(text)) for text in texts]
        numbers.append(0)  # code -1, a missing value, reads the last number
        found: npt.NDArray[np.int64] = np.array(numbers, np.int64)[codes]

        return found


def pack(header: Mapping[str, Any], columns: Mapping[str, npt.ArrayLike]) -> str:
    """Return header and columns (shape (n,), none negative) as base64 text for ``decode.js``.

    The text is ``base64(gzip(u32 header length | header, UTF-8 JSON | column bytes | ...))``. A column
    has the smallest unsigned type that fits (else float64). A column that never decreases is stored as
    differences, and bytes of equal significance are stored together; both help gzip.
    """
    stored = {name: _store(np.asarray(values)) for name, values in columns.items()}
    described = [
        {"name": name, "type": kind, "length": length, "delta": delta}
        for name, (kind, length, delta, _) in stored.items()
    ]

    text = json.dumps({**header, "columns": described}, allow_nan=False)
    head = text.encode("ascii")
    body = b"".join(data for _, _, _, data in stored.values())
    raw = len(head).to_bytes(4, "little") + head + body

    packed = gzip.compress(raw, _COMPRESSION_LEVEL, mtime=0)

    return base64.b64encode(packed).decode("ascii")


def _store(values: npt.NDArray[Any]) -> tuple[str, int, bool, bytes]:
    """Return type, length, whether it stores differences, and the bytes of a column."""
    delta = bool(values.size > 1 and np.all(values[1:] >= values[:-1]))
    if delta:
        values = np.diff(values, prepend=values.dtype.type(0))

    is_whole = values.size == 0 or np.issubdtype(values.dtype, np.integer)
    highest = values.max(initial=0)
    types = (name for name in _UNSIGNED if is_whole and highest <= np.iinfo(name).max)
    kind = next(types, "f8")

    stored = np.ascontiguousarray(values, kind)
    shuffled = stored.view(np.uint8).reshape(-1, stored.itemsize).T

    return kind, int(stored.size), delta, shuffled.tobytes()


MAX_TENSORS = 2_000  # whose readers the page holds
MAX_CONSUMERS = 32  # of one tensor

# Limit of the listed buffers; the smallest others by bytes x lifetime are only in the sums.
#
# Then the page has only the states at which a listed buffer changes: a page with a million states
# took more than 1 GiB in a browser.
MAX_BUFFERS = 100_000

_CATEGORIES = [category.value for category in Category]

# Fields of the report that the script reads; the template shows the others.
_SHOWN = (
    "device",
    "failure",
    "ops",
    "peak",
    "pool_timeline",
    "verdict",
    "what_if",
)

_TEXT_COLUMNS = (
    "op",
    "op_type",
    "layer",
    "source",
    "dtype",
    "shape",
    "role",
    "variable",
    "tensor",
)

Columns = dict[str, npt.NDArray[Any]]
States = npt.NDArray[np.int64]


def payload(
    report: ReportFile,
    recording: Recording,
    comparison: DiffFile | None,
) -> tuple[dict[str, object], Columns]:
    """Return the header and the columns for ``pack``."""
    strings = StringTable("")
    table = main_allocator_rows(recording).sort_values("born", kind="stable")
    n_states = len(recording.events) + 1

    # In a prediction the last change is the last instant.
    if recording.events.empty and len(table):
        n_states = int(table["dies"].max()) + 1

    heaviest = np.argsort(-weigh(table).to_numpy(), kind="stable")[:MAX_BUFFERS]
    is_listed = np.isin(np.arange(len(table)), heaviest)
    listed = table[is_listed]
    folded = table[~is_listed]
    kept = PageStates(np.arange(n_states))

    if len(folded):
        kept = choose_states(listed, report, n_states)

    ops, readers = _readers(recording.structure, listed, strings)
    address_base = 0
    if listed["address"].notna().any():
        address_base = int(listed["address"].min())

    columns = _buffer_columns(kept.table(listed), strings, address_base)
    columns["why"] = _reasons(listed, strings, report)
    columns |= _folded_columns(kept.table(folded), len(kept.states))
    columns |= readers

    if recording.kind.ran and not recording.events.empty:  # a prediction has no times
        time_ps = recording.events["time_ps"].to_numpy(np.int64)
        columns["time_ps"] = time_ps[kept.states[1:] - 1]

    steps = []
    for one in recording.steps:
        ends = {"first": kept.instant(one.first), "last": kept.instant(one.last)}
        steps.append({"index": one.index, "number": one.number, **ends})

    document = plain_report(report)

    header = {
        "document": kept.plain({name: document[name] for name in _SHOWN}),
        "comparison": comparison and kept.plain(plain_report(comparison)),
        "categories": _CATEGORIES,
        "states": len(kept.states),
        "all_states": n_states,
        "address_base": address_base,
        "buffers": len(listed),
        "folded_buffers": len(folded),
        "steps": steps,
        "ops": ops,
        "strings": strings.texts,
    }

    return header, columns


def _readers(
    graph: GraphIndex,
    table: pd.DataFrame,
    strings: StringTable,
) -> tuple[list[list[str]], Columns]:
    """Return the ops that read the largest tensors, and the columns that refer to them.

    An op is ``[name, type, layer, source]``. The readers of tensor ``i`` are the places in ``ops``
    ``graph_consumer[graph_offset[i]:graph_offset[i + 1]]``.
    """
    places: dict[str, int] = {}
    tensors = []
    offsets = [0]
    readers = []

    names = table["tensor"].astype(str).to_numpy(object)
    by_tensor = weigh(table).groupby(names).sum().drop("", errors="ignore")

    for name in map(str, by_tensor.nlargest(MAX_TENSORS).index):
        consumers = graph.consumers.get(name, [])[:MAX_CONSUMERS]
        if not consumers:
            continue

        tensors.append(strings.of(name))
        readers += [places.setdefault(op, len(places)) for op in consumers]
        offsets.append(len(readers))

    columns = {
        "graph_tensor": np.array(tensors, np.int64),
        "graph_offset": np.array(offsets, np.int64),
        "graph_consumer": np.array(readers, np.int64),
    }

    ops = [(name, graph.ops[name]) for name in places]

    return [[name, op.type, graph.layers[name], op.source] for name, op in ops], columns


def _buffer_columns(
    table: pd.DataFrame,
    strings: StringTable,
    address_base: int,
) -> Columns:
    born = table["born"] + 1
    turns = table["turns_at"].astype("Int64") + 1
    codes = category_codes(table["category"], _CATEGORIES).astype(np.int64)
    steps = table["step"].astype("Int64") + 1
    addresses = table["address"].astype("Int64") - address_base + 1

    numbers = {
        "born": born,
        "dies": table["dies"] + 1,
        "turns": turns.fillna(born),
        "requested": table["requested_bytes"],
        "allocated": table["allocated_bytes"],
        "step": steps.fillna(0),
        # offsets from the lowest address, plus one; 0 for an unknown address
        "address": addresses.fillna(0),
    }

    columns: Columns = {name: each.to_numpy(np.int64) for name, each in numbers.items()}
    columns["category"] = np.where(codes < 0, _CATEGORIES.index("unattributed"), codes)
    early = [_CATEGORIES.index(name) for name in earlier_categories(table)]
    columns["early"] = np.array(early, np.int64)

    for name in _TEXT_COLUMNS:
        columns[name] = strings.encode(table[name])

    names = np.zeros(len(table), np.int64)
    for name in ("variable", "tensor", "op"):
        names = np.where(names > 0, names, columns[name])

    columns["name"] = np.where(names > 0, names, strings.of("unnamed"))

    return columns


def _reasons(
    table: pd.DataFrame,
    strings: StringTable,
    report: ReportFile,
) -> npt.NDArray[np.int64]:
    """Return the number of the text that says why a buffer is alive, from the report's rows."""
    reasons = {}
    for row in report.tensors_at_peak:
        if row.why_alive:
            key = (row.born, row.dies, row.requested_bytes)
            reasons[key] = strings.of(row.why_alive)

    keys = zip(table["born"], table["dies"], table["requested_bytes"], strict=True)
    return np.array([reasons.get(key, 0) for key in keys], np.int64)


def _folded_columns(folded: pd.DataFrame, n_states: int) -> Columns:
    """Return the live bytes of unlisted buffers at each state, by category."""
    if folded.empty:
        return {}

    last = n_states - 1
    sums = category_sums(folded, "requested_bytes", last)
    columns: Columns = {
        f"folded_{name}": row for name, row in zip(_CATEGORIES, sums, strict=True)
    }

    allocated = category_sums(folded, "allocated_bytes", last)
    columns["folded_allocated"] = allocated.sum(axis=0)

    return columns


class PageStates:
    """The states that a page shows: numbers of the recording in order, shape ``(n,)``."""

    def __init__(self, states: States) -> None:
        self.states = states

    def instants(self, instants: States) -> States:
        """Return the page's instants for instants of the recording."""
        return np.searchsorted(self.states, instants + 1) - 1

    def table(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return rows of the allocations table with the page's instants."""
        turns = table["turns_at"].astype("Int64")
        turned = self.instants(turns.fillna(0).to_numpy(np.int64))

        return table.assign(
            born=self.instants(table["born"].to_numpy()),
            dies=self.instants(table["dies"].to_numpy()),
            turns_at=pd.arrays.IntegerArray(turned, turns.isna().to_numpy()),
        )

    def instant(self, instant: int) -> int:
        """Return the page's instant for one instant of the recording."""
        return int(self.instants(np.array(instant)))

    def plain(self, value: Any, key: str = "") -> Any:
        """Return JSON values with the page's instants and without U+0000, which HTML cannot contain."""
        if isinstance(value, str):
            return value.replace("\0", "\ufffd")

        if isinstance(value, dict):
            return {
                self.plain(key): self.plain(item, key) for key, item in value.items()
            }

        if isinstance(value, list):
            return [self.plain(item) for item in value]

        is_instant = key in ("instant", "allocated_instant") and isinstance(value, int)

        return self.instant(value) if is_instant else value


def choose_states(listed: pd.DataFrame, report: ReportFile, count: int) -> PageStates:
    """Return the states at which a listed buffer changes, the peaks, and the ends of the steps."""
    columns = ("born", "dies", "turns_at")
    instants = [listed[name].dropna().to_numpy(np.int64) for name in columns]

    marks = [report.peak.instant, report.peak.allocated_instant, -1, count - 2]
    for step in report.steps:
        marks += [step.first_instant, step.last_instant]

    instants.append(np.array(marks, np.int64))
    chosen = np.unique(np.concatenate(instants)) + 1

    return PageStates(chosen[(chosen >= 0) & (chosen < count)])
