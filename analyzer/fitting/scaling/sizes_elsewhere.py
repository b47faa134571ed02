"""Bytes of an order's buffers at another size, read off the kernels instead of played once more.

What an order asks for is the same at each size but for the bytes, and each request is a kernel's: an
output of its plan, a temporary, a copy of its variable. So where the plans of two sizes differ in
nothing but bytes, the bytes of a buffer there follow from the node that asked for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from analyzer.simulate.kernels.shared.memory_plan import ListUse, MemoryPlan
from analyzer.simulate.predict.buffers.reference_counts import Buffers
from analyzer.simulate.predict.played_step import Prepared

_TEMPORARIES: Final = ("before_bytes", "scratch_bytes", "amid_bytes", "after_bytes")
"""Fields of a plan with what a kernel asks for beside its outputs."""


@dataclass(frozen=True, slots=True)
class OtherSize:
    """The step at another size than the one that orders were played at.

    Attributes:
        variables_bytes: Bytes of each variable's value.
        held_bytes: For each node whose output something outside the step holds, its bytes.
        requests: For each node, its requests' bytes at the first size and here, by output; -1 for all
            that are temporaries. None for a variable's value.
        variables: For each node, the number of the variable behind its first input.
    """

    variables_bytes: tuple[int, ...]
    held_bytes: dict[int, int]
    requests: Sequence[dict[int, dict[int, int]]]
    variables: tuple[int, ...]

    def bytes_of(self, buffers: Buffers, first: Prepared) -> list[int] | None:
        """Return the bytes of each buffer of an order here; None where one cannot be told.

        Args:
            buffers: What lived in the order at the first size.
            first: The step at that size.
        """
        found = []
        for node, output, variable, size in zip(
            buffers.node, buffers.output, buffers.variable, buffers.size_bytes, strict=True
        ):
            there = self._bytes_of(node, output, variable, size, first)
            if there is None or (there == 0) != (size == 0):
                return None
            found.append(there)
        return found

    def _bytes_of(
        self, node: int, output: int, variable: int, size: int, first: Prepared
    ) -> int | None:
        """Return the bytes of one request.

        Args:
            node: Who asks; -1 for none.
            output: Which of its outputs it is for; -1 for a temporary.
            variable: The variable whose value it is; -1 for none.
            size: Its bytes at the first size.
            first: The step at that size.
        """
        if (
            node < 0
        ):  # what is of no variable stands for an earlier step's results: the start has them
            return self.variables_bytes[variable] if variable >= 0 else size
        if node in self.held_bytes:
            return self.held_bytes[node]
        there = self.requests[node].get(output, {}).get(size)
        if there is not None:
            return there
        own = self.variables[node]
        if own >= 0 and first.owners[own].size_bytes == size:
            return self.variables_bytes[own]
        return None


def other_size(first: Prepared, here: Prepared) -> OtherSize | None:
    """Return what tells the bytes of buffers at another size.

    Args:
        first: The step at the size that orders are played at.
        here: The same step elsewhere.

    Returns:
        None where the steps differ in more than bytes, or what is asked for depends on values: in loops
        and branches, of TensorLists, in compiled functions.
    """
    if first.wiring.has_control_flow or first.variables != here.variables:
        return None
    if first.held_bytes.keys() != here.held_bytes.keys() or first.shares != here.shares:
        return None
    requests = []
    trials: dict[object, object] = {}
    for plan, other in zip(first.kernels.plans, here.kernels.plans, strict=True):
        if plan.compiled is not None or plan.lists is not ListUse.NO or not _alike(plan, other):
            return None
        if (
            plan.trial is not None
            and other.trial is not None
            and trials.setdefault(plan.trial.key, other.trial.key) != other.trial.key
        ):
            return None
        told = _told(plan, other)
        if told is None:
            return None
        requests.append(told)
    if len(set(trials.values())) != len(trials):
        return None
    return OtherSize(
        variables_bytes=tuple(owner.size_bytes for owner in here.owners),
        held_bytes=dict(here.held_bytes),
        requests=requests,
        variables=first.variables,
    )


def _alike(plan: MemoryPlan, other: MemoryPlan) -> bool:
    """Say whether two plans differ in bytes alone."""
    if plan == other:
        return True
    return _without_bytes(plan) == _without_bytes(other)


def _without_bytes(plan: MemoryPlan) -> tuple[object, ...]:
    return (
        tuple(replace(output, size_bytes=0) for output in plan.outputs),
        tuple(map(bool, (one.size_bytes for one in plan.outputs))),
        *(len(getattr(plan, name)) for name in _TEMPORARIES),
        (plan.variable, plan.value, plan.lists, plan.compiled, plan.trial is None),
    )


def _told(plan: MemoryPlan, other: MemoryPlan) -> dict[int, dict[int, int]] | None:
    """Return the bytes of a node's requests elsewhere by those here; None where two are mixed up."""
    told: dict[int, dict[int, int]] = {}
    for output, size, there in _pairs(plan, other):
        if told.setdefault(output, {}).setdefault(size, there) != there:
            return None
    return told


def _pairs(plan: MemoryPlan, other: MemoryPlan) -> Iterator[tuple[int, int, int]]:
    """Yield a plan's requests: the output, or -1, the bytes, the bytes elsewhere."""
    for number, (one, same) in enumerate(zip(plan.outputs, other.outputs, strict=True)):
        yield number, one.size_bytes, same.size_bytes
    for name in _TEMPORARIES:
        for size, there in zip(getattr(plan, name), getattr(other, name), strict=True):
            yield -1, size, there
    if plan.trial is not None and other.trial is not None:
        yield -1, plan.trial.copy_bytes, other.trial.copy_bytes
        yield -1, plan.trial.scratch_bytes, other.trial.scratch_bytes
