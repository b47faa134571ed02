"""All findings of one analysis in the one order in which every output shows them.

Why the step does not fit comes first, then the weightiest, and of these those that save most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from analyzer.findings.analysis import Analysis
from analyzer.findings.questions.batch_independent import find_state
from analyzer.findings.questions.fragmentation import find_internal_waste, find_trend
from analyzer.findings.questions.gradient_copies import find_gradient_copies
from analyzer.findings.questions.out_of_memory import find_out_of_memory
from analyzer.findings.questions.parallel_ops import find_threads
from analyzer.findings.questions.peak_owner import find_largest, find_peak_owner
from analyzer.findings.questions.recompiled_steps import find_compiled_anew
from analyzer.findings.questions.retained_tensors import (
    find_growth,
    find_overdue,
    find_retained,
    find_survivors,
    retained_rows,
)
from analyzer.recording.records import Finding, Severity

_ORDER: Final = list(Severity)
_FIRST: Final = frozenset({"out-of-memory", "does-not-fit"})


def collect(analysis: Analysis) -> Analysis:
    """Return the analysis with its findings."""
    found: list[Finding] = [
        *analysis.findings,
        *find_out_of_memory(analysis),
        *find_compiled_anew(analysis),
        *find_peak_owner(analysis),
        *find_retained(analysis, retained_rows(analysis)),
        *find_gradient_copies(analysis),
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
    return replace(analysis, findings=tuple(sorted(found, key=_place)))


def _place(finding: Finding) -> tuple[bool, int, int]:
    saves = finding.saves_bytes or 0
    return finding.id not in _FIRST, _ORDER.index(finding.severity), -saves
