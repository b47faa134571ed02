"""Assumptions about what the data decide."""

import pytest

from analyzer.capture.targets.target_spec import parse_assumptions
from analyzer.model.errors import TargetError


def test_assumptions_are_names_with_numbers():
    assert parse_assumptions(["while/a=7", "Where = 12"]) == {"while/a": 7, "Where": 12}


@pytest.mark.parametrize(
    "text", ["", "while", "=3", "while=", "while=-1", "a=1e9", "a=9999999999"]
)
def test_what_assumes_nothing_is_refused(text):
    with pytest.raises(TargetError):
        parse_assumptions([text])
