"""Compare two recordings at their peaks: measurements, predictions, or one of each.

Layers and ops are compared by their bytes alive at each recording's requested peak, so the differences
of each table add up to the difference of the peaks.
Names that only one side has are matched again without their trailing numbers, because tracing a model
twice numbers its ops differently.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.contract.report_file import (
    CategoryOfBoth,
    Change,
    CurvesOfBoth,
    DiffFile,
    DiffSide,
    LayerOfBoth,
    Number,
    OpOfBoth,
    PeakOfBoth,
    ReportFile,
    StepCurve,
)
from analyzer.model.recording.records import (
    Recording,
    alive_at,
    main_allocator_rows,
    timeline,
)
from analyzer.model.units import format_bytes, signed_bytes
from analyzer.tracing.derive.op_names import match_names

# Points of each curve: the instant with the most requested bytes in each part of the step.
TIMELINE_COLUMNS = 800

# share of the second peak below which the programs are different
_LEAST_SHARED = 0.1
_OUTPUT_NUMBER = re.compile(r":\d+$")


def compare(
    report_a: ReportFile,
    recording_a: Recording,
    report_b: ReportFile,
    recording_b: Recording,
    *,
    labels: tuple[str, str] | None = None,
) -> DiffFile:
    """Return the difference from A (the older one, or the prediction) to B.

    ``labels`` are names of the two, such as their file names; None to use their settings.
    """
    both = report_a, report_b
    alive_a = _alive_at_peak(report_a, recording_a)
    alive_b = _alive_at_peak(report_b, recording_b)

    for column in ("made", "layer"):
        names_a, names_b = (one[column].astype(str) for one in (alive_a, alive_b))
        names = match_names(names_b.unique(), names_a.unique())
        alive_b[column] = [names.get(one, one) for one in names_b]

    is_shared = alive_b["made"].isin(alive_a["made"])
    shared_bytes = alive_b.loc[is_shared, "requested_bytes"].sum()
    shared_ratio = shared_bytes / max(report_b.peak.requested_bytes, 1)
    notes = _messages(*both)

    if shared_ratio < _LEAST_SHARED:
        notes.append(
            f"Only {shared_ratio:.0%} of the bytes at the second peak have an op or a "
            "variable of the first, so layers and ops are left out."
        )
        alive_a, alive_b = alive_a[:0], alive_b[:0]

    peak = _compare_peaks(*both)
    categories = _compare_categories(*both)

    both_alive = pd.concat([alive_a, alive_b]).astype({"made": str})
    facts = both_alive.drop_duplicates("made").set_index("made")
    ops = []

    for row in _matched_rows(alive_a, alive_b, "made"):
        about = facts.loc[row["name"]]
        ops.append(OpOfBoth(**row, type=about["op_type"], layer=about["layer"]))

    layers = tuple(
        LayerOfBoth(**row) for row in _matched_rows(alive_a, alive_b, "layer")
    )
    label_a, label_b = labels or (_label(report_a), _label(report_b))

    headline, number = _answer(peak, label_a, label_b)

    return DiffFile(
        headline=headline,
        number=number,
        action=_largest_change(categories, layers),
        notes=tuple(notes),
        a=_side(report_a, label_a),
        b=_side(report_b, label_b),
        peak=peak,
        categories=categories,
        layers=layers,
        ops=tuple(ops),
        timelines=CurvesOfBoth(
            a=_timeline(report_a, recording_a),
            b=_timeline(report_b, recording_b),
        ),
        next_command=report_b.next_command,
    )


def _compare_categories(a: ReportFile, b: ReportFile) -> tuple[CategoryOfBoth, ...]:
    sizes_b = b.categories_at_peak.by_category()

    return tuple(
        CategoryOfBoth(category=Category(name), **_difference(size, sizes_b[name]))
        for name, size in a.categories_at_peak.by_category().items()
        if size or sizes_b[name]
    )


def _compare_peaks(a: ReportFile, b: ReportFile) -> tuple[PeakOfBoth, ...]:
    """Return the need and the peaks; no need if only one of them is a process."""
    sizes_b = _sizes_of(b)
    has_process = [_is_program_on_cpu(one) or bool(one.verdict.card) for one in (a, b)]

    rows = []

    for number, size_a in _sizes_of(a).items():
        size_b = sizes_b[number]
        is_unlike = number == "needs" and has_process[0] != has_process[1]
        if not is_unlike and (size_a is not None or size_b is not None):
            rows.append(PeakOfBoth(number=number, **_difference(size_a, size_b)))

    return tuple(rows)


def _is_program_on_cpu(report: ReportFile) -> bool:
    """Return whether the need is the largest resident memory of the program's process."""
    program = report.program
    is_known = program is not None and program.process_peak_bytes > 0
    return is_known and report.device.kind == "cpu"


def _sizes_of(report: ReportFile) -> dict[Number, int | None]:
    """Return the need and the peaks, in the report's order."""
    peak = report.peak
    need = None

    if report.program is not None and _is_program_on_cpu(report):
        need = report.program.process_peak_bytes
    elif report.device.kind != "cpu":
        need = report.verdict.need_bytes

    return {
        "needs": need,
        "requested": peak.requested_bytes,
        "allocated": peak.allocated_bytes,
        "pool": peak.pool_bytes,
    }


def _side(report: ReportFile, label: str) -> DiffSide:
    return DiffSide(
        label=label,
        kind=report.kind,
        batch_size=report.step.batch_size,
        peak=report.peak,
    )


def _alive_at_peak(report: ReportFile, recording: Recording) -> pd.DataFrame:
    """Return the buffers alive at the peak; ``made`` is their variable, their input, or their op."""
    alive = alive_at(main_allocator_rows(recording), report.peak.instant)
    text = alive.astype(str)
    fed = text["tensor"].str.replace(_OUTPUT_NUMBER, "", regex=True)
    is_input = text["category"] == Category.INPUT
    made = text["op"].where(text["op"] != "", text["role"])
    made = made.mask(is_input & (fed != ""), fed)

    return alive.assign(made=made.mask(text["variable"] != "", text["variable"]))


def _matched_rows(
    alive_a: pd.DataFrame,
    alive_b: pd.DataFrame,
    column: str,
) -> list[dict[str, Any]]:
    """Return each name with its change and bytes, largest difference first."""
    sums = pd.DataFrame({"a": _sum_by(alive_a, column), "b": _sum_by(alive_b, column)})
    rows = [
        {"name": str(name), "change": _change(a, b), **_difference(a, b)}
        for name, a, b in sums.fillna(0).astype("int64").itertuples()
    ]

    return sorted(rows, key=lambda row: (-abs(row["delta_bytes"]), row["name"]))


def _sum_by(alive: pd.DataFrame, column: str) -> pd.Series:
    """Return the requested bytes of buffers by the text in a column."""
    texts = alive[column].astype(str).to_numpy(object)
    return alive["requested_bytes"].groupby(texts).sum()


def _change(a_bytes: int, b_bytes: int) -> Change:
    if a_bytes == b_bytes:
        return "same"
    if not a_bytes or not b_bytes:
        return "went" if a_bytes else "came"

    return "grew" if b_bytes > a_bytes else "shrank"


def _difference(a_bytes: int | None, b_bytes: int | None) -> dict[str, Any]:
    delta = None if a_bytes is None or b_bytes is None else b_bytes - a_bytes
    return {"a_bytes": a_bytes, "b_bytes": b_bytes, "delta_bytes": delta}


def _label(report: ReportFile) -> str:
    batch = f"batch {report.step.batch_size}" if report.step.batch_size else ""
    words = (report.target.name, report.kind.basis, batch)
    return ", ".join(filter(None, words))


def _messages(a: ReportFile, b: ReportFile) -> list[str]:
    """Return notes on other differences: settings, failed steps, incomplete traces."""
    notes = []
    differing = []
    settings_b = _settings(b)

    for name, value in _settings(a).items():
        other = settings_b.get(name)
        if value and other and value != other:
            differing.append(f"{name} {value} and {other}")

    if differing:
        notes.append(f"Different settings: {'; '.join(differing)}.")

    for place, report in (("first", a), ("second", b)):
        if report.error is not None:
            notes.append(
                f"The {place} step did not finish: its peak is the one until the "
                "failure."
            )

        if report.integrity is not None and report.integrity.says:
            notes.append(f"{place.capitalize()}: {report.integrity.says[0]}")

    return notes


def _settings(report: ReportFile) -> dict[str, object]:
    """Return the settings that are known."""
    step = report.step
    return {
        "mode": step.mode,
        "batch size": step.batch_size,
        "optimizer": step.optimizer,
        "dtype policy": step.dtype_policy,
        "XLA": {True: "on", False: "off", None: ""}[step.jit],
        "device": report.device.name,
        **report.versions,
    }


def _answer(
    peak: Sequence[PeakOfBoth],
    label_a: str,
    label_b: str,
) -> tuple[str, str]:
    """Return which side needs more, and both needs.

    The requested peaks stand for the needs if a side has none, as for a step on the CPU, where plain
    TensorFlow does not pool memory.
    """
    known = [row for row in peak if row.delta_bytes is not None]
    row = next(row for row in known if row.number in ("needs", "requested"))
    before = row.a_bytes or 0
    delta = row.delta_bytes or 0
    size = format_bytes(abs(delta))
    ratio = delta / max(before, 1)

    if abs(ratio) >= 0.0005:
        size += f" ({abs(ratio):.1%})"

    verb = "needs" if row.number == "needs" else "requests"
    change = "more" if delta > 0 else "less"
    headline = f"{label_b} {verb} {size} {change} than {label_a}."

    if not delta:
        headline = f"{label_b} {verb} as much as {label_a}."

    requested = next(row for row in known if row.number == "requested")
    number = f"Requested peak: {_both_sizes(requested)}."
    if row.number == "needs":
        number = f"Need: {_both_sizes(row)}. {number}"

    return headline, number


def _both_sizes(row: PeakOfBoth) -> str:
    return f"{format_bytes(row.a_bytes or 0)} → {format_bytes(row.b_bytes or 0)}"


def _largest_change(
    categories: Sequence[CategoryOfBoth],
    layers: Sequence[LayerOfBoth],
) -> str:
    """Return the category and the layer that changed most."""
    most = max(categories, key=lambda row: abs(row.delta_bytes or 0))
    if not most.delta_bytes:
        return "Nothing to change: the categories at both peaks are the same."

    category = most.category.value.replace("_", " ")
    text = f"Largest change: {category} {signed_bytes(most.delta_bytes)}"

    for layer in layers[:1]:
        if layer.name and layer.delta_bytes:
            text += f". Look at {layer.name}: {signed_bytes(layer.delta_bytes)}"

    return f"{text}."


def _timeline(report: ReportFile, recording: Recording) -> StepCurve:
    """Return the curve of the steady step: progress from 0 to 1, and bytes.

    It has at most ``TIMELINE_COLUMNS`` points, each a real instant; the peak is one of them.
    """
    line = timeline(main_allocator_rows(recording), len(recording.events))
    window = slice(1, None)  # place 0 is the state before the first event

    for step in recording.steps:
        if step.index == report.peak.step and step.last >= step.first:
            window = slice(step.first + 1, step.last + 2)

    requested = line.requested[window]
    allocated = line.allocated[window]
    parts = min(TIMELINE_COLUMNS, len(requested))
    edges = np.linspace(0, len(requested), parts + 1).astype(int)
    picked = [
        int(begin + np.argmax(requested[begin:end])) for begin, end in pairwise(edges)
    ]

    last = max(1, len(requested) - 1)

    return StepCurve(
        progress_ratio=tuple(round(place / last, 6) for place in picked),
        requested_bytes=tuple(requested[picked].tolist()),
        allocated_bytes=tuple(allocated[picked].tolist()),
    )
