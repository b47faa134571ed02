"""What is said of functions that were traced again, by how often."""

import pytest

from analyzer.explain.running.kept_objects import find_retracing
from analyzer.model.contract.run_note import Retrace, TracedFunction, WatchNote


def watched(**figures: object) -> WatchNote:
    retrace = Retrace(
        step=30, call=31, changed="rate: Python float 0.1 -> Python float 0.2"
    )
    function = TracedFunction(
        name="step",
        where="train.py:3",
        called_at="train.py:9",
        retraces=(retrace,),
        **figures,  # type: ignore[arg-type]
    )
    return WatchNote(functions=(function,), steps=100)


@pytest.mark.parametrize(
    "figures",
    [
        {"calls": 100, "traces": 2},  # a last, smaller batch
        {
            "calls": 4,
            "traces": 4,
            "objects": 4,
        },  # train, test and predict of two models
    ],
)
def test_what_is_traced_a_few_times_is_no_matter(figures: dict[str, int]) -> None:
    assert not list(find_retracing(watched(**figures)))


def test_what_is_traced_in_many_calls_is_told_with_what_was_new() -> None:
    (found,) = find_retracing(watched(calls=100, traces=80))
    assert found.id == "retraced"
    assert "`step` 80 times in 100 calls" in found.title
    assert "train.py:9" in found.title
    assert "Python float 0.2" in found.detail
    assert found.evidence[0]["what"] == "call 31"
