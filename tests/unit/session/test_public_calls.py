"""The public functions have typed options."""

import pytest

import analyzer


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="batchsize"):
        analyzer.estimate("keras:VGG16", batchsize=8)
