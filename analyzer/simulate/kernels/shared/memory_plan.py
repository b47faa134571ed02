"""What one run of a kernel does to memory, as plain records.

Worked example: ``y = tanh(x)`` where nothing else reads ``x``. TensorFlow's kernel asks to reuse the
buffer of ``x`` (*forward*), gets it, and allocates nothing. Where something else still reads ``x``
it allocates an output of the same size. Both are one plan: ``Output(FORWARD, inputs=(0,))``; which
of the two happens is known only when the op's turn comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.simulate.kernels.shared.xla_call import CompiledCall


class Way(str, Enum):
    """Where the buffer of an output comes from."""

    ALLOCATE = "allocate"
    FORWARD = "forward"
    ALIAS = "alias"
    NONE = "none"


class VariableAccess(str, Enum):
    """What a kernel does to the variable whose handle is its first input."""

    UNTOUCHED = "untouched"
    READ = "read"
    ASSIGN = "assign"
    UPDATE = "update"
    IN_PART = "in part"


class ListUse(str, Enum):
    """What a kernel does to a TensorList."""

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
        way: Allocated; taken over from an input where that input's buffer has no other user, else
            allocated; sharing an input's buffer; or without a buffer.
        size_bytes: Bytes asked for where it is allocated.
        inputs: Inputs whose buffer may be taken over, in the order in which they are tried, or the
            one input whose buffer is shared.
        region: ``output``, or ``temp`` where the kernel allocates its result as a temporary.
        elsewhere: It lies in another memory than the device's, and has no bytes there.
    """

    way: Way
    size_bytes: int = 0
    inputs: tuple[int, ...] = ()
    region: str = "output"
    elsewhere: bool = False

    @property
    def is_told(self) -> bool:
        """Whether its bytes are known, or another's, although the graph does not tell its shape."""
        return self.elsewhere or self.size_bytes > 0 or self.way is Way.ALIAS


@dataclass(frozen=True, slots=True)
class Trial:
    """What a kernel asks for at its first call of a kind, to choose among a library's algorithms.

    Attributes:
        key: Equal for calls that share what was found.
        copy_bytes: A guarded copy of the result, done without where it does not fit.
        scratch_bytes: The guards of each algorithm's workspace, without which none can be tried.
        is_early: Whether the kernel asks for one more buffer after it, be that its output.
    """

    key: tuple[object, ...]
    copy_bytes: int
    scratch_bytes: int
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One run of a kernel.

    Attributes:
        outputs: Its outputs, in order.
        before_bytes: Temporaries allocated before the outputs and freed when the kernel returns.
        scratch_bytes: Temporaries that are freed again before the kernel's last output is
            allocated.
        amid_bytes: Temporaries allocated before the last output that asks for memory, after the others,
            and freed when the kernel returns.
        after_bytes: Temporaries allocated after the outputs and freed when the kernel returns.
        variable: What it does to the variable behind its first input.
        value: Input that becomes the variable's value, or joins a TensorList.
        lists: What it does to the TensorList in its first input.
        rows_bytes: Bytes of each element of the TensorList that it makes of a tensor.
        workspace_bytes: Most that a library called by the kernel may ask for beside all that, while
            the kernel runs; left out of the prediction, part of its range.
        trial: What its first call asks for beside all that; None for nothing.
        modelled: Whether a rule is known; without one, every output is taken to be allocated.
        borrows: Whether its results may lie in memory of Python's, which this allocator does not count.
        compiled: The requests of a call of an XLA-compiled function, which take the place of
            everything but ``outputs``; None for every other op.
        is_plain: Whether there is one output and nothing else but it, as for most ops.
    """

    outputs: tuple[Output, ...] = ()
    before_bytes: tuple[int, ...] = ()
    scratch_bytes: tuple[int, ...] = ()
    amid_bytes: tuple[int, ...] = ()
    after_bytes: tuple[int, ...] = ()
    workspace_bytes: int = 0
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


def asked_for(sizes_bytes: Iterable[int]) -> tuple[int, ...]:
    """Return the sizes without those of 0 bytes, which a kernel does not ask for."""
    return tuple(size for size in sizes_bytes if size)
