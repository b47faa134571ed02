"""The memory plan of a compiled module: its allocations and the values in them over time.

XLA's buffer assignment decides everything before the module runs. Kinds of allocations:

- *parameters*: the caller's buffers (arguments, variables).
- *aliased* results reuse a parameter's memory if the caller gives it up, as TensorFlow does for a
  variable without other references.
- *handed on* results are an unchanged parameter (on a card; ``AliasPassthroughParams``).
- *live out* results are allocated when the module runs and passed to the caller.
- *temporaries*, normally one large buffer for all intermediate values, are allocated when the module
  runs and freed after it.
- constants lie in the executable and thread-local buffers on a stack, outside the allocator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from analyzer.model.choice import Choice
from analyzer.tracing.xla.compile_trials import CompileTrial

ARGUMENTS: Final = "XLA_Args"
"""tf2xla's name of the op of the module's parameters and of their copies."""


class ValueUse(Choice):
    """The kind of an allocation."""

    PARAMETER = "parameter"
    OUTPUT = "output"
    TEMPORARY = "temporary"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread_local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A value that lies in an allocation for some time.

    It holds its bytes at the moments ``m`` with ``first <= m < last``. Of several values that share
    bytes, the last one holds them.
    """

    size_bytes: int
    offset_bytes: int
    first: int
    last: int
    # end of the last of the values that reuse its bytes without a gap, such as a loop's values in
    # each iteration; ``last`` without such a value
    until: int
    instruction: str
    opcode: str  # of the HLO instruction that makes it; for a custom call with its target
    op_name: str  # the framework's op; empty if XLA names none
    op_type: str
    dtype: str
    shape: tuple[int, ...] | None  # None for a tuple
    argument: int | None = None  # number of the parameter that it copies; None for others


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRegion:
    """One allocation of the module."""

    index: int
    size_bytes: int
    use: ValueUse
    results: tuple[int, ...]  # indexes of the results in it; empty if unknown
    is_live_out: bool  # whether it contains a result or the table of their addresses
    is_tuple: bool
    dtype: str  # of its only value; empty and None if it has several
    shape: tuple[int, ...] | None
    op_name: str
    holders: tuple[Holder, ...] = ()  # the values in a region of temporaries, in order of ``first``
    moments: int = 0  # number of moments that ``first`` and ``last`` count

    @property
    def peak_bytes(self) -> int:
        """Maximum of the bytes that hold a value; the rest is gaps."""
        return max(occupied_bytes(self), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPlan:
    """The memory plan of one module on one device."""

    module: str
    platform: str  # the device, such as ``cpu`` or a card's name
    regions: tuple[PlanRegion, ...]
    parameters: tuple[int, ...]  # sizes of the parameters and of the results
    aliases: dict[int, int]  # result -> parameter whose memory it may reuse
    outputs: tuple[int, ...]
    # inputs of the calling op whose values are compiled in. Such a tensor is no parameter; such a
    # variable is one.
    fixed: frozenset[int] = frozenset()
    trials: tuple[CompileTrial, ...] = ()
    handed_on: Mapping[int, int] = field(default_factory=dict)  # result -> parameter that it is

    def with_fixed(self, inputs: Iterable[tuple[int, str]]) -> BufferPlan:
        """Return the plan with these inputs (and reasons) as compiled in."""
        return replace(self, fixed=frozenset(index for index, _ in inputs))

    @property
    def argument_bytes(self) -> int:
        """Bytes of the parameters."""
        return sum(one.size_bytes for one in self.regions if one.use is ValueUse.PARAMETER)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results, with aliased ones and the table of addresses."""
        return sum(one.size_bytes for one in self.regions if one.is_live_out)

    @property
    def alias_bytes(self) -> int:
        """Bytes that are both a parameter and a result."""
        given = (one for one in self.regions if one.use is ValueUse.PARAMETER)
        return sum(one.size_bytes for one in given if one.is_live_out)

    @property
    def temp_bytes(self) -> int:
        """Bytes of the temporaries."""
        return sum(one.size_bytes for one in self.temporaries)

    @property
    def temporaries(self) -> tuple[PlanRegion, ...]:
        """The allocations that are freed after the module."""
        return tuple(one for one in self.regions if one.use is ValueUse.TEMPORARY)


def occupied_bytes(region: PlanRegion) -> list[int]:
    """Return the bytes that hold a value at each moment of a region."""
    change = [0] * (region.moments + 1)
    for holder in region.holders:
        change[holder.first] += holder.size_bytes
        change[holder.last] -= holder.size_bytes
    return list(accumulate(change[: region.moments]))
