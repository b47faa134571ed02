"""Allocations before the first step: variables, step inputs, optimizer slots, constants.

Their order decides chunks. A fresh process makes the model's variables, each by its initializer and
followed by the 200 bytes of its handle; the inputs; the slots, between two tracings of the step; small
variables, which get new buffers; the constants, when the step's kernels are created. Each tracing keeps
small constants. Equal slots share a buffer until the first write.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer.model.choice import Category
from analyzer.model.contract.fields import REHOMED_ELEMENTS
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.contract.run_note import BirthNote, Input
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.tracing.parse.run_folder import RunNote

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})

_TRACING_CONSTANT_BYTES: Final = 10
"""Mean size of a constant that a traced graph keeps: one to four integers that shape functions evaluate
(``ShapeRefiner``); 4.6 to 12.8 in traces of about sixty steps. Each takes a chunk of 256 bytes."""
_RANDOM_SCAFFOLD_BYTES: Final = (8, 8, 16)  # shape, key and counter of random numbers

_HELD: Final = (Category.CONSTANT, "tensor held by Python")
_TRACED: Final = (Category.CONSTANT, "constant kept by the traced graph")
_INPUT: Final = (Category.INPUT, "step input")
_DATA_ROLES: Final = {
    "arrays": "arrays of a data set",
    "shuffle": "shuffle buffer of a data set",
    "prefetch": "prefetched batches",
}


@dataclass(slots=True)
class StartupBuffer:
    """A buffer of the startup; ``dies`` is None while it lives."""

    size_bytes: int
    born: int
    category: Category = Category.TEMPORARY
    role: str = "building the model"  # A finer category, in words
    dies: int | None = None
    # index of the variable in the note whose value or handle it is; None for none
    variable: int | None = None


@dataclass
class Startup:
    """The startup, instant by instant."""

    note: RunNote = field(default_factory=RunNote)
    sizes_bytes: Sequence[int] = ()
    device: KernelDevice = CPU
    buffers: list[StartupBuffer] = field(default_factory=list)
    # variable (index in the note) -> its buffer's number in ``buffers``
    values: dict[int, int] = field(default_factory=dict)
    handles: dict[int, int] = field(default_factory=dict)  # variable -> its handle's number
    inputs: list[int] = field(default_factory=list)  # the number of each input; -1 for none
    constants: dict[int, int] = field(default_factory=dict)  # node -> the number of its output
    instants: int = 0

    def allocate(self, size_bytes: int, *labels: Any) -> int:
        """Add a buffer and return its number; ``labels`` are category and role if not temporary."""
        self.buffers.append(StartupBuffer(size_bytes, self.instants, *labels))
        self.instants += 1
        return len(self.buffers) - 1

    def free(self, number: int) -> None:
        """End a buffer."""
        self.buffers[number].dies = self.instants
        self.instants += 1

    def hold_value(self, number: int, variable: int) -> None:
        """Make a buffer the value of a variable."""
        buffer, row = self.buffers[number], self.note.variables[variable]
        buffer.category, buffer.role, buffer.variable = Category(row.category), row.role, variable
        self.values[variable] = number

    def add_handle(self, variable: int) -> None:
        """Allocate the handle of a variable, if the device has handles."""
        if self.device.handle_bytes:
            self.handles[variable] = self.allocate(self.device.handle_bytes, *_HELD)

    def add_input(self, given: Input) -> int:
        """Create an input and return its buffer; -1 if it is empty or on the host.

        A float input is random numbers, scaled and shifted. At the start of a process their shape, key
        and counter (``StatelessRandomGetKeyCounter``) create the host's first region, of 2 MiB, before
        the input gets a region of its own. Later they fit between other buffers.
        """
        size_bytes = _size_of(given)
        if not size_bytes or given.dtype in self.device.host_dtypes:
            return -1
        scaffold: list[int] = []
        if given.dtype in _FLOATS:
            if not self.buffers and self.device.kind == CPU.kind:
                scaffold = [self.allocate(small) for small in _RANDOM_SCAFFOLD_BYTES]
            scaffold += [self.allocate(size_bytes), self.allocate(size_bytes)]
        value = self.allocate(size_bytes, *_INPUT)
        for number in reversed(scaffold):
            self.free(number)
        return value

    def is_on_host(self, birth: BirthNote) -> bool:
        """Return whether a variable lives in host memory instead of the device's."""
        number = birth.variable
        return number is not None and not self.device.holds(self.note.variables[number])

    def create_variable(self, birth: BirthNote) -> None:
        """Replay the requests (number, bytes) and frees (number, 0) of a variable's initializer."""
        if self.is_on_host(birth):
            return
        live: dict[int, int] = {}
        for number, size_bytes in birth.events:
            if size_bytes:
                live[number] = self.allocate(size_bytes)
            else:
                self.free(live.pop(number))
        left, variable = list(live.values()), birth.variable
        # A variable without a size has no value here; its initializer's buffers are Python's.
        if left and variable is not None and self.sizes_bytes[variable]:
            self.hold_value(left.pop(), variable)
            self.add_handle(variable)
        for held in left:  # numbers that Python passes to ops
            self.buffers[held].category, self.buffers[held].role = _HELD

    def create_slots(self, births: Sequence[BirthNote]) -> None:
        """Create the optimizer's variables; equal ones start in one buffer."""
        births = [birth for birth in births if not self.is_on_host(birth)]
        for birth in births:
            if birth.variable is not None:
                self.add_handle(birth.variable)
        shared = find_shared_slots(births)
        for birth in births:
            variable = birth.variable
            if variable is None or variable in shared or not self.sizes_bytes[variable]:
                continue
            if size_bytes := max((size for _, size in birth.events), default=0):
                self.hold_value(self.allocate(size_bytes), variable)
        for variable, first in shared.items():
            if first in self.values:
                self.values[variable] = self.values[first]

    def rehome(self) -> None:
        """Move each small variable: allocate zeros and the sum with the value, free the old buffer."""
        owners = Counter(self.values.values())
        for variable in sorted(find_rehomed(self.note, self.device) & self.values.keys()):
            old = self.values[variable]
            zeros = self.allocate(self.sizes_bytes[variable])
            self.hold_value(self.allocate(self.sizes_bytes[variable]), variable)
            self.free(zeros)
            owners[old] -= 1
            if not owners[old]:
                self.free(old)
                self.buffers[old].variable = None


def play_startup(
    note: RunNote,
    sizes_bytes: Sequence[int],
    constants: Mapping[int, int],
    device: KernelDevice = CPU,
    *,
    is_compiled: bool = False,
) -> Startup:
    """Return the allocations before the first step.

    ``constants`` are bytes by node; ``is_compiled``: the step is one function that XLA compiles.
    """
    startup = Startup(note, sizes_bytes, device)
    if device.scratch_bytes:
        startup.allocate(device.scratch_bytes, Category.CONSTANT, "scratch of TensorFlow's device")
    _create_variables_and_inputs(startup)
    slots = [birth for birth in note.births if birth.traced]
    on_host = device.kind == CPU.kind
    for kind, role in _DATA_ROLES.items() if on_host else ():
        if size_bytes := note.data_bytes.get(kind):
            startup.allocate(size_bytes, Category.INPUT, role)
    tracing_constants = note.kept_by_tracing if on_host else 0
    slot_constants = note.kept_by_slots if on_host else 0
    # A step that creates variables is traced twice; slots get their values in between.
    second_tracing = tracing_constants // 2 if slots else tracing_constants
    for _ in range(tracing_constants - second_tracing + slot_constants):
        startup.allocate(_TRACING_CONSTANT_BYTES, *_TRACED)
    # The function that creates slots gets the shapes of their values as inputs.
    shapes = [startup.allocate(_TRACING_CONSTANT_BYTES) for _ in range(slot_constants)]
    startup.create_slots(slots)
    for number in shapes:
        startup.free(number)
    for _ in range(second_tracing):
        startup.allocate(_TRACING_CONSTANT_BYTES, *_TRACED)
    startup.rehome()
    for node, size_bytes in constants.items():
        startup.constants[node] = startup.allocate(size_bytes, Category.CONSTANT, "constant")
    if is_compiled and not on_host:
        # XLA-compiled functions take all their arguments on the card. The eager runtime keeps the
        # copy of an int32 input for as long as the tensor lives (``ValidateInputTypeAndPlacement``
        # in ``execute.cc`` asks for a mirror; ``tensor_handle.cc``).
        for index, given in enumerate(note.inputs):
            if given.dtype == "int32" and _size_of(given):
                startup.inputs[index] = startup.allocate(_size_of(given), *_INPUT)
    return startup


def _create_variables_and_inputs(startup: Startup) -> None:
    """Create variables, and the inputs among them if the model is built at its first call."""
    note = startup.note
    births = [birth for birth in note.births if not birth.traced]
    after: list[int | None] = [*note.inputs_after, *[None] * len(note.inputs)]
    places = [len(births) if n is None else int(n) for n in after[: len(note.inputs)]]
    startup.inputs = [-1] * len(note.inputs)
    for count, birth in enumerate(births):
        for index in (index for index, place in enumerate(places) if place == count):
            startup.inputs[index] = startup.add_input(note.inputs[index])
        startup.create_variable(birth)
    known = {birth.variable for birth in note.births}
    for variable, size_bytes in enumerate(startup.sizes_bytes):
        if variable not in known and size_bytes:
            startup.hold_value(startup.allocate(size_bytes), variable)
            startup.add_handle(variable)
    for index in (index for index, place in enumerate(places) if place >= len(births)):
        startup.inputs[index] = startup.add_input(note.inputs[index])


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
    on_host = device.kind == CPU.kind and bool(note.births)
    return {
        number
        for number, row in enumerate(note.variables)
        if on_host
        and row.shape is not None
        and row.dtype not in ("bool", "string")
        and math.prod(row.shape) <= REHOMED_ELEMENTS
    }


def _size_of(given: Input) -> int:
    return TensorSpec(given.dtype, given.shape).size_bytes or 0
