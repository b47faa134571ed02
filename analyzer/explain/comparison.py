"""Compare two recordings at their peaks: measurements, predictions, or one of each.

Layers and ops are compared by their bytes alive at each recording's requested peak, so the differences
of each table add up to the difference of the peaks::

    first:   conv1 10, conv2 20           peak 30
    second:  conv1 10, conv2 24, head 6   peak 40
    rows:    conv2 +4 (grew), head +6 (came), conv1 0 (same); sum +10

Names that only one side has are matched again without their trailing numbers, because tracing a model
twice numbers its ops differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.report.diff_file import (
    CategoryOfBoth,
    Change,
    CurvesOfBoth,
    DiffFile,
    DiffSide,
    LayerOfBoth,
    OpOfBoth,
    PeakOfBoth,
    StepCurve,
)
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import Kind
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import main_allocator_rows, running_sum
from analyzer.model.units import format_bytes
from analyzer.tracing.sources.graph_join import match_names

TIMELINE_COLUMNS: Final = 800
"""Points of each curve: the instant with the most requested bytes in each part of the step."""

KIND_WORDS: Final = {
    Kind.ESTIMATE: "predicted",
    Kind.TRACE: "measured",
    Kind.PHANTOM: "simulated card",
}
_OUTPUT_NUMBER: Final = re.compile(r":\d+$")
_TRAILING_NUMBER: Final = re.compile(r"_\d+(?=[/:]|$)")


def compare(
    report_a: ReportFile,
    recording_a: Recording,
    report_b: ReportFile,
    recording_b: Recording,
    *,
    labels: tuple[str, str] | None = None,
) -> DiffFile:
    """Return the difference from A (the older one, or the prediction) to B.

    Args:
        report_a, report_b: The reports.
        recording_a, recording_b: Their recordings.
        labels: Names of the two, such as their file names; None to use their settings.
    """
    alive_a = _alive_at_peak(report_a, recording_a)
    alive_b = _alive_at_peak(report_b, recording_b)
    names = match_names(alive_b["made"].unique(), alive_a["made"].unique())  # without the caller's
    alive_b = alive_b.assign(made=[names.get(name, name) for name in alive_b["made"]])
    label_a, label_b = labels or _labels(report_a, report_b)
    sizes_a, sizes_b = (report.categories_at_peak.by_category() for report in (report_a, report_b))
    categories = [
        CategoryOfBoth(category=category, **_difference(sizes_a[category], sizes_b[category]))
        for category in Category
    ]
    peak = [
        PeakOfBoth(number=number, **_difference(*sizes))
        for number, sizes in _numbers(report_a, report_b).items()
    ]
    facts = _op_facts(alive_a, alive_b)
    return DiffFile(
        headline=_headline(peak[1], categories, (report_a.kind, report_b.kind)),
        notes=tuple(_messages(report_a, report_b)),
        a=_side(report_a, label_a),
        b=_side(report_b, label_b),
        peak=tuple(row for row in peak if row.a_bytes is not None or row.b_bytes is not None),
        categories=tuple(row for row in categories if row.a_bytes or row.b_bytes),
        layers=tuple(
            LayerOfBoth(name=name, **_difference(*sizes), change=_change(*sizes))
            for name, sizes in _matched_sizes(_sums(alive_a, "layer"), _sums(alive_b, "layer"))
        ),
        ops=tuple(
            OpOfBoth(
                name=name,
                type=facts(name)[0],
                layer=facts(name)[1],
                **_difference(*sizes),
                change=_change(*sizes),
            )
            for name, sizes in _matched_sizes(_sums(alive_a, "made"), _sums(alive_b, "made"))
        ),
        timelines=CurvesOfBoth(a=_timeline(recording_a), b=_timeline(recording_b)),
    )


def _numbers(
    report_a: ReportFile, report_b: ReportFile
) -> dict[
    Literal["needs", "requested", "allocated", "pool", "process"], tuple[int | None, int | None]
]:
    """Return the need and the four kinds of peak of both sides."""
    verdicts = report_a.verdict, report_b.verdict
    first, second = (None if one is None else one.need_bytes for one in verdicts)
    a, b = report_a.peak, report_b.peak
    return {
        "needs": (first, second),
        "requested": (a.requested_bytes, b.requested_bytes),
        "allocated": (a.allocated_bytes, b.allocated_bytes),
        "pool": (a.pool_bytes, b.pool_bytes),
        "process": (a.process_bytes, b.process_bytes),
    }


def _alive_at_peak(report: ReportFile, recording: Recording) -> pd.DataFrame:
    table = main_allocator_rows(recording)
    instant = report.peak.instant
    alive: pd.DataFrame = table[(table["born"] <= instant) & (table["dies"] > instant)]
    return alive.assign(made=_names_to_compare(alive))


def _names_to_compare(alive: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the name to compare each buffer by: its variable, its input, or its op."""
    names = {
        name: alive[name].astype(str).to_numpy(dtype=object)
        for name in ("variable", "tensor", "op", "role")
    }
    is_input = (alive["category"].astype(str) == Category.INPUT.value).to_numpy(dtype=bool)
    fed = np.array([_OUTPUT_NUMBER.sub("", name) for name in names["tensor"]], dtype=object)
    made = np.where(names["op"] != "", names["op"], names["role"])
    made = np.where(is_input & (fed != ""), fed, made)
    return np.where(names["variable"] != "", names["variable"], made)


def _sums(alive: pd.DataFrame, column: str) -> dict[str, int]:
    sums = alive["requested_bytes"].groupby(alive[column].astype(str).to_numpy(dtype=object)).sum()
    return {str(name): int(size) for name, size in sums.items()}


def _matched_sizes(
    sums_a: Mapping[str, int], sums_b: Mapping[str, int]
) -> list[tuple[str, tuple[int, int]]]:
    """Return each name with the bytes of both sides, largest difference first."""
    both = sums_a.keys() & sums_b.keys()
    a, b = _matched(sums_a, both), _matched(sums_b, both)
    names = sorted(a.keys() | b.keys())
    rows = [(name, (a.get(name, 0), b.get(name, 0))) for name in names]
    return sorted(rows, key=lambda row: -abs(row[1][1] - row[1][0]))


def _matched(sums: Mapping[str, int], both: set[str]) -> dict[str, int]:
    """Sum by name, without trailing numbers if only one side has the name."""
    matched: dict[str, int] = {}
    for name, size_bytes in sums.items():
        key = name if name in both else _TRAILING_NUMBER.sub("", name)
        matched[key] = matched.get(key, 0) + size_bytes
    return matched


def _change(a_bytes: int, b_bytes: int) -> Change:
    if a_bytes == b_bytes:
        return "same"
    if not a_bytes:
        return "came"
    if not b_bytes:
        return "went"
    return "grew" if b_bytes > a_bytes else "shrank"


def _difference(a_bytes: int | None, b_bytes: int | None) -> dict[str, int | None]:
    known = a_bytes is not None and b_bytes is not None
    return {
        "a_bytes": a_bytes,
        "b_bytes": b_bytes,
        "delta_bytes": b_bytes - a_bytes if known else None,  # type: ignore[operator]
    }


def _op_facts(*alive: pd.DataFrame) -> Callable[[str], tuple[str, str]]:
    """Return a function from an op to its type and layer, by the first side that has the op."""
    known: dict[str, tuple[str, str]] = {}
    for table in alive:
        first = table.drop_duplicates("made")
        rows = zip(*(first[name].astype(str) for name in ("made", "op_type", "layer")), strict=True)
        for op, op_type, layer in rows:
            facts = op_type, layer
            known.setdefault(op, facts)
            known.setdefault(_TRAILING_NUMBER.sub("", op), facts)
    return lambda op: known.get(op, ("", ""))


def _side(report: ReportFile, label: str) -> DiffSide:
    return DiffSide(
        label=label, kind=report.kind, batch_size=report.step.batch_size, peak=report.peak
    )


def _labels(report_a: ReportFile, report_b: ReportFile) -> tuple[str, str]:
    """Return names for both sides from the settings that differ."""
    both = (report_a, report_b)
    names = [report.target.name for report in both]
    batches = [report.step.batch_size for report in both]
    shown = [KIND_WORDS[report.kind] for report in both]
    labels = []
    for place in (0, 1):
        parts = [names[place]] if names[0] != names[1] else []
        parts += [shown[place]] if shown[0] != shown[1] else []
        parts += [f"batch {batches[place]}"] if batches[0] != batches[1] else []
        labels.append(", ".join(part for part in parts if part) or ("first", "second")[place])
    return labels[0], labels[1]


def _messages(report_a: ReportFile, report_b: ReportFile) -> list[str]:
    """Return notes on other differences: settings, failed steps, incomplete traces."""
    notes = []
    both = (report_a, report_b)
    pairs: dict[str, list[object]] = {
        "mode": [report.step.mode for report in both],
        "batch size": [report.step.batch_size for report in both],
        "optimizer": [report.step.optimizer for report in both],
        "dtype policy": [report.step.dtype_policy for report in both],
        "XLA": [report.step.jit for report in both],
        "device": [report.device.name for report in both],
        "tensorflow": [report.versions.get("tensorflow") for report in both],
    }
    differing = [
        f"{name} {_word(a)} and {_word(b)}"
        for name, (a, b) in pairs.items()
        if _word(a) != _word(b)
    ]
    if differing:
        notes.append(f"Different settings: {'; '.join(differing)}.")
    for place, report in (("first", report_a), ("second", report_b)):
        if report.error is not None:
            notes.append(f"The {place} step did not finish: its peak is the one until the failure.")
        reasons = () if report.integrity is None else report.integrity.says
        notes += [f"{place.capitalize()}: {line}" for line in reasons[:1]]
    return notes


def _word(value: object) -> str:
    """Return a setting as a word."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, "") else str(value)


def _headline(
    requested: PeakOfBoth, categories: list[CategoryOfBoth], kinds: tuple[Kind, Kind]
) -> str:
    delta, now = requested.delta_bytes, format_bytes(requested.b_bytes or 0)
    if not delta:
        return f"The requested peak is the same: {now}."
    ratio = delta / requested.a_bytes if requested.a_bytes else 0.0
    part = f" ({ratio:+.1%})" if abs(ratio) >= 0.0005 else ""
    changes = {row.category: row.delta_bytes or 0 for row in categories}
    most, change = max(changes.items(), key=lambda item: abs(item[1]))
    sign = "+" if change > 0 else "-"
    differs = f"{most.value.replace('_', ' ')}, {sign}{format_bytes(abs(change))}"
    size = f"{format_bytes(abs(delta))}{part}"
    if kinds[0] != kinds[1]:
        first, second = (KIND_WORDS[kind] for kind in kinds)
        word = "above" if delta > 0 else "below"
        return (
            f"The {second} requested peak of {now} is {size} {word} the {first} one; the largest "
            f"difference is in {differs}."
        )
    word = "grew" if delta > 0 else "shrank"
    return f"The requested peak {word} by {size} to {now}; the largest change is in {differs}."


def _timeline(recording: Recording) -> StepCurve:
    """Return the curve of the last step with events: progress from 0 to 1, and bytes.

    It has at most ``TIMELINE_COLUMNS`` points, each a real instant; the peak is one of them.
    """
    table = main_allocator_rows(recording)
    requested, allocated = (_running(table, f"{name}_bytes") for name in ("requested", "allocated"))
    steps = [step for step in recording.steps if step.last >= step.first]
    first, last = (steps[-1].first, steps[-1].last) if steps else (0, len(requested) - 2)
    window = slice(first + 1, last + 2)  # place 0 is the state before the first event
    requested, allocated = requested[window], allocated[window]
    if not len(requested):
        return StepCurve(progress_ratio=(), requested_bytes=(), allocated_bytes=())
    edges = np.linspace(0, len(requested), min(TIMELINE_COLUMNS, len(requested)) + 1).astype(
        np.int64
    )
    picked = [
        int(a + np.argmax(requested[a:b])) for a, b in zip(edges[:-1], edges[1:], strict=True)
    ]
    return StepCurve(
        progress_ratio=tuple(round(place / max(1, len(requested) - 1), 6) for place in picked),
        requested_bytes=tuple(int(requested[place]) for place in picked),
        allocated_bytes=tuple(int(allocated[place]) for place in picked),
    )


def _running(table: pd.DataFrame, column: str) -> npt.NDArray[np.int64]:
    """Return live bytes at each state, shape (n_events + 1,); state 0 is before the first event."""
    born, dies = (table[name].to_numpy(dtype=np.int64) for name in ("born", "dies"))
    last = int(dies.max(initial=-1))
    return running_sum(born, dies, table[column].to_numpy(dtype=np.int64), last + 1)
