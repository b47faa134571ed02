"""What is taken for what the data decide, in words."""

import pytest

from analyzer.capture.targets.target_spec import parse_assumptions
from analyzer.model.errors import TargetError
from analyzer.simulate.predict.decisions import Decision, describe_decision

MIB = 1 << 20


def test_a_loop_with_a_bound_says_so_and_how_to_say_otherwise():
    loop = Decision(
        name="while", is_loop=True, outcome=120, bounded=True, other_bytes=3 * MIB
    )
    sentence = describe_decision(loop)
    assert "assumed: 120 trips, the most that its condition allows" in sentence
    assert "with one trip the peak is 3.00 MiB" in sentence
    assert "--assume while=N" in sentence


def test_a_loop_without_one_cannot_be_known():
    sentence = describe_decision(Decision(name="while", is_loop=True, outcome=1))
    assert "decide the trips of loop while; assumed: 1 trip " in sentence


@pytest.mark.parametrize("is_loop", [True, False])
def test_what_is_told_is_said_to_be(is_loop):
    chosen = Decision(name="way", is_loop=is_loop, outcome=3, by_user=True)
    sentence = describe_decision(chosen)
    assert "way" in sentence
    assert "3" in sentence
    assert sentence.endswith("as assumed (--assume).")


def test_assumptions_are_names_with_numbers():
    assert parse_assumptions(["while/a=7", "Where = 12"]) == {"while/a": 7, "Where": 12}


@pytest.mark.parametrize(
    "text", ["", "while", "=3", "while=", "while=-1", "a=1e9", "a=9999999999"]
)
def test_what_assumes_nothing_is_refused(text):
    with pytest.raises(TargetError):
        parse_assumptions([text])
