"""Events per second of a replay: the compiled allocator against plain Python, in one run.

    python benchmarks/replay.py [--events 2000000] [--live 1000]

Both replay the same random workload (the compiled code all ``--events``, plain Python a twentieth of
them) and must give the same addresses. Then the conversion of an events table and its replay are
timed. Last, ten times as many events are streamed through one allocator; neither its state nor the
process's memory may grow.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from analyzer.simulate.allocator.bfc import compiled_run
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions
from analyzer.simulate.allocator.replay import Sequence, replay


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
    for i, (name, is_birth) in enumerate(zip(slot.tolist(), birth.tolist(), strict=True)):
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


def stream(slot: np.ndarray, request: np.ndarray, live: int, times: int) -> None:
    """Feed a workload that ends empty again and again, and show that nothing grows."""
    alive = {}
    for name, size in zip(slot.tolist(), request.tolist(), strict=True):
        alive.pop(name, None)
        if size:
            alive[name] = size
    slot = np.concatenate([slot, np.fromiter(alive, np.int64)])
    request = np.concatenate([request, np.zeros(len(alive), np.int64)])
    allocator = BfcAllocator(BfcOptions.cpu(), 2 * live, is_compiled=True)
    for done in range(times + 1):
        if done in (1, times):
            state = sum(column.nbytes for column in allocator._pool)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(
                f"after {done * slot.size:>12,} events: state {state / 1024:,.0f} KiB,"
                f" process at most {peak / 1024:,.0f} MiB"
            )
        allocator.feed(slot, request)


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--live", type=int, default=1000)
    arguments = parser.parse_args()
    slot, request = workload(arguments.events, arguments.live, seed=1)
    sequence = as_sequence(slot, request)
    few = sequence.start(arguments.events // 20)

    plain, slow_s = timed(lambda: replay(few, BfcOptions.cpu()))
    start = time.process_time()
    compiled_run.load_run()
    print(f"compiling, once in a process: {time.process_time() - start:.1f} s")
    check = replay(few, BfcOptions.cpu())
    assert np.array_equal(plain.address, check.address)
    assert np.array_equal(plain.largest_free_bytes, check.largest_free_bytes)
    for name, options in (
        ("CPU, growth", BfcOptions.cpu()),
        ("GPU, one region", BfcOptions.gpu(1 << 44)),
    ):
        result, fast_s = timed(lambda o=options: replay(sequence, o))
        assert result.failure is None
        fast, slow = len(sequence) / fast_s, len(few) / slow_s
        print(
            f"{name}: compiled {fast:,.0f} events/s, plain {slow:,.0f} events/s,"
            f" ratio {fast / slow:.0f}"
        )
    stream(slot, request, arguments.live, times=10)


if __name__ == "__main__":
    main()
