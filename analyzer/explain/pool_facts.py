"""The allocator's pool, as it was and under other settings, by replay.

A trace contains allocated bytes but not the size of the pool. If the trace begins with its process, a
replay through the simulated allocator gives the pool. The replay is compared with TensorFlow's events
and is used only if all of them agree.
"""

from dataclasses import asdict, replace

import numpy as np

from analyzer.explain.analysis import Analysis, card_of
from analyzer.explain.buffer_words import name_of
from analyzer.explain.need import begins_with_process
from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.report_file import (
    OtherSettings,
    PoolChange,
)
from analyzer.model.recording.records import (
    Finding,
    Recording,
    Severity,
    card_number,
    find_own_peak,
)
from analyzer.model.units import format_bytes, round_up
from analyzer.simulate.allocator.bfc import UNLIMITED_BYTES, BfcOptions
from analyzer.simulate.allocator.replay import (
    Replay,
    Sequence,
    compare,
    from_recording,
    minimum_limit,
    recorded_options,
    replay,
)


def add_pool(analysis: Analysis, what_if: WhatIf, *, search: bool) -> Analysis:
    """Return the analysis with the pool, the lowest limit and a replay under ``what_if``.

    ``search`` is whether to search for the lowest limit, which takes a second or more.
    """
    recording = analysis.recording
    is_whole = begins_with_process(recording)
    searched = what_if.is_asked or (search and is_whole)

    sequence = from_recording(recording)
    own = own_options(recording, sequence)
    whole = _with_whole_pool(own, recording)

    # The settings that the user asked for replace those of the recording.
    given = {
        name: value for name, value in asdict(what_if).items() if value is not None
    }
    asked = replace(whole, **given)

    if is_whole and recording.ran_under_limit:
        analysis = _add_measured_pool(analysis, sequence, own, whole)
    elif is_whole:
        # A predicted card uses the settings that the user asked about.
        analysis = _add_predicted_pool(
            analysis, sequence, asked if card_of(recording) is not None else own
        )

    # A replay that differs from the trace gives no need, except under settings that the user asks for.
    check = analysis.replay_check
    differs = check is not None and not check.is_exact
    searched = searched and (what_if.is_asked or not differs)

    # No limit is known for a program whose peak is outside its trace.
    if (
        searched
        and (find_own_peak(recording) or 0) <= analysis.peak_ever.allocated_bytes
    ):
        # The search includes the limit of the verdict, so that both agree.
        is_limited = (
            what_if.memory_limit_bytes is not None or card_of(recording) is not None
        )
        also = [asked.memory_limit_bytes] if is_limited else ()
        found = minimum_limit(sequence, asked, also=also)
        analysis = replace(analysis, safe_limit_bytes=found.high)

    if what_if.is_asked:
        return _add_what_if(analysis, sequence, asked)

    return analysis


def card_options(recording: Recording) -> BfcOptions | None:
    """Return the default allocator of a card: one region of the whole limit.

    None for a recording that ran under a limit: its events show its settings.
    """
    limit = recording.device.memory_limit_bytes
    if recording.ran_under_limit or card_of(recording) is None or not limit:
        return None

    return BfcOptions.gpu(limit)


def own_options(recording: Recording, sequence: Sequence) -> BfcOptions:
    """Return the settings of the card's default pool, or those of the run if it had a limit."""
    return card_options(recording) or recorded_options(sequence, recording.events)


def _with_whole_pool(own: BfcOptions, recording: Recording) -> BfcOptions:
    """Return the settings of a run with the card's whole limit, also if its pool was smaller."""
    if not recording.ran_under_limit or recording.simulated_run is None:
        return own

    spare_bytes = recording.simulated_run.spare_of(card_number(recording.allocator))
    return replace(own, memory_limit_bytes=own.memory_limit_bytes + spare_bytes)


def _add_measured_pool(
    analysis: Analysis,
    sequence: Sequence,
    own: BfcOptions,
    whole: BfcOptions,
) -> Analysis:
    """Return the analysis of a trace with its pool; without one if the replay differs from the trace.

    ``own`` are the settings of the run, ``whole`` those of the card.
    """
    events = analysis.recording.events
    check, result = compare(sequence, events, own)

    if not check.is_exact:
        # Newer TensorFlow pads the pool to 2 MiB of virtual memory (GpuVirtualMemAllocator::Alloc).
        padded = replace(own, memory_limit_bytes=-(-own.memory_limit_bytes >> 21) << 21)
        again, padded_result = compare(sequence, events, padded)
        if again.is_exact:
            check = again
            result = padded_result

    analysis = replace(analysis, replay_check=check)
    if not check.is_exact:
        return analysis

    if whole != own:
        result = replay(sequence, whole)

    return _add_replay(analysis, result)


def _add_predicted_pool(
    analysis: Analysis,
    sequence: Sequence,
    own: BfcOptions,
) -> Analysis:
    """Return the analysis of a prediction with its pool under its own settings.

    If the step does not fit its card, there is no pool to report. On a CPU the limit is ignored,
    because the user did not set it.
    """
    result = _replay_optional(sequence, own)
    fits = result.failure is None
    analysis = replace(analysis, fits_limit=fits)

    if not fits and card_options(analysis.recording) is not None:
        return analysis

    if not fits:
        result = replay(
            sequence, replace(own, memory_limit_bytes=UNLIMITED_BYTES, growth=True)
        )

    return _add_replay(analysis, result)


def _replay_optional(sequence: Sequence, options: BfcOptions) -> Replay:
    """Replay a sequence, without its optional buffers if it fails with them."""
    result = replay(sequence, options)
    if result.failure is None or not sequence.spare.any():
        return result

    return replay(sequence.without(sequence.spare), options)


def _add_replay(analysis: Analysis, result: Replay) -> Analysis:
    """Return the analysis with the sizes of the pool in a replay."""
    instant = analysis.peak.allocated_instant
    at = int(np.searchsorted(result.instant, instant, side="right")) - 1
    inside = (result.instant >= analysis.first) & (result.instant <= analysis.last)
    sizes = result.pool_bytes

    return replace(
        analysis,
        pool_bytes=int(sizes[inside].max(initial=0)) or int(sizes[at]),
        pool_ever_bytes=result.peak_pool_bytes,
        pool_timeline=_changes(result),
    )


def _changes(result: Replay) -> tuple[PoolChange, ...]:
    """Return the pool's size at each change."""
    return tuple(
        PoolChange(
            instant=int(result.instant[at]),
            pool_bytes=int(result.pool_bytes[at]),
        )
        for at in np.flatnonzero(np.diff(result.pool_bytes, prepend=-1))
    )


def _add_what_if(
    analysis: Analysis,
    sequence: Sequence,
    options: BfcOptions,
) -> Analysis:
    """Return the analysis with a replay; if it fails, say if free memory is fragmented."""
    result = _replay_optional(sequence, options)
    failure = result.failure

    facts = OtherSettings(
        memory_limit_bytes=options.memory_limit_bytes,
        growth=options.growth,
        fits=failure is None,
        peak_pool_bytes=result.peak_pool_bytes,
        pool_timeline=_changes(result),
        failure=failure,
    )

    analysis = replace(analysis, what_if=facts)
    if failure is None:
        return analysis

    name = "a tensor"
    if result.failed_row >= 0:
        name = name_of(analysis.recording.allocations.iloc[result.failed_row].to_dict())

    limit = format_bytes(options.memory_limit_bytes)
    free, asked = map(format_bytes, (failure.free_bytes, failure.requested_bytes))
    is_fragmented = failure.free_bytes >= round_up(failure.requested_bytes)

    largest = format_bytes(failure.largest_free_bytes)
    detail = (
        f"Only {free} of the pool are free: the live tensors need more than this limit."
        " Reduce the batch size or the number of live tensors."
    )

    if is_fragmented:
        detail = (
            f"Free memory is fragmented: {free} are free, and the largest chunk has "
            f"{largest}."
        )

    found = Finding(
        id="does-not-fit",
        severity=Severity.HIGH,
        title=f"Out of memory under {limit}: {asked} for {name}",
        detail=detail,
    )

    return replace(analysis, findings=(*analysis.findings, found))
