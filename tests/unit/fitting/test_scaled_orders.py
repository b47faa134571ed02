"""One order of a step at any size: what its chunks take under a limit."""

from __future__ import annotations

import numpy as np

from analyzer.fitting.scaling.closed_forms import FormTable
from analyzer.fitting.scaling.scaled_orders import ScaledOrder
from analyzer.simulate.allocator import BfcOptions, Sequence

MIB = 1 << 20


def test_what_can_be_spared_and_finds_no_room_ends_no_replay() -> None:
    """A convolution's trial of an algorithm asks for a copy that it can do without."""
    slot = np.array([0, 1, 1, 2, 2])
    born = np.array([1, 1, 0, 1, 0])
    mib = np.array([8, 16, 4])
    rows = [mib * MIB, mib * MIB * 2]
    operations = Sequence(
        slot=slot,
        request=born * rows[0][slot],
        instant=np.arange(5),
        requested_bytes=rows[0],
        address=np.full(3, -1),
        row=np.arange(3),
        spare=np.array([False, True, False]),
    )
    order = ScaledOrder(
        seed=0,
        threads=1,
        operations=operations,
        forms=FormTable.through((1, 2), rows),
        first=3,
        last=4,
        first_of_all=1,
        nodes=np.arange(3),
        is_variable=np.array([True, False, False]),
    )
    options = BfcOptions(memory_limit_bytes=20 * MIB, growth=False)
    assert order.fits(1, options)
    assert order.allocated_bytes(1, options) == 12 * MIB
    assert order.allocated_bytes(1, options.unlimited()) == 12 * MIB
    assert not order.fits(2, options)
