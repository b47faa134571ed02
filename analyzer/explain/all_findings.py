"""All findings of an analysis, in the order of every output.

A step that does not fit comes first, then growth over steps, then severity, then the saving.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.convolution_memory import (
    find_layout_copies,
    find_trials,
    find_workspaces,
)
from analyzer.explain.questions.fragmentation import find_internal_waste, find_trend
from analyzer.explain.questions.out_of_memory import find_out_of_memory
from analyzer.explain.questions.peak_owner import (
    find_gradient_copies,
    find_largest,
    find_peak_owner,
)
from analyzer.explain.questions.retained_tensors import (
    find_growth,
    find_overdue,
    find_retained,
    find_survivors,
    retained_rows,
)
from analyzer.explain.questions.step_settings import find_recompiled, find_state, find_threads
from analyzer.explain.running.data_held import find_data, find_filling_stage
from analyzer.explain.running.kept_objects import (
    find_alive_at_end,
    find_held_over,
    find_models,
    find_tapes,
)
from analyzer.explain.running.leaks import find_leaks, find_unexplained
from analyzer.explain.running.retracing import find_retracing
from analyzer.explain.running.slope import measure_growth
from analyzer.explain.running.varying_shapes import find_varying_shapes
from analyzer.explain.running.wasteful_tensors import (
    find_dense_gradients,
    find_input_copies,
    find_wide_numbers,
)
from analyzer.model.recording.records import Finding, Severity

_ORDER: Final = list(Severity)
_FIRST: Final = frozenset({"out-of-memory", "does-not-fit"})
_OF_THE_PROGRAM: Final = frozenset(
    {
        "kept-tensors",
        "fills",
        "grows",
        "grows-on-host",
        "retraced",
        "functions-made-anew",
        "tapes-kept",
        "tape-outlives-use",
    }
    | {"data-constant", "data-held", "data-slices", "data-stage", "models-kept"}
    | {"held-over", "alive-at-end", "input-copies", "float64", "dense-gradient", "varying-shapes"}
)
"""Problems that grow with the number of steps: they come before the needs of one step."""


def collect(analysis: Analysis) -> Analysis:
    """Return the analysis with its findings."""
    found: list[Finding] = [
        *analysis.findings,
        *find_out_of_memory(analysis),
        *find_recompiled(analysis),
        *find_peak_owner(analysis),
        *find_retained(analysis, retained_rows(analysis)),
        *find_gradient_copies(analysis),
        *find_overdue(analysis),
        *(find_survivors(analysis) if analysis.recording.watch is None else ()),
        *(find_growth(analysis) if analysis.recording.watch is None else ()),
        *find_largest(analysis),
        *find_workspaces(analysis),
        *find_layout_copies(analysis),
        *find_trials(analysis),
        *find_state(analysis),
        *find_threads(analysis),
        *find_internal_waste(
            analysis.recording, analysis.fragmentation, analysis.peak.allocated_bytes
        ),
        *find_trend(analysis.recording),
        *find_wide_numbers(analysis),
        *find_dense_gradients(analysis),
        *_of_the_program(analysis),
    ]
    ids = {one.id for one in found}
    if analysis.recording.watch is not None and "varying-shapes" not in ids:
        found = [one for one in found if one.id not in ("varying-sizes", "fragmentation-trend")]
    if "varying-shapes" in ids:  # says the same, with more detail
        found = [one for one in found if one.id != "varying-sizes"]
    return replace(analysis, findings=tuple(sorted(found, key=_place)))


def _of_the_program(analysis: Analysis) -> list[Finding]:
    """Return the findings about a program whose own steps were traced."""
    watch = analysis.recording.watch
    if watch is None:
        return []
    trends = measure_growth(analysis.recording, watch)
    growth = trends.device
    causes = [
        *find_leaks(analysis, watch, growth),
        *find_retracing(watch, growth),
        *find_tapes(analysis, watch),
        *find_models(watch),
    ]
    is_explained = causes or find_filling_stage(analysis.recording, watch, growth)
    return [
        *causes,
        *(() if is_explained else find_unexplained(analysis, watch, trends)),
        *find_varying_shapes(analysis, watch),
        *find_data(analysis, watch, growth),
        *find_held_over(analysis, watch),
        *find_alive_at_end(watch),
        *find_input_copies(analysis, watch),
    ]


def _place(finding: Finding) -> tuple[int, int, int]:
    saves = finding.saves_bytes or 0
    rank = 0 if finding.id in _FIRST else 1 if finding.id in _OF_THE_PROGRAM else 2
    return rank, _ORDER.index(finding.severity), -saves
