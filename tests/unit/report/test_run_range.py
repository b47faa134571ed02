"""The range that one more run of a step leaves rarely."""

import numpy as np
import pytest

from analyzer.explain.run_range import widen
from analyzer.model.units import Range


@pytest.mark.parametrize("runs", [2, 5, 12, 39])
def test_one_more_run_lies_outside_in_two_of_a_hundred_cases(runs: int) -> None:
    generator = np.random.default_rng(runs)
    peaks = generator.integers(10**9, 2 * 10**9, (4000, runs + 1)).tolist()
    outside = sum(
        last not in widen(Range.spanning(seen), runs) for *seen, last in peaks
    )
    assert outside / len(peaks) == pytest.approx(0.02, abs=0.01)
