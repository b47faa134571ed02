"""The cause of each region, and the memory under other settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analyzer.model.choice import Choice
from analyzer.model.contract.report.limit_figures import PoolRegion
from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc import compiled_run
from analyzer.simulate.allocator.bfc.bfc_allocator import Extension
from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions
from analyzer.simulate.allocator.minimum_limit import EXPECTED_RUNS, minimum_limit
from analyzer.simulate.allocator.replay import Replay, replay
from analyzer.simulate.allocator.sequence import Sequence

_FRACTIONS: Final = (0.0001, 0.001, 0.01)  # fragmentation fractions that are compared


class Why(Choice):
    """Rule that determined the size of a region."""

    WHOLE_LIMIT = "whole limit"
    FIRST = "first region"
    DOUBLING = "doubling"
    LARGE_REQUEST = "large request"
    LIMIT = "rest of the limit"


def growth_history(result: Replay) -> tuple[PoolRegion, ...]:
    """Return the regions in the order in which they were taken, each with its cause."""
    return tuple(
        PoolRegion(
            size_bytes=region.size_bytes,
            why=str(_find_rule(region, result.options)),
            instant=int(result.sequence.instant[region.owner]),
            requested_bytes=region.requested_bytes,
            free_bytes=region.free_bytes,
            largest_free_bytes=region.largest_free_bytes,
        )
        for region in result.extensions
    )


def _find_rule(region: Extension, options: BfcOptions) -> Why:
    if not options.growth:
        return Why.WHOLE_LIMIT
    rounded_bytes = round_up(region.requested_bytes)
    if region.size_bytes == region.available_bytes < max(region.planned_bytes, rounded_bytes + 1):
        return Why.LIMIT
    if rounded_bytes > region.planned_bytes:
        return Why.LARGE_REQUEST
    return Why.FIRST if region.number == 0 else Why.DOUBLING


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The memory that a sequence takes under other settings."""

    # ``as-is``, ``restart``, ``fixed-shapes``, ``fragmentation-fraction``, ``growth``, ``no-
    # growth`` or ``cuda-malloc-async``
    id: str
    setting: str
    fits: bool
    peak_in_use_bytes: int  # under the limit, until a failure
    peak_pool_bytes: int
    minimum_limit_bytes: int  # smallest safe limit
    limit_saved_bytes: int = 0  # minimum limit of ``as-is`` minus this one


def remedies(
    sequence: Sequence, options: BfcOptions, *, steps: tuple[tuple[int, int], ...] = ()
) -> tuple[Remedy, ...]:
    """Replay a sequence under other settings, and compare the memory that each takes.

    Minimum limits are searched with a precision of 1/512 of the requested peak.

    Args:
        steps: First and last instant of each step, in order. *Restart* replays the buffers alive at
            the start of the last step and then this step, like a new process that loads a
            checkpoint. *Fixed shapes* does the same with the step of the highest peak: the need if
            all steps have its shapes.
    """
    cases: list[tuple[str, str, Sequence, BfcOptions]] = [("as-is", "", sequence, options)]
    firsts = (int(np.searchsorted(sequence.instant, first, side="left")) for first, _ in steps)
    ends = (int(np.searchsorted(sequence.instant, last, side="right")) for _, last in steps)
    ranges = [(first, end - 1) for first, end in zip(firsts, ends, strict=True) if first < end]
    live = sequence.live_requested_bytes()
    if ranges:
        cases.append(("restart", "the last step alone", sequence.part(*ranges[-1]), options))
    if len(ranges) > 1:
        largest = max(ranges, key=lambda ops: int(live[ops[0] : ops[1] + 1].max()))
        part = sequence.part(*largest)
        cases.append(("fixed-shapes", "every step as its largest", part, options))
    for share in _FRACTIONS:
        if share != options.fragmentation_fraction:
            other = replace(options, fragmentation_fraction=share)
            cases.append(("fragmentation-fraction", f"{share:g}", sequence, other))
    other = replace(options, growth=not options.growth)
    cases.append(("no-growth" if options.growth else "growth", "", sequence, other))
    compiled_run.prepare(len(sequence) * (len(cases) + 1) * EXPECTED_RUNS)
    step_bytes = max(GRANULE_BYTES, round_up(int(live.max(initial=0)) >> 9))
    base, *others = (_replay_case(*case, step_bytes) for case in cases)
    others.append(_replay_without_rounding(sequence, options.memory_limit_bytes))
    least_bytes = base.minimum_limit_bytes
    return (
        base,
        *(replace(o, limit_saved_bytes=least_bytes - o.minimum_limit_bytes) for o in others),
    )


def _replay_case(
    name: str, setting: str, sequence: Sequence, options: BfcOptions, step_bytes: int
) -> Remedy:
    result = replay(sequence, options)
    return Remedy(
        id=name,
        setting=setting,
        fits=result.failure is None,
        peak_in_use_bytes=result.peak_in_use_bytes,
        peak_pool_bytes=result.peak_pool_bytes,
        minimum_limit_bytes=minimum_limit(sequence, options, step_bytes=step_bytes).safe_bytes,
    )


def _replay_without_rounding(sequence: Sequence, limit_bytes: int) -> Remedy:
    """Return the memory under ``cuda_malloc_async``, whose requests are not rounded.

    TensorFlow does not see how the driver's own pool rounds and fragments. So the sequence fails
    only if the sum of its live requests exceeds the limit.
    """
    live = sequence.live_requested_bytes()
    done = int(np.argmax(np.append(live, limit_bytes + 1) > limit_bytes))
    peak_bytes = int(live[:done].max(initial=0))
    return Remedy(
        id="cuda-malloc-async",
        setting="",
        fits=done == len(sequence),
        peak_in_use_bytes=peak_bytes,
        peak_pool_bytes=peak_bytes,
        minimum_limit_bytes=int(
            sequence.without(sequence.spare).live_requested_bytes().max(initial=0)
        ),
    )
