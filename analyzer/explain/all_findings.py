"""All findings of an analysis, in the order of every output.

A step that does not fit comes first, then severity, then growth of the program, then the saving.
"""

from collections.abc import Iterator
from dataclasses import replace

from analyzer.explain.analysis import LOW, Analysis
from analyzer.explain.questions import (
    amplification,
    layers,
    out_of_memory,
    peak_tensors,
)
from analyzer.explain.running import step_differences
from analyzer.model.recording.records import Finding, Severity

_FIRST = ("out-of-memory", "does-not-fit")

# Findings of a wrong result or a saving that rises with each step, reported however small it is.
_ALWAYS = (
    "outer-product",
    "kept-tensors",
    "grows",
    "growth-per-step",
    "tapes-kept",
    "results-kept",
)

# Findings with an equivalent program, which come before others of the next higher severity. One whose
# saving is not computed comes last if another one's is.
_CAUSES = (
    "outer-product",
    "all-pairs",
    "reduced-at-once",
    "small-copied",
    "logits-held",
    "waits-for-sum",
    "sliced-often",
    "kept-by-tape",
    "whole-table",
    "whole-set",
    "input-copies",
    "input-resized",
    "product-order",
    "vectorized-loop",
    "calls-in-tape",
    "recomputable",
    "one-hot",
    "float64",
    "part-read",
    "enlarged",
    "kept-again",
    "from-python",
    "persistent-tape",
    "trained-base",
    "data-stage",
)

_AHEAD = 1.5  # severities by which ``_CAUSES`` come forward

# Findings from the table of allocations; of a step or a program.
_OF_A_STEP = (
    out_of_memory.find_out_of_memory,
    step_differences.find_recompiled,
    amplification.find_eager_pairs,
    amplification.find_vectorized,
    amplification.find_summands,
    amplification.find_kept_by_tape,
    layers.find_kept_again,
    layers.find_calls,
    layers.find_trained_base,
    layers.find_wide_layer,
    peak_tensors.find_whole_set,
    peak_tensors.find_eager_results,
    peak_tensors.find_batch_tensors,
    peak_tensors.find_growth,
    peak_tensors.find_workspaces,
    peak_tensors.find_state,
    peak_tensors.find_accumulators,
    peak_tensors.find_wide_numbers,
    peak_tensors.find_whole_tables,
    peak_tensors.find_input_copies,
    step_differences.find_varying_shapes,
)

# Findings from the table and the graph; ``Tensors`` knows shapes, readers and lines of ops.
_OF_A_GRAPH = (
    amplification.find_amplified,
    layers.find_wide_kernel,
    layers.find_recomputable,
    layers.find_one_hot,
)


def collect(analysis: Analysis) -> Analysis:
    """Return the analysis with its findings, without savings that are too small to notice."""
    found = list(analysis.findings)

    if analysis.recording.device.kind != "tpu":  # whose buffers have no names
        for find in _OF_A_STEP:
            found += find(analysis)

        graph = analysis.recording.structure
        if graph.ops:
            plain, tensors = amplification.with_tensors(analysis, graph)
            for find_in_graph in _OF_A_GRAPH:
                found += find_in_graph(plain, tensors)

    of_program = list(_of_the_program(analysis))
    found += of_program
    kept = [one for one in found if _is_worth_saying(one, analysis)]
    order = list(Severity)

    has_saving = any(one.id in _CAUSES and one.saves_bytes for one in kept)
    is_leaking = any(one.severity is Severity.HIGH for one in of_program)

    # TensorFlow skips an algorithm whose workspace finds no room (``DnnScratchAllocator`` in
    # ``conv_ops_gpu.h``), so other changes come first. A program that compiles its model again
    # trains a loaded network on purpose.
    watch = analysis.recording.watch
    behind = {"workspace"}
    if watch and watch.step_objects > 1:
        behind.add("trained-base")

    def rank(one: Finding) -> tuple[bool, bool, float, bool, int]:
        is_cause = one.id in _CAUSES
        forward = -1 if one.id in behind else is_cause
        severity = order.index(one.severity) - _AHEAD * forward
        is_growth = one.id in _ALWAYS or one.saves_bytes is None
        is_general = one not in of_program or not is_growth
        is_behind = has_saving or is_leaking
        is_unsized = is_cause and one.saves_bytes is None and is_behind
        saves = -(one.saves_bytes or 0)

        return one.id not in _FIRST, is_unsized, severity, is_general, saves

    return replace(analysis, findings=tuple(sorted(kept, key=rank)))


def _is_worth_saying(one: Finding, analysis: Analysis) -> bool:
    saves = one.saves_bytes
    if saves is None or one.id in _ALWAYS:
        return True

    of_peak = LOW * analysis.peak.requested_bytes * (one.id in _CAUSES)
    return saves >= max(LOW * analysis.limit_bytes, of_peak)


def _of_the_program(analysis: Analysis) -> Iterator[Finding]:
    """Yield findings about the growth of a program."""
    watch = analysis.recording.watch
    if watch is None:
        return

    from analyzer.explain.running import data_held, kept_objects, leaks
    from analyzer.explain.running.slope import measure_growth

    device, host = measure_growth(analysis.recording, watch)
    host_slope = leaks.host_growth_words(watch, host)

    causes = [
        *leaks.find_leaks(analysis, watch, device),
        *kept_objects.find_retracing(watch, host_slope),
        *kept_objects.find_tapes(analysis, watch),
        *kept_objects.find_models(watch, host_slope),
    ]

    yield from out_of_memory.find_failed_step(analysis, watch)
    yield from causes

    if not causes and not data_held.find_filling_stage(
        analysis.recording,
        watch,
        device,
    ):
        yield from leaks.find_unexplained(analysis, watch, device, host)

    yield from leaks.find_larger_call(analysis, watch)
    yield from data_held.find_data(analysis, watch, device)
    yield from kept_objects.find_held_over(analysis, watch)
