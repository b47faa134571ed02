"""The document: everything the analysis says as plain values. It is the JSON, version 1.

The terminal, the page and the tables show what is in here and compute nothing of their own.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import pandas as pd

from analyzer.findings.analysis import Analysis
from analyzer.findings.cautions import stated_range
from analyzer.findings.integrity import trust_of
from analyzer.findings.oom import failure_of
from analyzer.findings.peak import peak_op
from analyzer.findings.retained import retained_rows
from analyzer.findings.words import describe_buffer, why_alive
from analyzer.model import Finding, Recording, Step
from analyzer.report.integrity import integrity_values
from analyzer.report.untrusted import finite
from analyzer.timeline import by_category

SCHEMA_VERSION: Final = 1


def build_document(analysis: Analysis) -> dict[str, Any]:
    """Return the document of one analysis."""
    recording = analysis.recording
    first = analysis.first - 1
    requested, allocated = analysis.line.at(first)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": str(recording.kind),
        "target": recording.target,
        "device": asdict(recording.device),
        "step": asdict(recording.step_config),
        "allocator": recording.allocator,
        "peak": _peak(analysis),
        "peak_ever": _peak_ever(analysis),
        "steps": _steps(analysis),
        "resident": {"requested_bytes": requested, "allocated_bytes": allocated},
        "categories_at_peak": analysis.categories,
        "layers": layer_rows(analysis),
        "ops": op_rows(analysis),
        "tensors_at_peak": tensor_rows(analysis),
        "retained": retained_rows(analysis),
        "fragmentation": _fragmentation(analysis),
        "pool_timeline": analysis.pool.get("pool_timeline", []),
        "verdict": None if analysis.verdict is None else analysis.verdict.as_plain(),
        "fits": None if analysis.verdict is None else analysis.verdict.fits,
        "fit": analysis.pool.get("fit"),
        "what_if": analysis.pool.get("what_if"),
        "findings": [_finding(finding) for finding in analysis.findings],
        "unmodelled": recording.extra.get("unmodelled", []),
        "uncertainty": stated_range(analysis),
        "integrity": integrity_values(trust_of(analysis), _start_ps(recording)),
        "warnings": list(recording.warnings),
        "notes": list(recording.extra.get("notes", [])),
        "phantom": recording.extra.get("phantom"),
        "error": None if recording.error is None else recording.error.plain(),
        "failure": failure_of(analysis),
        "versions": recording.versions,
    }
    found: dict[str, Any] = finite(document)
    return found


def _start_ps(recording: Recording) -> int:
    """Return the time of the first event, from which times are counted; 0 in a prediction."""
    measured = recording.kind.ran and len(recording.events)
    return int(recording.events["time_ps"].iloc[0]) if measured else 0


def _peak(analysis: Analysis) -> dict[str, Any]:
    peak = analysis.peak
    op, layer, source = peak_op(analysis)
    events = analysis.recording.events
    measured = analysis.recording.kind.ran

    def time_of(instant: int) -> int | None:
        return int(events["time_ps"].iloc[instant]) if measured and instant >= 0 else None

    time_ps = time_of(peak.allocated_instant)
    start_ps = _start_ps(analysis.recording)
    requested_ps = time_of(peak.requested_instant)
    return {
        "requested_bytes": peak.requested_bytes,
        "allocated_bytes": peak.allocated_bytes,
        "pool_bytes": analysis.pool.get("pool_bytes"),
        "process_bytes": analysis.pool.get("process_bytes"),
        "op": op,
        "layer": layer,
        "source": source,
        "step": None if analysis.step is None else analysis.step.index,
        "time_s": None if time_ps is None else (time_ps - start_ps) / 1e12,
        "time_ps": time_ps,
        "requested_time_s": None if requested_ps is None else (requested_ps - start_ps) / 1e12,
        "instant": peak.requested_instant,
        "allocated_instant": peak.allocated_instant,
    }


def _peak_ever(analysis: Analysis) -> dict[str, Any]:
    ever = analysis.peak_ever
    return {
        "requested_bytes": ever.requested_bytes,
        "allocated_bytes": ever.allocated_bytes,
        "pool_bytes": analysis.pool.get("pool_ever_bytes"),
        "phase": _phase_at(ever.allocated_instant, analysis.recording.steps),
    }


def _phase_at(instant: int, steps: tuple[Step, ...]) -> str:
    """Say in words when an instant is."""
    if not steps:
        return "whole trace"
    if instant < steps[0].first:
        return "before the first step"
    inside = [step.index for step in steps if step.first <= instant <= step.last]
    return f"step {inside[-1]}" if inside else "between steps"


def _reached_in(analysis: Analysis) -> str | None:
    """Say when the requested bytes of the limits' parts are reached; None at the steady peak."""
    peak, ever = analysis.peak, analysis.peak_ever
    if ever.requested_bytes == peak.requested_bytes:
        return None
    return _phase_at(ever.requested_instant, analysis.recording.steps)


def _steps(analysis: Analysis) -> list[dict[str, Any]]:
    rows = []
    for step in analysis.recording.steps:
        inside = slice(max(step.first, 0), max(step.last, step.first - 1) + 2)
        rows.append(
            {
                "index": step.index,
                "number": step.number,
                "requested_bytes": int(analysis.line.requested[inside].max()),
                "allocated_bytes": int(analysis.line.allocated[inside].max()),
                "duration_s": step.duration_s,
                "first_instant": step.first,
                "last_instant": step.last,
            }
        )
    return rows


def _fragmentation(analysis: Analysis) -> dict[str, Any]:
    waste = analysis.fragmentation
    return {
        "internal_bytes": waste.internal_bytes,
        "rounding_bytes": waste.rounding_bytes,
        "unsplit_bytes": waste.unsplit_bytes,
        "external_bytes": waste.external_bytes,
        "free_bytes": waste.free_bytes,
        "largest_free_bytes": waste.largest_free_bytes,
        "reported_ratio": waste.reported_ratio,
        "minimum_limit_bytes": analysis.pool.get("minimum_limit_bytes"),
        "safe_limit_bytes": analysis.pool.get("safe_limit_bytes"),
        "minimum_limit_parts": analysis.pool.get("minimum_limit_parts"),
        "safe_limit_parts": analysis.pool.get("safe_limit_parts"),
        "limit_reached_in": _reached_in(analysis),
        "replay_equals_trace": analysis.pool.get("replay_equals_trace"),
        "risk": analysis.pool.get("risk", _risk(analysis)),
    }


def _risk(analysis: Analysis) -> str:
    """Return low, medium or high by the share of the allocated peak that holds no tensor."""
    share = analysis.fragmentation.internal_bytes / max(analysis.peak.allocated_bytes, 1)
    return "low" if share < 0.05 else "medium" if share < 0.2 else "high"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "severity": str(finding.severity),
        "title": finding.title,
        "detail": finding.detail,
        "saves_bytes": finding.saves_bytes,
        "saves_kind": finding.saves_kind,
        "evidence": list(finding.evidence),
    }


def tensor_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """Return what is alive at the requested peak, largest first."""
    alive = analysis.alive.sort_values(
        ["requested_bytes", "born"], ascending=[False, True], kind="stable"
    )
    end = len(analysis.recording.events)
    return [
        {
            **describe_buffer(row),
            "born": int(row["born"]),
            "dies": int(row["dies"]),
            "why_alive": why_alive(row, analysis.uses.get(int(index)), end=end),
        }
        for index, row in zip(alive.index, alive.to_dict("records"), strict=True)
    ]


def op_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """Return one row for each op of the steady step: what it asked for, and what lives at the peak.

    ``requested_bytes`` and ``allocated_bytes`` are summed over the step, ``temporary_bytes`` is the
    part that is neither a tensor of the graph nor kept, and ``alive_at_peak_bytes`` is requested.
    """
    rows = analysis.rows
    inside = rows[(rows["born"] >= analysis.first) & (rows["born"] <= analysis.last)]
    inside = inside[inside["op"] != ""]
    if inside.empty:
        return []
    alive = inside.index.isin(analysis.alive.index)
    work = pd.DataFrame(
        {
            "op": inside["op"],
            "requested_bytes": inside["requested_bytes"],
            "allocated_bytes": inside["allocated_bytes"],
            "temporary_bytes": inside["requested_bytes"].where(
                inside["category"] == "temporary", 0
            ),
            "alive_at_peak_bytes": inside["requested_bytes"].where(alive, 0),
        }
    )
    sums = work.groupby("op", observed=True).sum()
    count = work.groupby("op", observed=True).size()
    first = inside.drop_duplicates("op").set_index("op")
    categories = (
        inside.groupby(["op", "category"], observed=True)["requested_bytes"].sum().reset_index()
    )
    largest = categories.sort_values("requested_bytes").drop_duplicates("op", keep="last")
    category_of = dict(zip(largest["op"], largest["category"], strict=True))
    sums = sums.sort_values(["alive_at_peak_bytes", "requested_bytes"], ascending=False)
    return [
        {
            "name": str(op),
            "type": str(first.at[op, "op_type"]),
            "layer": str(first.at[op, "layer"]),
            "source": str(first.at[op, "source"]),
            "category": str(category_of[op]),
            "allocations": int(count[op]),
            **{name: int(value) for name, value in zip(sums.columns, values, strict=True)},
        }
        for op, values in zip(sums.index, sums.to_numpy(), strict=True)
    ]


def layer_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """Return one row for each layer: requested bytes alive at the peak, by category."""
    rows = []
    for layer, alive in analysis.alive.groupby("layer", observed=True):
        categories = by_category(alive)
        rows.append({"layer": str(layer), **categories, "total_bytes": sum(categories.values())})
    return sorted(rows, key=lambda row: -row["total_bytes"])
