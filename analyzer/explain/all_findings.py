"""All findings of an analysis, in the order of every output.

A step that does not fit comes first, then growth over steps, then severity, then the saving.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions import (
    out_of_memory,
    peak_owner,
    retained_tensors,
    step_settings,
)
from analyzer.explain.running import data_held, kept_objects, leaks
from analyzer.explain.running.slope import measure_growth
from analyzer.model.recording.records import Finding, Severity

_LEAST_BYTES: Final = 1 << 20
_LEAST_RATIO: Final = 0.01
"""A saving below both, bytes and a share of the need, is too small to notice."""

_SMALLEST_POOL: Final = 2 << 20
"""First region of a pool that grows (``bfc_allocator.cc``); below it, no saving makes it smaller."""

_FIRST: Final = ("out-of-memory", "does-not-fit")
_GROWING: Final = (
    "kept-tensors",
    "grows",
    "growth-per-step",
    "tapes-kept",
    "models-kept",
)
"""Findings whose saving rises with each step, so that it is reported however small it is."""

_OF_A_STEP: Final = (
    out_of_memory.find_out_of_memory,
    step_settings.find_recompiled,
    retained_tensors.find_retained,
    peak_owner.find_gradient_copies,
    retained_tensors.find_overdue,
    retained_tensors.find_growth,
    peak_owner.find_largest,
    step_settings.find_workspaces,
    step_settings.find_state,
    step_settings.find_internal_waste,
)


def collect(analysis: Analysis) -> Analysis:
    """Return the analysis with its findings, without savings that are too small to notice."""
    found = list(analysis.findings)
    if analysis.recording.device.kind != "tpu":  # whose buffers have no names
        for find in _OF_A_STEP:
            found += find(analysis)

    growing = list(_of_the_program(analysis))
    found += growing

    need = None if analysis.verdict is None else analysis.verdict.need_bytes
    need = analysis.peak_ever.allocated_bytes if need is None else need
    least, share = min(_LEAST_BYTES, _LEAST_RATIO * need), "1% of the need"
    if analysis.recording.watch is not None and need < _SMALLEST_POOL:
        least, share = _LEAST_BYTES, "a growing pool takes 2 MiB at least"

    kept, has_small_action = [], False

    for one in found:
        is_small = one.saves_bytes is not None and one.saves_bytes < least
        if not is_small or one.id in _GROWING:
            kept.append(one)
        elif one.severity is not Severity.INFO:
            has_small_action = True

    if has_small_action and all(one.severity is Severity.INFO for one in kept):
        title = (
            f"Nothing is worth changing: each change saves less than 1 MiB and {share}"
        )
        nothing = Finding(
            id="nothing-to-change", severity=Severity.INFO, title=title, detail=""
        )
        kept.append(nothing)

    order = list(Severity)

    def rank(one: Finding) -> tuple[int, int, int]:
        place = 0 if one.id in _FIRST else 1 if one in growing else 2
        return place, order.index(one.severity), -(one.saves_bytes or 0)

    return replace(analysis, findings=tuple(sorted(kept, key=rank)))


def _of_the_program(analysis: Analysis) -> Iterator[Finding]:
    """Yield the problems of a program, most of which grow with its steps."""
    yield from peak_owner.find_wide_numbers(analysis)
    yield from peak_owner.find_dense_gradients(analysis)
    yield from kept_objects.find_varying_shapes(analysis)
    watch = analysis.recording.watch
    if watch is None:
        return

    device, host = measure_growth(analysis.recording, watch)

    causes = [
        *leaks.find_leaks(analysis, watch, device),
        *kept_objects.find_retracing(watch, device),
        *kept_objects.find_tapes(analysis, watch),
        *kept_objects.find_models(watch),
    ]

    yield from out_of_memory.find_failed_step(analysis, watch)
    yield from causes
    if not causes and not data_held.find_filling_stage(
        analysis.recording, watch, device
    ):
        yield from leaks.find_unexplained(analysis, watch, device, host)

    yield from data_held.find_data(analysis, watch, device)
    yield from kept_objects.find_held_over(analysis, watch)
    yield from peak_owner.find_input_copies(analysis, watch)
