"""The mark of tests that run steps on simulated cards."""

import pytest

from analyzer.simulated_card.card_environment import has_simulated_card

NEEDS_CARDS = pytest.mark.skipif(
    not has_simulated_card(),
    reason="needs Linux on x86-64, a compiler and TensorFlow 2.18 or newer",
)
