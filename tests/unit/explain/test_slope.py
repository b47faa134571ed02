"""Whether a series grows, against series made with a known slope and noise."""

import random

import pytest

from analyzer.explain.running.slope import growth_of

LEVEL = 100 << 20


def series(
    steps: int, slope: float = 0.0, noise: int = 0, warm: int = 0, seed: int = 1
) -> dict[int, int]:
    """Return sizes that grow by ``slope`` after ``warm`` steps in which they grow by a MiB each."""
    chance = random.Random(seed)
    return {
        step: LEVEL
        + round(slope * step)
        + (min(step, warm) << 20)
        + chance.randrange(noise + 1)
        for step in range(1, steps + 1)
    }


@pytest.mark.parametrize("slope", [4096, 1 << 20])
@pytest.mark.parametrize("noise", [0, 1 << 20])
def test_growth_is_found_and_its_slope_lies_in_the_range(
    slope: int, noise: int
) -> None:
    growth = growth_of(series(1000, slope, noise, warm=20), 3)
    assert growth.trend == "grows"
    assert growth.low_bytes <= slope * 1.02
    assert growth.high_bytes >= slope * 0.98


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0, 4096, 8 << 20])
def test_what_only_comes_and_goes_does_not_grow(seed: int, noise: int) -> None:
    assert growth_of(series(1000, 0, noise, warm=20, seed=seed), 3).trend != "grows"


@pytest.mark.parametrize(
    "sizes",
    [
        series(400, warm=60),  # fills up in the beginning
        series(20, -1000, noise=1 << 19),  # varies by less than a hundredth
    ],
)
def test_series_that_are_flat(sizes: dict[int, int]) -> None:
    assert growth_of(sizes, 3).trend == "flat"


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        series(8, 1 << 20),  # few
        series(14, 1000, noise=1 << 20, seed=2),
        series(20, -1000, noise=8 << 20),  # falls
        series(900, 4096) | {901: LEVEL},  # released in the end
    ],
)
def test_series_that_tell_nothing(sizes: dict[int, int]) -> None:
    assert growth_of(sizes, 3).trend == "cannot tell"
