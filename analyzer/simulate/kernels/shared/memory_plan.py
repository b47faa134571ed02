"""Memory plans: the buffers that a kernel allocates, forwards, aliases and holds.

Example: ``y = tanh(x)``. If nothing else reads ``x``, the kernel takes its buffer for ``y``
(*forward*) and allocates nothing. Otherwise it allocates an output of the same size. Both cases are
one plan, ``Output(FORWARD, inputs=(0,))``; the executor decides when the op runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.simulate.kernels.shared.xla_call import CompiledCall


class Way(str, Enum):
    """Source of the buffer of an output."""

    ALLOCATE = "allocate"
    FORWARD = "forward"
    ALIAS = "alias"
    NONE = "none"


class VariableAccess(str, Enum):
    """Access of a kernel to the variable whose handle is its first input."""

    UNTOUCHED = "untouched"
    READ = "read"
    ASSIGN = "assign"
    UPDATE = "update"
    IN_PART = "in part"


class ListUse(str, Enum):
    """Operation of a kernel on a TensorList."""

    NO = "no"
    NEW = "new"
    PUSH = "push"
    POP = "pop"
    SET = "set"
    GET = "get"
    STACK = "stack"
    UNSTACK = "unstack"
    RESIZE = "resize"
    ZEROS = "zeros"
    ADD = "add"
    PACK = "pack"
    UNPACK = "unpack"


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a kernel.

    Attributes:
        way: Allocate it; forward the buffer of an input without other users, else allocate; share
            the buffer of an input; or no buffer.
        size_bytes: Bytes if it is allocated.
        inputs: Inputs to forward, in the order in which they are tried, or the input to share.
        region: ``temp`` if the kernel allocates its result as a temporary, else ``output``.
        elsewhere: Whether it lies outside the memory of the device, and takes no bytes there.
    """

    way: Way
    size_bytes: int = 0
    inputs: tuple[int, ...] = ()
    region: str = "output"
    elsewhere: bool = False

    @property
    def is_known(self) -> bool:
        """Whether its bytes are known, or shared, even if the graph has no shape for it."""
        return self.elsewhere or self.size_bytes > 0 or self.way is Way.ALIAS


@dataclass(frozen=True, slots=True)
class Trial:
    """Requests of the first call with given shapes, which tries the algorithms of a library.

    Attributes:
        key: Equal for calls that share the result of the trial.
        copy_bytes: A guarded copy of the result; skipped if it does not fit.
        scratch_bytes: Workspace of each algorithm with guards. An algorithm is skipped if it does
            not fit; the smallest is needed.
        is_early: Whether the kernel allocates another buffer afterwards, such as its output.
    """

    key: tuple[object, ...]
    copy_bytes: int
    scratch_bytes: tuple[int, ...]
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Workspace:
    """Workspace of a library's algorithm during the run of a kernel.

    Attributes:
        bytes: The expected algorithm's.
        sizes_bytes: That of each algorithm.
        chances: The probability that each is chosen.
        is_measured: Whether a measurement of the choice is published.
    """

    bytes: int
    sizes_bytes: tuple[int, ...]
    chances: tuple[float, ...]
    is_measured: bool


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The effects of one run of a kernel on memory.

    Temporaries are freed when the kernel returns, unless said otherwise.

    Attributes:
        before_bytes: Temporaries allocated before the outputs.
        scratch_bytes: Temporaries that are freed before the last output is allocated.
        amid_bytes: Temporaries allocated just before the last output that needs memory.
        after_bytes: Temporaries allocated after the outputs.
        value: Input that becomes the value of the variable, or an element of a TensorList.
        rows_bytes: Bytes of each element, if the kernel makes a TensorList of a tensor.
        workspace: Workspace allocated after everything else except what follows an early trial.
        unknown_bytes: Upper bound of a library's further memory during the run. The prediction
            leaves it out; the range contains it.
        trial: Additional requests of the first call; None if there are none.
        modelled: Whether the op has a rule; without one, each output is assumed to be allocated.
        borrows: Whether results may lie in Python's memory, which this allocator does not count.
        compiled: Requests of a call of an XLA-compiled function, which replace everything except
            ``outputs``; None for other ops.
        is_plain: Whether the plan has one output and nothing else, as for most ops.
    """

    outputs: tuple[Output, ...] = ()
    before_bytes: tuple[int, ...] = ()
    scratch_bytes: tuple[int, ...] = ()
    amid_bytes: tuple[int, ...] = ()
    after_bytes: tuple[int, ...] = ()
    workspace: Workspace | None = None
    unknown_bytes: int = 0
    trial: Trial | None = None
    variable: VariableAccess = VariableAccess.UNTOUCHED
    value: int | None = None
    lists: ListUse = ListUse.NO
    rows_bytes: tuple[int, ...] = ()
    modelled: bool = True
    borrows: bool = False
    compiled: CompiledCall | None = None
    is_plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        asks = (*self.before_bytes, *self.scratch_bytes, *self.amid_bytes, *self.after_bytes)
        touches = self.variable is not VariableAccess.UNTOUCHED or self.lists is not ListUse.NO
        is_plain = len(self.outputs) == 1 and not (asks or self.compiled or self.trial or touches)
        object.__setattr__(self, "is_plain", is_plain)


def without_zeros(sizes_bytes: Iterable[int]) -> tuple[int, ...]:
    """Return the sizes above 0 bytes; a kernel makes no request for the others."""
    return tuple(size for size in sizes_bytes if size)
