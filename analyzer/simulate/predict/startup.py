"""What is allocated before the first step: variables, what the step is fed, slots, constants.

The order matters for the chunks: a tensor that is born into the gap that an initializer's temporary left
gets the gap whole where less than its own size would be left over, and keeps it for good.

In the order of a fresh process: the model's variables, each by its initializer and each followed by the
200 bytes of its handle; the inputs; the slots, which TensorFlow makes while it traces the step (their
values are computed while the graph that makes them is optimised, freed, and made once more; equal ones
are merged and parted again by the first write), between two tracings, each of which keeps small
constants; small variables once more; the constants, when the step's kernels are made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analyzer.model.contract.categories import Category
from analyzer.model.contract.element_sizes import REHOMED_ELEMENTS
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.contract.run_note import BirthNote, Input
from analyzer.model.errors import TraceError
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.tracing.parse.run_folder import RunNote

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


_KEPT_BYTES: Final = 10
"""A constant of one to four whole numbers, on average: axes, shapes, slices, which the shape functions
of a traced graph ask for and the graph keeps (``ShapeRefiner``). In traces of some sixty steps the
average was between 4.6 and 12.8. Each takes a chunk of 256 bytes."""


@dataclass(frozen=True, slots=True)
class Made:
    """A buffer of the build-up.

    Attributes:
        size_bytes: Bytes asked for.
        born, dies: Instants; ``dies`` is None while it lives on.
        variable: Index of the variable in the note whose value or handle it is; None for none.
        category: What it is for.
        role: The same in words.
    """

    size_bytes: int
    born: int
    dies: int | None
    variable: int | None
    category: Category
    role: str


@dataclass
class BuildUp:
    """The build-up, instant by instant.

    Attributes:
        made: Its buffers, in order of birth.
        values: Variable (index in the note) -> its buffer's number in ``made``.
        handles: Variable -> its handle's number.
        inputs: The number of each input.
        constants: Node -> the number of its output.
        instants: Allocations and frees.
        device: Whose memory is counted.
    """

    made: list[Made] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)
    handles: dict[int, int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    constants: dict[int, int] = field(default_factory=dict)
    instants: int = 0
    device: KernelDevice = CPU

    def birth(
        self,
        size_bytes: int,
        category: Category = Category.TEMPORARY,
        role: str = "building the model",
        variable: int | None = None,
    ) -> int:
        """Add a buffer and return its number.

        Args:
            size_bytes: Bytes asked for.
            category: What it is for.
            role: Finer than the category, in words.
            variable: Index of the variable that it holds; None for none.
        """
        self.made.append(Made(size_bytes, self.instants, None, variable, category, role))
        self.instants += 1
        return len(self.made) - 1

    def death(self, number: int) -> None:
        """End a buffer."""
        old = self.made[number]
        self.made[number] = Made(
            old.size_bytes, old.born, self.instants, old.variable, old.category, old.role
        )
        self.instants += 1

    def keep(self, number: int, category: Category, role: str, variable: int | None) -> None:
        """Say what a buffer that lives on is.

        Args:
            number: Number of the buffer.
            category: What it is for.
            role: Finer than the category, in words.
            variable: Index of the variable that it holds; None for none.
        """
        old = self.made[number]
        self.made[number] = Made(old.size_bytes, old.born, old.dies, variable, category, role)


def build_up(
    note: RunNote,
    sizes_bytes: Sequence[int],
    constants: Mapping[int, int],
    device: KernelDevice = CPU,
    *,
    is_compiled: bool = False,
) -> BuildUp:
    """Play what happens before the first step.

    Args:
        note: The note of the step.
        sizes_bytes: Bytes of each variable of the note.
        constants: Node -> bytes of what its kernel holds.
        device: Whose memory is counted.
        is_compiled: The step is one function that XLA compiles.
    """
    history = BuildUp(device=device)
    if device.scratch_bytes:
        history.birth(device.scratch_bytes, Category.CONSTANT, "scratch of TensorFlow's device")
    plain = [birth for birth in note.births if not birth.traced]
    # A model that is not built before gets its variables when it is first called with its inputs.
    places = [len(plain) if place is None else int(place) for place in _places(note)]
    made = [-1] * len(note.inputs)
    for count in range(len(plain) + 1):
        if count:
            _variable(history, note, plain[count - 1], sizes_bytes)
        for index, place in enumerate(places):
            if place == count < len(plain):
                made[index] = _input(history, note.inputs[index])
    told = {birth.variable for birth in note.births}
    for variable, size_bytes in enumerate(sizes_bytes):
        if variable not in told and size_bytes:
            _keep_value(history, note, history.birth(size_bytes), variable)
    for index, place in enumerate(places):
        if place >= len(plain):
            made[index] = _input(history, note.inputs[index])
    history.inputs += made
    slots = [birth for birth in note.births if birth.traced]
    on_host = device.kind == CPU.kind
    kept = note.kept_by_tracing if on_host else 0
    by_slots = note.kept_by_slots if on_host else 0
    # A step that makes variables is traced twice: the slots are given their values in between, which
    # the first tracing computes.
    first = kept - kept // 2 if slots else 0
    _keep_constants(history, first + by_slots)
    # Their values' shapes are fed to the function that makes them.
    shapes = [history.birth(_KEPT_BYTES) for _ in range(by_slots)]
    _slots(history, note, slots, sizes_bytes)
    for number in shapes:
        history.death(number)
    _keep_constants(history, kept - first)
    _rehome(history, note, sizes_bytes)
    for node, size_bytes in constants.items():
        history.constants[node] = history.birth(size_bytes, Category.CONSTANT, "constant")
    if is_compiled and not on_host:
        _copy_inputs(history, note)
    return history


def _copy_inputs(history: BuildUp, note: RunNote) -> None:
    """Copy ``int32`` inputs to the card: what XLA compiles takes all its arguments there.

    The eager runtime keeps the copy with the tensor, for as long as that lives (``execute.cc``:
    ``ValidateInputTypeAndPlacement`` asks for a mirror; ``tensor_handle.cc``).
    """
    for index, given in enumerate(note.inputs):
        size_bytes = TensorSpec(given.dtype, given.shape).size_bytes or 0
        if given.dtype == "int32" and size_bytes:
            history.inputs[index] = history.birth(size_bytes, Category.INPUT, "step input")


def shared_slots(births: Iterable[BirthNote]) -> dict[int, int]:
    """Return variable -> the first one that begins in the same buffer, for merged slots."""
    first: dict[str, int] = {}
    shared: dict[int, int] = {}
    for birth in births:
        if not birth.traced or birth.variable is None:
            continue
        owner = first.setdefault(birth.sharing, birth.variable)
        if owner != birth.variable:
            shared[birth.variable] = owner
    return shared


def rehomed(note: RunNote, device: KernelDevice) -> set[int]:
    """Return the variables (indexes in the note) that get a new buffer before the first step."""
    if device.kind != CPU.kind or not note.births:
        return set()
    return {
        number
        for number, row in enumerate(note.variables)
        if row.shape is not None
        and row.dtype not in ("bool", "string")
        and math.prod(row.shape) <= REHOMED_ELEMENTS
    }


def _places(note: RunNote) -> list[int | None]:
    """Return for each input how many of the model's variables were made before it; None for all."""
    return [*note.inputs_after, *[None] * len(note.inputs)][: len(note.inputs)]


def _keep_constants(history: BuildUp, count: int) -> None:
    for _ in range(count):
        history.birth(_KEPT_BYTES, Category.CONSTANT, "constant kept by the traced graph")


def _rehome(history: BuildUp, note: RunNote, sizes_bytes: Sequence[int]) -> None:
    """Write each small variable anew: zeros, the sum of the value and them, the old value's end."""
    chosen = [v for v in sorted(rehomed(note, history.device)) if v in history.values]
    owners = Counter(history.values.values())
    for variable in chosen:
        old = history.values[variable]
        made = history.made[old]
        zeros = history.birth(sizes_bytes[variable])
        row = note.variables[variable]
        history.values[variable] = history.birth(
            sizes_bytes[variable], Category(row.category), row.role, variable
        )
        history.death(zeros)
        owners[old] -= 1
        if not owners[old]:
            history.death(old)
            history.keep(old, made.category, made.role, None)


def _variable(
    history: BuildUp, note: RunNote, birth: BirthNote, sizes_bytes: Sequence[int]
) -> None:
    if _is_elsewhere(history, note, birth.variable):
        return
    numbers: dict[int, int] = {}
    for number, size_bytes in birth.events:
        if size_bytes:
            numbers[number] = history.birth(size_bytes)
        else:
            history.death(numbers.pop(number))
    # What stays of making a variable without a size is not its value.
    variable = (
        birth.variable if birth.variable is not None and sizes_bytes[birth.variable] else None
    )
    left = [*numbers.values()]
    for number in left[:-1]:  # numbers that Python handed to ops
        _keep_value(history, note, number, None)
    for value in left[-1:]:
        _keep_value(history, note, value, variable)


def _is_elsewhere(history: BuildUp, note: RunNote, variable: int | None) -> bool:
    """Say whether a variable lives in the host's memory and not in the device's."""
    return variable is not None and note.variables[variable].dtype in history.device.host_dtypes


def _keep_value(history: BuildUp, note: RunNote, value: int, variable: int | None) -> None:
    if variable is None:
        history.keep(value, Category.CONSTANT, "tensor held by Python", None)
        return
    row = note.variables[variable]
    history.keep(value, Category(row.category), row.role, variable)
    history.values[variable] = value
    _handle(history, variable)


def _handle(history: BuildUp, variable: int) -> None:
    if history.device.handle_bytes:
        history.handles[variable] = history.birth(
            history.device.handle_bytes, Category.CONSTANT, "tensor held by Python"
        )


_OF_RANDOM_BYTES: Final = (8, 8, 16)
"""What random numbers are made from: their shape, a key, a counter."""


def _input(history: BuildUp, given: Input) -> int:
    """Make an input: random numbers, scaled and moved, for floats; else at once.

    Where nothing was asked for before, the shape, key and counter of the random numbers
    (``StatelessRandomGetKeyCounter``) make the host's first region, of 2 MiB, before an input has one of
    its own; later they find room between others.
    """
    spec = TensorSpec(given.dtype, given.shape)
    size_bytes = spec.size_bytes or 0
    if not size_bytes:
        return -1
    if spec.dtype in history.device.host_dtypes:
        return -1
    scaffold: list[int] = []
    if spec.dtype in _FLOATS:
        if not history.made and history.device.kind == CPU.kind:
            scaffold = [history.birth(small) for small in _OF_RANDOM_BYTES]
        scaffold += [history.birth(size_bytes), history.birth(size_bytes)]
    value = history.birth(size_bytes, Category.INPUT, "step input")
    for number in reversed(scaffold):
        history.death(number)
    return value


def _refuse_bytes(note: RunNote, birth: BirthNote) -> None:
    """Refuse a variable without a size that is given a value: others may begin in its buffer."""
    if birth.variable is not None and any(size for _, size in birth.events):
        path = note.variables[birth.variable].path
        raise TraceError(
            f"The note is damaged: its variable {path[:80]!r} has a value, and a type without a size.",
            hint="Estimate again.",
        )


def _slots(
    history: BuildUp, note: RunNote, births: Sequence[BirthNote], sizes_bytes: Sequence[int]
) -> None:
    births = [b for b in births if not _is_elsewhere(history, note, b.variable)]
    for birth in births:
        if birth.variable is not None and not sizes_bytes[birth.variable]:
            _refuse_bytes(note, birth)
    known = [birth.variable for birth in births if birth.variable is not None]
    folds = history.device.kind == "cpu"  # grappler computes constants on the host
    for variable in known:
        _handle(history, variable)
    shared = shared_slots(births)
    made: dict[int, int] = {}
    for birth in births:
        size_bytes = max((size for _, size in birth.events), default=0)
        is_own = birth.variable is not None and birth.variable not in shared
        if folds and is_own and size_bytes:
            history.death(history.birth(size_bytes))
    for birth in births:
        size_bytes = max((size for _, size in birth.events), default=0)
        if birth.variable is None or birth.variable in shared or not size_bytes:
            continue
        row = note.variables[birth.variable]
        made[birth.variable] = history.birth(
            size_bytes, Category(row.category), row.role, birth.variable
        )
    for variable in known:
        first = shared.get(variable, variable)
        if first in made:
            history.values[variable] = made[first]
