"""Events per second of a replay, and the time of the search for the least limit.

python benchmarks/replay.py [--events 2000000] [--live 1000]

Figures: "Speed" in benchmarks/results/allocator.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import Sequence, minimum_limit, replay


def workload(n_events: int, live: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return slots and requests: about ``live`` buffers alive, freed in random order."""
    rng = np.random.default_rng(seed)
    choice = rng.random((2, n_events)).tolist()
    largest = rng.choice([9, 14, 20, 26], n_events)
    sizes = (2 ** (rng.random(n_events) * largest)).astype(np.int64).tolist()
    idle, used = list(range(2 * live)), []
    slot, request = np.empty(n_events, np.int64), np.empty(n_events, np.int64)
    for i, (what, which) in enumerate(zip(*choice, strict=True)):
        source, target = (used, idle) if what < len(used) / (2 * live) else (idle, used)
        at = int(which * len(source))
        source[at], source[-1] = source[-1], source[at]
        target.append(source.pop())
        slot[i], request[i] = target[-1], sizes[i] if target is used else 0
    return slot, request


def as_sequence(slot: np.ndarray, request: np.ndarray) -> Sequence:
    """Return the workload with a buffer for each allocation."""
    birth = request > 0
    latest = np.empty(slot.max() + 1, np.int64)
    buffer, count = np.empty(slot.size, np.int64), 0
    for i, (name, is_birth) in enumerate(
        zip(slot.tolist(), birth.tolist(), strict=True)
    ):
        if is_birth:
            latest[name] = count
            count += 1
        buffer[i] = latest[name]
    return Sequence(
        slot=buffer,
        request=request,
        instant=np.arange(slot.size),
        requested_bytes=request[birth],
        address=np.full(count, -1),
        row=np.arange(count),
    )


def timed(call):
    """Return what ``call`` returns and the processor seconds it took, the least of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return result, best


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--live", type=int, default=1000)
    arguments = parser.parse_args()
    sequence = as_sequence(*workload(arguments.events, arguments.live, seed=1))
    ways = {"CPU, growth": BfcOptions.cpu(), "GPU, one region": BfcOptions.gpu(1 << 44)}
    for name, options in ways.items():
        result, replay_s = timed(lambda o=options: replay(sequence, o))
        assert result.failure is None
        print(f"{name}: {len(sequence) / replay_s:,.0f} events/s")
        start = time.process_time()
        minimum_limit(sequence, options)
        print(f"{name}: least limit in {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main()
