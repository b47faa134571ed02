"""What ``analyze fit`` varies: the batch, or axes that are written with an N."""

import pytest

from analyzer.fitting.fit_answer import (
    apply_size,
    choose_first_size,
    insert_size,
    parse_varied,
    split_shapes,
)
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.errors import InputError

OPTIONS = CaptureOptions(batch_size=8, shapes={"mask": (64,)})


def test_the_batch_varies_where_no_axis_does() -> None:
    fixed, varied = split_shapes(["224,224,3"])
    assert (fixed, varied) == (["224,224,3"], ())
    assert apply_size(varied, OPTIONS, 5).batch_size == 5
    assert choose_first_size(varied, OPTIONS) == 8


def test_axes_with_an_n_become_numbers() -> None:
    fixed, varied = split_shapes(["mask=64", "NAME=32n, 32N,3", "ids=N"])
    assert fixed == ["mask=64"]
    made = apply_size(varied, OPTIONS, 3)
    assert made.shapes == {"mask": (64,), "NAME": (96, 96, 3), "ids": (3,)}
    assert made.batch_size == 8
    assert choose_first_size(varied, OPTIONS) == 4


def test_names_may_hold_an_n() -> None:
    assert insert_size("N=N,2 32N=64N", 4) == "N=4,2 32N=256"


@pytest.mark.parametrize("shape", ["ids=64", "ids=N*2", "N-1,3", "0N,0N,3"])
def test_what_is_no_axis_is_refused(shape: str) -> None:
    with pytest.raises(InputError):
        parse_varied([shape])
