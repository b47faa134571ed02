"""The mark of tests that run steps on simulated cards."""

import pytest

from analyzer.phantom.phantom_environment import has_phantom

NEEDS_CARDS = pytest.mark.skipif(
    not has_phantom(),
    reason="needs Linux on x86-64, a compiler and TensorFlow 2.18 or newer",
)
