"""Allocations before the first step: variables, step inputs, optimizer slots, constants.

Their order decides chunks. A tensor that is born into the gap of an initializer's temporary gets the
whole gap if less than its own size would be left over, and keeps it.

The order of a fresh process: the model's variables, each by its initializer and followed by the 200
bytes of its handle; the inputs; the slots, between two tracings of the step; small variables, which
get new buffers; the constants, when the step's kernels are created. Each tracing keeps small
constants. Grappler computes the values of slots while it optimizes their graph and frees them, then
the graph runs. Equal slots share a buffer until the first write.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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

_TRACING_CONSTANT_BYTES: Final = 10
"""Mean size of a constant that a traced graph keeps: one to four integers (axes, shapes, slices)
that shape functions evaluate (``ShapeRefiner``). In traces of about sixty steps the mean was 4.6 to
12.8. Each takes a chunk of 256 bytes."""

_RANDOM_SCAFFOLD_BYTES: Final = (8, 8, 16)
"""Temporaries of random numbers: their shape, a key, a counter."""


@dataclass(slots=True)
class StartupBuffer:
    """A buffer of the startup.

    Attributes:
        size_bytes: Requested bytes.
        born, dies: Instants; ``dies`` is None while it lives.
        variable: Index of the variable in the note whose value or handle it is; None for none.
        category: Category of its contents.
        role: A finer category, in words.
    """

    size_bytes: int
    born: int
    dies: int | None
    variable: int | None
    category: Category
    role: str


@dataclass
class Startup:
    """The startup, instant by instant.

    Attributes:
        buffers: Its buffers, in order of birth.
        values: Variable (index in the note) -> its buffer's number in ``buffers``.
        handles: Variable -> its handle's number.
        inputs: The number of each input; -1 for none.
        constants: Node -> the number of its output.
        instants: Number of allocations and frees.
        device: The device whose memory is counted.
    """

    buffers: list[StartupBuffer] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)
    handles: dict[int, int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    constants: dict[int, int] = field(default_factory=dict)
    instants: int = 0
    device: KernelDevice = CPU

    def allocate(
        self,
        size_bytes: int,
        category: Category = Category.TEMPORARY,
        role: str = "building the model",
        variable: int | None = None,
    ) -> int:
        """Add a buffer and return its number."""
        self.buffers.append(
            StartupBuffer(size_bytes, self.instants, None, variable, category, role)
        )
        self.instants += 1
        return len(self.buffers) - 1

    def free(self, number: int) -> None:
        """End a buffer."""
        self.buffers[number].dies = self.instants
        self.instants += 1

    def label(self, number: int, category: Category, role: str, variable: int | None) -> None:
        """Set contents and variable of a buffer."""
        buffer = self.buffers[number]
        buffer.category, buffer.role, buffer.variable = category, role, variable

    def replay(self, events: Iterable[tuple[int, int]]) -> list[int]:
        """Replay (number, bytes) requests and (number, 0) frees; return the buffers that live on."""
        numbers: dict[int, int] = {}
        for number, size_bytes in events:
            if size_bytes:
                numbers[number] = self.allocate(size_bytes)
            else:
                self.free(numbers.pop(number))
        return [*numbers.values()]


def play_startup(
    note: RunNote,
    sizes_bytes: Sequence[int],
    constants: Mapping[int, int],
    device: KernelDevice = CPU,
    *,
    is_compiled: bool = False,
) -> Startup:
    """Return the allocations before the first step.

    Args:
        sizes_bytes: Bytes of each variable of the note.
        constants: Node -> bytes of its kernel's constant.
        device: The device whose memory is counted.
        is_compiled: Whether the step is one function that XLA compiles.
    """
    startup = Startup(device=device)
    if device.scratch_bytes:
        startup.allocate(device.scratch_bytes, Category.CONSTANT, "scratch of TensorFlow's device")
    _create_variables_and_inputs(startup, note, sizes_bytes)
    slots = [birth for birth in note.births if birth.traced]
    on_host = device.kind == CPU.kind
    tracing_constants = note.kept_by_tracing if on_host else 0
    slot_constants = note.kept_by_slots if on_host else 0
    # A step that creates variables is traced twice; slots get their values in between.
    first_tracing = tracing_constants - tracing_constants // 2 if slots else 0
    _add_tracing_constants(startup, first_tracing + slot_constants)
    # The function that creates slots gets the shapes of their values as inputs.
    shapes = [startup.allocate(_TRACING_CONSTANT_BYTES) for _ in range(slot_constants)]
    _create_slots(startup, note, slots, sizes_bytes)
    for number in shapes:
        startup.free(number)
    _add_tracing_constants(startup, tracing_constants - first_tracing)
    _rehome(startup, note, sizes_bytes)
    for node, size_bytes in constants.items():
        startup.constants[node] = startup.allocate(size_bytes, Category.CONSTANT, "constant")
    if is_compiled and not on_host:
        _copy_inputs(startup, note)
    return startup


def _create_variables_and_inputs(
    startup: Startup, note: RunNote, sizes_bytes: Sequence[int]
) -> None:
    """Create the model's variables, and the inputs among them.

    A model that is not built beforehand creates its variables at its first call with the inputs.
    """
    births = [birth for birth in note.births if not birth.traced]
    after: list[int | None] = [*note.inputs_after, *[None] * len(note.inputs)]
    places = [len(births) if n is None else int(n) for n in after[: len(note.inputs)]]
    startup.inputs = [-1] * len(note.inputs)
    for count in range(len(births) + 1):
        if count:
            _create_variable(startup, note, births[count - 1], sizes_bytes)
        for index, place in enumerate(places):
            if place == count < len(births):
                startup.inputs[index] = create_input(startup, note.inputs[index])
    known = {birth.variable for birth in note.births}
    for variable, size_bytes in enumerate(sizes_bytes):
        if variable not in known and size_bytes:
            _keep_value(startup, note, startup.allocate(size_bytes), variable)
    for index, place in enumerate(places):
        if place >= len(births):
            startup.inputs[index] = create_input(startup, note.inputs[index])


def _copy_inputs(startup: Startup, note: RunNote) -> None:
    """Copy ``int32`` inputs to the card: XLA-compiled functions take all their arguments there.

    The eager runtime keeps the copy for as long as the tensor lives
    (``ValidateInputTypeAndPlacement`` in ``execute.cc`` asks for a mirror; ``tensor_handle.cc``).
    """
    for index, given in enumerate(note.inputs):
        size_bytes = TensorSpec(given.dtype, given.shape).size_bytes or 0
        if given.dtype == "int32" and size_bytes:
            startup.inputs[index] = startup.allocate(size_bytes, Category.INPUT, "step input")


def find_shared_slots(births: Iterable[BirthNote]) -> dict[int, int]:
    """Return variable -> the first variable that starts in the same buffer, for merged slots."""
    first: dict[str, int] = {}
    shared: dict[int, int] = {}
    for birth in births:
        if not birth.traced or birth.variable is None:
            continue
        owner = first.setdefault(birth.sharing, birth.variable)
        if owner != birth.variable:
            shared[birth.variable] = owner
    return shared


def find_rehomed(note: RunNote, device: KernelDevice) -> set[int]:
    """Return the variables (indices in the note) that get a new buffer before the first step."""
    if device.kind != CPU.kind or not note.births:
        return set()
    return {
        number
        for number, row in enumerate(note.variables)
        if row.shape is not None
        and row.dtype not in ("bool", "string")
        and math.prod(row.shape) <= REHOMED_ELEMENTS
    }


def _add_tracing_constants(startup: Startup, count: int) -> None:
    for _ in range(count):
        startup.allocate(
            _TRACING_CONSTANT_BYTES, Category.CONSTANT, "constant kept by the traced graph"
        )


def _rehome(startup: Startup, note: RunNote, sizes_bytes: Sequence[int]) -> None:
    """Move each small variable: allocate zeros and the sum with the value, free the old buffer."""
    chosen = [v for v in sorted(find_rehomed(note, startup.device)) if v in startup.values]
    owners = Counter(startup.values.values())
    for variable in chosen:
        old = startup.values[variable]
        zeros = startup.allocate(sizes_bytes[variable])
        row = note.variables[variable]
        startup.values[variable] = startup.allocate(
            sizes_bytes[variable], Category(row.category), row.role, variable
        )
        startup.free(zeros)
        owners[old] -= 1
        if not owners[old]:
            startup.free(old)
            startup.buffers[old].variable = None


def _create_variable(
    startup: Startup, note: RunNote, birth: BirthNote, sizes_bytes: Sequence[int]
) -> None:
    if _is_on_host(startup, note, birth.variable):
        return
    live = startup.replay(birth.events)
    # A variable without a size has no value here; its initializer's buffers are Python's.
    variable = birth.variable
    if variable is not None and not sizes_bytes[variable]:
        variable = None
    for number in live[:-1]:  # numbers that Python passes to ops
        _keep_value(startup, note, number, None)
    for value in live[-1:]:
        _keep_value(startup, note, value, variable)


def _is_on_host(startup: Startup, note: RunNote, variable: int | None) -> bool:
    """Return whether a variable lives in host memory instead of the device's."""
    return variable is not None and note.variables[variable].dtype in startup.device.host_dtypes


def _keep_value(startup: Startup, note: RunNote, value: int, variable: int | None) -> None:
    if variable is None:
        startup.label(value, Category.CONSTANT, "tensor held by Python", None)
        return
    row = note.variables[variable]
    startup.label(value, Category(row.category), row.role, variable)
    startup.values[variable] = value
    _create_handle(startup, variable)


def _create_handle(startup: Startup, variable: int) -> None:
    if startup.device.handle_bytes:
        startup.handles[variable] = startup.allocate(
            startup.device.handle_bytes, Category.CONSTANT, "tensor held by Python"
        )


def create_input(startup: Startup, given: Input) -> int:
    """Create an input and return its buffer; -1 if it is empty or on the host.

    A float input is random numbers, scaled and shifted. At the start of a process their shape, key and
    counter (``StatelessRandomGetKeyCounter``) create the host's first region, of 2 MiB, before the input
    gets a region of its own. Later they fit between other buffers.
    """
    spec = TensorSpec(given.dtype, given.shape)
    size_bytes = spec.size_bytes or 0
    if not size_bytes or spec.dtype in startup.device.host_dtypes:
        return -1
    scaffold: list[int] = []
    if spec.dtype in _FLOATS:
        if not startup.buffers and startup.device.kind == CPU.kind:
            scaffold = [startup.allocate(small) for small in _RANDOM_SCAFFOLD_BYTES]
        scaffold += [startup.allocate(size_bytes), startup.allocate(size_bytes)]
    value = startup.allocate(size_bytes, Category.INPUT, "step input")
    for number in reversed(scaffold):
        startup.free(number)
    return value


def _create_slots(
    startup: Startup, note: RunNote, births: Sequence[BirthNote], sizes_bytes: Sequence[int]
) -> None:
    births = [birth for birth in births if not _is_on_host(startup, note, birth.variable)]
    _check_slots(note, births, sizes_bytes)
    variables = [birth.variable for birth in births if birth.variable is not None]
    for variable in variables:
        _create_handle(startup, variable)
    shared = find_shared_slots(births)
    own = _list_own_values(births, shared)
    if startup.device.kind == CPU.kind:  # grappler computes constants on the host
        for _, size_bytes in own:
            startup.free(startup.allocate(size_bytes))
    values = {}
    for variable, size_bytes in own:
        row = note.variables[variable]
        values[variable] = startup.allocate(size_bytes, Category(row.category), row.role, variable)
    for variable in variables:
        first = shared.get(variable, variable)
        if first in values:
            startup.values[variable] = values[first]


def _list_own_values(births: Sequence[BirthNote], shared: Collection[int]) -> list[tuple[int, int]]:
    """Return index and bytes of the variables that start with a buffer of their own."""
    return [
        (birth.variable, size_bytes)
        for birth in births
        if birth.variable is not None
        and birth.variable not in shared
        and (size_bytes := max((size for _, size in birth.events), default=0))
    ]


def _check_slots(note: RunNote, births: Sequence[BirthNote], sizes_bytes: Sequence[int]) -> None:
    """Check that no slot without a size has a value: others may start in its buffer."""
    for birth in births:
        if birth.variable is None or sizes_bytes[birth.variable]:
            continue
        if any(size for _, size in birth.events):
            path = note.variables[birth.variable].path
            raise TraceError(
                f"The note is damaged: its variable {path[:80]!r} has a value but a type without "
                f"a size.",
                hint="Estimate again.",
            )
