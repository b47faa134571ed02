"""What XLA compiles as a function of one size: the lowered module, its axes and constants closed forms.

Before XLA's passes a module's instructions are those that lowering wrote, in its order; from one batch
to another only axes, bounds of slices, windows and constants differ (of a MobileNetV2's instructions:
1,930 shapes, 177 constants of axes, 111 of a mean's divisor). So the module of any size is written down
from two, and the compiler plans it, with no new capture. Constants of floats keep the first one's
values, which decide nothing of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from analyzer.fitting.scaling.closed_forms import NoForm, through
from analyzer.tracing.parse.protobuf import message_class

_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "Shape": {"dimensions": (3, "int64[]"), "tuple_shapes": (4, "Shape[]")},
    "ProgramShape": {"parameters": (1, "Shape[]"), "result": (2, "Shape")},
    "Literal": {
        "shape": (1, "Shape"),
        "s32s": (4, "int64[]"),
        "s64s": (5, "int64[]"),
        "u32s": (6, "int64[]"),
        "u64s": (7, "int64[]"),
        "f32s": (8, "bytes"),
        "f64s": (9, "bytes"),
        "tuple_literals": (10, "Literal[]"),
        "f16s": (11, "bytes"),
        "c64s": (12, "bytes"),
        "bf16s": (13, "bytes"),
    },
    "Slice": {"start": (1, "int64"), "limit": (2, "int64"), "stride": (3, "int64")},
    "WindowDimension": {
        "size": (1, "int64"),
        "stride": (2, "int64"),
        "padding_low": (3, "int64"),
        "padding_high": (4, "int64"),
        "window_dilation": (5, "int64"),
        "base_dilation": (6, "int64"),
    },
    "Window": {"dimensions": (1, "WindowDimension[]")},
    "PaddingDimension": {
        "edge_padding_low": (1, "int64"),
        "edge_padding_high": (2, "int64"),
        "interior_padding": (3, "int64"),
    },
    "Padding": {"dimensions": (1, "PaddingDimension[]")},
    "Attribute": {"key": (1, "bytes"), "value": (2, "bytes")},
    "Attributes": {"map": (1, "Attribute[]")},
    "Instruction": {
        "shape": (3, "Shape"),
        "literal": (8, "Literal"),
        "window": (15, "Window"),
        "slice_dimensions": (17, "Slice[]"),
        "dynamic_slice_sizes": (20, "int64[]"),
        "padding_config": (21, "Padding"),
        "gather_slice_sizes": (34, "int64[]"),
        "operand_shapes_with_layout": (57, "Shape[]"),
        "frontend_attributes": (68, "Attributes"),
    },
    "Computation": {
        "name": (1, "bytes"),
        "instructions": (2, "Instruction[]"),
        "program_shape": (4, "ProgramShape"),
    },
    "Module": {
        "name": (1, "bytes"),
        "entry_computation_name": (2, "bytes"),
        "computations": (3, "Computation[]"),
        "host_program_shape": (4, "ProgramShape"),
    },
}
"""The fields that a size may be in, of ``xla/service/hlo.proto`` and ``xla/xla_data.proto``. Others are
kept as they are. Numbers of 4 bytes have the same encoding as those of 8; packed floats are bytes."""

_FREE: Final = {
    "Literal": ("f32s", "f64s", "f16s", "c64s", "bf16s"),
    "Computation": ("name",),
    "Module": ("name", "entry_computation_name"),
}
"""Fields by message that may be others at another size: floats, and names with the number that
TensorFlow gave the function."""

_Module: Final[Any] = message_class("analyzer.module_forms", _MESSAGES, "Module")


@dataclass(frozen=True, slots=True)
class ModuleForms:
    """Lowered modules of one function at several sizes.

    Attributes:
        sizes: Where they were lowered, rising.
        modules: Serialized (``HloModuleProto``), in that order.
    """

    sizes: tuple[int, ...]
    modules: tuple[bytes, ...]

    def at(self, size: int) -> bytes:
        """Return the module at a size.

        Raises:
            NoForm: the modules differ in more than whole numbers, or a number has no form there.
        """
        if size in self.sizes:
            return self.modules[self.sizes.index(size)]
        return bytes(self._made(size).SerializeToString(deterministic=True))

    def check(self, size: int, module: bytes) -> None:
        """Check that a module lowered at a size is the one that the forms give.

        Raises:
            NoForm: it is not.
        """
        made, lowered = self._made(size), _read(module)
        _each_pair(made, lowered, _take_free)
        if made != lowered:
            raise NoForm(f"XLA's module at {size} is another one")

    def _made(self, size: int) -> Any:
        made, *others = (_read(module) for module in self.modules)
        known: dict[tuple[int, ...], int] = {}

        def number(values: tuple[int, ...]) -> int:
            if values not in known:
                known[values] = through(list(zip(self.sizes, values, strict=True))).at(size)
                if known[values] < 0 <= min(values):
                    raise NoForm(f"{known[values]} at {size}")
            return known[values]

        _fill(made, others, number)
        return made


def forms_of(sizes: Sequence[int], modules: Sequence[bytes]) -> ModuleForms:
    """Return the forms of modules lowered at sizes.

    Raises:
        NoForm: they differ in more than axes, bounds and constants.
    """
    forms = ModuleForms(tuple(sizes), tuple(modules))
    for size, module in list(zip(sizes, modules, strict=True))[1:]:
        forms.check(size, module)
    return forms


def _read(module: bytes) -> Any:
    """Return a module; its attributes, which are written in an order of chance, sorted.

    Raises:
        NoForm: it is damaged.
    """
    try:
        read = _Module.FromString(module)
    except DecodeError as error:
        raise NoForm(f"a module cannot be read: {error}") from None
    for computation in read.computations:
        for one in computation.instructions:
            if one.HasField("frontend_attributes"):
                one.frontend_attributes.map.sort(key=lambda each: (each.key, each.value))
    return read


def _fill(made: Any, others: Sequence[Any], number: Callable[[tuple[int, ...]], int]) -> None:
    """Put the forms' values into a message.

    Args:
        made: The message at the first size; changed.
        others: At the other sizes.
        number: The form's value of whole numbers at the sizes.

    Raises:
        NoForm: the messages have other parts.
    """
    if all(other == made for other in others):
        return
    free = _FREE.get(made.DESCRIPTOR.name, ())
    for field in made.DESCRIPTOR.fields:
        values = [getattr(one, field.name) for one in (made, *others)]
        if _is_list(field):
            if len({len(value) for value in values}) > 1:
                raise NoForm(f"a list of {field.name} is longer at one size than at another")
            for at, same in enumerate(zip(*values, strict=True)):
                if field.message_type is not None:
                    _fill(same[0], same[1:], number)
                elif len(set(same)) > 1:
                    values[0][at] = number(same)
        elif field.message_type is not None:
            if made.HasField(field.name):
                _fill(values[0], values[1:], number)
        elif field.name not in free and len(set(values)) > 1:
            if isinstance(values[0], bytes):
                raise NoForm(f"a {field.name} is another one")
            setattr(made, field.name, number(tuple(values)))


def _is_list(field: Any) -> bool:
    """Say whether a field is repeated (what the descriptor calls that differs by protobuf's version)."""
    return _MESSAGES[field.containing_type.name][field.name][1].endswith("[]")


def _each_pair(made: Any, other: Any, do: Callable[[Any, Any], None]) -> None:
    """Do something with every two messages that stand in the same place and differ."""
    if made == other:
        return
    do(made, other)
    for field in made.DESCRIPTOR.fields:
        if field.message_type is None:
            continue
        if _is_list(field):
            pairs = zip(getattr(made, field.name), getattr(other, field.name), strict=False)
            for one, two in pairs:
                _each_pair(one, two, do)
        elif made.HasField(field.name) and other.HasField(field.name):
            _each_pair(getattr(made, field.name), getattr(other, field.name), do)


def _take_free(made: Any, other: Any) -> None:
    """Let a message have another one's names, and its floats where they are as many."""
    for name in _FREE.get(made.DESCRIPTOR.name, ()):
        if name.endswith("name") or len(getattr(made, name)) == len(getattr(other, name)):
            setattr(made, name, getattr(other, name))
