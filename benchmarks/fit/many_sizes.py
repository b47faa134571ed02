"""What one more batch size costs, beside a capture of the step at that size. CPU seconds, one run.

python benchmarks/fit/many_sizes.py [TARGET] [COUNT]
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace

from analyzer.capture.targets.target_spec import CaptureOptions, parse_target
from analyzer.fitting.scaling.order_playing import play_orders
from analyzer.fitting.scaling.peak_curve import peak_bytes
from analyzer.fitting.scaling.step_family import family_of
from analyzer.fitting.search.step_access import BatchCaptures, access_of

SIZES = (8, 12)


def seconds() -> float:
    """Return the CPU seconds of this process and of the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(target: str, count: int) -> None:
    options, notes = CaptureOptions(jit=False, device="cpu"), {}
    began = seconds()
    for size in SIZES:
        with access_of(parse_target(target)) as access:
            notes[size] = BatchCaptures(access, options).note(size)
    capture_s = (seconds() - began) / len(SIZES)  # processes count once they have ended
    family = family_of(notes)
    began = seconds()
    orders = play_orders(family, (*SIZES, 16))
    playing_s = seconds() - began
    order, allocator = orders.main[0], orders.target.options
    order.fits(1, allocator)  # Numba's machine code is read once
    began = seconds()
    peaks = [peak_bytes(order, size) for size in range(1, count + 1)]
    peak_s = (seconds() - began) / count
    under = replace(allocator, memory_limit_bytes=peaks[len(peaks) // 2])
    began = seconds()
    for size in range(1, count + 1):
        order.fits(size, under)
    fits_s = (seconds() - began) / count
    began = seconds()
    for size in range(1, count + 1):
        order.allocated_bytes(size, allocator.unlimited())
    chunks_s = (seconds() - began) / count
    print(
        f"{target}: {len(orders.names):,} ops; a capture {capture_s:.1f} s, the orders {playing_s:.1f} s"
    )
    for told, each in (
        ("its requested peak", peak_s),
        ("whether it fits", fits_s),
        ("its chunks", chunks_s),
        ("its chunks, the orders included", chunks_s + playing_s / count),
    ):
        print(
            f"{count:,} sizes, {told}: {each * 1e3:.2f} ms each, 1/{capture_s / each:,.0f} of a capture"
        )


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["keras:ResNet152V2"]), int((sys.argv[2:3] or ["1000"])[0]))
