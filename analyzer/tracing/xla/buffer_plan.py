"""The memory plan of a compiled module: what it allocates, and what lies where and when inside.

XLA's buffer assignment decides everything before the module runs. Of its allocations

- *parameters* are the caller's buffers (arguments, variables);
- results that take a parameter's place (*aliased*) need no buffer where the caller gives the
  parameter's up, as TensorFlow does for a variable that nothing else refers to;
- results that are a parameter, unchanged, are *handed on* (on a card; ``AliasPassthroughParams``);
- other results (*live out*) are allocated when the module runs and handed to the caller;
- *temporaries*, normally one large buffer that holds all values in between, are allocated when the
  module runs and freed after it;
- constants lie in the executable, thread-local buffers on a stack: neither costs the allocator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from analyzer.model.choice import Choice
from analyzer.tracing.xla.compile_trials import CompileTrial

ARGUMENTS: Final = "XLA_Args"
"""What tf2xla calls the op of the module's parameters and of what only moves them."""


class ValueUse(Choice):
    """What an allocation of a compiled module is for."""

    PARAMETER = "parameter"
    OUTPUT = "output"
    TEMPORARY = "temporary"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread_local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One value that lies in an allocation for a while.

    Attributes:
        buffer: Number of its logical buffer.
        size_bytes, offset_bytes: Its bytes, and where they begin in the allocation.
        first, last: Moments of the plan between which it holds its bytes: alive at moment ``m``
            where ``first <= m < last``. The last of several values that share bytes holds them.
        instruction: The HLO instruction that makes it.
        opcode: Its opcode; for a custom call with what it calls.
        op_name, op_type: The framework's op; empty where XLA names none.
        source: ``file:line`` that XLA noted; empty where none.
        dtype, shape: Of the value; shape None for a tuple.
        argument: Number of the parameter that it is a copy of; None for others.
        handed_until: Where a value that shares its bytes begins as it ends: the moment at which the
            last of them ends. A loop's values are handed on so, from iteration to iteration.
    """

    buffer: int
    size_bytes: int
    offset_bytes: int
    first: int
    last: int
    instruction: str
    opcode: str
    op_name: str
    op_type: str
    source: str
    dtype: str
    shape: tuple[int, ...] | None
    argument: int | None = None
    handed_until: int | None = None

    @property
    def until(self) -> int:
        """Moment at which its bytes are free, those that share them without a gap included."""
        return self.last if self.handed_until is None else self.handed_until


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRegion:
    """One allocation of the module.

    Attributes:
        index: XLA's number of it.
        size_bytes: Bytes asked for.
        use: What it is for.
        parameter: Number of the parameter, None for others.
        results: Indexes of the results in it; empty where not known.
        is_live_out: It holds a result, or the table of the results' addresses.
        is_tuple: It holds a table of addresses.
        dtype, shape: Of the one value in it; empty and None where there are several.
        op_name: The framework's op that makes that value; empty where not known.
        holders: What lies in it while the module runs, in order of ``first``; of temporaries only.
        moments: Moments that ``first`` and ``last`` of the holders count.
    """

    index: int
    size_bytes: int
    use: ValueUse
    parameter: int | None
    results: tuple[int, ...]
    is_live_out: bool
    is_tuple: bool
    dtype: str
    shape: tuple[int, ...] | None
    op_name: str
    holders: tuple[Holder, ...] = ()
    moments: int = 0

    @property
    def peak_bytes(self) -> int:
        """Most bytes of it that hold a value at one moment; the rest is gaps between values."""
        return max(occupied_bytes(self), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPlan:
    """The memory plan of one module on one device.

    Attributes:
        module: The module's name.
        platform: The device it was compiled for, such as ``cpu`` or a card's name.
        regions: Its allocations, in order of their index.
        parameters: For each parameter, its size in bytes.
        aliases: Result -> parameter whose place it may take.
        handed_on: Result -> parameter that it is: the caller gets its own buffer back.
        outputs: For each result, its size in bytes.
        schedule: Names of the instructions in the order in which the entry computation runs them.
        fixed: The inputs of the op that calls it whose values are compiled in: a tensor among them is
            no parameter; a variable is one all the same.
        trials: What is asked for while it is compiled, on a card.
    """

    module: str
    platform: str
    regions: tuple[PlanRegion, ...]
    parameters: tuple[int, ...]
    aliases: dict[int, int]
    outputs: tuple[int, ...]
    schedule: tuple[str, ...]
    fixed: frozenset[int] = frozenset()
    trials: tuple[CompileTrial, ...] = ()
    handed_on: Mapping[int, int] = field(default_factory=dict)

    @property
    def argument_bytes(self) -> int:
        """Bytes of the parameters, as the compiler counts them."""
        return sum(region.size_bytes for region in self.regions if region.use is ValueUse.PARAMETER)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results, those in a parameter's place and the table of addresses included."""
        return sum(region.size_bytes for region in self.regions if region.is_live_out)

    @property
    def alias_bytes(self) -> int:
        """Bytes that are both a parameter and a result."""
        return sum(
            region.size_bytes
            for region in self.regions
            if region.use is ValueUse.PARAMETER and region.is_live_out
        )

    @property
    def temp_bytes(self) -> int:
        """Bytes of the temporaries."""
        return sum(region.size_bytes for region in self.temporaries)

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries together, each byte once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes

    @property
    def temporaries(self) -> tuple[PlanRegion, ...]:
        """The allocations that are freed when the module is done."""
        return tuple(region for region in self.regions if region.use is ValueUse.TEMPORARY)


def occupied_bytes(region: PlanRegion) -> list[int]:
    """Return the bytes that hold a value at each moment of a region."""
    change = [0] * (region.moments + 1)
    for holder in region.holders:
        change[holder.first] += holder.size_bytes
        change[holder.last] -= holder.size_bytes
    found, total = [], 0
    for step in change[: region.moments]:
        total += step
        found.append(total)
    return found
