"""What XLA compiles at one batch, written down from what it compiles at two others."""

from __future__ import annotations

import pytest

from analyzer.fitting.scaling.closed_forms import NoForm
from analyzer.fitting.scaling.module_forms import _Module, forms_of


def module(batch: int, *, features: int = 8, name: bytes = b"a_1", extra: int = 0) -> bytes:
    """Return a module of two instructions whose axes, constant and slice grow with the batch."""
    made = _Module()
    made.name = name
    entry = made.computations.add(name=name)
    made.host_program_shape.parameters.add(dimensions=[batch, features])
    first = entry.instructions.add()
    first.shape.dimensions.extend([batch, features])
    first.slice_dimensions.add(start=0, limit=2 * batch + 1, stride=1)
    second = entry.instructions.add()
    second.literal.s32s.extend([batch, features])
    second.literal.f32s = batch.to_bytes(4, "little")
    order = ((b"x", b"1"), (b"y", b"2"))
    for key, value in order if batch % 2 else reversed(order):
        second.frontend_attributes.map.add(key=key, value=value)
    for _ in range(extra):
        entry.instructions.add()
    return bytes(made.SerializeToString())


def test_a_third_module_is_the_one_that_the_forms_of_two_give() -> None:
    forms = forms_of((3, 8), (module(3), module(8, name=b"a_2")))
    forms.check(21, module(21, name=b"a_3"))
    made = _Module.FromString(forms.at(21))
    assert list(made.computations[0].instructions[0].shape.dimensions) == [21, 8]
    assert made.computations[0].instructions[0].slice_dimensions[0].limit == 43
    assert list(made.computations[0].instructions[1].literal.s32s) == [21, 8]


def test_a_size_that_was_lowered_is_given_as_it_was() -> None:
    assert forms_of((3, 8), (module(3), module(8))).at(8) == module(8)


@pytest.mark.parametrize("other", [module(21, features=9), module(21, extra=1)])
def test_another_module_is_refused(other: bytes) -> None:
    with pytest.raises(NoForm):
        forms_of((3, 8), (module(3), module(8))).check(21, other)


def test_modules_with_other_instructions_have_no_forms() -> None:
    with pytest.raises(NoForm):
        forms_of((3, 8), (module(3), module(8, extra=1)))


def test_a_damaged_module_has_no_forms() -> None:
    with pytest.raises(NoForm):
        forms_of((3, 8), (module(3), b"\xff\xff\xff"))
