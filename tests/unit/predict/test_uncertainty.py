"""The range in words."""

from pathlib import Path

import pytest

from analyzer.opening import open_result
from analyzer.predict.schedules import Schedules
from analyzer.predict.uncertainty.stated_range import told

MIB = 1 << 20
NOTES = Path(__file__).parent / "notes"


@pytest.mark.parametrize(
    ("draws_bytes", "said"),
    [
        ((5 * MIB, 6 * MIB, 7 * MIB), "between 5.00 MiB and 7.00 MiB, the middle one at 6.00 MiB."),
        ((5 * MIB, 5 * MIB, 5 * MIB + 8), "3 that were drawn peak at 5.00 MiB."),
    ],
)
def test_peaks_that_read_alike_are_named_once(draws_bytes: tuple[int, ...], said: str) -> None:
    sentence = told(Schedules(threads=2, seeds=(0, 1, 2), draws_bytes=draws_bytes))
    assert sentence.startswith("On 2 inter-op threads")
    assert sentence.endswith(said)


def test_what_is_alive_beside_the_draws_is_in_the_sentence() -> None:
    kind = Schedules(threads=1, seeds=(0, 1, 2), draws_bytes=(5 * MIB, 6 * MIB, 7 * MIB))
    assert "between 6.00 MiB and 8.00 MiB, the middle one at 7.00 MiB" in told(kind, MIB)


def test_tensors_that_python_holds_are_in_the_range() -> None:
    # GIVEN a step beside which the build-up left 820 B (notes/infer)
    document = open_result(NOTES / "infer", search=False).document
    stated, peak = document["uncertainty"], document["peak"]["requested_bytes"]
    # THEN the range is about the figure shown, not about the step's own part of it
    assert stated["high_bytes"] - peak == peak - stated["low_bytes"] == 16 << 10
    assert stated["schedules"][0]["requested_bytes"] == peak
