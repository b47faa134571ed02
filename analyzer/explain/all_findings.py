"""All findings of an analysis, in the order of every output.

A step that does not fit comes first, then growth over steps, then severity, then the saving.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.out_of_memory import find_failed_step, find_out_of_memory
from analyzer.explain.questions.peak_owner import (
    find_dense_gradients,
    find_gradient_copies,
    find_input_copies,
    find_largest,
    find_peak_owner,
    find_wide_numbers,
)
from analyzer.explain.questions.retained_tensors import (
    find_growth,
    find_retained,
    find_survivors,
)
from analyzer.explain.questions.step_settings import (
    find_internal_waste,
    find_recompiled,
    find_state,
    find_threads,
    find_trials,
    find_workspaces,
)
from analyzer.explain.running.data_held import find_data, find_filling_stage
from analyzer.explain.running.kept_objects import (
    find_held_over,
    find_models,
    find_retracing,
    find_tapes,
)
from analyzer.explain.running.leaks import find_leaks, find_unexplained
from analyzer.explain.running.slope import measure_growth
from analyzer.explain.running.varying_shapes import find_varying_shapes
from analyzer.model.recording.records import Finding, Severity

_FIRST: Final = ("out-of-memory", "does-not-fit")
_OF_A_STEP: Final = (
    find_out_of_memory,
    find_recompiled,
    find_peak_owner,
    find_retained,
    find_gradient_copies,
    find_survivors,
    find_growth,
    find_largest,
    find_workspaces,
    find_trials,
    find_state,
    find_threads,
    find_internal_waste,
)


def collect(analysis: Analysis) -> Analysis:
    """Return the analysis with its findings."""
    step = [*analysis.findings, *(found for find in _OF_A_STEP for found in find(analysis))]
    ranked = [(0 if one.id in _FIRST else 2, one) for one in step]
    ranked += [(1, one) for one in _of_the_program(analysis)]
    order = list(Severity)
    ranked.sort(
        key=lambda pair: (pair[0], order.index(pair[1].severity), -(pair[1].saves_bytes or 0))
    )
    return replace(analysis, findings=tuple(finding for _, finding in ranked))


def _of_the_program(analysis: Analysis) -> Iterator[Finding]:
    """Yield the problems of a program, most of which grow with its steps."""
    yield from find_wide_numbers(analysis)
    yield from find_dense_gradients(analysis)
    yield from find_varying_shapes(analysis)
    watch = analysis.recording.watch
    if watch is None:
        return
    trends = measure_growth(analysis.recording, watch)
    causes = [
        *find_leaks(analysis, watch, trends.device),
        *find_retracing(watch, trends.device),
        *find_tapes(analysis, watch),
        *find_models(watch),
    ]
    yield from find_failed_step(analysis, watch)
    yield from causes
    if not causes and not find_filling_stage(analysis.recording, watch, trends.device):
        yield from find_unexplained(analysis, watch, trends)
    yield from find_data(analysis, watch, trends.device)
    yield from find_held_over(analysis, watch)
    yield from find_input_copies(analysis, watch)
