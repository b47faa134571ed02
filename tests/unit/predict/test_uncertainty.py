"""The range in words."""

import pytest

from analyzer.predict.prediction import Schedules
from analyzer.predict.uncertainty import told

MIB = 1 << 20


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
