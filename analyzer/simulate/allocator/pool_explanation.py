"""The memory that a sequence takes under other settings of the allocator."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc import compiled_run
from analyzer.simulate.allocator.bfc.bfc_pool import UNLIMITED_BYTES, BfcOptions
from analyzer.simulate.allocator.minimum_limit import EXPECTED_RUNS, minimum_limit
from analyzer.simulate.allocator.replay import Sequence, replay

_FRACTIONS: Final = (0.0001, 0.001, 0.01)  # fragmentation fractions that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The memory that a sequence takes under other settings."""

    # ``as-is``, ``fragmentation-fraction``, ``growth``, ``no-growth`` or ``cuda-malloc-async``
    id: str
    setting: str
    peak_pool_bytes: int  # under the limit, until a failure
    minimum_limit_bytes: int  # smallest safe limit
    limit_saved_bytes: int = 0  # minimum limit of ``as-is`` minus this one


def remedies(sequence: Sequence, options: BfcOptions) -> tuple[Remedy, ...]:
    """Replay a sequence under other settings, and compare the memory that each takes.

    Minimum limits are searched with a precision of 1/512 of the requested peak. The last remedy,
    ``cuda_malloc_async``, rounds no requests; how the driver's own pool fragments is unknown.
    """
    live = sequence.live_requested_bytes()
    cases: list[tuple[str, str, BfcOptions]] = [("as-is", "", options)]
    for share in _FRACTIONS:
        if share != options.fragmentation_fraction:
            other = replace(options, fragmentation_fraction=share)
            cases.append(("fragmentation-fraction", f"{share:g}", other))
    other = replace(options, growth=not options.growth)
    cases.append(("no-growth" if options.growth else "growth", "", other))
    compiled_run.prepare(len(sequence) * (len(cases) + 1) * EXPECTED_RUNS)
    step_bytes = max(GRANULE_BYTES, round_up(int(live.max(initial=0)) >> 9))
    found = [
        Remedy(
            id=name,
            setting=setting,
            peak_pool_bytes=replay(sequence, under).peak_pool_bytes,
            minimum_limit_bytes=minimum_limit(sequence, under, step_bytes=step_bytes).high,
        )
        for name, setting, under in cases
    ]
    done = int(np.argmax(np.append(live, 2 * UNLIMITED_BYTES) > options.memory_limit_bytes))
    needed = sequence.without(sequence.spare).live_requested_bytes()
    found.append(
        Remedy(
            id="cuda-malloc-async",
            setting="",
            peak_pool_bytes=int(live[:done].max(initial=0)),
            minimum_limit_bytes=int(needed.max(initial=0)),
        )
    )
    least_bytes = found[0].minimum_limit_bytes
    return tuple(
        replace(one, limit_saved_bytes=least_bytes - one.minimum_limit_bytes) for one in found
    )
