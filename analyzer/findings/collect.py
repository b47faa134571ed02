"""All findings of one analysis, those that save most first."""

from __future__ import annotations

from dataclasses import replace

from analyzer.findings.analysis import Analysis
from analyzer.findings.compiled import find_compiled_anew
from analyzer.findings.fragmentation import find_internal_waste, find_trend
from analyzer.findings.oom import find_out_of_memory
from analyzer.findings.peak import find_largest, find_peak_owner
from analyzer.findings.retained import (
    find_growth,
    find_overdue,
    find_retained,
    find_survivors,
    retained_rows,
)
from analyzer.findings.state import find_state
from analyzer.findings.threads import find_threads
from analyzer.model import Finding, Severity

_ORDER = list(Severity)


def collect(analysis: Analysis) -> Analysis:
    """Return the analysis with its findings."""
    found: list[Finding] = [
        *analysis.findings,
        *find_out_of_memory(analysis),
        *find_compiled_anew(analysis),
        *find_peak_owner(analysis),
        *find_retained(analysis, retained_rows(analysis)),
        *find_overdue(analysis),
        *find_survivors(analysis),
        *find_growth(analysis),
        *find_largest(analysis),
        *find_state(analysis),
        *find_threads(analysis),
        *find_internal_waste(
            analysis.recording, analysis.fragmentation, analysis.peak.allocated_bytes
        ),
        *find_trend(analysis.recording),
    ]
    found.sort(key=lambda finding: (_ORDER.index(finding.severity), -(finding.saves_bytes or 0)))
    return replace(analysis, findings=tuple(found))
