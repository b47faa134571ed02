"""The range in words."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzer.model.ranges import Range
from analyzer.session.opening import open_result
from analyzer.simulate.predict.sampling import ScheduleSample
from analyzer.simulate.predict.uncertainty.stated_range import (
    describe_schedules,
    estimate_allocated_range,
)

MIB = 1 << 20
NOTES = Path(__file__).parent / "notes"


def sample(threads: int, *peaks_bytes: int) -> ScheduleSample:
    """Return schedules with these peaks."""
    return ScheduleSample.of([SimpleNamespace(peak_bytes=peak) for peak in peaks_bytes], threads)


@pytest.mark.parametrize(
    ("peaks_bytes", "said"),
    [
        ((5 * MIB, 6 * MIB, 7 * MIB), "between 5.00 MiB and 7.00 MiB, median 6.00 MiB."),
        ((5 * MIB, 5 * MIB, 5 * MIB + 8), "3 sampled orders peak at 5.00 MiB."),
    ],
)
def test_peaks_that_read_alike_are_named_once(peaks_bytes: tuple[int, ...], said: str) -> None:
    sentence = describe_schedules(sample(2, *peaks_bytes))
    assert sentence.startswith("On 2 inter-op threads")
    assert sentence.endswith(said)


def test_what_is_alive_beside_the_draws_is_in_the_sentence() -> None:
    peaks = sample(1, 5 * MIB, 6 * MIB, 7 * MIB)
    assert "between 6.00 MiB and 8.00 MiB, median 7.00 MiB" in describe_schedules(peaks, MIB)


def test_tensors_that_python_holds_are_in_the_range() -> None:
    # GIVEN a step beside which the build-up left 820 B (notes/infer)
    document = open_result(NOTES / "infer", search=False).document
    stated, peak = document["uncertainty"], document["peak"]["requested_bytes"]
    # THEN the range is about the figure shown, not about the step's own part of it
    assert stated["high_bytes"] - peak == peak - stated["low_bytes"] == 16 << 10
    assert stated["schedules"][0]["requested_bytes"] == peak


@pytest.mark.parametrize("count", [9, 19, 39])
def test_one_more_sum_of_many_chunks_lies_between_the_allocated_ends(count: int) -> None:
    chances = random.Random(count)

    def peak() -> int:
        return sum(chances.choice((0, MIB)) for _ in range(60)) + 500 * MIB

    inside = 0
    for _ in range(600):
        inside += peak() in estimate_allocated_range([peak() for _ in range(count)])
    assert inside / 600 > 0.9
    assert estimate_allocated_range([MIB]) == estimate_allocated_range([MIB] * 3) == Range(MIB, MIB)
