"""All findings of one analysis in the one order in which every output shows them.

Why the step does not fit comes first, then the weightiest, and of these those that save most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.batch_independent import find_state
from analyzer.explain.questions.fragmentation import find_internal_waste, find_trend
from analyzer.explain.questions.gradient_copies import find_gradient_copies
from analyzer.explain.questions.out_of_memory import find_out_of_memory
from analyzer.explain.questions.parallel_ops import find_threads
from analyzer.explain.questions.peak_owner import find_largest, find_peak_owner
from analyzer.explain.questions.recompiled_steps import find_compiled_anew
from analyzer.explain.questions.retained_tensors import (
    find_growth,
    find_overdue,
    find_retained,
    find_survivors,
    retained_rows,
)
from analyzer.explain.running.copied_inputs import find_input_copies
from analyzer.explain.running.data_held import find_data, stage_that_fills
from analyzer.explain.running.retracing import find_retracing
from analyzer.explain.running.staying_bytes import find_kept, find_unexplained
from analyzer.explain.running.step_habits import (
    find_dense_gradients,
    find_held_over,
    find_models,
    find_wide_numbers,
)
from analyzer.explain.running.tapes_kept import find_tapes
from analyzer.explain.running.varying_shapes import find_varying_shapes
from analyzer.model.recording.records import Finding, Severity

_ORDER: Final = list(Severity)
_FIRST: Final = frozenset({"out-of-memory", "does-not-fit"})
_OF_THE_PROGRAM: Final = frozenset(
    {
        "kept-tensors",
        "grows",
        "grows-on-host",
        "retraced",
        "functions-made-anew",
        "tapes-kept",
        "tape-outlives-use",
    }
    | {"data-constant", "data-held", "data-slices", "data-stage", "models-kept"}
    | {"held-over", "input-copies", "float64", "dense-gradient", "varying-shapes"}
)
"""What goes wrong from step to step: before what one step needs."""


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
        *(find_survivors(analysis) if analysis.recording.watch is None else ()),
        *(find_growth(analysis) if analysis.recording.watch is None else ()),
        *find_largest(analysis),
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
    told = {one.id for one in found}
    if "varying-shapes" in told:  # the same, of a program
        found = [one for one in found if one.id != "varying-sizes"]
    return replace(analysis, findings=tuple(sorted(found, key=_place)))


def _of_the_program(analysis: Analysis) -> list[Finding]:
    """Return what is said of a program whose own steps were traced."""
    watch = analysis.recording.watch
    if watch is None:
        return []
    causes = [
        *find_kept(analysis, watch),
        *find_retracing(watch),
        *find_tapes(analysis, watch),
        *find_models(watch),
    ]
    return [
        *causes,
        *(() if causes or stage_that_fills(analysis, watch) else find_unexplained(analysis, watch)),
        *find_varying_shapes(analysis, watch),
        *find_data(analysis, watch),
        *find_held_over(analysis, watch),
        *find_input_copies(analysis, watch),
    ]


def _place(finding: Finding) -> tuple[int, int, int]:
    saves = finding.saves_bytes or 0
    rank = 0 if finding.id in _FIRST else 1 if finding.id in _OF_THE_PROGRAM else 2
    return rank, _ORDER.index(finding.severity), -saves
