"""About how long each op runs: good enough to say which ops run at the same time.

Only ratios count, and those within a factor of a few: a draw stretches them by chance.
"""

from __future__ import annotations

import math
from typing import Final

from analyzer.predict.wiring import Wiring

CALL_SECONDS: Final = 2e-6
"""What the executor and a kernel's frame cost, whatever the size: about 6,000 cycles."""

CHEAP_SECONDS: Final = 0.5e-6
"""The same for an op that only hands a tensor on."""

BYTES_PER_SECOND: Final = 8e9
"""What an element-wise kernel reads and writes: about a desktop's or server's memory bandwidth per
channel."""

OPERATIONS_PER_SECOND: Final = 50e9
"""What a product or convolution computes in float32 on a few cores with AVX2."""

_PRODUCTS: Final = ("MatMul", "Conv", "Einsum")


def durations_of(wiring: Wiring) -> tuple[float, ...]:
    """Return the expected seconds of each node."""
    found = []
    for node, op in enumerate(wiring.ops):
        if not wiring.expensive[node]:
            found.append(CHEAP_SECONDS)
            continue
        read = [_bytes(wiring, source, output) for source, output in wiring.inputs[node]]
        written = [spec.size_bytes or 0 for spec in op.outputs]
        seconds = CALL_SECONDS + (sum(read) + sum(written)) / BYTES_PER_SECOND
        if any(word in op.type for word in _PRODUCTS):
            seconds += _operations([*read, *written], "Conv" in op.type) / OPERATIONS_PER_SECOND
        found.append(seconds)
    return tuple(found)


def _bytes(wiring: Wiring, node: int, output: int) -> int:
    outputs = wiring.ops[node].outputs
    return (outputs[output].size_bytes or 0) if output < len(outputs) else 0


def _operations(sizes_bytes: list[int], is_convolution: bool) -> float:
    """Return the floating-point operations of a product of two tensors to a third.

    An ``m x k`` by ``k x n`` product has ``2 m k n`` of them, twice the root of the product of the three
    sizes. A convolution has as many times more as the side of its filter, taken to be 3.
    """
    three = sorted(sizes_bytes)[-3:]
    return 2.0 * math.sqrt(math.prod(size / 4 for size in three)) * (3 if is_convolution else 1)
