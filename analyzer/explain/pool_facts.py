"""The pool behind the allocated bytes: what it held, and what it would hold under other settings.

A trace says how much is allocated, not how much the allocator took for it. Where the trace begins
with the process, replaying it through the allocator gives the pool too; the replay is checked against
what TensorFlow wrote, event by event, and is used only where both agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from msgspec import structs

from analyzer.explain.allocator_findings import find_allocator
from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.fragmentation import Fragmentation
from analyzer.explain.questions.out_of_memory import would_have_fitted
from analyzer.explain.replay_settings import WhatIf
from analyzer.explain.verdict.judgement import card_of, card_options
from analyzer.model.contract.report.limit_figures import (
    LimitParts,
    OtherSettings,
    PoolChange,
    PoolFacts,
    PoolRegion,
    ReplayFailure,
)
from analyzer.model.contract.report.trust_figures import ReplayCheck
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import main_allocator_rows
from analyzer.simulate.allocator import (
    BfcOptions,
    Engine,
    FailedRequest,
    Replay,
    compare,
    from_recording,
    growth_history,
    minimum_limit,
    recorded_options,
    replay,
)
from analyzer.simulate.allocator.bfc.bfc_options import UNLIMITED_BYTES
from analyzer.simulate.allocator.minimum_limit import engine_for

_ROWS: Final = 40  # extensions of the pool told one by one


def begins_with_process(recording: Recording) -> bool:
    """Say whether nothing was allocated before the first event."""
    rows = main_allocator_rows(recording)
    return bool(len(rows)) and bool((rows["born"] >= 0).all())


def add_pool(analysis: Analysis, what_if: WhatIf, *, search: bool) -> Analysis:
    """Return the analysis with the pool, the minimum limit and, if asked, another setting.

    Args:
        analysis: The analysis.
        what_if: Other settings to replay under.
        search: Search the minimum limit, which takes a second or, for long traces, several.

    Raises:
        TraceError: the recording cannot be replayed and a setting was asked for.
    """
    recording = analysis.recording
    if not begins_with_process(recording):
        if not what_if.is_asked:
            return analysis
        options = asked_options(own_options(recording), what_if)
        facts = _with_minimum(analysis.pool, recording, options, what_if)
        analysis = replace(analysis, pool=facts)
        return _add_what_if(analysis, options)
    searched = search or what_if.is_asked
    sequence = from_recording(recording)
    engine = engine_for(sequence) if searched else Engine.AUTO  # loaded once, it serves all replays
    own = own_options(recording, engine=engine)
    asked = asked_options(own, what_if)
    if recording.kind.ran:
        match = compare(recording.events, own, allocator=recording.allocator, engine=engine)
        facts = PoolFacts(
            replay_equals_trace=match.is_exact,
            replay_check=ReplayCheck(events=match.events, equal=match.equal),
        )
        is_exact = match.is_exact
        del match  # as large as the trace, which is replayed once more
        if is_exact:
            # Where several regions lie decides which of two chunks of one size is taken.
            own_run = replay(sequence, own, engine=engine, follow_addresses=True)
            facts = structs.replace(
                _with_facts(facts, analysis, own_run),
                failure_fits=would_have_fitted(analysis, own),
            )
    else:
        # A predicted card is laid out under what was asked.
        facts = _predicted_facts(analysis, asked if card_of(recording) is not None else own)
    if searched:
        facts = _with_minimum(facts, recording, asked, what_if)
    analysis = replace(
        analysis,
        pool=facts,
        fragmentation=_with_pool(analysis.fragmentation, facts),
    )
    return _add_what_if(analysis, asked) if what_if.is_asked else analysis


def own_options(recording: Recording, *, engine: Engine = Engine.AUTO) -> BfcOptions:
    """Return the settings that a recording was made under."""
    return card_options(recording) or recorded_options(
        recording.events, allocator=recording.allocator, engine=engine
    )


def asked_options(own: BfcOptions, what_if: WhatIf) -> BfcOptions:
    """Return a recording's settings with those of ``what_if`` in their place."""
    if what_if.memory_limit_bytes is not None:
        own = replace(own, memory_limit_bytes=what_if.memory_limit_bytes)
    if what_if.growth is not None:
        own = replace(own, growth=what_if.growth)
    if what_if.fragmentation_fraction is not None:
        own = replace(own, fragmentation_fraction=what_if.fragmentation_fraction)
    return own


def _predicted_facts(analysis: Analysis, own: BfcOptions) -> PoolFacts:
    """Return the facts of a prediction under its own settings.

    A card that the step does not fit has no pool that holds it: nothing is said of one. The limit of
    a CPU's allocator is nobody's; without it the pool is that of a run.
    """
    sequence = from_recording(analysis.recording)
    result = replay(sequence, own)
    fits = result.failure is None
    if not fits and sequence.spare.any():
        result = replay(sequence.without(sequence.spare), own)
        fits = result.failure is None
    if not fits and card_options(analysis.recording) is not None:
        return PoolFacts(fits_limit=False)
    if not fits:
        result = replay(sequence, replace(own, memory_limit_bytes=UNLIMITED_BYTES, growth=True))
    return _with_facts(PoolFacts(fits_limit=fits), analysis, result)


def _with_facts(facts: PoolFacts, analysis: Analysis, result: Replay) -> PoolFacts:
    instant = analysis.peak.allocated_instant
    at = int(np.searchsorted(result.instant, instant, side="right")) - 1
    inside = (result.instant >= analysis.first) & (result.instant <= analysis.last)
    pool = result.pool_bytes
    return structs.replace(
        facts,
        pool_bytes=int(pool[inside].max()) if inside.any() else int(pool[at]),
        pool_ever_bytes=result.peak_pool_bytes,
        free_bytes=int(pool[at] - result.in_use_bytes[at]),
        largest_free_bytes=int(result.largest_free_bytes[at]),
        pool_timeline=_changes(result),
    )


def _changes(result: Replay) -> tuple[PoolChange, ...]:
    """Return the pool's size wherever it changes."""
    changed = np.flatnonzero(np.diff(result.pool_bytes, prepend=-1))
    return tuple(
        PoolChange(instant=int(result.instant[at]), pool_bytes=int(result.pool_bytes[at]))
        for at in changed
    )


def _with_pool(fragmentation: Fragmentation, facts: PoolFacts) -> Fragmentation:
    if facts.free_bytes is None:
        return fragmentation
    return replace(
        fragmentation,
        free_bytes=facts.free_bytes,
        largest_free_bytes=facts.largest_free_bytes,
    )


def _with_minimum(
    facts: PoolFacts, recording: Recording, options: BfcOptions, what_if: WhatIf
) -> PoolFacts:
    """Return the facts with the least memory limits: that which works, and that from which on all do.

    The limit that the verdict will be about is among those tried, so that both agree.
    """
    asked = what_if.memory_limit_bytes is not None or card_of(recording) is not None
    found = minimum_limit(
        from_recording(recording), options, also=[options.memory_limit_bytes] if asked else ()
    )
    least = LimitParts(
        requested_bytes=found.requested_peak_bytes,
        rounding_bytes=found.rounding_bytes,
        unsplit_bytes=found.unsplit_bytes,
        external_bytes=found.external_bytes,
    )
    return structs.replace(
        facts,
        minimum_limit_bytes=found.limit_bytes,
        safe_limit_bytes=found.safe_bytes,
        minimum_limit_parts=least,
        safe_limit_parts=structs.replace(
            least,
            unsplit_bytes=found.safe_unsplit_bytes,
            external_bytes=found.safe_external_bytes,
        ),
    )


def _add_what_if(analysis: Analysis, options: BfcOptions) -> Analysis:
    recording = analysis.recording
    result = replay(from_recording(recording), options)
    failure = result.failure
    facts = OtherSettings(
        memory_limit_bytes=options.memory_limit_bytes,
        growth=options.growth,
        fragmentation_fraction=options.fragmentation_fraction,
        fits=failure is None,
        peak_requested_bytes=result.peak_requested_bytes,
        peak_allocated_bytes=result.peak_in_use_bytes,
        peak_pool_bytes=result.peak_pool_bytes,
        pool_timeline=_changes(result),
        failure=None if failure is None else _failure(failure),
        regions=tuple(
            PoolRegion(
                size_bytes=growth.size_bytes,
                why=str(growth.why),
                instant=growth.instant,
                requested_bytes=growth.requested_bytes,
                free_bytes=growth.free_bytes,
                largest_free_bytes=growth.largest_free_bytes,
            )
            for growth in growth_history(result)[:_ROWS]
        ),
    )
    return replace(
        analysis,
        pool=structs.replace(analysis.pool, what_if=facts),
        findings=(*analysis.findings, *find_allocator(recording, options)),
    )


def _failure(failure: FailedRequest) -> ReplayFailure:
    return ReplayFailure(
        instant=failure.instant,
        requested_bytes=failure.requested_bytes,
        in_use_bytes=failure.in_use_bytes,
        pool_bytes=failure.pool_bytes,
        free_bytes=failure.free_bytes,
        largest_free_bytes=failure.largest_free_bytes,
        available_bytes=failure.available_bytes,
    )
